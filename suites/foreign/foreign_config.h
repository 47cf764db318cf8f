// The configuration of another trainer as text: Megatron-Bridge's YAML (run_config.yaml, or printed in the log) and
// Megatron's argument dump, read into a flat list of settings.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "profiler/base/error.h"
#include "suites/foreign/training_log.h"

namespace mbb::suites {

// The block style that PyYAML writes: mappings, sequences, scalars plain or quoted, folded lines, anchors. Nested keys
// are joined by dots; a sequence of scalars is one setting "[a, b]"; an object that the file describes by _target_ and
// _call_ is one setting whose value is its target with its arguments. `first_line` is the number of the first line.
Result<std::vector<ForeignSetting>> read_yaml(std::string_view text, int first_line = 1);

// "  adam_beta1 ........ 0.9" lines between the marks of Megatron's dump, or the whole text without marks; whatever a
// launcher puts before a line is left out.
std::vector<ForeignSetting> read_argument_dump(std::string_view text);

enum class ConfigKind { kNone, kYaml, kArguments };
// By its first lines: `_target_` or nested keys of a trainer, or the dump's mark.
ConfigKind config_kind(std::string_view text);

// The value of a setting, or of the one whose last part is `key`; nothing when there is none or several differ.
std::optional<std::string> setting(const std::vector<ForeignSetting>& settings, std::string_view key);
int64_t integer_setting(const std::vector<ForeignSetting>& settings, std::string_view key);  // 0 without one

// Collects a configuration that a log prints between its marks.
class ConfigCollector {
 public:
  // True when the line belongs to a configuration.
  bool line(std::string_view text, int64_t number);
  bool is_yaml() const { return yaml_; }
  std::vector<ForeignSetting> take();  // empty when a block was cut off or is no YAML

 private:
  ConfigKind open_ = ConfigKind::kNone;
  bool yaml_ = false;
  std::string prefix_;  // what a launcher puts before every line
  std::string text_;
  int first_line_ = 0;
  std::vector<ForeignSetting> arguments_;
};

}  // namespace mbb::suites
