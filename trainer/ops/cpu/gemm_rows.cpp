// Products of blocks of rows, and FP8 messages with their scale, on the CPU.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/cpu/operand.h"
#include "trainer/precision/fp8.h"

namespace mbb::trainer {
namespace {

// Rows of the whole side, in order.
std::vector<int64_t> rows_of(const GemmRowsAttrs& a, int coordinate) {
  std::vector<int64_t> rows;
  for (int64_t block = 0; block < a.blocks; ++block) {
    const int64_t at = a.ring > 0 ? ((coordinate - a.step) % a.ring + a.ring) % a.ring : block;
    for (int64_t row = 0; row < a.rows; ++row) rows.push_back(at * a.stride + a.first + row);
  }
  return rows;
}

}  // namespace

Status cpu_gemm_rows(const CpuCall& call) {
  const auto& attrs = call.attrs<GemmRowsAttrs>();
  const ReadF32 a(call.in[0]);
  const ReadF32 b(call.in[1]);
  WriteF32 c(call.out[0], call.in.size() > 2);
  const std::vector<int64_t> whole = rows_of(attrs, call.rank.coordinates.tp);
  const int64_t k = call.in[0].tensor->shape.cols();
  const int64_t n = call.out[0].tensor->shape.cols();
  std::vector<double> acc(static_cast<size_t>(n));
  for (size_t i = 0; i < whole.size(); ++i) {
    const int64_t from = attrs.of_result ? static_cast<int64_t>(i) : whole[i];
    const int64_t to = attrs.of_result ? whole[i] : static_cast<int64_t>(i);
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
