// Rotary embedding pair by pair, for the CPU functions that turn elements.
#pragma once

#include <cmath>

#include "trainer/ops/cpu/operand.h"
#include "trainer/ops/rotation.h"

namespace mbb::trainer {

// Elements `low` and `high` of every part in row `row` turn by one angle.
struct Turn {
  int64_t row = 0, low = 0, high = 0;
  double cosine = 1.0, sine = 0.0;

  template <typename T>
  void apply(T* part) const {
    const auto x = static_cast<double>(part[low]);
    const auto y = static_cast<double>(part[high]);
    part[low] = static_cast<T>(x * cosine - y * sine);
    part[high] = static_cast<T>(y * cosine + x * sine);
  }
};

// visit(turn) for every pair of `dim` elements in every row; `starts` where the rows are a pack's.
template <typename Visit>
void for_turns(const Rotation& r, int dim, bool inverse, const CpuOperand* starts, int64_t rows, Visit&& visit) {
  const std::vector<double> frequencies = frequencies_of(r, dim);
  const std::vector<PackedRow> places = rows_of(r.positions, starts, rows);
  const int64_t half = dim / 2;
  for (int64_t row = 0; row < rows; ++row) {
    const auto position = static_cast<double>(places[static_cast<size_t>(row)].position());
    for (int64_t pair = 0; pair < half; ++pair) {
      const double angle = position * frequencies[static_cast<size_t>(pair)] * (inverse ? -1.0 : 1.0);
      const int64_t low = r.interleaved ? 2 * pair : pair;
      visit(Turn{row, low, low + (r.interleaved ? 1 : half), std::cos(angle) * r.factor, std::sin(angle) * r.factor});
    }
  }
}

}  // namespace mbb::trainer
