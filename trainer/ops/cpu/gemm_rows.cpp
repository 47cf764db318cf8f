// Products of blocks of rows, and FP8 messages with their scale, on the CPU.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/cpu/operand.h"
#include "trainer/ops/cpu/product.h"
#include "trainer/precision/fp8.h"

namespace mbb::trainer {
namespace {

// Where the rows of a product are read and written, in order.
struct RowPair {
  int64_t from, to;
};
std::vector<RowPair> rows_of(const RowBlocks& part, int tp_coordinate) {
  std::vector<RowPair> rows;
  for (int64_t block = 0; block < part.blocks; ++block) {
    for (int64_t row = 0; row < part.rows; ++row) {
      const int64_t whole = part.begin(block, tp_coordinate) + row, own = block * part.rows + row;
      rows.push_back(part.of_result ? RowPair{own, whole} : RowPair{whole, own});
    }
  }
  return rows;
}

double code_at(const CpuOperand& codes, int64_t i) {
  return static_cast<double>(from_fp8(static_cast<const uint8_t*>(codes.data)[i], codes.tensor->dtype));
}

}  // namespace

Status cpu_gemm_rows(const CpuCall& call) {
  const auto& attrs = call.attrs<GemmRowsAttrs>();
  const ReadF32 a(call.in[0]);
  const ReadF32 b(call.in[1]);
  WriteF32 c(call.out[0], call.in.size() > 2);
  const int64_t k = call.in[0].tensor->shape.cols();
  const int64_t n = call.out[0].tensor->shape.cols();
  std::vector<double> acc(static_cast<size_t>(n));
  for (const auto& [from, to] : rows_of(attrs.part, call.rank.coordinates.tp)) {
    std::fill(acc.begin(), acc.end(), 0.0);
    for (int64_t p = 0; p < k; ++p) {
      const auto x = static_cast<double>(a[from * k + p]);
      for (int64_t j = 0; j < n; ++j)
        acc[static_cast<size_t>(j)] += x * static_cast<double>(attrs.gemm.trans_b ? b[j * k + p] : b[p * n + j]);
    }
    for (int64_t j = 0; j < n; ++j) c[to * n + j] = static_cast<float>(acc[static_cast<size_t>(j)]);
  }
  return {};
}

Status cpu_gemm_scaled_rows(const CpuCall& call) {
  const auto& attrs = call.attrs<ScaledRowsAttrs>();
  const CpuOperand &a = call.in[0], &b = call.in[1];
  const double scale = static_cast<double>(ReadF32(call.in[2])[0]) * static_cast<double>(ReadF32(call.in[3])[0]);
  WriteF32 d(call.out[0], call.in.size() > 4);
  const auto k = a.tensor->shape.cols(), n = b.tensor->shape.rows();
  const std::vector<RowPair> rows = rows_of(attrs.part, call.rank.coordinates.tp);
  std::vector<double> left;
  for (const RowPair& row : rows)
    for (int64_t p = 0; p < k; ++p) left.push_back(code_at(a, row.from * k + p));
  std::vector<double> right;
  for (int64_t i = 0; i < b.elements(); ++i) right.push_back(code_at(b, i));
  products(left, right, k, [&](int64_t i, const std::vector<double>& sums) {
    const int64_t to = rows[static_cast<size_t>(i)].to;
    for (int64_t j = 0; j < n; ++j) d[to * n + j] = static_cast<float>(sums[static_cast<size_t>(j)] * scale);
  });
  return {};
}

Status cpu_pack_fp8(const CpuCall& call) {
  const ReadF32 x(call.in[0]);
  const int64_t count = call.in[0].elements();
  float amax = 0;
  for (int64_t i = 0; i < count; ++i) amax = std::isnan(x[i]) ? x[i] : std::max(amax, std::abs(x[i]));
  const float scale = tensor_scale(amax, DType::kE4M3);
  auto* bytes = static_cast<uint8_t*>(call.out[0].data);
  for (int64_t i = 0; i < count; ++i) bytes[i] = to_fp8(x[i] * scale, DType::kE4M3);
  const float inverse = 1.0F / scale;
  std::memcpy(bytes + count, &inverse, sizeof(inverse));
  return {};
}

Status cpu_unpack_fp8(const CpuCall& call) {
  const auto* bytes = static_cast<const uint8_t*>(call.in[0].data);
  WriteF32 x(call.out[0]);
  const int64_t count = call.out[0].elements();
  float inverse = 0;
  std::memcpy(&inverse, bytes + count, sizeof(inverse));
  for (int64_t i = 0; i < count; ++i) x[i] = from_fp8(bytes[i], DType::kE4M3) * inverse;
  return {};
}

}  // namespace mbb::trainer
