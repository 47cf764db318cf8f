// Reads and expands the command of a cell.
#include "suites/matrix/command_spec.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "profiler/base/text.h"
#include "suites/foreign/training_log.h"
#include "suites/matrix/toml_fields.h"
#include "trainer/run/knobs.h"

namespace mbb::suites {
namespace {

constexpr std::array<std::string_view, 6> kNames = {"gpus", "nodes", "gpus_per_node", "run_dir", "cell", "launch"};
constexpr int64_t kLongest = int64_t{30} * 24 * 3600;

// Any value of a name that is known: for checking a template before there are values.
Result<std::string> known(std::string_view name) {
  if (is_command_name(name)) return std::string("1");
  if (name.starts_with("knob.")) name.remove_prefix(5);
  auto knob = trainer::knobs().find(name);
  if (!knob) return tl::unexpected<Error>(std::move(knob.error()));
  return std::string("1");
}

struct Text {
  const char* key;
  std::string CommandSpec::*to;
};
constexpr Text kTexts[] = {{"run", &CommandSpec::run},
                           {"log", &CommandSpec::log},
                           {"log_file", &CommandSpec::log_file},
                           {"device", &CommandSpec::device}};

struct Number {
  const char* key;
  int64_t CommandSpec::*to;
  int64_t least;
};
constexpr Number kNumbers[] = {{"gpus_per_node", &CommandSpec::gpus_per_node, 1},
                               {"silence_limit_s", &CommandSpec::silence_limit_s, 1},
                               {"time_limit_s", &CommandSpec::time_limit_s, 0}};

std::vector<std::string> keys() {
  std::vector<std::string> all;
  for (const Text& text : kTexts) all.emplace_back(text.key);
  for (const Number& number : kNumbers) all.emplace_back(number.key);
  return all;
}

Status read_entry(const TomlFile& file, const TomlNode& entry, CommandSpec& spec) {
  for (const Text& text : kTexts) {
    if (entry.key != text.key) continue;
    MB_TRY(expect(file, entry, TomlKind::kString, fmt::format("'{}'", entry.key)));
    spec.*text.to = entry.text;
    if (entry.key == "run") spec.line = entry.at.line;
    return {};
  }
  for (const Number& number : kNumbers) {
    if (entry.key != number.key) continue;
    if (entry.kind != TomlKind::kInteger || entry.integer < number.least || entry.integer > kLongest)
      return file.error(entry.at, fmt::format("'{}' must be a whole number from {} on", entry.key, number.least));
    spec.*number.to = entry.integer;
    return {};
  }
  return {};
}

}  // namespace

bool is_command_name(std::string_view name) {
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

std::string shell_word(std::string_view value) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("_-+=.,:/@%").find(c) != std::string_view::npos;
  };
  if (!value.empty() && std::all_of(value.begin(), value.end(), plain)) return std::string(value);
  return "'" + replace_all(value, "'", "'\\''") + "'";
}

Result<std::string> expand_template(std::string_view text, const NameValue& value_of, bool quote) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '$' && i + 1 < text.size() && text[i + 1] == '{') {  // the shell's own
      const size_t end = text.find('}', i);
      const size_t size = end == std::string_view::npos ? text.size() - i : end - i + 1;
      out += text.substr(i, size);
      i += size - 1;
    } else if ((c == '{' || c == '}') && i + 1 < text.size() && text[i + 1] == c) {
      out += c;
      ++i;
    } else if (c == '{') {
      const size_t end = text.find('}', i);
      const std::string name(text.substr(i + 1, end == std::string_view::npos ? end : end - i - 1));
      if (end == std::string_view::npos)
        return fail(ErrorCode::kBadArgument, fmt::format("the brace at character {} is not closed", i + 1),
                    "{{ is a brace of the command's own");
      auto value = value_of(name);
      if (!value)
        return fail(
            ErrorCode::kBadArgument, fmt::format("{{{}}} in the command: {}", printable(name), value.error().what),
            value.error().hint + (value.error().hint.empty() ? "" : "; ") +
                "in braces: gpus, nodes, gpus_per_node, run_dir, cell, launch or a knob; {{ is a brace of its own");
      out += quote ? shell_word(*value) : *value;
      i = end;
    } else {
      out += c;
    }
  }
  return out;
}

Status check_command(const CommandSpec& spec) {
  if (trim(spec.run).empty())
    return fail(ErrorCode::kBadArgument, "the command is empty", "run = \"torchrun ... train.py\"");
  MB_TRY(expand_template(spec.run, known));
  MB_TRY(expand_template(spec.log_file, known));
  MB_TRY(make_log_reader(spec.log));
  return {};
}

Result<CommandSpec> read_command(const TomlFile& file, const TomlNode& table) {
  if (table.kind != TomlKind::kTable)
    return file.error(table.at, fmt::format("'command' must be a table, not {}", name(table.kind)),
                      "command = { run = \"...\", log = \"auto\" }");
  CommandSpec spec;
  spec.file = file.path;
  MB_TRY(check_keys(file, table, keys(), "a command"));
  for (const TomlNode& entry : table.items) MB_TRY(read_entry(file, entry, spec));
  if (table.find("run") == nullptr) return file.error(table.at, "'run' is missing", "add run = \"the command line\"");
  if (const Status good = check_command(spec); !good) {
    const bool format = good.error().what.starts_with("no log format");
    const TomlNode* at = table.find(format ? "log" : "run");
    return file.error(at ? at->at : table.at, good.error().what, good.error().hint);
  }
  return spec;
}

}  // namespace mbb::suites
