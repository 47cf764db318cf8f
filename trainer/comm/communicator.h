// Communication between ranks as the trainer sees it: a World is one rank's door to all others, a Communicator is one
// rank's place in one group. Backends (ranks as threads, MPI processes, NCCL, ghost) implement the do_ functions.
//
// Buffers are raw pointers with a count of elements and a dtype; a count is always per member, as in NCCL:
//   all_gather      send count, recv size·count (member i's part at i·count); in place: send == recv + rank·count
//   reduce_scatter  send size·count, recv count; in place: recv == send + rank·count
//   all_reduce      send count, recv count; in place: send == recv
//   broadcast       send count (root only), recv count; in place: send == recv
//   all_to_all      send size·count, recv size·count; never in place
//   all_to_all_v    parts back to back in member order, counts per peer; never in place
// Buffers that overlap in any other way are refused. Every call returns when this rank's part is complete: results are
// readable, inputs may be overwritten. All members call the same collectives in the same order.
//
// Every dtype can be moved; f32, f64, bf16, i32, i64, u8 can be reduced. A CPU reduction runs over members 0..n-1 in
// that order; f32 and bf16 sums accumulate in f64 and round once; integer sums wrap; a maximum with a NaN is NaN.
//
// send and recv: one ordered channel per (source, destination, PipeDirection), no tags. send may return before the
// peer receives. A batch of sends and receives that must progress together (a ring, 1F1B's exchange) goes through
// exchange(), never through send then recv, which needs buffering that not every backend has.
//
// A communicator over device memory takes device pointers and works on the stream that its owner names: what was
// enqueued there before is what it reads, and what is enqueued there afterwards may read its results.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "profiler/base/error.h"
#include "trainer/program/dtype.h"
#include "trainer/program/mesh.h"

namespace mbb::trainer {

class RankMemory;  // trainer/comm/rank_memory.h

enum class ReduceOp : uint8_t { kSum, kMax };
const char* name(ReduceOp op);

enum class CommOp : uint8_t {
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kBroadcast,
  kAllToAll,
  kAllToAllV,
  kSend,
  kRecv,
  kBarrier
};
inline constexpr size_t kCommOpCount = 9;
const char* name(CommOp op);

// Activations go forward and gradients go backward between the same two ranks without an order between them.
enum class PipeDirection : uint8_t { kForward, kBackward };
const char* name(PipeDirection direction);

// True where reductions are defined.
bool can_reduce(DType dtype);

// Bytes of one call by the conventions of nccl-tests. Algorithmic: the whole buffer S (all_gather's output,
// reduce_scatter's input, all_to_all's send side, all parts). Wire: what one member puts on the wire at the bandwidth
// bound, S·(n-1)/n for all_gather, reduce_scatter and all_to_all, 2S·(n-1)/n for all_reduce, S for broadcast, send and
// recv; rounded down per call. A group of one moves nothing.
uint64_t algorithmic_bytes(CommOp op, int size, DType dtype, size_t count);
uint64_t wire_bytes(CommOp op, int size, DType dtype, size_t count);

struct CommTally {
  uint64_t calls = 0;
  uint64_t algorithmic_bytes = 0;
  uint64_t wire_bytes = 0;  // all_to_all_v: what this rank sent to others; it carries no padding
  uint64_t own_ns = 0;      // own copy and reduce work, thread CPU time; never waiting

  CommTally& operator+=(const CommTally& other);
};

// What one rank did on one communicator. Calls on a group of one count as calls of no bytes. A failed call is not
// counted. A message counts at the sender (kSend) and again at the receiver (kRecv): sum one of them.
struct CommStats {
  std::array<CommTally, kCommOpCount> by_op;

  CommTally& operator[](CommOp op) { return by_op[static_cast<size_t>(op)]; }
  const CommTally& operator[](CommOp op) const { return by_op[static_cast<size_t>(op)]; }
  CommTally total() const;
};

// One part of an exchange. `buffer` is read for a send and written for a receive.
struct P2p {
  enum class Kind : uint8_t { kSend, kRecv };
  Kind kind = Kind::kSend;
  int peer = 0;  // member of the group
  PipeDirection direction = PipeDirection::kForward;
  void* buffer = nullptr;
  size_t count = 0;
  DType dtype = DType::kF32;
  bool copy_engines = false;  // rather than SMs, where the backend has opened them; on both sides
};

// The arguments of a collective, as checked and handed to a backend.
struct CommCall {
  CommOp op = CommOp::kBarrier;
  const void* send = nullptr;
  void* recv = nullptr;
  size_t count = 0;  // per member, as above; all_to_all_v: 0
  DType dtype = DType::kU8;
  ReduceOp reduce = ReduceOp::kSum;          // all_reduce, reduce_scatter
  int root = -1;                             // broadcast
  std::span<const size_t> send_counts = {};  // all_to_all_v, one per member
  std::span<const size_t> recv_counts = {};
};
// "all_reduce(sum, 128 bf16)", for errors and traces.
std::string describe(const CommCall& call);

// Used by one rank's thread only. The public functions check arguments, make groups of one cheap, and count; errors
// about arguments (kBadArgument) leave the group usable, every other error means that the world is ending.
class Communicator {
 public:
  Communicator(GroupKind kind, int rank, std::vector<int> members);
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  GroupKind kind() const { return kind_; }
  int rank() const { return rank_; }  // place in the group
  int size() const { return static_cast<int>(members_.size()); }
  const std::vector<int>& members() const { return members_; }  // world ranks, in group order

