// Knobs as TOML tables: `[parallel] tp = 4`, `parallel.tp = 4`, `tp = 4` say the same, in settings and in suite files.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "profiler/base/knob_table.h"
#include "suites/matrix/settings.h"
#include "suites/matrix/toml_file.h"

namespace mbb::suites {

// One knob as a file sets it.
struct FileValue {
  std::string name;
  const TomlNode* node = nullptr;
};

// The knobs of a table: one level of section tables is opened. Setting one knob twice, by two spellings, is an error.
Result<std::vector<FileValue>> knobs_of(const TomlFile& file, const TomlNode& table);

// Sets one value of `file` in the trainer's part of the settings, or the product's where `product` allows that.
Status set_from_file(Settings& settings, const TomlFile& file, const FileValue& value, Layer layer,
                     bool product_allowed);

}  // namespace mbb::suites
