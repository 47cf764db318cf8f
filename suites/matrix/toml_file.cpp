// Reads TOML by toml++ into plain nodes: see toml_file.h.
#include "suites/matrix/toml_file.h"

#include <fmt/format.h>

// toml++ asserts (or, with NDEBUG, assumes) what damaged files break, though the code behind the assertion answers with
// an error: both are off, so that every build gives that error.
#undef NDEBUG
#define TOML_ASSERT(condition) static_assert(true)
#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

#include <algorithm>

#include "profiler/base/file.h"
#include "profiler/base/text.h"

namespace mbb::suites {
namespace {

constexpr size_t kFileLimit = size_t{4} << 20;

TomlPlace place_of(const toml::source_region& region) {
  return {static_cast<int>(region.begin.line), static_cast<int>(region.begin.column)};
}

bool before(const TomlPlace& a, const TomlPlace& b) {
  return a.line != b.line ? a.line < b.line : a.column < b.column;
}

TomlNode convert(const toml::node& node) {
  TomlNode out;
  out.at = place_of(node.source());
  if (const auto* table = node.as_table()) {
    out.kind = TomlKind::kTable;
    for (const auto& [key, value] : *table) {
      TomlNode entry = convert(value);
      entry.key = std::string(key.str());
      entry.key_at = place_of(key.source());
      out.items.push_back(std::move(entry));
    }
    // toml++ keeps tables by name; the order of the file is the order of cells and of messages.
    std::stable_sort(out.items.begin(), out.items.end(),
                     [](const TomlNode& a, const TomlNode& b) { return before(a.key_at, b.key_at); });
  } else if (const auto* array = node.as_array()) {
    out.kind = TomlKind::kArray;
    for (const auto& element : *array) out.items.push_back(convert(element));
  } else if (const auto* text = node.as_string()) {
    out.kind = TomlKind::kString;
    out.text = text->get();
  } else if (const auto* integer = node.as_integer()) {
    out.kind = TomlKind::kInteger;
    out.integer = integer->get();
  } else if (const auto* number = node.as_floating_point()) {
    out.kind = TomlKind::kNumber;
    out.number = number->get();
  } else if (const auto* flag = node.as_boolean()) {
    out.kind = TomlKind::kBoolean;
    out.flag = flag->get();
  } else {
    out.kind = TomlKind::kTime;
  }
  return out;
}

Status flatten(const TomlFile& file, const TomlNode& table, const std::string& prefix, KnobMap& out) {
  for (const TomlNode& entry : table.items) {
    const std::string dotted = prefix + entry.key;
    if (entry.kind == TomlKind::kTable) {
      MB_TRY(flatten(file, entry, dotted + ".", out));
      continue;
    }
    if (entry.kind == TomlKind::kArray)
      return file.error(entry.at, fmt::format("'{}' must be a single value, not a list", printable(dotted)));
    MB_ASSIGN(const KnobData value, knob_data(file, entry));
    out[dotted] = knob_text(value);
  }
  return {};
}

// How a list of strings is written for a knob that takes several; empty of any other list.
std::string as_one_string(const TomlNode& list) {
  std::string text;
  for (const TomlNode& item : list.items) {
    if (item.kind != TomlKind::kString) return "";
    text += (text.empty() ? "" : ",") + item.text;
  }
  return fmt::format("several are one string with commas between: {} = \"{}\"", printable(list.key), printable(text));
}

}  // namespace

const char* name(TomlKind kind) {
  switch (kind) {
    case TomlKind::kTable: return "a table";
    case TomlKind::kArray: return "a list";
    case TomlKind::kString: return "a string";
    case TomlKind::kInteger: return "an integer";
    case TomlKind::kNumber: return "a number";
    case TomlKind::kBoolean: return "true or false";
    case TomlKind::kTime: return "a date or time";
  }
  return "";
}

const TomlNode* TomlNode::find(std::string_view wanted) const {
  for (const TomlNode& item : items)
    if (item.key == wanted) return &item;
  return nullptr;
}

tl::unexpected<Error> TomlFile::error(TomlPlace place, const std::string& what, std::string hint,
                                      ErrorCode code) const {
  const std::string file = printable(path, 4096);
  if (place.line <= 0) return fail(code, fmt::format("{}: {}", file, what), std::move(hint));
  return fail(code, fmt::format("{}:{}:{}: {}", file, place.line, place.column, what), std::move(hint));
}

TomlPlace TomlFile::inside(const TomlNode& node, size_t offset) const {
  const auto lines = split(bytes, '\n');
  const auto row = static_cast<size_t>(node.at.line - 1);
  if (node.at.line < 1 || node.at.column < 1 || row >= lines.size()) return node.at;
  const auto start = static_cast<size_t>(node.at.column);  // past the quote
  const std::string_view line = lines[row];
  if (start > line.size() || line.substr(start, node.text.size()) != node.text) return node.at;
  return {node.at.line, node.at.column + 1 + static_cast<int>(offset)};
}

Result<TomlFile> read_toml(const std::string& path) {
  MB_ASSIGN(std::string bytes, read_file(path, kFileLimit));
  return parse_toml(std::move(bytes), path);
}

Result<TomlFile> parse_toml(std::string bytes, std::string path) {
  TomlFile file;
  file.path = std::move(path);
  file.bytes = std::move(bytes);
  const toml::parse_result parsed = toml::parse(std::string_view(file.bytes), std::string_view(file.path));
  if (!parsed) {
    const toml::parse_error& error = parsed.error();
    return file.error(place_of(error.source()), fmt::format("not TOML: {}", printable(error.description(), 400)));
  }
  file.root = convert(parsed.table());
  return file;
}

Result<KnobData> knob_data(const TomlFile& file, const TomlNode& node) {
  switch (node.kind) {
    case TomlKind::kString: return node.text;
    case TomlKind::kInteger: return node.integer;
    case TomlKind::kNumber: return node.number;
    case TomlKind::kBoolean: return node.flag;
    case TomlKind::kTime: return file.error(node.at, "a date or time is no value of a knob");
    case TomlKind::kArray: {
      std::vector<int64_t> list;
      for (const TomlNode& item : node.items) {
        if (item.kind != TomlKind::kInteger)
          return file.error(item.at, fmt::format("a list for a knob holds integers, not {}", name(item.kind)),
                            as_one_string(node));
        list.push_back(item.integer);
      }
      return list;
    }
    case TomlKind::kTable: {
      KnobMap table;
      MB_TRY(flatten(file, node, "", table));
      return table;
    }
  }
  return file.error(node.at, "unknown kind of value");
}

}  // namespace mbb::suites
