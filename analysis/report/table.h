// A table as a value, and its three forms: aligned text for a terminal, Markdown for a comment, JSON for machines.
#pragma once

#include <cstddef>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace mbb::analysis {

enum class Align { kLeft, kRight };

// Colour of a value on a terminal. It only underlines what the text says already.
enum class Tone { kPlain, kGood, kBad, kWarning, kQuiet };

struct Column {
  std::string id;     // key in JSON
  std::string title;  // header for a person
  Align align = Align::kLeft;
  std::string unit = {};  // of the JSON number; may be empty
};

// One cell: what a person reads, and the number behind it for JSON (NaN: the text itself is the value, and "-" is
// null).
struct Value {
  std::string text;
  double number = std::numeric_limits<double>::quiet_NaN();
  Tone tone = Tone::kPlain;
};

// A row may end early: `note` then takes the place of the rest ("skipped  TP8 leaves GEMMs too small").
struct Row {
  std::vector<Value> values;
  std::string note = {};
};

struct Table {
  std::string id;     // key of the table in JSON
  std::string title;  // may be empty
  std::vector<Column> columns;
  std::vector<Row> rows;
  std::vector<std::string> footer;
};

struct TextStyle {
  bool color = false;
  size_t indent = 0;
};

// Colour on a terminal, unless NO_COLOR is set.
TextStyle style_for_terminal(bool is_terminal);

// Columns are padded to their widest value; control bytes are made visible; no trailing blanks; ends with a newline.
std::string to_text(const Table& table, const TextStyle& style = {});
std::string to_markdown(const Table& table);  // GitHub's form; pipes and control bytes are escaped
// {"table": id, "title": ..., "columns": [{id, title, unit}], "rows": [{id: value}], "footer": [...]}, one line.
std::string to_json(const Table& table);

}  // namespace mbb::analysis
