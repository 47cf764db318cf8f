// Op kinds of a foreign program, by name.
#include "trainer/ops/own_records.h"

#include <map>

#include "trainer/ops/table.h"

namespace mbb::trainer {

Program with_own_records(Program program) {
  std::map<const OpKind*, const OpKind*> own;
  for (Segment& segment : program.segments) {
    for (Op& op : segment.ops) {
      const auto [at, added] = own.try_emplace(op.kind, nullptr);
      if (added) {
        const OpKind* const found = find_op_kind(op.kind->name);
        at->second = found == nullptr ? op.kind : found;
      }
      op.kind = at->second;
    }
  }
  return program;
}

}  // namespace mbb::trainer
