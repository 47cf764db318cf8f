// What each precision recipe (NUMERICS.md 3) makes of a GEMM's operands, and of the GEMM.
#pragma once

#include <memory>

#include "trainer/program/builder.h"
#include "trainer/run/layout.h"

namespace mbb::trainer {

enum class Operand : uint8_t { kInput, kWeight, kGradient };

// One quantized form of a value, inner dimension last.
struct Copy {
  TensorId q = kNoTensor;
  TensorId scales = kNoTensor;
  TensorId inverse = kNoTensor;  // of the whole copy, where blocks have scales under it
  bool square = false;           // blocks of the weight
};

// A value [rows, cols] for products over cols, and its transpose for products over rows.
struct Quantized {
  Copy row, column;
};

class RecipeOps {
 public:
  virtual ~RecipeOps() = default;
  // Appends the quantization of `value`. `state_of` is the value whose state it reads: itself, or what it was gathered
  // again from.
  // Rows of experts' values (`expert`) belong to one expert or another.
  virtual Quantized quantize(Builder& b, TensorId value, TensorId state_of, Operand operand, bool expert,
                             const EmitOptions& options) = 0;
  // The op that makes the same value quantized, with q, qᵀ and scales in place of its first output, or nullptr.
  virtual const OpKind* quantizing_form(const OpKind&) const { return nullptr; }
  // Appends D = A·Bᵀ in the place of `gemm`, a GEMM or a product of experts, with what else it reads and accumulates.
  virtual void product(Builder& b, const Op& gemm, const Copy& a, const Copy& c) = 0;
  // After the last op of a segment.
  virtual void end_segment(Builder&) {}
  virtual void once_a_step(Builder&) {}
};

// The recipe of a layout; nullptr where nothing is quantized.
std::unique_ptr<RecipeOps> recipe_ops(const Layout& layout);

}  // namespace mbb::trainer
