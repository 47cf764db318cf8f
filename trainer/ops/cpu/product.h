// A·Bᵀ of decoded operands: both hold rows of k values, summed in double over k in order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace mbb::trainer {

// acc[j] += a · b[j] for j < n.
void add_scaled(double* acc, const double* b, double a, int64_t n);
void add_scaled(double* acc, const float* b, double a, int64_t n);

// visit(i, sums): row i of the product, one sum a row of B.
template <typename Visit>
void products(const std::vector<double>& a, const std::vector<double>& b, int64_t k, Visit&& visit) {
  const auto inner = static_cast<std::size_t>(k);
  const std::size_t m = a.size() / inner, n = b.size() / inner;
  std::vector<double> transposed(b.size());
  for (std::size_t j = 0; j < n; ++j)
    for (std::size_t l = 0; l < inner; ++l) transposed[l * n + j] = b[j * inner + l];
  std::vector<double> sums(n);
  for (std::size_t i = 0; i < m; ++i) {
    sums.assign(n, 0.0);
    for (std::size_t l = 0; l < inner; ++l)
      add_scaled(sums.data(), transposed.data() + l * n, a[i * inner + l], static_cast<int64_t>(n));
    visit(static_cast<int64_t>(i), sums);
  }
}

}  // namespace mbb::trainer
