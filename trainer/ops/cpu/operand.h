// Operands of CPU functions as fp32 arrays: direct where they are fp32, converted copies where they are narrower.
#pragma once

#include <vector>

#include "trainer/ops/op_kind.h"

namespace mbb::trainer {

// Reads an operand as floats.
class ReadF32 {
 public:
  explicit ReadF32(const CpuOperand& operand);
  const float* data() const { return data_; }
  float operator[](int64_t i) const { return data_[i]; }

 private:
  std::vector<float> copy_;
  const float* data_;
};

// Writes an operand as floats; what is narrower is rounded to nearest even when the writer goes out of scope.
// With `update` the present values are loaded first.
class WriteF32 {
 public:
  explicit WriteF32(const CpuOperand& operand, bool update = false);
  ~WriteF32();
  WriteF32(const WriteF32&) = delete;
  WriteF32& operator=(const WriteF32&) = delete;
  float* data() { return data_; }
  float& operator[](int64_t i) { return data_[i]; }

 private:
  const CpuOperand& operand_;
  std::vector<float> copy_;
  float* data_;
};

inline const int32_t* ints(const CpuOperand& operand) {
  MB_CHECK(operand.tensor->dtype == DType::kI32, "not an i32 tensor: " + operand.tensor->path);
  return static_cast<const int32_t*>(operand.data);
}

inline double* doubles(const CpuOperand& operand) {
  MB_CHECK(operand.tensor->dtype == DType::kF64, "not an f64 tensor: " + operand.tensor->path);
  return static_cast<double*>(operand.data);
}

// First token of each token's own sequence in a pack of `tokens`, from where sequences begin (PositionAttrs). Tokens
// behind the last sequence are one more.
std::vector<int64_t> sequence_starts(const CpuOperand& starts, int64_t tokens);

}  // namespace mbb::trainer
