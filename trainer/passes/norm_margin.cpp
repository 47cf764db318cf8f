// Norms are the ops that carry NormAttrs; those that write a weight's gradient are the backward ones.
#include "trainer/passes/norm_margin.h"

namespace mbb::trainer {

void leave_sms_beside_norms(Program& program, int forward_sms, int backward_sms) {
  for (Segment& segment : program.segments)
    for (Op& op : segment.ops)
      if (auto* norm = std::get_if<NormAttrs>(&op.attrs))
        norm->sm_margin = op.role == Role::kWgrad ? backward_sms : forward_sms;
}

}  // namespace mbb::trainer
