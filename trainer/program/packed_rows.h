// Where the rows of a packed tensor lie in their pack: by the pack's starts, which are known when the step runs only.
//
// Over c context-parallel ranks every sequence of a pack is 2c chunks by itself (its length is padded to a multiple of
// 2c), and rank i holds chunks i and 2c − 1 − i of each, sequence after sequence: every rank then has the same work in
// every sequence. A rank's rows are tokens / c, as without packing, so shapes stay static.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trainer/program/positions.h"

namespace mbb::trainer {

struct PackedRow {
  int64_t sequence = 0;  // place of its sequence among the starts
  int64_t start = 0;     // where that begins in the pack
  int64_t at = 0;        // where the row lies in the pack

  int64_t position() const { return at - start; }
};

// Of `rows` rows. `starts` ascend; those behind the last sequence are empty and begin at the number of tokens, and rows
// behind it are one more sequence. `positions` says whose rows these are, as context_positions or group_positions give
// them; whole: all of the pack, in order.
std::vector<PackedRow> packed_rows(const Positions& positions, std::span<const int32_t> starts, int64_t rows);

}  // namespace mbb::trainer
