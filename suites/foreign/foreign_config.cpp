// A small reader of block YAML, and of argument dumps.
#include "suites/foreign/foreign_config.h"

#include <fmt/core.h>

#include <algorithm>

#include "profiler/base/text.h"

namespace mbb::suites {
namespace {

constexpr int kDeepest = 64;
constexpr std::string_view kTarget = "._target_", kCall = "._call_";

struct Line {
  size_t indent = 0;
  std::string text;
  int number = 0;
};

bool is_item(std::string_view text) {
  return text == "-" || text.starts_with("- ");
}

// The value without what is behind " #".
std::string_view without_comment(std::string_view text) {
  text = trim(text);
  char quote = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quote != 0) {
      if (c == '\\' && quote == '"')
        ++i;
      else if (c == quote)
        quote = 0;
    } else if ((c == '"' || c == '\'') && i == 0) {
      quote = c;
    } else if (c == '#' && (i == 0 || text[i - 1] == ' ')) {
      return trim(text.substr(0, i));
    }
  }
  return trim(text);
}

std::string unquoted(std::string_view text) {
  if (text.size() < 2 || (text.front() != '\'' && text.front() != '"') || text.back() != text.front())
    return std::string(text);
  const std::string_view inside = text.substr(1, text.size() - 2);
  if (text.front() == '\'') return replace_all(inside, "''", "'");
  return replace_all(replace_all(inside, "\\\"", "\""), "\\\\", "\\");
}

// Where the key of "key: value" ends; npos when the text is no such line.
size_t key_end(std::string_view text) {
  size_t from = 0;
  if (!text.empty() && (text[0] == '"' || text[0] == '\'')) {
    from = text.find(text[0], 1);
    if (from == std::string_view::npos) return from;
  }
  for (size_t at = text.find(':', from); at != std::string_view::npos; at = text.find(':', at + 1))
    if (at + 1 == text.size() || text[at + 1] == ' ') return at;
  return std::string_view::npos;
}

class Yaml {
 public:
  Yaml(std::string_view text, int first_line) {
    int number = first_line;
    for (const std::string_view raw : split(text, '\n')) {
      const size_t indent = raw.find_first_not_of(' ');
      const std::string_view content = indent == std::string_view::npos ? "" : trim(raw.substr(indent));
      if (!content.empty() && content[0] != '#' && content != "---" && content != "...")
        lines_.push_back({indent, std::string(content), number});
      ++number;
    }
  }

  Result<std::vector<ForeignSetting>> run() {
    while (at_ < lines_.size()) MB_TRY(block(lines_[at_].indent, "", 0));
    return fold();
  }

 private:
  bool more(size_t indent) const { return at_ < lines_.size() && lines_[at_].indent == indent; }

  Status block(size_t indent, const std::string& path, int depth) {
    if (depth > kDeepest)
      return fail(ErrorCode::kBadFile,
                  fmt::format("line {}: nested deeper than {} levels", lines_[at_].number, kDeepest));
    return is_item(lines_[at_].text) ? sequence(indent, path, depth) : mapping(indent, path, depth);
  }

  Status mapping(size_t indent, const std::string& path, int depth) {
    while (more(indent) && !is_item(lines_[at_].text)) {
      const Line line = lines_[at_];
      const size_t end = key_end(line.text);
      if (end == std::string::npos)
        return fail(ErrorCode::kBadFile,
                    fmt::format("line {}: '{}' is no 'key: value'", line.number, printable(line.text, 60)),
                    "the reader takes YAML in block style, as Megatron-Bridge writes run_config.yaml");
      const std::string key = unquoted(trim(std::string_view(line.text).substr(0, end)));
      const std::string child = path.empty() ? key : path + "." + key;
      ++at_;
      MB_TRY(value(without_comment(std::string_view(line.text).substr(end + 1)), indent, child, line.number, depth));
    }
    return unexpected_indent(indent);
  }

  // Deeper lines that belong to nothing.
  Status unexpected_indent(size_t indent) const {
    if (at_ >= lines_.size() || lines_[at_].indent <= indent) return {};
    return fail(ErrorCode::kBadFile, fmt::format("line {}: indented without a key above it", lines_[at_].number));
  }

