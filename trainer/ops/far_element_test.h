// Where a backend's tensor is another than the oracle's in some element: a bound on the norm of the whole difference
// lets a few wrong elements of a large tensor pass.
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>

#include "trainer/program/dtype.h"

namespace mbb::trainer {

// How far a code may lie from the oracle's. One that rounds the other way lies next to it; two steps, or an octave of a
// scale that is a power of two, leave room for a scale that does too.
inline double code_distance(DType dtype, double got, double want) {
  const int bits = dtype == DType::kE4M3 ? 3 : dtype == DType::kE2M1 ? 1 : 2;
  const int smallest = dtype == DType::kE4M3 ? -6 : dtype == DType::kE5M2 ? -14 : 0;
  const double larger = std::max({std::abs(got), std::abs(want), std::ldexp(1.0, smallest)});
  return std::ldexp(2.0, std::ilogb(larger) - bits);
}

inline double root_mean_square(std::span<const double> values) {
  double sum = 0.0;
  for (const double v : values) sum += std::isfinite(v) ? v * v : 0.0;
  return std::sqrt(sum / static_cast<double>(values.size()));
}

// The first element that is another. Both may be the same NaN.
inline std::optional<size_t> other_element(std::span<const double> got, std::span<const double> want) {
  for (size_t i = 0; i < want.size(); ++i)
    if (got[i] != want[i] && !(std::isnan(got[i]) && std::isnan(want[i]))) return i;
  return std::nullopt;
}

// The first element that rounding does not explain. Scales in E8M0 follow from a maximum, which nothing rounds, and the
// next one is an octave off. Values of 16 bits and more may be off by half of the largest of themselves, their row's
// and their tensor's root mean square: rounding the inputs to bf16 moves none of the op cases' by more than a fifth.
inline std::optional<size_t> far_element(DType dtype, size_t cols, std::span<const double> got,
                                         std::span<const double> want) {
  if (!is_float(dtype) || want.empty()) return std::nullopt;
  if (dtype == DType::kE8M0) return other_element(got, want);
  const double all = root_mean_square(want) == 0.0 ? 1.0 : root_mean_square(want);
  double row = 0.0;
  for (size_t i = 0; i < want.size(); ++i) {
    if (i % cols == 0) row = root_mean_square(want.subspan(i, std::min(cols, want.size() - i)));
    if (got[i] == want[i]) continue;  // infinite ones too
    const double most =
        bits_of(dtype) <= 8 ? code_distance(dtype, got[i], want[i]) : 0.5 * std::max({all, row, std::abs(want[i])});
    if (!(std::abs(got[i] - want[i]) <= most)) return i;
  }
  return std::nullopt;
}

}  // namespace mbb::trainer
