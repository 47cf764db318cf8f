// Sites by walking the program once.
#include "trainer/execute/op_sites.h"

#include <array>
#include <map>
#include <tuple>

#include "trainer/ops/message_peers.h"
#include "trainer/ops/table.h"
#include "trainer/program/walk.h"

namespace mbb::trainer {
namespace {

// Numbers a rank's calls on every group and channel, so that all members give one call the same number: 6 bits of
// group kind or channel direction, 14 bits of first member or sender, 19 bits of count.
class Collectives {
 public:
  Collectives(const Mesh& mesh, int rank) : mesh_(mesh), rank_(rank) {}

  uint64_t next(const Op& op) {
    const auto& attrs = std::get<CommAttrs>(op.attrs);
    if (!sends(op) && !receives(op))
      return id(static_cast<uint64_t>(attrs.group), mesh_.group(attrs.group, rank_).front());
    const int peer = message_peers(mesh_, attrs, receives(op), rank_).front();
    const auto channel = kFirstChannel + static_cast<uint64_t>(attrs.direction);
    if (attrs.group == GroupKind::kPp) return id(channel, sends(op) ? rank_ : peer);
    // Between meshes an encoder's rank speaks with several of the decoder's at once: the message is the encoder's.
    const bool encoder = mesh_.coordinates(rank_).role == MeshRole::kEncoder;
    return id(channel + 2, encoder ? rank_ : peer);
  }

 private:
  static constexpr uint64_t kFirstChannel = 40;

  uint64_t id(uint64_t kind, int who) {
    const uint64_t count = counts_[{kind, who}]++;
    return (((kind << 14U) | (static_cast<uint64_t>(who) & 0x3fffU)) << 19U | (count & 0x7ffffU)) + 1;
  }

  const Mesh& mesh_;
  int rank_;
  std::map<std::pair<uint64_t, int>, uint64_t> counts_;
};

}  // namespace

profiler::StreamKind stream_kind(Stream stream) {
  using profiler::StreamKind;
  constexpr std::array kKinds{StreamKind::kCompute, StreamKind::kTp,  StreamKind::kCp, StreamKind::kEp,
                              StreamKind::kPp,      StreamKind::kPp,  StreamKind::kPp, StreamKind::kPp,
                              StreamKind::kDp,      StreamKind::kCopy};
  static_assert(kKinds.size() == kStreams);
  return kKinds[static_cast<size_t>(stream)];
}

profiler::SpanKind span_kind(const Op& op) {
  using profiler::SpanKind;
  if (!op.kind->communicates) return op.stream == Stream::kCopy ? SpanKind::kCopy : SpanKind::kCompute;
  if (sends(op) || receives(op)) return SpanKind::kCommPp;
  switch (std::get<CommAttrs>(op.attrs).group) {
    case GroupKind::kTp: return SpanKind::kCommTp;
    case GroupKind::kCp:
    case GroupKind::kCpA2a:
    case GroupKind::kCpP2p: return SpanKind::kCommCp;
    case GroupKind::kPp: return SpanKind::kCommPp;
    case GroupKind::kEp:
    case GroupKind::kEtp:
    case GroupKind::kEtpEp: return SpanKind::kCommEp;
    case GroupKind::kDp:
    case GroupKind::kDpCp:
    case GroupKind::kDpCpShard:
    case GroupKind::kDpCpReplica:
    case GroupKind::kEdp:
    case GroupKind::kEdpShard:
    case GroupKind::kEdpReplica: return SpanKind::kCommDp;
    default: return SpanKind::kCommOther;
  }
}

profiler::Phase phase_of(SegmentKind kind, const Op& op) {
  using profiler::Phase;
  if (op.role == Role::kWgrad) return Phase::kWgrad;
  constexpr std::array<Phase, kSegmentKinds> kPhases{Phase::kForward,   Phase::kBackward, Phase::kGradSync,
                                                     Phase::kOptimizer, Phase::kWgrad,    Phase::kOptimizer};
  return kPhases[static_cast<size_t>(kind)];
}

std::vector<profiler::OpSite> op_sites(const Program& program, const Mesh& mesh, int rank) {
  std::vector<profiler::OpSite> sites;
  Collectives collectives(mesh, rank);
  walk(program, [&](int, const Call& call, int, const Op& op) {
    const SegmentKind segment = program.segment(call).kind;
    profiler::OpSite site;
    site.path = op.path;
    site.kind = span_kind(op);
    site.stream = stream_kind(op.stream);
    site.phase = phase_of(segment, op);
    if (is_micro_batched(segment)) site.micro_batch = call.micro_batch;
    if (op.kind->communicates) site.collective = collectives.next(op);
    sites.push_back(std::move(site));
  });
  for (const char* path : {kUploadPath, kResultPath}) {
    profiler::OpSite site;
    site.path = path;
    site.phase = profiler::Phase::kData;
    sites.push_back(std::move(site));
  }
  return sites;
}

}  // namespace mbb::trainer
