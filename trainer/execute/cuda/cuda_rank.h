// One rank's step program on a CUDA device: a CUDA stream for each stream of the program, ordered by the bytes their
// ops touch (lanes.h), a static arena laid out by the memory plan, the step record read on the device; after the first
// step the forward and backward and the optimizer may each be captured and replayed as a graph.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <memory>
#include <vector>

#include "profiler/host/cuda_table.h"
#include "profiler/ranges/cuda/nvtx.h"
#include "trainer/execute/cpu/cpu_rank.h"
#include "trainer/execute/cuda/op_call.h"
#include "trainer/execute/lanes.h"

namespace mbb::trainer::cuda {

class CudaRank {
 public:
  // `program`, `plan` and `mesh` must outlive the rank. Weights and states have their first values (initial_state.h)
  // when this returns. An op without a CUDA function is an error that names it.
  static Result<std::unique_ptr<CudaRank>> create(const profiler::CudaRankRequest& request);
  ~CudaRank();
  CudaRank(const CudaRank&) = delete;
  CudaRank& operator=(const CudaRank&) = delete;

  // One step: uploads the record and every micro-batch, runs, and waits for loss and norm.
  Status step(const StepInput& input, StepOutput* output);
  // One step op by op, each timed alone with events (ns, in walk order, one element a position): attribution, not
  // throughput.
  Status timed_step(const StepInput& input, StepOutput* output, int64_t* op_ns);
  Status read(TensorId tensor, int slot, void* to, int64_t bytes);
  // Makes the graphs again, where there are some: call after a capture began or ended.
  Status recapture();

  // Of the last step, by events on the device: until the first optimizer op, and to the end.
  profiler::CudaStepTimes times() const { return times_; }
  profiler::CudaMemoryFacts memory() const;
  // What the rank's device holds beside the arena, in order of allocation.
  const std::vector<std::pair<std::string, int64_t>>& allocations() const { return device_->allocations(); }

 private:
  // A walk position with its operands resolved.
  struct Bound {
    const Op* op = nullptr;
    OpFunction function = nullptr;
    std::vector<Operand> in, out;
    int shard_index = 0;
    int micro_batch = 0;
    bool optimizer = false;
    uint32_t id = 0;                                          // its op id in a capture: walk position + 1
    profiler::nvtx::Text range = nullptr, segment = nullptr;  // of the op, and of the call it runs in
  };

  // Positions [begin, end) of the walk that make one graph: forward and backward, then the optimizer.
  struct Part {
    size_t begin = 0, end = 0;
    LanePlan lanes;
    std::vector<cudaEvent_t> ended;  // [position - begin]: of ops that another stream waits for, else null
    cudaGraphExec_t graph = nullptr;
  };

  explicit CudaRank(const profiler::CudaRankRequest& request);
  Status allocate();
  Status tune();
  Status initial_values();
  bool made_on_host() const;
  Status host_values();
  Status initial_master(const Bound& bound);
  Status bind_all();
  Status plan_parts();
  int sm_target(const Part& part, size_t position) const;
  Status run_op(const Part& part, size_t position);
  Status run_part(const Part& part);
  Status upload(const StepInput& input);
  Status enqueue();
  Status capture();
  void drop_graphs();
  Status finish(StepOutput* output);
  uint32_t op_id(size_t behind_walk) const { return static_cast<uint32_t>(walk_.size() + 1 + behind_walk); }
  std::byte* data(TensorId id, int slot) const {
    const bool host = program_.tensor(program_.storage(id)).space == Space::kHost;
    return (host ? host_arena_ : arena_) + plan_.offset(program_, id, slot);
  }

  const Program& program_;
  const MemoryPlan& plan_;
  const Mesh& mesh_;
  profiler::CudaRankRequest request_;
  MeshCoordinates coordinates_;
  std::unique_ptr<Device> device_;
  std::byte* arena_ = nullptr;
  std::byte* host_arena_ = nullptr;  // pinned: tensors of Space::kHost
  std::byte* staging_ = nullptr;     // pinned: record, tokens and labels; then loss and scale
  int64_t staging_bytes_ = 0;
  std::vector<Bound> walk_;
  std::array<Part, 2> parts_;
  cudaEvent_t start_ = nullptr, optimizer_ = nullptr, end_ = nullptr;
  std::array<cudaEvent_t, kStreams> forks_{};  // where streams part from compute and where they meet it again
  int64_t steps_ = 0;
  profiler::CudaStepTimes times_{};
};

}  // namespace mbb::trainer::cuda
