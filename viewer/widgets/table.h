// Tables: aligned numbers with units, sorting, selection, and copying as Markdown or CSV.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "viewer/theme/palette.h"

namespace mbb::viewer {

enum class Align : std::uint8_t { kLeft, kRight };

// A column that is empty in every row (or, where that is said elsewhere, equal in every row) is not drawn.
enum class Fold : std::uint8_t { kNever, kWhenEmpty, kWhenEqual };

struct TableColumn {
  std::string title;
  std::string unit;  // shown muted after the title
  Align align = Align::kLeft;
  float width = 0;      // design pixels that it keeps when there is little room; 0: it shares what is left, and gives
  std::string meaning;  // on hover over the header
  bool mono = false;    // op paths, ids
  Fold fold = Fold::kNever;
  bool groups = false;  // what repeats the row above is drawn faintly: rows of one name read as a group
};

// `text` must be clean (text.h). `order` sorts the column when it is a number; else the text does.
struct TableCell {
  std::string text;
  double order = std::numeric_limits<double>::quiet_NaN();
  Ink ink = Ink::kText;
  std::string hover;
  float bar = -1;  // 0..1: a quiet bar behind the text; < 0: none
};

struct TableData {
  std::vector<TableColumn> columns;
  std::vector<std::vector<TableCell>> rows;  // every row has one cell a column
  std::vector<std::string> keys;             // identity of each row
};

// What a table remembers between frames.
struct TableState {
  std::vector<std::uint32_t> shown;  // row numbers in order
  const void* shown_of = nullptr;    // the data they were computed for
  std::string filter;                // case-insensitive words, all of which must appear in the row
  std::string shown_filter;
  int sort_column = -1;
  bool descending = false;
  bool dirty = true;
  bool scroll_to_selection = false;
  // Its columns as they are drawn: measured once for each content, laid out once for each width.
  std::vector<std::size_t> columns;
  std::vector<float> whole;  // pixels of the longest text
  std::vector<float> given;
  float measured_scale = 0;
};

struct TableEvents {
  std::optional<std::size_t> clicked;  // row number in data; also moved to with the arrow keys
  std::optional<std::size_t> second;   // clicked with Ctrl: the other one of a pair
  std::optional<std::size_t> opened;   // double-clicked, or Enter
  std::optional<std::size_t> hovered;
};

struct TableLook {
  std::string selected;    // key of the selected row ("A")
  std::string other;       // key of the second one ("B")
  bool mark_pair = false;  // letters A and B beside the rows
  bool keyboard = false;   // arrow keys and Enter move in this table
  float height = 0;        // 0: all that is left
};

// Draws `data`. Columns are as wide as what stands in them; where there is too little room text ends in an ellipsis and
// is whole on hover. `id` also names its probes: "<id>.row.<n>" (shown order), "<id>.shown".
TableEvents draw_table(const char* id, const TableData& data, TableState& state, const TableLook& look);

// Copies as Markdown or CSV what is no draw_table: right click, or Ctrl+C, while `hovered`. The table is made when it
// is asked for, all rows in their order.
void copy_menu(const char* id, bool hovered, const std::function<TableData()>& make);

// Pixels in which nothing of the table is cut, its scrollbar beside it.
float table_width(const TableData& data, TableState& state);

// Design pixels that a header and `rows` rows take.
float table_height(std::size_t rows);

// The rows in `order`, as text. Markdown escapes pipes; CSV quotes as RFC 4180 says.
std::string table_markdown(const TableData& data, const std::vector<std::uint32_t>& order);
std::string table_csv(const TableData& data, const std::vector<std::uint32_t>& order);

// Rows that match `filter`, in sort order: what draw_table shows.
std::vector<std::uint32_t> table_order(const TableData& data, const std::string& filter, int sort_column,
                                       bool descending);

// True when every blank-separated word of `filter` occurs in `text`, letter case aside.
bool matches_words(std::string_view text, std::string_view filter);

}  // namespace mbb::viewer
