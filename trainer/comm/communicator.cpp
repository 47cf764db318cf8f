// Argument checks, groups of one, and byte counts, the same for every backend.
#include "trainer/comm/communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "profiler/base/check.h"

namespace mbb::trainer {
namespace {

struct Range {
  const char* begin = nullptr;
  size_t bytes = 0;
};

bool overlap(Range a, Range b) {
  if (a.bytes == 0 || b.bytes == 0) return false;
  const auto at = [](const char* p) { return reinterpret_cast<uintptr_t>(p); };
  return at(a.begin) < at(b.begin) + b.bytes && at(b.begin) < at(a.begin) + a.bytes;
}

size_t sum(std::span<const size_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), size_t{0});
}

bool reduces(CommOp op) {
  return op == CommOp::kAllReduce || op == CommOp::kReduceScatter;
}

// Elements of the send and receive side of a call in a group of `size`.
size_t send_elements(const CommCall& call, size_t size) {
  switch (call.op) {
    case CommOp::kReduceScatter:
    case CommOp::kAllToAll: return size * call.count;
    case CommOp::kAllToAllV: return sum(call.send_counts);
    default: return call.count;
  }
}

size_t recv_elements(const CommCall& call, size_t size) {
  switch (call.op) {
    case CommOp::kAllGather:
    case CommOp::kAllToAll: return size * call.count;
    case CommOp::kAllToAllV: return sum(call.recv_counts);
    default: return call.count;
  }
}

// E2M1 parts that do not fill whole bytes would share a byte with their neighbour.
bool splits_a_byte(const CommCall& call) {
  if (call.dtype != DType::kE2M1) return false;
  const auto odd = [](size_t n) { return n % 2 != 0; };
  return odd(call.count) || std::any_of(call.send_counts.begin(), call.send_counts.end(), odd) ||
         std::any_of(call.recv_counts.begin(), call.recv_counts.end(), odd);
}

// True where NCCL, too, allows the two sides to share memory.
bool in_place(const CommCall& call, size_t rank) {
  const char* send = static_cast<const char*>(call.send);
  const char* recv = static_cast<const char*>(call.recv);
  const size_t own = rank * bytes_of(call.dtype, call.count);
  switch (call.op) {
    case CommOp::kAllGather: return send == recv + own;
    case CommOp::kReduceScatter: return recv == send + own;
    case CommOp::kAllReduce:
    case CommOp::kBroadcast: return send == recv;
    default: return false;
  }
}

}  // namespace

const char* name(ReduceOp op) {
  return op == ReduceOp::kSum ? "sum" : "max";
}

const char* name(CommOp op) {
  switch (op) {
    case CommOp::kAllGather: return "all_gather";
    case CommOp::kReduceScatter: return "reduce_scatter";
    case CommOp::kAllReduce: return "all_reduce";
    case CommOp::kBroadcast: return "broadcast";
    case CommOp::kAllToAll: return "all_to_all";
    case CommOp::kAllToAllV: return "all_to_all_v";
    case CommOp::kSend: return "send";
    case CommOp::kRecv: return "recv";
    case CommOp::kBarrier: return "barrier";
  }
  return "unknown";
}

const char* name(PipeDirection direction) {
  return direction == PipeDirection::kForward ? "forward" : "backward";
}

bool can_reduce(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kF64:
    case DType::kBf16:
    case DType::kI32:
    case DType::kI64:
    case DType::kU8: return true;
    default: return false;
  }
}

uint64_t algorithmic_bytes(CommOp op, int size, DType dtype, size_t count) {
  if (size <= 1) return 0;
  switch (op) {
    case CommOp::kAllGather:
    case CommOp::kReduceScatter:
    case CommOp::kAllToAll: return bytes_of(dtype, static_cast<size_t>(size) * count);
    case CommOp::kBarrier: return 0;
    default: return bytes_of(dtype, count);
  }
}

uint64_t wire_bytes(CommOp op, int size, DType dtype, size_t count) {
  const uint64_t bytes = algorithmic_bytes(op, size, dtype, count);
  const uint64_t n = static_cast<uint64_t>(std::max(size, 1));
  switch (op) {
    case CommOp::kAllGather:
    case CommOp::kReduceScatter:
    case CommOp::kAllToAll: return bytes / n * (n - 1);
    case CommOp::kAllReduce: return 2 * bytes * (n - 1) / n;
    default: return bytes;
  }
}

CommTally& CommTally::operator+=(const CommTally& other) {
  calls += other.calls;
  algorithmic_bytes += other.algorithmic_bytes;
  wire_bytes += other.wire_bytes;
  own_ns += other.own_ns;
  return *this;
}

