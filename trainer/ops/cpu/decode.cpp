// Codes of any format back to values.
#include "trainer/ops/cpu/decode.h"

#include <array>

#include "trainer/precision/scales.h"

namespace mbb::trainer {
namespace {

const uint8_t* bytes_in(const CpuOperand& operand) {
  return static_cast<const uint8_t*>(operand.data);
}

double scale_at(const CpuOperand& scales, int64_t i) {
  switch (scales.tensor->dtype) {
    case DType::kE8M0: return static_cast<double>(from_e8m0(bytes_in(scales)[i]));
    case DType::kE4M3: return static_cast<double>(from_fp8(bytes_in(scales)[i], DType::kE4M3));
    default: return static_cast<double>(static_cast<const float*>(scales.data)[i]);
  }
}

// The value of every code of one byte, or of every FP4 code of half a byte.
std::array<double, 256> values_of_codes(DType dtype) {
  std::array<double, 256> values{};
  for (size_t code = 0; code < values.size(); ++code) {
    const auto byte = static_cast<uint8_t>(code);
    values[code] = static_cast<double>(dtype == DType::kE2M1 ? from_fp4(byte) : from_fp8(byte, dtype));
  }
  return values;
}

}  // namespace

std::vector<double> decode_tensorwise(const CpuOperand& q, const CpuOperand& scales) {
  const double inverse = scale_at(scales, 0);
  const std::array<double, 256> of_code = values_of_codes(q.tensor->dtype);
  std::vector<double> values(static_cast<size_t>(q.elements()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = of_code[bytes_in(q)[i]] * inverse;
  return values;
}

BlockTable block_table(const CpuOperand& q, int64_t block, bool square, int64_t line_stack, int64_t inner_stack) {
  const int64_t inner = q.tensor->shape.cols();
  return {q.elements() / inner, inner, block, square, line_stack, inner_stack};
}

std::vector<double> decode_blocks(const CpuOperand& q, const CpuOperand& scales, float inverse,
                                  const BlockTable& table) {
  const bool fp4 = q.tensor->dtype == DType::kE2M1;
  const std::array<double, 256> of_code = values_of_codes(q.tensor->dtype);
  std::vector<double> of_block(static_cast<size_t>(table.size())), values(static_cast<size_t>(q.elements()));
  for (size_t i = 0; i < of_block.size(); ++i) of_block[i] = scale_at(scales, static_cast<int64_t>(i));
  for (int64_t r = 0; r < table.lines; ++r) {
    for (int64_t c = 0; c < table.inner; ++c) {
      const int64_t at = r * table.inner + c;
      const uint8_t code = fp4 ? fp4_at(bytes_in(q), at) : bytes_in(q)[at];
      values[static_cast<size_t>(at)] =
          of_code[code] * of_block[static_cast<size_t>(table.at(r, c))] * static_cast<double>(inverse);
    }
  }
  return values;
}

}  // namespace mbb::trainer
