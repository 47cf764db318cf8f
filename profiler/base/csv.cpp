// Comma-separated tables (RFC 4180) as text.
#include "profiler/base/csv.h"

#include <fmt/format.h>

#include <charconv>

#include "profiler/base/check.h"

namespace mbb {
namespace {

const std::string kNothing;

// Reads one field at `at`, leaving `at` on the ',' or line end behind it, or past the text.
Status read_field(std::string_view text, std::size_t& at, int& line, std::string& field) {
  field.clear();
  if (at >= text.size() || text[at] != '"') {
    const std::size_t end = std::min(text.find_first_of(",\r\n", at), text.size());
    field = text.substr(at, end - at);
    at = end;
    if (field.find('"') != std::string::npos) {
      return fail(ErrorCode::kBadFile,
                  fmt::format("line {}: a quote inside a field that does not begin with one", line));
    }
    return {};
  }
  const int opened = line;
  for (++at; at < text.size(); ++at) {
    if (text[at] == '\n') ++line;
    if (text[at] != '"') {
      field += text[at];
    } else if (at + 1 < text.size() && text[at + 1] == '"') {
      field += '"';
      ++at;
    } else {
      ++at;
      if (at < text.size() && std::string_view(",\r\n").find(text[at]) == std::string_view::npos) {
        return fail(ErrorCode::kBadFile, fmt::format("line {}: text behind a closing quote", line));
      }
      return {};
    }
  }
  return fail(ErrorCode::kBadFile, fmt::format("line {}: a quote is never closed", opened));
}

// Reads the fields of one row; `at` ends behind its line end.
Status read_row(std::string_view text, std::size_t& at, int& line, std::vector<std::string>& row) {
  row.clear();
  std::string field;
  while (true) {
    MB_TRY(read_field(text, at, line, field));
    row.push_back(field);
    if (at < text.size() && text[at] == ',') {
      ++at;
      continue;
    }
    if (at < text.size() && text[at] == '\r') ++at;
    if (at < text.size()) {
      if (text[at] != '\n') return fail(ErrorCode::kBadFile, fmt::format("line {}: a stray carriage return", line));
      ++at;
    }
    ++line;
    return {};
  }
}

template <typename T>
Status parse_number(const CsvTable& table, std::size_t row, int column, T& value) {
  const std::string& text = table.text(row, column);
  if (text.empty()) return {};
  T parsed{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), parsed);
  if (error != std::errc{} || end != text.data() + text.size()) {
    return fail(ErrorCode::kBadFile,
                fmt::format("line {}: {} is \"{}\", which is not a number that fits it", table.line(row),
                            table.columns()[static_cast<std::size_t>(column)], text.substr(0, 40)));
  }
  value = parsed;
  return {};
}

}  // namespace

void append_csv_field(std::string& out, std::string_view field) {
  if (field.find_first_of(",\"\r\n") == std::string_view::npos) {
    out += field;
    return;
  }
  out += '"';
  for (const char c : field) {
    if (c == '"') out += '"';
    out += c;
  }
  out += '"';
}

Result<CsvTable> CsvTable::parse(std::string_view text) {
  CsvTable table;
  std::size_t at = 0;
  int line = 1;
  if (text.empty()) return fail(ErrorCode::kBadFile, "the table is empty: it lacks its line of column names");
  MB_TRY(read_row(text, at, line, table.columns_));
  std::vector<std::string> row;
  while (at < text.size()) {
    const int first = line;
    MB_TRY(read_row(text, at, line, row));
    if (row.size() != table.columns_.size()) {
      return fail(ErrorCode::kBadFile, fmt::format("line {}: {} fields where the first line names {} columns", first,
                                                   row.size(), table.columns_.size()));
    }
    table.lines_.push_back(first);
    for (std::string& field : row) table.fields_.push_back(std::move(field));
  }
  return table;
}

int CsvTable::column(std::string_view name) const {
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    if (columns_[i] == name) return static_cast<int>(i);
  }
  return -1;
}

const std::string& CsvTable::text(std::size_t row, int column) const {
  if (column < 0) return kNothing;
  MB_CHECK(row < rows() && static_cast<std::size_t>(column) < columns_.size(), "cell outside the table");
  return fields_[row * columns_.size() + static_cast<std::size_t>(column)];
}

Status CsvTable::read(std::size_t row, int column, std::int64_t& value) const {
  return parse_number(*this, row, column, value);
}
Status CsvTable::read(std::size_t row, int column, std::uint32_t& value) const {
  return parse_number(*this, row, column, value);
}
Status CsvTable::read(std::size_t row, int column, int& value) const {
  return parse_number(*this, row, column, value);
}
Status CsvTable::read(std::size_t row, int column, double& value) const {
  return parse_number(*this, row, column, value);
}

}  // namespace mbb
