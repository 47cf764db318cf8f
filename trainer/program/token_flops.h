// Model FLOPs of one token of a configuration's steps: NUMERICS' closed form, less what frozen weights spare.
//
// A frozen weight needs no wgrad, and below the first weight that trains nothing needs a dgrad; an adapter's products
// count. The closed form knows neither, so where weights are frozen (memory.frozen, memory.lora_rank) the products of
// linear layers are the step programs' own, and the attention core is the closed form's. Such rows carry a formula's id
// of their own: MFU of fine-tuning counts what fine-tuning needs.
#pragma once

#include "trainer/models/flops.h"
#include "trainer/program/explain.h"
#include "trainer/run/step_programs.h"

namespace mbb::trainer {

inline constexpr const char* kTrainedFlopsFormulaId = "mbb-trained-flops";
inline constexpr int kTrainedFlopsFormulaVersion = 1;

struct TokenFlops {
  double causal = 0, full = 0;  // FLOPs a decoder token, by convention
  const char* formula = kFlopsFormulaId;
  int version = kFlopsFormulaVersion;
};

// Over sequences of these lengths; without, over rows filled with tokens. Of the model with its vocabulary padded.
TokenFlops token_flops(const Layout& layout, const StepPrograms& programs, const BatchLengths& batch);
TokenFlops token_flops(const Layout& layout, const StepPrograms& programs);
TokenFlops token_flops(const Layout& layout, const StepPrograms& programs, const Explain& costs);

}  // namespace mbb::trainer
