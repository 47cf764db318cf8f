// Collectives and messages as NCCL calls on the rank's stream.
#include "trainer/comm/nccl/nccl_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "trainer/ops/cuda/status.h"

namespace mbb::trainer::cuda {
namespace {

Result<ncclDataType_t> type_of(DType dtype) {
  switch (dtype) {
    case DType::kF32: return ncclFloat32;
    case DType::kF64: return ncclFloat64;
    case DType::kBf16: return ncclBfloat16;
    case DType::kI32: return ncclInt32;
    case DType::kI64: return ncclInt64;
    case DType::kU8: return ncclUint8;
    default: return fail(ErrorCode::kBadArgument, fmt::format("NCCL: no reduction of {}", name(dtype)));
  }
}

const std::byte* at(const void* data, DType dtype, size_t elements) {
  return static_cast<const std::byte*>(data) + bytes_of(dtype, elements);
}

}  // namespace

NcclProcess::~NcclProcess() {
  forget_memory();
  // Peers may still be reading what this rank sent: leaving waits for them, where they are still there.
  bool well = !aborted_ && world_.check().has_value();
  for (auto comm = all_.rbegin(); comm != all_.rend() && well; ++comm)
    well = finish(api.finalize(*comm), *comm, "leaving").has_value();
  for (auto comm = all_.rbegin(); comm != all_.rend() && !aborted_; ++comm)
    well ? api.destroy(*comm) : api.abort(*comm);
}

Status NcclProcess::settle(ncclResult_t result, ncclComm_t comm, const std::string& doing) {
  constexpr std::chrono::microseconds kPause{50};
  constexpr int kLooks = 200;  // at the world, once in so many
  for (int looked = 0; result == ncclInProgress && comm != nullptr; ++looked) {
    MB_TRY(api.good(api.async_error(comm, &result), doing, comm));
    if (result != ncclInProgress) break;
    if (looked % kLooks == kLooks - 1) MB_TRY(world_.check());
    std::this_thread::sleep_for(kPause);
  }
  if (result == ncclSuccess) return {};
  MB_TRY(world_.check());  // a peer's end is the cause, not what NCCL saw of it
  return api.good(result, doing, comm);
}

Status NcclProcess::finish(ncclResult_t result, ncclComm_t comm, const std::string& doing) {
  if (result != ncclSuccess && result != ncclInProgress) return settle(result, comm, doing);
  return settle(ncclInProgress, comm, doing);
}

Status NcclProcess::settle_all(const std::string& doing) {
  for (ncclComm_t comm : all_) MB_TRY(settle(ncclInProgress, comm, doing));
  return {};
}

Result<bool> NcclProcess::register_memory(ncclComm_t comm, const NcclMemory& memory, bool symmetric,
                                          const char* group) {
  const auto taken = [&](ncclResult_t result) -> Status {
    Status status = settle(result, comm, fmt::format("registering the arena with {}", group));
    if (!status && status.error().code == ErrorCode::kRankFailed && world_.check())
      status.error().hint = "set memory.nccl_ub = false: collectives then copy through NCCL's own buffers";
    return status;
  };
  Registered entry{comm, nullptr, nullptr};
  if (symmetric)
    MB_TRY(taken(api.open_window(comm, memory.data, memory.bytes, &entry.window, NCCL_WIN_COLL_SYMMETRIC)));
  // NCCL opens none where the members' GPUs do not reach each other's memory.
  if (entry.window == nullptr) MB_TRY(taken(api.register_memory(comm, memory.data, memory.bytes, &entry.handle)));
  registered_.push_back(entry);
  return entry.window != nullptr;
}

void NcclProcess::forget_memory() {
  for (auto entry = registered_.rbegin(); entry != registered_.rend() && !aborted_; ++entry)
    if (entry->window != nullptr)
      api.close_window(entry->comm, entry->window);
    else if (entry->handle != nullptr)  // null: NCCL found nothing to gain
      api.forget_memory(entry->comm, entry->handle);
  registered_.clear();
}

Status NcclProcess::check() {
  MB_TRY(world_.check());
  if (aborted_) return fail(ErrorCode::kRankFailed, "NCCL: the communicators were aborted");
  for (ncclComm_t comm : all_) {
    ncclResult_t result = ncclSuccess;
    MB_TRY(api.good(api.async_error(comm, &result), "looking after a communicator", comm));
    MB_TRY(api.good(result, "communicating", comm));
  }
  return {};
}

std::vector<std::jthread> NcclProcess::abort() {
  std::vector<std::jthread> aborting;
  if (std::exchange(aborted_, true)) return aborting;
  for (ncclComm_t comm : all_) aborting.emplace_back([this, comm] { api.abort(comm); });
  return aborting;
}

Status NcclCommunicator::do_collective(const CommCall& call) {
  const NcclApi& api = process_.api;
  const ncclRedOp_t reduce = call.reduce == ReduceOp::kMax ? ncclMax : ncclSum;
  const size_t bytes = bytes_of(call.dtype, call.count);
  const cudaStream_t stream = process_.stream();
  ncclResult_t result = ncclSuccess;
  switch (call.op) {
    case CommOp::kAllGather: result = api.all_gather(call.send, call.recv, bytes, ncclInt8, comms_.main, stream); break;
    case CommOp::kBroadcast:
      result = api.broadcast(call.send, call.recv, bytes, ncclInt8, call.root, comms_.main, stream);
      break;
    case CommOp::kReduceScatter: {
      if (comms_.scatters != nullptr) return comms_.scatters->reduce_scatter(call, stream);
      MB_ASSIGN(const ncclDataType_t type, type_of(call.dtype));
      result = api.reduce_scatter(call.send, call.recv, call.count, type, reduce, comms_.main, stream);
      break;
    }
    case CommOp::kAllReduce: {
      MB_ASSIGN(const ncclDataType_t type, type_of(call.dtype));
      result = api.all_reduce(call.send, call.recv, call.count, type, reduce, comms_.main, stream);
      break;
    }
    case CommOp::kAllToAll:
    case CommOp::kAllToAllV: return exchange_parts(call);
    default: return fail(ErrorCode::kUnavailable, fmt::format("NCCL has no {} of the host", name(call.op)));
  }
  return process_.settle(result, comms_.main, describe(call));
}

// A part to and from every member.
Status NcclCommunicator::exchange_parts(const CommCall& call) {
  const NcclApi& api = process_.api;
  const bool varying = call.op == CommOp::kAllToAllV;
  const cudaStream_t stream = process_.stream();
  size_t sent = 0, received = 0;
  MB_TRY(api.good(api.group_start(), describe(call)));
  Status status;
  for (size_t m = 0; m < members().size() && status; ++m) {
    const size_t out = varying ? call.send_counts[m] : call.count, in = varying ? call.recv_counts[m] : call.count;
    const auto peer = static_cast<int>(m);
    if (out > 0)
      status = api.good(
          api.send(at(call.send, call.dtype, sent), bytes_of(call.dtype, out), ncclInt8, peer, comms_.main, stream),
          describe(call), comms_.main);
    if (in > 0 && status)
      status = api.good(api.receive(const_cast<std::byte*>(at(call.recv, call.dtype, received)),
                                    bytes_of(call.dtype, in), ncclInt8, peer, comms_.main, stream),
                        describe(call), comms_.main);
    sent += out, received += in;
  }
  const ncclResult_t ended = api.group_end();
  MB_TRY(status);
  return process_.settle(ended, comms_.main, describe(call));
}

NcclCommunicator::End NcclCommunicator::end_of(const P2p& part) const {
  const auto direction = static_cast<size_t>(part.direction);
  if (!comms_.pipeline)
    return {comms_.messages[direction][0] != nullptr ? comms_.messages[direction][0] : comms_.main, part.peer};
  // The edge's lower stage sends forward and receives what goes backward.
  const bool lower = (part.kind == P2p::Kind::kSend) == (part.direction == PipeDirection::kForward);
  const int edge = lower ? rank() : part.peer;
  return {comms_.messages[direction][static_cast<size_t>(edge_colour(edge, size()))], lower ? 1 : 0};
}

Status NcclCommunicator::do_exchange(std::span<const P2p> parts) {
  const NcclApi& api = process_.api;
  const cudaStream_t stream = process_.stream();
  const bool copied = comms_.copies != nullptr && !parts.empty() && parts.front().copy_engines;
  if (copied) return comms_.copies->exchange(parts, stream);
  MB_TRY(api.good(api.group_start(), "a message"));
  Status status;
  std::vector<ncclComm_t> used;
  for (const P2p& part : parts) {
    if (!status || part.count == 0) continue;
    const End end = end_of(part);
    const size_t bytes = bytes_of(part.dtype, part.count);
    const bool sends = part.kind == P2p::Kind::kSend;
    status = api.good(sends ? api.send(part.buffer, bytes, ncclInt8, end.peer, end.comm, stream)
                            : api.receive(part.buffer, bytes, ncclInt8, end.peer, end.comm, stream),
                      sends ? "sending a message" : "receiving a message", end.comm);
    used.push_back(end.comm);
  }
  const ncclResult_t ended = api.group_end();
  MB_TRY(status);
  // Inside a batch the call is taken when that ends.
  if (process_.batching) return api.good(ended, "a message");
  for (ncclComm_t comm : used) MB_TRY(process_.settle(ended, comm, "a message"));
  return {};
}

Status NcclCommunicator::do_copy(void* to, const void* from, size_t bytes) {
  return ok(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, process_.stream()), "a group of one");
}

}  // namespace mbb::trainer::cuda