  Status all_gather(const void* send, void* recv, size_t count, DType dtype);
  Status reduce_scatter(const void* send, void* recv, size_t count, DType dtype, ReduceOp op = ReduceOp::kSum);
  Status all_reduce(const void* send, void* recv, size_t count, DType dtype, ReduceOp op = ReduceOp::kSum);
  // `send` is read at the root only; elsewhere it may be null.
  Status broadcast(const void* send, void* recv, size_t count, DType dtype, int root);
  Status all_to_all(const void* send, void* recv, size_t count, DType dtype);
  // recv_counts[j] here must equal send_counts[this rank] at member j, or the world ends with kMismatch.
  Status all_to_all_v(const void* send, std::span<const size_t> send_counts, void* recv,
                      std::span<const size_t> recv_counts, DType dtype);
  // count and dtype must be those of the matching recv, or the world ends with kMismatch.
  Status send(const void* buffer, size_t count, DType dtype, int peer, PipeDirection direction);
  Status recv(void* buffer, size_t count, DType dtype, int peer, PipeDirection direction);
  // All parts progress together; parts of one channel keep their order in the span.
  Status exchange(std::span<const P2p> parts);
  Status barrier();

  const CommStats& stats() const { return stats_; }
  void reset_stats() { stats_ = {}; }
  // Own copy and reduce time of the last call, thread CPU time. 0 where the backend does the work elsewhere.
  uint64_t last_own_ns() const { return last_own_ns_; }

 protected:
  // Called with checked arguments, and only for groups of two or more.
  virtual Status do_collective(const CommCall& call) = 0;
  // Called for any group; a rank may send to itself.
  virtual Status do_send(const P2p& part) = 0;
  virtual Status do_recv(const P2p& part) = 0;
  // Default: all sends, then all receives, for backends whose sends are buffered.
  virtual Status do_exchange(std::span<const P2p> parts);
  // A group of one moves its bytes so. Default: host memory.
  virtual Status do_copy(void* to, const void* from, size_t bytes);
  // A backend adds the time of its own copies and reductions here.
  void add_own_ns(uint64_t ns) { last_own_ns_ += ns; }

 private:
  Status collective(const CommCall& call);
  Status check(const CommCall& call) const;
  Status check(const P2p& part) const;
  void count(const CommCall& call);
  void count(const P2p& part);

  GroupKind kind_;
  int rank_;
  std::vector<int> members_;
  CommStats stats_;
  uint64_t last_own_ns_ = 0;
};

// One rank's door to the world; used by that rank's thread only.
class World {
 public:
  virtual ~World() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // This rank's place in a group; `members` are world ranks in group order and hold this rank. All members call it;
  // for backends that split communicators, every rank of the world calls it for the same kinds in the same order.
  // Calling it again for the same kind and members gives a further, independent communicator (pipeline directions).
  // A communicator must not outlive its world.
  virtual Result<std::unique_ptr<Communicator>> group(GroupKind kind, const std::vector<int>& members) = 0;
  Result<std::unique_ptr<Communicator>> group(GroupKind kind, const Mesh& mesh) {
    return group(kind, mesh.group(kind, rank()));
  }

  // The same over the memory of this rank's device (`memory` must outlive it). Only where ranks are threads of one
  // process: kUnavailable elsewhere.
  virtual Result<std::unique_ptr<Communicator>> group(GroupKind kind, const std::vector<int>& members,
                                                      RankMemory& memory);
  // Ranks are threads of one process.
  virtual bool one_process() const { return false; }
  // An error once the world is ending, as this rank should see it. Cheap while it is not.
  virtual Status check() { return {}; }
  // This rank's host has nothing to do until its device has done what it has: where another rank hangs, this one does
  // not.
  virtual void waits_for_device(bool) {}

  // Says where this rank stands, for the reports of failures and hangs, and is the sign of life that the watchdog
  // reads. `path` (an op's path) is copied; `call` is the caller's count of schedule calls. Costs tens of nanoseconds.
  virtual void at(std::string_view path, uint64_t call) = 0;
};

}  // namespace mbb::trainer
