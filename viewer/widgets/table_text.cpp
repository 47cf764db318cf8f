// Order, filter and text forms of a table: no drawing.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <numeric>

#include "viewer/widgets/table.h"

namespace mbb::viewer {
namespace {

char lower(char c) {
  return static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
}

bool contains(std::string_view text, std::string_view word) {
  const auto same = [](char a, char b) { return lower(a) == lower(b); };
  return std::search(text.begin(), text.end(), word.begin(), word.end(), same) != text.end();
}

std::string joined(const std::vector<TableCell>& row) {
  std::string all;
  for (const TableCell& cell : row) {
    all += cell.text;
    all += '\n';
  }
  return all;
}

std::string title_of(const TableColumn& column) {
  return column.unit.empty() ? column.title : column.title + " (" + column.unit + ")";
}

std::string markdown_cell(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '|' || c == '\\') out += '\\';
    out += c == '\n' || c == '\r' ? ' ' : c;
  }
  return out;
}

std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"') out += '"';
    out += c;
  }
  return out + "\"";
}

}  // namespace

bool matches_words(std::string_view text, std::string_view filter) {
  while (!filter.empty()) {
    const std::size_t begin = filter.find_first_not_of(" \t");
    if (begin == std::string_view::npos) return true;
    filter.remove_prefix(begin);
    const std::string_view word = filter.substr(0, filter.find_first_of(" \t"));
    if (!contains(text, word)) return false;
    filter.remove_prefix(word.size());
  }
  return true;
}

std::vector<std::uint32_t> table_order(const TableData& data, const std::string& filter, int sort_column,
                                       bool descending) {
  std::vector<std::uint32_t> order;
  for (std::uint32_t row = 0; row < data.rows.size(); ++row) {
    if (filter.empty() || matches_words(joined(data.rows[row]), filter)) order.push_back(row);
  }
  if (sort_column < 0 || sort_column >= static_cast<int>(data.columns.size())) return order;
  const auto column = static_cast<std::size_t>(sort_column);
  // Numbers before texts, in both directions, so that "-" rows stay at the end.
  const auto before = [&](std::uint32_t a, std::uint32_t b) {
    const TableCell& left = data.rows[a][column];
    const TableCell& right = data.rows[b][column];
    const bool left_number = !std::isnan(left.order);
    const bool right_number = !std::isnan(right.order);
    if (left_number != right_number) return left_number;
    if (left_number) return descending ? left.order > right.order : left.order < right.order;
    return descending ? left.text > right.text : left.text < right.text;
  };
  std::stable_sort(order.begin(), order.end(), before);
  return order;
}

std::string table_markdown(const TableData& data, const std::vector<std::uint32_t>& order) {
  std::string out = "|";
  for (const TableColumn& column : data.columns) out += " " + markdown_cell(title_of(column)) + " |";
  out += "\n|";
  for (const TableColumn& column : data.columns) out += column.align == Align::kRight ? "---:|" : "---|";
  out += "\n";
  for (const std::uint32_t row : order) {
    out += "|";
    for (const TableCell& cell : data.rows[row]) out += " " + markdown_cell(cell.text) + " |";
    out += "\n";
  }
  return out;
}

std::string table_csv(const TableData& data, const std::vector<std::uint32_t>& order) {
  std::string out;
  for (std::size_t c = 0; c < data.columns.size(); ++c)
    out += (c == 0 ? "" : ",") + csv_cell(title_of(data.columns[c]));
  out += "\r\n";
  for (const std::uint32_t row : order) {
    for (std::size_t c = 0; c < data.columns.size(); ++c) out += (c == 0 ? "" : ",") + csv_cell(data.rows[row][c].text);
    out += "\r\n";
  }
  return out;
}

}  // namespace mbb::viewer
