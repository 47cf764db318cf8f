// Where the rows of a rank's tensors lie in the sequence when context parallelism divides it.
//
// Over c ranks the sequence is 2c chunks and rank i holds chunks i and 2c − 1 − i, in this order: causal attention then
// costs every rank the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace mbb::trainer {

// Row r lies at starts[r / run] + r mod run. Without starts rows lie where they are counted, from 0 on.
struct Positions {
  int64_t sequence = 0;  // tokens of the whole sequence
  int64_t run = 0;       // rows that follow one another
  std::vector<int64_t> starts = {};

  bool whole() const { return starts.empty(); }
  int64_t at(int64_t row) const { return whole() ? row : starts[static_cast<size_t>(row / run)] + row % run; }
  // Rows [first, first + count), which begin and end with runs.
  Positions rows(int64_t first, int64_t count) const;
  bool operator==(const Positions&) const = default;
};

// What rank `index` of `size` holds of `sequence` tokens, a multiple of 2·size; of one rank everything, without starts.
Positions context_positions(int64_t sequence, int size, int index);
// What ranks [first, first + count) of `size` hold, rank after rank; of all of one rank everything, without starts.
Positions group_positions(int64_t sequence, int size, int first, int count);
// What an all-gather over the ranks gives: rank after rank.
Positions gathered_positions(int64_t sequence, int size);

// Pairs (query, key) that causal attention looks at, of `queries` rows and `keys` rows; with a window a query sees
// itself and window − 1 before it. Without a window a query sees half of itself, as model FLOPs count (NUMERICS.md 2).
double visible_pairs(const Positions& queries, int64_t query_rows, const Positions& keys, int64_t key_rows,
                     int64_t window);

}  // namespace mbb::trainer
