// A TOML file as a plain tree with the place of every value, in the order of the file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "profiler/base/error.h"
#include "profiler/base/knob.h"

namespace mbb::suites {

struct TomlPlace {
  int line = 0;
  int column = 0;
};

enum class TomlKind { kTable, kArray, kString, kInteger, kNumber, kBoolean, kTime };

// "a table", "a string", ... for messages.
const char* name(TomlKind kind);

struct TomlNode {
  TomlKind kind = TomlKind::kTable;
  std::string key;   // in a table: the key this value stands under
  TomlPlace key_at;  // of the key
  TomlPlace at;      // of the value; of the first key for a table that is only implied
  std::string text;  // kString
  int64_t integer = 0;
  double number = 0;
  bool flag = false;
  std::vector<TomlNode> items;  // kTable: entries; kArray: elements

  const TomlNode* find(std::string_view name) const;  // entry of a table, or nullptr
};

struct TomlFile {
  std::string path;  // as given, for messages
  std::string bytes;
  TomlNode root;

  // "path:line:column: what".
  tl::unexpected<Error> error(TomlPlace place, const std::string& what, std::string hint = {},
                              ErrorCode code = ErrorCode::kBadFile) const;
  // The place `offset` bytes into the string at `node`, when the file writes it on one line without escapes.
  TomlPlace inside(const TomlNode& node, size_t offset) const;
};

Result<TomlFile> read_toml(const std::string& path);
Result<TomlFile> parse_toml(std::string bytes, std::string path);

// A value for a knob: a scalar, a list of integers, or a table flattened to dotted names. Error for anything else.
Result<KnobData> knob_data(const TomlFile& file, const TomlNode& node);

}  // namespace mbb::suites
