// Counting ops, FLOPs, bytes and kept values of a micro-batch.
#include "trainer/passes/effects.h"

#include "trainer/ops/op_kind.h"
#include "trainer/program/walk.h"

namespace mbb::trainer {

PassFacts pass_facts(const Program& program) {
  PassFacts facts;
  std::vector<char> written(program.tensors.size()), kept(program.tensors.size());
  for (const Segment& segment : program.segments) {
    if (!is_micro_batched(segment.kind)) continue;
    const bool forward = segment.kind == SegmentKind::kForward;
    for (const Op& op : segment.ops) {
      for (const TensorId id : op.in)
        if (!forward && written[static_cast<size_t>(id)]) kept[static_cast<size_t>(id)] = 1;
      for (const TensorId id : op.out)
        if (forward) written[static_cast<size_t>(id)] = 1;
      if (!runs(op.when, false, false)) continue;
      ++(forward ? facts.forward_ops : facts.backward_ops);
      facts.comm_ops += op.kind->communicates ? 1 : 0;
      facts.flops += op_flops(OpView{program, op});
      facts.bytes += op_bytes(OpView{program, op});
    }
  }
  for (size_t i = 0; i < kept.size(); ++i) {
    const Tensor& t = program.tensors[i];
    if (!kept[i] || t.scope == Scope::kStep || t.scope == Scope::kPersistent) continue;
    (t.space == Space::kHost ? facts.host_bytes : facts.kept_bytes) += t.bytes();
  }
  return facts;
}

}  // namespace mbb::trainer
