// Fresh random values for the inputs of op cases.
#include "trainer/ops/op_case.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace mbb::trainer {
namespace {

std::vector<double> distinct(int64_t count, int64_t bound, std::mt19937_64& random) {
  std::vector<double> all(static_cast<size_t>(bound));
  std::iota(all.begin(), all.end(), 0.0);
  std::shuffle(all.begin(), all.end(), random);
  all.resize(static_cast<size_t>(count));
  return all;
}

std::vector<double> segments(int64_t pieces, int64_t bound, std::mt19937_64& random) {
  std::uniform_int_distribution<int64_t> cut(0, bound);
  std::vector<int64_t> cuts{0, bound};
  for (int64_t i = 1; i < pieces; ++i) cuts.push_back(cut(random));
  std::sort(cuts.begin(), cuts.end());
  std::vector<double> values;
  for (size_t i = 0; i + 1 < cuts.size(); ++i) values.push_back(static_cast<double>(cuts[i]));
  for (size_t i = 0; i + 1 < cuts.size(); ++i) values.push_back(static_cast<double>(cuts[i + 1] - cuts[i]));
  return values;
}

std::vector<double> starts(int64_t count, int64_t bound, std::mt19937_64& random) {
  std::vector<double> values(static_cast<size_t>(count), static_cast<double>(bound));
  for (size_t i = 1; i + 2 < values.size(); ++i)
    values[i] = static_cast<double>(random() % static_cast<uint64_t>(bound + 1));
  values[0] = 0;
  std::sort(values.begin(), values.end());
  return values;
}

double value(const CaseInput& input, std::mt19937_64& random) {
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  const double normal = std::normal_distribution<double>()(random);
  switch (input.fill) {
    case Fill::kZeros: return 0;
    case Fill::kPositive: return std::abs(normal) + 0.1;
    case Fill::kUniform: return uniform(random);
    case Fill::kDropped:
      if (uniform(random) < 1.0 / 3) return -1;
      [[fallthrough]];
    case Fill::kPadded:
    case Fill::kInts: return static_cast<double>(random() % static_cast<uint64_t>(std::max<int64_t>(1, input.bound)));
    case Fill::kApart: return std::floor(normal * 2) / 2 + 0.15 + 0.2 * uniform(random);
    default: return normal;
  }
}

}  // namespace

std::vector<double> case_values(const CaseInput& input, std::mt19937_64& random) {
  if (input.fill == Fill::kDistinct) return distinct(input.shape.elements(), input.bound, random);
  if (input.fill == Fill::kSegments) return segments(input.shape[1], input.bound, random);
  if (input.fill == Fill::kStarts) return starts(input.shape.elements(), input.bound, random);
  std::vector<double> values(static_cast<size_t>(input.shape.elements()));
  for (double& v : values) v = value(input, random);
  if (input.fill != Fill::kPadded) return values;
  const auto cols = static_cast<size_t>(input.shape.cols());
  for (size_t row = 0; row < values.size(); row += cols)
    if (random() % 3 == 0) std::fill_n(values.begin() + static_cast<std::ptrdiff_t>(row), cols, -1.0);
  return values;
}

}  // namespace mbb::trainer
