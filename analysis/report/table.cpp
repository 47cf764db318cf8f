// Text, Markdown and JSON forms of a table.
#include "analysis/report/table.h"

#include <algorithm>
#include <cmath>

#include "profiler/base/check.h"
#include "profiler/base/env.h"
#include "profiler/base/text.h"

namespace mbb::analysis {

namespace {

constexpr size_t kCellLimit = 400;  // bytes of one value; a longer one is cut with "..."

std::string shown(const std::string& text) {
  return printable(text, kCellLimit);
}

const char* escape_of(Tone tone) {
  switch (tone) {
    case Tone::kPlain: return "";
    case Tone::kGood: return "\033[32m";
    case Tone::kBad: return "\033[31m";
    case Tone::kWarning: return "\033[33m";
    case Tone::kQuiet: return "\033[2m";
  }
  return "";
}

std::vector<size_t> widths_of(const Table& table) {
  std::vector<size_t> widths;
  for (const Column& column : table.columns) widths.push_back(display_width(column.title));
  for (const Row& row : table.rows) {
    MB_CHECK(row.values.size() <= table.columns.size(), "a row has more values than its table has columns");
    for (size_t i = 0; i < row.values.size(); ++i)
      widths[i] = std::max(widths[i], display_width(shown(row.values[i].text)));
  }
  return widths;
}

// One padded line; trailing blanks are cut at the end.
class Line {
 public:
  Line(const TextStyle& style) : style_(style), text_(style.indent, ' ') {}

  void add(const std::string& text, size_t width, Align align, Tone tone) {
    if (!first_) text_ += "  ";
    first_ = false;
    const std::string pad(width - std::min(width, display_width(text)), ' ');
    const bool tinted = style_.color && tone != Tone::kPlain && !text.empty();
    const std::string body = tinted ? escape_of(tone) + text + "\033[0m" : text;
    text_ += align == Align::kRight ? pad + body : body + pad;
  }

  std::string str() const {
    const size_t end = text_.find_last_not_of(' ');
    return (end == std::string::npos ? std::string() : text_.substr(0, end + 1)) + "\n";
  }

 private:
  TextStyle style_;
  std::string text_;
  bool first_ = true;
};

std::string markdown_cell(const std::string& text) {
  return replace_all(shown(text), "|", "\\|");
}

std::string json_value(const Value& value) {
  if (std::isfinite(value.number)) return format_exact(value.number);
  if (value.text == "-" || value.text.empty()) return "null";
  return json_quote(value.text);
}

}  // namespace

TextStyle style_for_terminal(bool is_terminal) {
  return {.color = is_terminal && !env_text("NO_COLOR"), .indent = 0};
}

std::string to_text(const Table& table, const TextStyle& style) {
  const std::string margin(style.indent, ' ');
  std::string out;
  if (!table.title.empty()) out += margin + shown(table.title) + "\n";
  const std::vector<size_t> widths = widths_of(table);
  Line header(style);
  for (size_t i = 0; i < table.columns.size(); ++i)
    header.add(table.columns[i].title, widths[i], table.columns[i].align, Tone::kQuiet);
  if (!table.columns.empty()) out += header.str();
  for (const Row& row : table.rows) {
    Line line(style);
    for (size_t i = 0; i < row.values.size(); ++i)
      line.add(shown(row.values[i].text), widths[i], table.columns[i].align, row.values[i].tone);
    if (!row.note.empty()) line.add(shown(row.note), 0, Align::kLeft, Tone::kPlain);
    out += line.str();
  }
  for (const std::string& line : table.footer) out += margin + shown(line) + "\n";
  return out;
}

std::string to_markdown(const Table& table) {
  std::string out;
  if (!table.title.empty()) out += "**" + markdown_cell(table.title) + "**\n\n";
  std::string rule;
  for (const Column& column : table.columns) {
    out += "| " + markdown_cell(column.title) + " ";
    rule += column.align == Align::kRight ? "|---:" : "|---";
  }
  if (!table.columns.empty()) out += "|\n" + rule + "|\n";
  for (const Row& row : table.rows) {
    for (size_t i = 0; i < table.columns.size(); ++i) {
      out += "| ";
      if (i < row.values.size()) out += markdown_cell(row.values[i].text);
      if (i == row.values.size() || (i + 1 == table.columns.size() && i + 1 == row.values.size()))
        out += (i < row.values.size() && !row.note.empty() ? " " : "") + markdown_cell(row.note);
      out += " ";
    }
    out += "|\n";
  }
  if (!table.footer.empty()) out += "\n";
  for (const std::string& line : table.footer) out += markdown_cell(line) + "  \n";
  return out;
}

std::string to_json(const Table& table) {
  std::string out = "{\"table\": " + json_quote(table.id) + ", \"title\": " + json_quote(table.title);
  out += ", \"columns\": [";
  for (size_t i = 0; i < table.columns.size(); ++i) {
    const Column& column = table.columns[i];
    out += (i > 0 ? ", " : "") + std::string("{\"id\": ") + json_quote(column.id) +
           ", \"title\": " + json_quote(column.title) + ", \"unit\": " + json_quote(column.unit) + "}";
  }
  out += "], \"rows\": [";
  for (size_t r = 0; r < table.rows.size(); ++r) {
    const Row& row = table.rows[r];
    out += r > 0 ? ", {" : "{";
    for (size_t i = 0; i < table.columns.size(); ++i) {
      out += (i > 0 ? ", " : "") + json_quote(table.columns[i].id) + ": ";
      out += i < row.values.size() ? json_value(row.values[i]) : "null";
    }
    if (!row.note.empty()) out += ", \"note\": " + json_quote(row.note);
    out += "}";
  }
  out += "], \"footer\": [";
  for (size_t i = 0; i < table.footer.size(); ++i) out += (i > 0 ? ", " : "") + json_quote(table.footer[i]);
  return out + "]}\n";
}

}  // namespace mbb::analysis