CommTally CommStats::total() const {
  CommTally all;
  for (const CommTally& tally : by_op) all += tally;
  return all;
}

std::string describe(const CommCall& call) {
  switch (call.op) {
    case CommOp::kBarrier: return "barrier";
    case CommOp::kAllToAllV: return fmt::format("all_to_all_v({})", name(call.dtype));
    case CommOp::kBroadcast: return fmt::format("broadcast({} {} from {})", call.count, name(call.dtype), call.root);
    case CommOp::kAllReduce:
    case CommOp::kReduceScatter:
      return fmt::format("{}({}, {} {})", name(call.op), name(call.reduce), call.count, name(call.dtype));
    default: return fmt::format("{}({} {})", name(call.op), call.count, name(call.dtype));
  }
}

Communicator::Communicator(GroupKind kind, int rank, std::vector<int> members)
    : kind_(kind), rank_(rank), members_(std::move(members)) {
  MB_CHECK(rank_ >= 0 && rank_ < size(), fmt::format("rank {} in a group of {}", rank_, size()));
}

Status Communicator::all_gather(const void* send, void* recv, size_t count, DType dtype) {
  return collective({.op = CommOp::kAllGather, .send = send, .recv = recv, .count = count, .dtype = dtype});
}

Status Communicator::reduce_scatter(const void* send, void* recv, size_t count, DType dtype, ReduceOp op) {
  return collective(
      {.op = CommOp::kReduceScatter, .send = send, .recv = recv, .count = count, .dtype = dtype, .reduce = op});
}

Status Communicator::all_reduce(const void* send, void* recv, size_t count, DType dtype, ReduceOp op) {
  return collective(
      {.op = CommOp::kAllReduce, .send = send, .recv = recv, .count = count, .dtype = dtype, .reduce = op});
}

Status Communicator::broadcast(const void* send, void* recv, size_t count, DType dtype, int root) {
  const void* source = rank_ == root ? send : recv;
  return collective(
      {.op = CommOp::kBroadcast, .send = source, .recv = recv, .count = count, .dtype = dtype, .root = root});
}

Status Communicator::all_to_all(const void* send, void* recv, size_t count, DType dtype) {
  return collective({.op = CommOp::kAllToAll, .send = send, .recv = recv, .count = count, .dtype = dtype});
}

Status Communicator::all_to_all_v(const void* send, std::span<const size_t> send_counts, void* recv,
                                  std::span<const size_t> recv_counts, DType dtype) {
  return collective({.op = CommOp::kAllToAllV,
                     .send = send,
                     .recv = recv,
                     .dtype = dtype,
                     .send_counts = send_counts,
                     .recv_counts = recv_counts});
}

Status Communicator::barrier() {
  return collective({.op = CommOp::kBarrier});
}

Status Communicator::check(const CommCall& call) const {
  const auto refuse = [&](const std::string& what, const char* hint) -> Status {
    return fail(ErrorCode::kBadArgument, fmt::format("{} on {}: {}", describe(call), name(kind_), what), hint);
  };
  const size_t n = members_.size();
  if (reduces(call.op) && !can_reduce(call.dtype))
    return refuse(fmt::format("{} cannot be reduced", name(call.dtype)),
                  "reduce f32, f64, bf16, i32, i64 or u8; gather narrower types and reduce after conversion");
  if (call.op == CommOp::kBroadcast && (call.root < 0 || call.root >= size()))
    return refuse(fmt::format("the group has {} members", n), "the root is a member of the group, counted from 0");
  if (call.op == CommOp::kAllToAllV && (call.send_counts.size() != n || call.recv_counts.size() != n))
    return refuse(fmt::format("{} send and {} receive counts for {} members", call.send_counts.size(),
                              call.recv_counts.size(), n),
                  "give one count for each member");
  if (splits_a_byte(call)) return refuse("an odd count of e2m1 elements", "e2m1 parts must fill whole bytes");
  const Range send = {static_cast<const char*>(call.send), bytes_of(call.dtype, send_elements(call, n))};
  const Range recv = {static_cast<const char*>(call.recv), bytes_of(call.dtype, recv_elements(call, n))};
  if ((send.bytes > 0 && send.begin == nullptr) || (recv.bytes > 0 && recv.begin == nullptr))
    return refuse("a buffer is null", "give both buffers");
  if (overlap(send, recv) && !in_place(call, static_cast<size_t>(rank_)))
    return refuse("the send and receive buffers overlap",
                  "use separate buffers, or the in-place form of the collective where it has one");
  return {};
}

