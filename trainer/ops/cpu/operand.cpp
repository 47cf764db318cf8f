// Conversion of operands to and from fp32.
#include "trainer/ops/cpu/operand.h"

namespace mbb::trainer {
namespace {

float load(DType dtype, const void* data, int64_t i) {
  switch (dtype) {
    case DType::kF32: return static_cast<const float*>(data)[i];
    case DType::kBf16: return to_float(static_cast<const Bf16*>(data)[i]);
    default: break;
  }
  MB_CHECK(false, std::string("no CPU load of dtype ") + name(dtype));
}

void store(DType dtype, void* data, int64_t i, float value) {
  switch (dtype) {
    case DType::kF32: static_cast<float*>(data)[i] = value; return;
    case DType::kBf16: static_cast<Bf16*>(data)[i] = to_bf16(value); return;
    default: break;
  }
  MB_CHECK(false, std::string("no CPU store of dtype ") + name(dtype));
}

}  // namespace

ReadF32::ReadF32(const CpuOperand& operand) : data_(static_cast<const float*>(operand.data)) {
  if (operand.tensor->dtype == DType::kF32) return;
  copy_.resize(static_cast<size_t>(operand.elements()));
  for (size_t i = 0; i < copy_.size(); ++i)
    copy_[i] = load(operand.tensor->dtype, operand.data, static_cast<int64_t>(i));
  data_ = copy_.data();
}

WriteF32::WriteF32(const CpuOperand& operand, bool update)
    : operand_(operand), data_(static_cast<float*>(operand.data)) {
  if (operand.tensor->dtype == DType::kF32) return;
  copy_.resize(static_cast<size_t>(operand.elements()));
  if (update)
    for (size_t i = 0; i < copy_.size(); ++i)
      copy_[i] = load(operand.tensor->dtype, operand.data, static_cast<int64_t>(i));
  data_ = copy_.data();
}

WriteF32::~WriteF32() {
  for (size_t i = 0; i < copy_.size(); ++i)
    store(operand_.tensor->dtype, operand_.data, static_cast<int64_t>(i), copy_[i]);
}

std::vector<PackedRow> rows_of(const Positions& positions, const CpuOperand* starts, int64_t rows) {
  if (starts != nullptr) return packed_rows(positions, {ints(*starts), static_cast<size_t>(starts->elements())}, rows);
  std::vector<PackedRow> all(static_cast<size_t>(rows));
  for (int64_t row = 0; row < rows; ++row) all[static_cast<size_t>(row)].at = positions.at(row);
  return all;
}

}  // namespace mbb::trainer
