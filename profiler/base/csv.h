// Comma-separated tables (RFC 4180) as text: what bundles, exports and published figures are stored in.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "profiler/base/error.h"

namespace mbb {

// Appends one field, quoted where it must be. The caller puts ',' and '\n' between fields and rows.
void append_csv_field(std::string& out, std::string_view field);

// A parsed table: the first row names the columns, every other row has as many fields.
class CsvTable {
 public:
  static Result<CsvTable> parse(std::string_view text);

  std::size_t rows() const { return lines_.size(); }
  // Line of row `row` in the text, from 1, for messages.
  int line(std::size_t row) const { return lines_[row]; }
  const std::vector<std::string>& columns() const { return columns_; }
  // -1 when there is no such column.
  int column(std::string_view name) const;
  // The field's text; empty for column -1, so that a column added later reads as its default.
  const std::string& text(std::size_t row, int column) const;
  // Numbers. An empty field leaves `value` as it is; text that is no number, or does not fit, is an error with its
  // line.
  Status read(std::size_t row, int column, std::int64_t& value) const;
  Status read(std::size_t row, int column, std::uint32_t& value) const;
  Status read(std::size_t row, int column, int& value) const;
  Status read(std::size_t row, int column, double& value) const;

 private:
  std::vector<std::string> columns_;
  std::vector<std::string> fields_;  // row-major
  std::vector<int> lines_;
};

}  // namespace mbb
