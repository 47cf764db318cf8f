// Numbers storages and their ring slots, so that replay looks them up in arrays.
#include "trainer/execute/simulate/replay_sites.h"

#include <algorithm>

#include "trainer/execute/op_sites.h"
#include "trainer/ops/message_peers.h"
#include "trainer/ops/op_kind.h"

namespace mbb::trainer {
namespace {

bool is_batched(const Op& op) {
  const auto* attrs = std::get_if<CommAttrs>(&op.attrs);
  return attrs != nullptr && attrs->form == MessageForm::kBatched;
}

// An op's stream; messages are drawn on those of their directions, for those of a batch overlap.
Stream track_of(const Op& op) {
  if (!sends(op) && !receives(op)) return op.stream;
  return message_stream(MessageForm::kOverlapped, std::get<CommAttrs>(op.attrs).direction, receives(op));
}

Meeting meeting_of(const Op& op) {
  if (!op.kind->communicates) return Meeting::kNone;
  if (sends(op)) return Meeting::kSend;
  return receives(op) ? Meeting::kReceive : Meeting::kCollective;
}

uint32_t ring_of(const Tensor& tensor) {
  return tensor.scope == Scope::kMicroBatch ? static_cast<uint32_t>(tensor.ring) : 1;
}

}  // namespace

ReplaySites::ReplaySites(const Program& program) {
  std::vector<uint32_t> widest(program.tensors.size(), 1), first(program.tensors.size());
  for (size_t i = 0; i < program.tensors.size(); ++i) {
    uint32_t& ring = widest[static_cast<size_t>(program.storage(static_cast<TensorId>(i)))];
    ring = std::max(ring, ring_of(program.tensors[i]));
  }
  for (size_t i = 0; i < widest.size(); ++i) {
    first[i] = static_cast<uint32_t>(slots);
    slots += widest[i];
  }
  const auto add = [&](TensorId id) {
    const uint32_t ring = ring_of(program.tensor(id));
    const auto known = std::find(rings.begin(), rings.end(), ring);
    keys.push_back({first[static_cast<size_t>(program.storage(id))], static_cast<uint32_t>(known - rings.begin())});
    if (known == rings.end()) rings.push_back(ring);
  };
  for (const Segment& segment : program.segments) {
    std::vector<ReplaySite>& sites = segments.emplace_back();
    sites.reserve(segment.ops.size());
    for (const Op& op : segment.ops) {
      ReplaySite site;
      site.in_begin = static_cast<uint32_t>(keys.size());
      for (TensorId id : op.in) add(id);
      site.out_begin = static_cast<uint32_t>(keys.size());
      for (TensorId id : op.out) add(id);
      site.out_end = static_cast<uint32_t>(keys.size());
      site.when = op.when;
      site.stream = op.stream;
      site.track = track_of(op);
      site.meets = meeting_of(op);
      if (site.meets != Meeting::kNone) site.comm = &std::get<CommAttrs>(op.attrs);
      site.batched = is_batched(op);
      site.kind = span_kind(op);
      site.phase = phase_of(segment.kind, op);
      sites.push_back(site);
    }
  }
}

}  // namespace mbb::trainer