Status Communicator::check(const P2p& part) const {
  const char* op = part.kind == P2p::Kind::kSend ? "send" : "recv";
  if (part.peer < 0 || part.peer >= size())
    return fail(ErrorCode::kBadArgument, fmt::format("{} on {}: peer {} of {}", op, name(kind_), part.peer, size()),
                "a peer is a member of the group, counted from 0");
  if (part.buffer == nullptr && part.count > 0)
    return fail(ErrorCode::kBadArgument, fmt::format("{} on {}: the buffer is null", op, name(kind_)));
  return {};
}

void Communicator::count(const CommCall& call) {
  CommTally& tally = stats_[call.op];
  ++tally.calls;
  tally.own_ns += last_own_ns_;
  if (call.op != CommOp::kAllToAllV) {
    tally.algorithmic_bytes += algorithmic_bytes(call.op, size(), call.dtype, call.count);
    tally.wire_bytes += wire_bytes(call.op, size(), call.dtype, call.count);
  } else if (size() > 1) {
    const size_t all = sum(call.send_counts);
    tally.algorithmic_bytes += bytes_of(call.dtype, all);
    tally.wire_bytes += bytes_of(call.dtype, all - call.send_counts[static_cast<size_t>(rank_)]);
  }
}

void Communicator::count(const P2p& part) {
  const CommOp op = part.kind == P2p::Kind::kSend ? CommOp::kSend : CommOp::kRecv;
  CommTally& tally = stats_[op];
  ++tally.calls;
  if (part.peer == rank_) return;
  tally.algorithmic_bytes += algorithmic_bytes(op, size(), part.dtype, part.count);
  tally.wire_bytes += wire_bytes(op, size(), part.dtype, part.count);
}

Status Communicator::collective(const CommCall& call) {
  last_own_ns_ = 0;
  MB_TRY(check(call));
  if (size() == 1) {
    if (call.op == CommOp::kAllToAllV && call.send_counts[0] != call.recv_counts[0])
      return fail(ErrorCode::kMismatch, fmt::format("all_to_all_v on {} of one rank sends {} and receives {} elements",
                                                    name(kind_), call.send_counts[0], call.recv_counts[0]));
    const size_t bytes = bytes_of(call.dtype, recv_elements(call, 1));
    if (bytes > 0 && call.send != call.recv) MB_TRY(do_copy(call.recv, call.send, bytes));
  } else {
    MB_TRY(do_collective(call));
  }
  count(call);
  return {};
}

Status Communicator::send(const void* buffer, size_t count_, DType dtype, int peer, PipeDirection direction) {
  // A send part is never written through; the pointer loses const only to share one record with receives.
  const P2p part = {P2p::Kind::kSend, peer, direction, const_cast<void*>(buffer), count_, dtype};
  last_own_ns_ = 0;
  MB_TRY(check(part));
  MB_TRY(do_send(part));
  count(part);
  stats_[CommOp::kSend].own_ns += last_own_ns_;
  return {};
}

Status Communicator::recv(void* buffer, size_t count_, DType dtype, int peer, PipeDirection direction) {
  const P2p part = {P2p::Kind::kRecv, peer, direction, buffer, count_, dtype};
  last_own_ns_ = 0;
  MB_TRY(check(part));
  MB_TRY(do_recv(part));
  count(part);
  stats_[CommOp::kRecv].own_ns += last_own_ns_;
  return {};
}

Status Communicator::exchange(std::span<const P2p> parts) {
  last_own_ns_ = 0;
  if (parts.empty()) return {};
  for (const P2p& part : parts) MB_TRY(check(part));
  MB_TRY(do_exchange(parts));
  for (const P2p& part : parts) count(part);
  // The time of a batch belongs to its first part's side; a batch has no finer clock.
  stats_[parts[0].kind == P2p::Kind::kSend ? CommOp::kSend : CommOp::kRecv].own_ns += last_own_ns_;
  return {};
}

Status Communicator::do_copy(void* to, const void* from, size_t bytes) {
  std::memcpy(to, from, bytes);
  return {};
}

Result<std::unique_ptr<Communicator>> World::group(GroupKind kind, const std::vector<int>&, RankMemory&) {
  return fail(ErrorCode::kUnavailable,
              fmt::format("ranks of {} do not share the memory of devices: they are processes", name(kind)),
              "one GPU a rank communicates through NCCL");
}

Status Communicator::do_exchange(std::span<const P2p> parts) {
  for (const P2p& part : parts)
    if (part.kind == P2p::Kind::kSend) MB_TRY(do_send(part));
  for (const P2p& part : parts)
    if (part.kind == P2p::Kind::kRecv) MB_TRY(do_recv(part));
  return {};
}

}  // namespace mbb::trainer
