// Stable partitions of op lists.
#include "trainer/passes/message_order.h"

#include <algorithm>

#include "trainer/ops/message_peers.h"
#include "trainer/program/walk.h"

namespace mbb::trainer {
namespace {

bool is_batched(const Op& op) {
  return (sends(op) || receives(op)) && std::get<CommAttrs>(op.attrs).form == MessageForm::kBatched;
}

}  // namespace

void put_messages_at_ends(Program& program) {
  for (Segment& segment : program.segments) {
    if (!is_micro_batched(segment.kind)) continue;
    const auto rank = [](const Op& op) { return !is_batched(op) ? 1 : receives(op) ? 0 : 2; };
    const auto before = [&](const Op& a, const Op& b) { return rank(a) < rank(b); };
    if (std::is_sorted(segment.ops.begin(), segment.ops.end(), before)) continue;  // sorting would move all of them
    std::stable_sort(segment.ops.begin(), segment.ops.end(), before);
  }
}

}  // namespace mbb::trainer
