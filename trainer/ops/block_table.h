// Where the scales of block-scaled codes stand: the one rule of shapes, the oracle, and device code.
//
// Codes [lines, inner] are cut into blocks of 1 x block along inner, or block x block when square; the last block of a
// side may be partial, so that a side has ceil(side / block). Scales: a row-major table [scale_lines(), across()].
// Matrices of equal sides that are kept as one (experts' weights) have blocks of their own: `line_stack` of them one
// below the other, `inner_stack` of them side by side; no block covers two of them.
#pragma once

#include <cstdint>

namespace mbb::trainer {

struct BlockTable {
  int64_t lines = 0, inner = 0;
  int64_t block = 128;
  bool square = false;
  int64_t line_stack = 1, inner_stack = 1;

  constexpr int64_t scale_lines() const { return square ? line_stack * parts(lines / line_stack) : lines; }
  constexpr int64_t across() const { return inner_stack * parts(inner / inner_stack); }
  constexpr int64_t size() const { return scale_lines() * across(); }

  // The entry of the code at (line, column).
  constexpr int64_t at(int64_t line, int64_t column) const {
    const int64_t scale_line = square ? part_of(line, lines, line_stack) : line;
    return scale_line * across() + part_of(column, inner, inner_stack);
  }

  constexpr int64_t parts(int64_t side) const { return (side + block - 1) / block; }

 private:
  constexpr int64_t part_of(int64_t i, int64_t side, int64_t stack) const {
    if (stack == 1) return i / block;
    const int64_t each = side / stack;
    return i / each * parts(each) + i % each / block;
  }
};

}  // namespace mbb::trainer
