// The communicators of a rank on a device: one a kind of group that the program uses and one a number of SMs that its
// collectives there are held to, and how the rank waits for its device without missing that another rank has failed.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "profiler/host/cuda_table.h"
#include "trainer/comm/communicator.h"
#include "trainer/comm/nccl/nccl_groups.h"
#include "trainer/execute/cuda/arena.h"
#include "trainer/execute/cuda/device.h"
#include "trainer/execute/cuda/device_memory.h"
#include "trainer/ops/op_kind.h"

namespace mbb::trainer::cuda {

class RankGroups {
 public:
  // Every rank opens the same kinds in one order: through NCCL, or, where ranks are threads that share devices, with
  // meetings on the host (DeviceMemory). `world`, `mesh` and `device` must outlive them.
  static Result<std::unique_ptr<RankGroups>> open(const Program& program, const Mesh& mesh, World& world,
                                                  Device& device, const profiler::CudaRankRequest& request);

  const RankContext& context() const { return context_; }
  CommStats stats(GroupKind kind) const;
  // Messages between the two progress together.
  Status begin_batch() { return nccl_ == nullptr ? Status{} : nccl_->begin_batch(); }
  Status end_batch() { return nccl_ == nullptr ? Status{} : nccl_->end_batch(); }
  // Every rank of the world gives a text and gets all of them, by rank. All ranks call it.
  Result<std::vector<std::string>> texts_of_all(std::string_view mine);
  // Collectives work on the arena's memory itself (memory.nccl_ub); windows where ranks have one plan. All ranks call
  // it; what came of it is a note of the device.
  Status register_arena(const Arena& arena, const MemoryPlan& plan);
  // Before the arena goes.
  void forget_arena();
  // Until the stream is done; an error as soon as the world is ending.
  Status wait(cudaStream_t stream);
  // Ends what waits on the device for ranks that will not come; runs `drop_graphs` once all of it has been told.
  void abort(const std::function<void()>& drop_graphs);
  // Device memory of messages by copy engines.
  int64_t inbox_bytes() const { return nccl_ != nullptr ? nccl_->inbox_bytes() : 0; }

 private:
  RankGroups(World& world, Device& device) : world_(world), device_(device), memory_(device) {}

  World& world_;
  Device& device_;
  DeviceMemory memory_;
  std::unique_ptr<NcclGroups> nccl_;  // null: ranks share devices
  RankContext context_;
  std::vector<std::unique_ptr<Communicator>> communicators_;
};

}  // namespace mbb::trainer::cuda
