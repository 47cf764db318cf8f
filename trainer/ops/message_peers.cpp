// Peers of messages by rank arithmetic.
#include "trainer/ops/message_peers.h"

#include "trainer/ops/table.h"

namespace mbb::trainer {
namespace {

std::vector<int> other_mesh(const Mesh& mesh, int rank) {
  MeshCoordinates at = mesh.coordinates(rank);
  const int slices = mesh.tp(MeshRole::kDecoder) / mesh.tp(MeshRole::kEncoder);
  std::vector<int> peers;
  if (at.role == MeshRole::kDecoder) {
    at.role = MeshRole::kEncoder;
    at.pp = mesh.pp(MeshRole::kEncoder) - 1;
    at.tp /= slices;
    return {mesh.rank(at)};
  }
  at.role = MeshRole::kDecoder;
  at.pp = 0;
  at.tp *= slices;
  for (int i = 0; i < slices; ++i, ++at.tp) peers.push_back(mesh.rank(at));
  return peers;
}

}  // namespace

bool sends(const Op& op) {
  return op.kind == &kSend || op.kind == &kReshardSend;
}

bool receives(const Op& op) {
  return op.kind == &kRecv || op.kind == &kReshardRecv;
}

Stream message_stream(MessageForm form, Direction direction, bool receiving) {
  if (form == MessageForm::kBatched || (form == MessageForm::kInTurn && !receiving)) return Stream::kCompute;
  if (direction == Direction::kForward) return receiving ? Stream::kPpRecvForward : Stream::kPpSendForward;
  return receiving ? Stream::kPpRecvBackward : Stream::kPpSendBackward;
}

std::vector<int> message_peers(const Mesh& mesh, const CommAttrs& attrs, bool receiving, int rank) {
  if (attrs.group == GroupKind::kModel) return other_mesh(mesh, rank);
  const std::vector<int> members = mesh.group(attrs.group, rank);
  const auto size = static_cast<int>(members.size());
  int place = mesh.group_index(attrs.group, rank);
  place += (attrs.direction == Direction::kForward ? 1 : -1) * (receiving ? -1 : 1);
  if (attrs.ring) place = (place + size) % size;
  if (place < 0 || place >= size) return {};
  return {members[static_cast<size_t>(place)]};
}

}  // namespace mbb::trainer
