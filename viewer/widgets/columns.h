// Which columns of a table are drawn and how wide: by what stands in them, never by a guess.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "viewer/widgets/table.h"

namespace mbb::viewer {

// Numbers of the columns that are drawn: those that fold and tell nothing are left out. Copies have all of them.
std::vector<std::size_t> shown_columns(const TableData& data);

// What a column asks for, in pixels.
struct ColumnNeed {
  float whole = 0;        // its longest text
  float least = 0;        // below this it is of no use
  bool flexible = false;  // takes what is left, and gives first
};

// Widths that together fit into `room` where they can: each gets what it needs; what is left goes to the flexible ones
// in equal parts. Where there is too little the widest flexible ones are cut first, down to their least, then the
// others by the same rule, then all of them: no column ever lies outside.
std::vector<float> column_widths(std::span<const ColumnNeed> needs, float room);

}  // namespace mbb::viewer