  Status value(std::string_view text, size_t indent, const std::string& path, int number, int depth) {
    if (!text.empty() && text[0] == '&') {  // an anchor
      const size_t blank = text.find(' ');
      text = blank == std::string_view::npos ? "" : trim(text.substr(blank));
    }
    const bool nested = at_ < lines_.size() && lines_[at_].indent > indent;
    if (text.empty() && nested) return block(lines_[at_].indent, path, depth + 1);
    if (text.empty() && more(indent) && is_item(lines_[at_].text)) return sequence(indent, path, depth + 1);
    std::string whole(text);
    // A scalar that goes on below, as long ones do.
    for (; at_ < lines_.size() && lines_[at_].indent > indent; ++at_) whole += " " + lines_[at_].text;
    out_.push_back({path, unquoted(whole), number});
    return {};
  }

  Status sequence(size_t indent, const std::string& path, int depth) {
    const size_t first = out_.size();
    const int number = lines_[at_].number;
    bool scalars = true;
    for (int item = 0; more(indent) && is_item(lines_[at_].text); ++item) {
      Line& line = lines_[at_];
      const size_t text_at = line.text.find_first_not_of("- ", 0) == std::string::npos
                                 ? line.text.size()
                                 : line.text.find_first_not_of(' ', 1);
      const std::string rest = text_at >= line.text.size() ? "" : line.text.substr(text_at);
      const std::string child = fmt::format("{}.{}", path, item);
      if (is_item(rest) || key_end(rest) != std::string::npos) {
        scalars = false;
        line.text = rest;  // the item's own lines stand where its first one begins
        line.indent = indent + text_at;
        MB_TRY(block(line.indent, child, depth + 1));
      } else {
        ++at_;
        const size_t before = out_.size();
        MB_TRY(value(without_comment(rest), indent, child, line.number, depth));
        scalars = scalars && out_.size() == before + 1 && out_.back().key == child;
      }
    }
    if (!scalars) return unexpected_indent(indent);
    std::vector<std::string> values;
    for (size_t i = first; i < out_.size(); ++i) values.push_back(out_[i].value);
    out_.resize(first);
    out_.push_back({path, "[" + join(values, ", ") + "]", number});
    return unexpected_indent(indent);
  }

  // Objects described by _target_ and _call_ become one setting; other _target_ lines only name a class.
  std::vector<ForeignSetting> fold() const {
    std::vector<std::string> objects;
    for (const ForeignSetting& one : out_)
      if (one.key.ends_with(kCall)) objects.push_back(one.key.substr(0, one.key.size() - kCall.size()));
    std::vector<ForeignSetting> folded;
    for (const ForeignSetting& one : out_) {
      const auto inside = std::find_if(objects.begin(), objects.end(), [&](const std::string& object) {
        return one.key.size() > object.size() && one.key.starts_with(object) && one.key[object.size()] == '.';
      });
      if (inside == objects.end()) {
        if (!one.key.ends_with(kTarget) && one.key != "_target_") folded.push_back(one);
        continue;
      }
      if (folded.empty() || folded.back().key != *inside) folded.push_back({*inside, "", one.line});
      if (one.key == *inside + std::string(kTarget)) folded.back().value.insert(0, one.value);
      if (one.key == *inside + "._args_" && one.value != "[]")
        folded.back().value += "(" + one.value.substr(1, one.value.size() - 2) + ")";
    }
    return folded;
  }

  std::vector<Line> lines_;
  size_t at_ = 0;
  std::vector<ForeignSetting> out_;
};

constexpr std::string_view kArgumentsMark = "- arguments -", kArgumentsEnd = "- end of arguments -";
constexpr std::string_view kTaskMark = "- Task Configuration -", kTaskEnd = "--------------------";

// "  adam_beta1 ........ 0.9": a name, dots, a value; behind a rank's mark ("[rank7]:", "0: ") too.
std::optional<ForeignSetting> argument(std::string_view text, int line) {
  for (size_t dots = text.find(" ."); dots != std::string_view::npos; dots = text.find(" .", dots + 1)) {
    const size_t end = std::min(text.find_first_not_of('.', dots + 1), text.size());
    if (end < text.size() && text[end] != ' ') continue;
    const std::string_view before = trim(text.substr(0, dots));
    const size_t blank = before.rfind(' ');
    const std::string_view name = blank == std::string_view::npos ? before : before.substr(blank + 1);
    if (name.empty()) return std::nullopt;
    return ForeignSetting{std::string(name), std::string(trim(text.substr(end))), line};
  }
  return std::nullopt;
}

}  // namespace

