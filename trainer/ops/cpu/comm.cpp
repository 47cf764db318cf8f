// Collectives and pipeline messages on the CPU, through the rank's communicators.
#include "trainer/comm/communicator.h"

#include <fmt/core.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/cpu/operand.h"
#include "trainer/ops/message_peers.h"

namespace mbb::trainer {
namespace {

ReduceOp reduce_op(const CommAttrs& attrs) {
  return attrs.reduce == ReduceKind::kMax ? ReduceOp::kMax : ReduceOp::kSum;
}

PipeDirection pipe_direction(const CommAttrs& attrs) {
  return attrs.direction == Direction::kForward ? PipeDirection::kForward : PipeDirection::kBackward;
}

size_t count_of(const CpuOperand& operand) {
  return static_cast<size_t>(operand.elements());
}

char* at(void* data, DType dtype, size_t elements) {
  return static_cast<char*>(data) + bytes_of(dtype, elements);
}

// A message with its peers: each takes or gives one slice of the buffer, in the order of the peers.
Status message(const CpuCall& call, const CpuOperand& buffer, bool receiving) {
  const auto& attrs = call.attrs<CommAttrs>();
  Communicator& comm = call.rank.communicator(attrs.group);
  const std::vector<int> peers = message_peers(*call.rank.mesh, attrs, receiving, call.rank.rank);
  MB_CHECK(!peers.empty(), "a message without a peer: " + call.op.path);
  const DType dtype = buffer.tensor->dtype;
  const size_t slice = count_of(buffer) / peers.size();
  for (size_t i = 0; i < peers.size(); ++i) {
    const int peer = call.rank.mesh->group_index(attrs.group, peers[i]);
    char* part = at(buffer.data, dtype, i * slice);
    MB_TRY(receiving ? comm.recv(part, slice, dtype, peer, pipe_direction(attrs))
                     : comm.send(part, slice, dtype, peer, pipe_direction(attrs)));
  }
  return {};
}

// Elements of each member's part, from the counts of its rows.
std::vector<size_t> elements_a_member(const CpuOperand& counts, int members, size_t row_elements) {
  const int64_t each = counts.elements() / members;
  std::vector<size_t> elements(static_cast<size_t>(members), 0);
  for (int64_t i = 0; i < counts.elements(); ++i)
    elements[static_cast<size_t>(i / each)] += static_cast<size_t>(ints(counts)[i]) * row_elements;
  return elements;
}

}  // namespace

Status cpu_all_gather(const CpuCall& call) {
  const auto& attrs = call.attrs<CommAttrs>();
  Communicator& comm = call.rank.communicator(attrs.group);
  const DType dtype = call.in[0].tensor->dtype;
  if (!attrs.own_shard) return comm.all_gather(call.in[0].data, call.out[0].data, count_of(call.in[0]), dtype);
  const size_t part = count_of(call.out[0]) / static_cast<size_t>(comm.size());
  return comm.all_gather(at(call.out[0].data, dtype, part * static_cast<size_t>(comm.rank())), call.out[0].data, part,
                         dtype);
}

Status cpu_reduce_scatter(const CpuCall& call) {
  const auto& attrs = call.attrs<CommAttrs>();
  Communicator& comm = call.rank.communicator(attrs.group);
  const DType dtype = call.in[0].tensor->dtype;
  const size_t part = count_of(call.in[0]) / static_cast<size_t>(comm.size());
  void* out = attrs.own_shard ? at(call.out[0].data, dtype, part * static_cast<size_t>(comm.rank())) : call.out[0].data;
  return comm.reduce_scatter(call.in[0].data, out, part, dtype, reduce_op(attrs));
}

Status cpu_all_reduce(const CpuCall& call) {
  const auto& attrs = call.attrs<CommAttrs>();
  const DType dtype = call.in[0].tensor->dtype;
  const size_t part = count_of(call.in[0]) / static_cast<size_t>(attrs.shards);
  const size_t before = attrs.shards > 1 ? part * static_cast<size_t>(call.rank.index_in(attrs.shard_group)) : 0;
  return call.rank.communicator(attrs.group)
      .all_reduce(at(call.in[0].data, dtype, before), at(call.out[0].data, dtype, before), part, dtype,
                  reduce_op(attrs));
}

Status cpu_all_to_all(const CpuCall& call) {
  Communicator& comm = call.rank.communicator(call.attrs<CommAttrs>().group);
  return comm.all_to_all(call.in[0].data, call.out[0].data, count_of(call.in[0]) / static_cast<size_t>(comm.size()),
                         call.in[0].tensor->dtype);
}

Status cpu_all_to_all_rows(const CpuCall& call) {
  const auto& attrs = call.attrs<CommAttrs>();
  Communicator& comm = call.rank.communicator(attrs.group);
  const auto h = static_cast<size_t>(call.in[0].tensor->shape.cols());
  const std::vector<size_t> sent = elements_a_member(call.in[1], comm.size(), h);
  const std::vector<size_t> received = elements_a_member(call.in[2], comm.size(), h);
  const size_t total = std::accumulate(received.begin(), received.end(), size_t{0});
  const size_t room = count_of(call.out[0]);
  if (total > room)
    return fail(
        ErrorCode::kOutOfMemory,
        fmt::format("{} rows arrive and the buffer has {}: parallel.moe_dropless_bound must be at least {:.3f}",
                    total / h, room / h, static_cast<double>(total / h) / static_cast<double>(attrs.useful_rows)),
        "0 makes room for the worst case");
  const DType dtype = call.in[0].tensor->dtype;
  std::memset(at(call.out[0].data, dtype, total), 0, bytes_of(dtype, room - total));
  return comm.all_to_all_v(call.in[0].data, sent, call.out[0].data, received, dtype);
}

Status cpu_group_identity(const CpuCall& call) {
  if (call.in[0].data != call.out[0].data)
    std::memcpy(call.out[0].data, call.in[0].data, static_cast<size_t>(call.in[0].tensor->bytes()));
  return {};
}

Status cpu_send(const CpuCall& call) {
  return message(call, call.in[0], false);
}
Status cpu_recv(const CpuCall& call) {
  return message(call, call.out[0], true);
}
Status cpu_reshard_send(const CpuCall& call) {
  return message(call, call.in[0], false);
}
Status cpu_reshard_recv(const CpuCall& call) {
  return message(call, call.out[0], true);
}

}  // namespace mbb::trainer
