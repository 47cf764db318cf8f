// One rank's step program on a CUDA device: a CUDA stream for each stream of the program, ordered by the bytes their
// ops touch (lanes.h), a static arena laid out by the memory plan, the step record read on the device; after the first
// step the pieces that the scope names are captured and replayed as graphs (graph_pieces.h).
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "profiler/host/cuda_table.h"
#include "profiler/ranges/cuda/nvtx.h"
#include "trainer/execute/cpu/cpu_rank.h"
#include "trainer/execute/cuda/arena.h"
#include "trainer/execute/cuda/op_call.h"
#include "trainer/execute/cuda/rank_groups.h"
#include "trainer/execute/lanes.h"

namespace mbb::trainer::cuda {

class CudaRank {
 public:
  // `plan` and `mesh` must outlive the rank. Weights and states have their first values (initial_state.h)
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
  // One step op by op: the first op that wrote a value that is neither finite nor what an untouched arena reads as.
  Result<std::optional<NotFinite>> find_not_finite(const StepInput& input);
  Status read(TensorId tensor, int slot, void* to, int64_t bytes);
  // A fault to order (debug.inject_fault): a kernel before the next step that ends this process's work on the device.
  Status plant_trap();
  // For benchmarks: the ops of a step one at a time, in walk order, each as often as wanted; later positions read what
  // earlier ones wrote.
  Status begin(const StepInput& input) { return upload(input); }
  size_t positions() const { return walk_.size(); }
  // Enqueues the op once on its stream, which is then in use; waits for nothing.
  Status run_at(size_t position);
  cudaStream_t stream_at(size_t position) const { return device_->stream_of(walk_[position].op->stream); }
  // Makes the graphs again, where there are some: call after a capture began or ended.
  Status recapture();

  // Of the last step, by events on the device: until the first optimizer op, and to the end.
  profiler::CudaStepTimes times() const { return times_; }
  profiler::CudaMemoryFacts memory() const;
  // What the rank's device holds beside the arena, in order of allocation.
  const std::vector<std::pair<std::string, int64_t>>& allocations() const { return device_->allocations(); }
  // What a library or the driver did not take, and what runs instead.
  const std::vector<std::string>& notes() const { return device_->notes(); }
  CommStats comm(GroupKind kind) const { return groups_ == nullptr ? CommStats{} : groups_->stats(kind); }

 private:
  // Tells the world where this rank stands outside of ops: what a report of a hang then names, with the step.
  void stands(std::string_view where) const;

  // A walk position with its operands resolved.
  struct Bound {
    const Op* op = nullptr;
    OpFunction function = nullptr;
    std::vector<Operand> in, out;
    int shard_index = 0;
    int call = 0;  // of the schedule
    int micro_batch = 0;
    bool optimizer = false;
    uint32_t id = 0;                                          // its op id in a capture: walk position + 1
    size_t batch = 1;                                         // ops from here on that must progress together
    profiler::nvtx::Text range = nullptr, segment = nullptr;  // of the op, and of the call it runs in
  };

  // Positions [begin, end) of the walk that make one graph, or run op by op.
  struct Part {
    size_t begin = 0, end = 0;
    bool captured = false;
    LanePlan lanes;
    std::vector<cudaEvent_t> ended;   // [position - begin]: of ops that another stream waits for, else null
    cudaGraphExec_t graph = nullptr;  // of graphs_, once captured
  };

  explicit CudaRank(const profiler::CudaRankRequest& request);
  Status allocate();
  Status tune();
  Status choose_algorithms(const TuneEffort& effort);
  Status initial_values();
  Status bind_all();
  Status plan_parts();
  Status plan_lanes_of(Part& part);
  const Part& part_of(size_t position) const;
  Status run_step(const StepInput& input, StepOutput* output);
  Status run_timed_step(const StepInput& input, StepOutput* output, int64_t* op_ns);
  // Of a step: one that failed keeps nobody waiting.
  Status ended(Status status);
  void plan_batches();
  Status run_batch(size_t first);
  Status check_alarm(const int32_t* alarm) const;
  int sm_target(const Part& part, size_t position) const;
  Status run_op(const Part& part, size_t position);
  Status run_part(const Part& part);
  Status upload(const StepInput& input);
  Status enqueue();
  Status one_by_one(const std::function<Status(size_t)>& after);
  Status capture();
  Result<cudaGraphExec_t> graph_of(const Part& part);
  std::vector<uintptr_t> identity_of(const Part& part) const;
  void drop_graphs();
  Status finish(StepOutput* output);
  uint32_t op_id(size_t behind_walk) const { return static_cast<uint32_t>(walk_.size() + 1 + behind_walk); }
  std::byte* data(TensorId id, int slot) const {
    if (program_.tensor(id).left_out) return nullptr;
    const Tensor& storage = program_.tensor(program_.storage(id));
    const int64_t offset = plan_.offset(program_, id, slot);
    return storage.space == Space::kHost ? host_arena_ + offset : arena_->at(storage.category, offset);
  }

  const Program program_;  // its ops' records are this library's
  const MemoryPlan& plan_;
  const Mesh& mesh_;
  profiler::CudaRankRequest request_;
  MeshCoordinates coordinates_;
  std::unique_ptr<Device> device_;
  World* world_ = nullptr;              // null: nobody asks where the rank stands
  std::unique_ptr<RankGroups> groups_;  // null: the rank is alone
  std::unique_ptr<Arena> arena_;
  std::byte* host_arena_ = nullptr;  // pinned: tensors of Space::kHost
  std::byte* staging_ = nullptr;     // pinned: record, tokens and labels; then loss and scale
  int64_t staging_bytes_ = 0;
  std::vector<Bound> walk_;
  std::vector<Part> parts_;
  size_t optimizer_begin_ = 0;  // position of the optimizer's first op, where a part begins
  std::vector<cudaGraphExec_t> graphs_;
  cudaEvent_t start_ = nullptr, optimizer_ = nullptr, end_ = nullptr;
  std::array<cudaEvent_t, kStreams> forks_{};  // where streams part from compute and where they meet it again
  int64_t steps_ = 0;
  profiler::CudaStepTimes times_{};
};

}  // namespace mbb::trainer::cuda