Result<std::vector<ForeignSetting>> read_yaml(std::string_view text, int first_line) {
  return Yaml(text, first_line).run();
}

std::vector<ForeignSetting> read_argument_dump(std::string_view text) {
  const bool marked = text.find(kArgumentsMark) != std::string_view::npos;
  std::vector<ForeignSetting> settings;
  bool inside = !marked;
  int number = 0;
  for (const std::string_view line : split(text, '\n')) {
    ++number;
    if (line.find(kArgumentsEnd) != std::string_view::npos) break;
    if (line.find(kArgumentsMark) != std::string_view::npos)
      inside = true;
    else if (inside)
      if (auto one = argument(line, number)) settings.push_back(std::move(*one));
  }
  return settings;
}

ConfigKind config_kind(std::string_view text) {
  if (text.find(kArgumentsMark) != std::string_view::npos) return ConfigKind::kArguments;
  text = text.substr(0, size_t{1} << 16U);
  if (text.find("_target_: ") != std::string_view::npos) return ConfigKind::kYaml;
  size_t nested = 0, keys = 0, dotted = 0;
  for (const std::string_view line : split(text, '\n')) {
    const size_t indent = line.find_first_not_of(' ');
    if (indent == std::string_view::npos || line[indent] == '#') continue;
    if (line.find(" ....") != std::string_view::npos) ++dotted;
    if (is_item(line.substr(indent)) || key_end(trim(line)) != std::string_view::npos)
      ++(indent > 0 ? nested : keys);
    else if (dotted == 0)
      return ConfigKind::kNone;
  }
  if (dotted > 2) return ConfigKind::kArguments;
  return keys > 0 && nested > 0 ? ConfigKind::kYaml : ConfigKind::kNone;
}

std::optional<std::string> setting(const std::vector<ForeignSetting>& settings, std::string_view key) {
  std::optional<std::string> found;
  for (const ForeignSetting& one : settings) {
    if (one.key == key) return one.value;
    if (!one.key.ends_with(key) || one.key[one.key.size() - key.size() - 1] != '.') continue;
    if (found && *found != one.value) return std::nullopt;
    found = one.value;
  }
  return found;
}

int64_t integer_setting(const std::vector<ForeignSetting>& settings, std::string_view key) {
  const auto text = setting(settings, key);
  return text ? parse_int(*text).value_or(0) : 0;
}

bool ConfigCollector::line(std::string_view text, int64_t number) {
  const bool arguments = text.find(kArgumentsMark) != std::string_view::npos;
  const size_t task = text.find(kTaskMark);
  if (arguments || task != std::string_view::npos) {
    open_ = arguments ? ConfigKind::kArguments : ConfigKind::kYaml;
    const size_t dashes = text.find("---");
    prefix_ = dashes == std::string_view::npos ? "" : std::string(text.substr(0, dashes));
    yaml_ |= !arguments;
    text_.clear();
    arguments_.clear();
    first_line_ = static_cast<int>(number) + 1;
    return true;
  }
  if (open_ == ConfigKind::kNone) return false;
  if (text.starts_with(prefix_)) text.remove_prefix(prefix_.size());
  if (text.find(kArgumentsEnd) != std::string_view::npos || text.starts_with(kTaskEnd)) {
    open_ = ConfigKind::kNone;
    return true;
  }
  if (open_ == ConfigKind::kYaml) {
    text_.append(text).push_back('\n');
  } else if (auto one = argument(text, static_cast<int>(number))) {
    arguments_.push_back(std::move(*one));
  }
  return true;
}

std::vector<ForeignSetting> ConfigCollector::take() {
  if (open_ != ConfigKind::kNone) return {};
  if (!arguments_.empty()) return std::move(arguments_);
  auto settings = read_yaml(text_, first_line_);
  return settings ? std::move(*settings) : std::vector<ForeignSetting>{};
}

}  // namespace mbb::suites
