// Collectives and pipeline messages on the CPU, through the rank's communicators.
#include "trainer/comm/communicator.h"

#include <cstring>

#include "trainer/ops/cpu/functions.h"

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

Status cpu_group_identity(const CpuCall& call) {
  if (call.in[0].data != call.out[0].data)
    std::memcpy(call.out[0].data, call.in[0].data, static_cast<size_t>(call.in[0].tensor->bytes()));
  return {};
}

Status cpu_send(const CpuCall& call) {
  const auto& attrs = call.attrs<CommAttrs>();
  Communicator& comm = call.rank.communicator(attrs.group);
  const int peer = comm.rank() + (attrs.direction == Direction::kForward ? 1 : -1);
  return comm.send(call.in[0].data, count_of(call.in[0]), call.in[0].tensor->dtype, peer, pipe_direction(attrs));
}

Status cpu_recv(const CpuCall& call) {
  const auto& attrs = call.attrs<CommAttrs>();
  Communicator& comm = call.rank.communicator(attrs.group);
  const int peer = comm.rank() + (attrs.direction == Direction::kForward ? -1 : 1);
  return comm.recv(call.out[0].data, count_of(call.out[0]), call.out[0].tensor->dtype, peer, pipe_direction(attrs));
}

}  // namespace mbb::trainer
