// What an optimizer leaves for the next step.
#pragma once

#include <variant>
#include <vector>

#include "trainer/program/program.h"

namespace mbb::trainer {

// The weights, masters and moments that an AdamW op writes and that outlive the step; none of another op.
inline std::vector<TensorId> kept_by_optimizer(const Program& program, const Op& op) {
  std::vector<TensorId> kept;
  if (!std::holds_alternative<AdamAttrs>(op.attrs)) return kept;
  for (const TensorId id : op.out)
    if (program.tensor(program.storage(id)).scope == Scope::kPersistent) kept.push_back(id);
  return kept;
}

}  // namespace mbb::trainer
