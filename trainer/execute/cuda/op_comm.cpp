// CUDA functions of collectives and messages: the rank's communicators do the work, on the stream of the op.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "trainer/comm/communicator.h"
#include "trainer/execute/cuda/op_call.h"
#include "trainer/ops/cuda/status.h"
#include "trainer/ops/message_peers.h"

namespace mbb::trainer::cuda {
namespace {

const CommAttrs& attrs_of(const OpCall& call) {
  return call.attrs<CommAttrs>();
}

Communicator& group_of(const OpCall& call) {
  MB_CHECK(call.ranks != nullptr, "a rank alone has no communicator: " + call.op.path);
  return call.ranks->communicator(attrs_of(call));
}

ReduceOp reduce_op(const CommAttrs& attrs) {
  return attrs.reduce == ReduceKind::kMax ? ReduceOp::kMax : ReduceOp::kSum;
}

PipeDirection pipe_direction(const CommAttrs& attrs) {
  return attrs.direction == Direction::kForward ? PipeDirection::kForward : PipeDirection::kBackward;
}

size_t count_of(const Operand& operand) {
  return static_cast<size_t>(operand.elements());
}

std::byte* at(const Operand& operand, size_t elements) {
  return operand.as<std::byte>() + bytes_of(operand.tensor->dtype, elements);
}

// A message with its peers: each takes or gives one slice of the buffer, in the order of the peers.
Status message(const OpCall& call, const Operand& buffer, bool receiving) {
  const CommAttrs& attrs = attrs_of(call);
  Communicator& group = group_of(call);
  const std::vector<int> peers = message_peers(*call.ranks->mesh, attrs, receiving, call.ranks->rank);
  MB_CHECK(!peers.empty(), "a message without a peer: " + call.op.path);
  const size_t slice = count_of(buffer) / peers.size();
  std::vector<P2p> parts;
  for (size_t i = 0; i < peers.size(); ++i)
    parts.push_back({receiving ? P2p::Kind::kRecv : P2p::Kind::kSend,
                     call.ranks->mesh->group_index(attrs.group, peers[i]), pipe_direction(attrs), at(buffer, i * slice),
                     slice, buffer.tensor->dtype});
  return group.exchange(parts);
}

// Elements of each member's part, from the counts of its rows.
std::vector<size_t> elements_a_member(std::span<const int32_t> counts, size_t members, size_t row_elements) {
  std::vector<size_t> elements(members, 0);
  const size_t each = counts.size() / members;
  for (size_t i = 0; i < counts.size(); ++i) elements[i / each] += static_cast<size_t>(counts[i]) * row_elements;
  return elements;
}

}  // namespace

Status all_gather_op(const OpCall& call) {
  Communicator& group = group_of(call);
  const DType dtype = call.in[0].tensor->dtype;
  if (!attrs_of(call).own_shard)
    return group.all_gather(call.in[0].data, call.out[0].data, count_of(call.in[0]), dtype);
  const size_t part = count_of(call.out[0]) / static_cast<size_t>(group.size());
  return group.all_gather(at(call.out[0], part * static_cast<size_t>(group.rank())), call.out[0].data, part, dtype);
}

Status reduce_scatter_op(const OpCall& call) {
  const CommAttrs& attrs = attrs_of(call);
  Communicator& group = group_of(call);
  const size_t part = count_of(call.in[0]) / static_cast<size_t>(group.size());
  void* out = attrs.own_shard ? at(call.out[0], part * static_cast<size_t>(group.rank())) : call.out[0].data;
  return group.reduce_scatter(call.in[0].data, out, part, call.in[0].tensor->dtype, reduce_op(attrs));
}

Status all_reduce_op(const OpCall& call) {
  const CommAttrs& attrs = attrs_of(call);
  Communicator& group = group_of(call);
  const size_t part = count_of(call.in[0]) / static_cast<size_t>(attrs.shards);
  const size_t before = attrs.shards > 1 ? part * static_cast<size_t>(call.ranks->index_in(attrs.shard_group)) : 0;
  return group.all_reduce(at(call.in[0], before), at(call.out[0], before), part, call.in[0].tensor->dtype,
                          reduce_op(attrs));
}

Status all_to_all_op(const OpCall& call) {
  Communicator& group = group_of(call);
  return group.all_to_all(call.in[0].data, call.out[0].data, count_of(call.in[0]) / static_cast<size_t>(group.size()),
                          call.in[0].tensor->dtype);
}

// How many rows travel is known on the device alone: the host reads the counts first, which a captured step cannot.
Status all_to_all_rows_op(const OpCall& call) {
  Communicator& group = group_of(call);
  const auto members = static_cast<size_t>(group.size());
  const cudaStream_t stream = call.device.stream();
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  MB_TRY(ok(cudaStreamIsCapturing(stream, &capturing), "exchanging rows"));
  if (capturing != cudaStreamCaptureStatusNone)
    return fail(ErrorCode::kUnavailable, "an exchange of as many rows as there are reads their counts on the host",
                "set host.enable_cuda_graph = false, or parallel.moe_exchange = padded");
  std::vector<int32_t> counts(count_of(call.in[1]) + count_of(call.in[2]));
  const size_t half = count_of(call.in[1]) * sizeof(int32_t);
  MB_TRY(ok(cudaMemcpyAsync(counts.data(), call.in[1].data, half, cudaMemcpyDeviceToHost, stream), "reading counts"));
  MB_TRY(ok(cudaMemcpyAsync(counts.data() + counts.size() / 2, call.in[2].data, half, cudaMemcpyDeviceToHost, stream),
            "reading counts"));
  MB_TRY(ok(cudaStreamSynchronize(stream), "reading counts"));
  const auto h = static_cast<size_t>(call.in[0].shape().cols());
  const std::span<const int32_t> all(counts);
  const std::vector<size_t> sent = elements_a_member(all.first(counts.size() / 2), members, h);
  const std::vector<size_t> received = elements_a_member(all.subspan(counts.size() / 2), members, h);
  const size_t total = std::accumulate(received.begin(), received.end(), size_t{0});
  const size_t room = count_of(call.out[0]);
  if (total > room)
    return fail(ErrorCode::kOutOfMemory,
                fmt::format("{} rows arrive and the buffer has {}: parallel.moe_dropless_bound must be at least {:.3f}",
                            total / h, room / h,
                            static_cast<double>(total / h) / static_cast<double>(attrs_of(call).useful_rows)),
                "0 makes room for the worst case");
  const DType dtype = call.in[0].tensor->dtype;
  MB_TRY(ok(cudaMemsetAsync(at(call.out[0], total), 0, bytes_of(dtype, room - total), stream), "clearing rows"));
  return group.all_to_all_v(call.in[0].data, sent, call.out[0].data, received, dtype);
}

Status ring_shift_op(const OpCall& call) {
  const auto& [distance, copy_engines] = std::tie(attrs_of(call).distance, attrs_of(call).copy_engines);
  Communicator& group = group_of(call);
  const size_t count = count_of(call.in[0]);
  const DType dtype = call.in[0].tensor->dtype;
  const int next = (group.rank() + distance) % group.size();
  const int before = (group.rank() + group.size() - distance % group.size()) % group.size();
  const std::array<P2p, 2> parts{
      P2p{P2p::Kind::kSend, next, PipeDirection::kForward, call.in[0].data, count, dtype, copy_engines},
      P2p{P2p::Kind::kRecv, before, PipeDirection::kForward, call.out[0].data, count, dtype, copy_engines}};
  return group.exchange(parts);
}

Status send_op(const OpCall& call) {
  return message(call, call.in[0], false);
}
Status recv_op(const OpCall& call) {
  return message(call, call.out[0], true);
}

}  // namespace mbb::trainer::cuda
