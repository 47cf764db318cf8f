// Communicators of ranks that are processes with a GPU each, through NCCL. Calls enqueue on the stream that the rank's
// ops use at the time and return; nothing they do needs the host, so that a step may be captured.
//
// All are split from the world's one, in one order on all ranks. Messages along a pipeline have communicators of their
// own, one a direction and neighbour: NCCL keeps what is enqueued on one communicator in order even over streams, and a
// send must not wait for a receive that has nothing to do with it. They are connected when they are opened, because
// connecting makes the host wait for the peer.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trainer/comm/communicator.h"

namespace mbb::trainer::cuda {

struct NcclLimits {
  int max_ctas = 0;      // thread blocks of a collective, each of which takes an SM; 0: NCCL's choice
  int cga_size = 0;      // of their clusters
  size_t copied = 0;     // bytes of the largest message by copy engines; 0: there are none
  size_t scattered = 0;  // of a member's part of the largest reduce-scatter, where copy engines are to move those
};

struct NcclMemory {
  void* data = nullptr;
  size_t bytes = 0;  // of whole allocations
};

struct NcclRegistered {
  int communicators = 0;
  int windows = 0;  // of them with symmetric windows: NCCL reads and writes the members' memory itself
};

class NcclGroups {
 public:
  // Every rank of the world calls it, on the thread whose device it uses. Refuses versions that differ. `world` must
  // outlive it.
  static Result<std::unique_ptr<NcclGroups>> open(World& world, std::function<cudaStream_t()> stream);
  virtual ~NcclGroups() = default;

  // This rank's place in its group of a kind: every rank of the world calls it for the same kinds in the same order.
  // The communicator must not outlive this.
  virtual Result<std::unique_ptr<Communicator>> group(GroupKind kind, const Mesh& mesh, const NcclLimits& limits) = 0;
  // Lets the collectives of all groups that are open work on `memory` itself, in place of copies through NCCL's own
  // buffers. Every rank of the world calls it with as many pieces; `alike` says of a group's members whether their
  // memory has one layout, and must say the same on all of them. The memory must stay until forget_memory().
  virtual Result<NcclRegistered> register_memory(std::span<const NcclMemory> memory,
                                                 const std::function<bool(std::span<const int>)>& alike) = 0;
  virtual void forget_memory() = 0;
  // Sends and receives between the two progress together, whatever groups they are of.
  virtual Status begin_batch() = 0;
  virtual Status end_batch() = 0;
  // What went wrong meanwhile, in any communicator; nothing while all is well.
  virtual Status check() = 0;
  // Device memory of messages by copy engines.
  virtual int64_t inbox_bytes() const = 0;
  // What is worth telling of the groups that are open: why messages take SMs though copy engines were asked for.
  virtual const std::vector<std::string>& notes() const = 0;
  // Ends whatever is under way on the device; the communicators are dead afterwards. `meanwhile` runs when all of it
  // has been told, and frees what holds NCCL's calls (graphs): before that this does not return.
  virtual void abort(const std::function<void()>& meanwhile) = 0;
};

}  // namespace mbb::trainer::cuda
