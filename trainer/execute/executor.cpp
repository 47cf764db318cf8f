// The two executors behind one door: CPU ranks here, CUDA ranks through the library's table.
#include "trainer/execute/executor.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>

#include "profiler/host/cuda_table.h"
#include "trainer/execute/graph_pieces.h"
#include "trainer/program/walk.h"

namespace mbb::trainer {
namespace {

using profiler::CudaTable;
using profiler::CudaText;

class CpuExecutor final : public Executor {
 public:
  explicit CpuExecutor(std::unique_ptr<CpuRank> rank) : rank_(std::move(rank)) {}
  Result<StepOutput> step(const StepInput& input, std::vector<int64_t>* op_ns) override {
    return rank_->step(input, op_ns);
  }
  Result<std::optional<NotFinite>> find_not_finite(const StepInput& input) override {
    std::optional<NotFinite> found;
    MB_TRY(rank_->step(input, nullptr, &found));
    return found;
  }
  CommStats stats(GroupKind kind) const override { return rank_->stats(kind); }
  Status read(TensorId tensor, std::span<std::byte> to) override {
    std::memcpy(to.data(), rank_->data(tensor), to.size());
    return {};
  }

 private:
  std::unique_ptr<CpuRank> rank_;
};

int64_t nanoseconds(float ms) {
  return static_cast<int64_t>(static_cast<double>(ms) * 1e6);
}

class CudaExecutor final : public Executor {
 public:
  CudaExecutor(const CudaTable& table, void* rank, int device, size_t ops)
      : table_(table), rank_(rank), device_(device), ops_(ops) {}
  CudaExecutor(const CudaExecutor&) = delete;
  CudaExecutor& operator=(const CudaExecutor&) = delete;
  ~CudaExecutor() override { table_.rank_close(rank_); }

  Result<StepOutput> step(const StepInput& input, std::vector<int64_t>* op_ns) override {
    CudaText error{};
    StepOutput output;
    if (op_ns != nullptr) {
      op_ns->assign(ops_, 0);
      MB_TRY(profiler::cuda_answer(table_.rank_timed_step(rank_, &input, &output, op_ns->data(), &error), error));
    } else {
      MB_TRY(profiler::cuda_answer(table_.rank_step(rank_, &input, &output, &error), error));
    }
    return output;
  }
  CommStats stats(GroupKind) const override { return {}; }
  Result<std::optional<NotFinite>> find_not_finite(const StepInput& input) override {
    CudaText error{};
    profiler::CudaNotFinite found{};
    MB_TRY(profiler::cuda_answer(table_.rank_find_not_finite(rank_, &input, &found, &error), error));
    if (!found.found) return std::optional<NotFinite>{};
    return std::optional(NotFinite{found.op.text, found.tensor.text, found.micro_batch, found.communicates});
  }
  Status read(TensorId tensor, std::span<std::byte> to) override {
    CudaText error{};
    return profiler::cuda_answer(table_.rank_read(rank_, tensor, 0, to.data(), static_cast<int64_t>(to.size()), &error),
                                 error);
  }
  DeviceTimes device_times() const override {
    profiler::CudaStepTimes times{};
    table_.rank_times(rank_, &times);
    return {nanoseconds(times.forward_backward_ms), nanoseconds(times.step_ms)};
  }
  int device() const override { return device_; }
  Status capture_changed() override {
    CudaText error{};
    return profiler::cuda_answer(table_.rank_profile(rank_, &error), error);
  }
  std::vector<OutsideBytes> outside_arena() const override {
    std::vector<OutsideBytes> all;
    CudaText what{};
    int64_t bytes = 0, known = 0;
    for (int32_t i = 0; table_.rank_allocation(rank_, i, &what, &bytes); ++i) {
      all.push_back({what.text, bytes});
      known += bytes;
    }
    profiler::CudaMemoryFacts facts{};
    table_.rank_memory(rank_, &facts);
    // The rest of what the driver counts as used: contexts, modules, library workspaces, other processes.
    const int64_t rest = facts.device_used_bytes - facts.arena_bytes - known;
    if (rest > 0) all.push_back({"driver and libraries", rest});
    return all;
  }
  std::vector<std::string> notes() const override {
    std::vector<std::string> all;
    CudaText note{};
    for (int32_t i = 0; table_.rank_note(rank_, i, &note); ++i) all.emplace_back(note.text);
    return all;
  }
  int64_t extra_bytes() const override {
    profiler::CudaMemoryFacts facts{};
    table_.rank_memory(rank_, &facts);
    return facts.extra_bytes;
  }

 private:
  const CudaTable& table_;
  void* rank_;
  int device_;
  size_t ops_;
};

size_t walk_length(const Program& program) {
  size_t ops = 0;
  walk(program, [&](int, const Call&, int, const Op&) { ++ops; });
  return ops;
}

// A CUDA rank of a request with everything in it that does not depend on why it is opened.
Result<void*> open_rank(const CudaTable& table, profiler::CudaRankRequest request, const Program& program,
                        const MemoryPlan& plan, const Mesh& mesh) {
  request.program = &program;
  request.plan = &plan;
  request.mesh = &mesh;
  request.tune = true;
  CudaText error{};
  void* rank = nullptr;
  MB_TRY(profiler::cuda_answer(table.rank_open(&request, &rank, &error), error));
  return rank;
}

}  // namespace

profiler::CudaRankRequest rank_request(const HostConfig& host) {
  profiler::CudaRankRequest request{};
  request.graphs = captures(host);
  request.deterministic = host.deterministic_mode;
  request.graph_scope = host.cuda_graph_scope.c_str();
  request.tuning_file = host.gemm_tuning_file.c_str();
  request.side_sms = static_cast<int32_t>(host.side_sms);
  return request;
}

Result<std::unique_ptr<Executor>> make_executor(const HostConfig& host, const Program& program, const MemoryPlan& plan,
                                                const Mesh& mesh, World& world, uint64_t seed) {
  if (host.device == Device::kCpu) {
    MB_ASSIGN(auto rank, CpuRank::create(program, plan, mesh, world, seed));
    return std::unique_ptr<Executor>(std::make_unique<CpuExecutor>(std::move(rank)));
  }
  if (mesh.world_size() > 1)
    return fail(ErrorCode::kUnavailable,
                fmt::format("host.device = cuda with {} ranks: several GPUs need NCCL", mesh.world_size()),
                "run one rank, or use host.device = cpu");
  MB_ASSIGN(const CudaTable* const table, profiler::cuda_table());
  profiler::CudaRankRequest request = rank_request(host);
  request.rank = world.rank();
  request.seed = seed;
  MB_ASSIGN(void* const rank, open_rank(*table, request, program, plan, mesh));
  return std::unique_ptr<Executor>(std::make_unique<CudaExecutor>(*table, rank, request.device, walk_length(program)));
}

Status tune_gemms(const HostConfig& host, const Program& program, const MemoryPlan& plan, const Mesh& mesh,
                  uint64_t seed, bool brief) {
  if (host.gemm_tuning_file.empty())
    return fail(ErrorCode::kBadArgument, "tuning without a file to write", "set host.gemm_tuning_file");
  MB_ASSIGN(const CudaTable* const table, profiler::cuda_table());
  profiler::CudaRankRequest request = rank_request(host);
  request.seed = seed;
  request.graphs = false;
  request.write_tuning = true;
  request.brief_tuning = brief;
  MB_ASSIGN(void* const rank, open_rank(*table, request, program, plan, mesh));
  table->rank_close(rank);
  return {};
}

}  // namespace mbb::trainer
