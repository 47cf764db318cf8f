// What a suite's tables are read with: the field of a key, or an error that names the place, the key and the remedy.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "profiler/base/error.h"
#include "suites/matrix/toml_file.h"

namespace mbb::suites {

Status expect(const TomlFile& file, const TomlNode& node, TomlKind kind, std::string_view what);

// Refuses an entry of a table that is none of `keys`, with the nearest of them. `whose`: "a command", "[[claim]]".
Status check_keys(const TomlFile& file, const TomlNode& table, const std::vector<std::string>& keys,
                  std::string_view whose);

// Text that must be there and not blank.
Result<std::string> needed_text(const TomlFile& file, const TomlNode& table, const std::string& key);
// Text, or nothing.
Result<std::string> text_if_any(const TomlFile& file, const TomlNode& table, const std::string& key);
// A whole number from 0 on, or `otherwise`.
Result<int64_t> count_in(const TomlFile& file, const TomlNode& table, const std::string& key, int64_t otherwise);

// Tables of an array written [[key]], and those of a table written [key.NAME]; none where the file has no such key.
Result<std::vector<const TomlNode*>> tables_in_array(const TomlFile& file, const std::string& key);
Result<std::vector<const TomlNode*>> named_tables(const TomlFile& file, const std::string& key);

}  // namespace mbb::suites
