// Optional outputs without a reader.
#include "trainer/passes/unread_copies.h"

#include <vector>

#include "trainer/ops/op_kind.h"

namespace mbb::trainer {
namespace {

template <typename Visit>
void each_unread(const Program& program, Visit&& visit) {
  std::vector<bool> read(program.tensors.size(), false);
  for (const Segment& segment : program.segments)
    for (const Op& op : segment.ops)
      for (const TensorId id : op.in)
        read[static_cast<size_t>(id)] = read[static_cast<size_t>(program.storage(id))] = true;
  for (const Segment& segment : program.segments)
    for (const Op& op : segment.ops)
      for (size_t i = 0; i < op.out.size() && i < static_cast<size_t>(op.kind->optional_outputs); ++i)
        if (!read[static_cast<size_t>(op.out[i])] && program.tensor(op.out[i]).view_of == kNoTensor) visit(op.out[i]);
}

}  // namespace

bool has_unread_copies(const Program& program) {
  bool found = false;
  each_unread(program, [&](TensorId) { found = true; });
  return found;
}

void leave_out_unread_copies(Program& program) {
  each_unread(program, [&](TensorId id) { program.tensor(id).left_out = true; });
}

}  // namespace mbb::trainer
