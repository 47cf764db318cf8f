// Operands of CPU functions as fp32 arrays: direct where they are fp32, converted copies where they are narrower.
#pragma once

#include <vector>

#include "trainer/ops/op_kind.h"
#include "trainer/program/packed_rows.h"

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

// Where rows lie in their sequence: of a pack by its starts (PositionAttrs), else as `positions` says, all in one.
std::vector<PackedRow> rows_of(const Positions& positions, const CpuOperand* starts, int64_t rows);

}  // namespace mbb::trainer
