// The two executors behind one door: CPU ranks here, CUDA ranks through the library's table.
#include "trainer/execute/executor.h"

#include <fmt/core.h>

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "profiler/base/env.h"
#include "profiler/host/cuda_table.h"
#include "trainer/comm/process_place.h"
#include "trainer/execute/graph_pieces.h"
#include "trainer/program/walk.h"
#include "trainer/run/rank_reports.h"

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
  Status read(TensorId tensor, int slot, std::span<std::byte> to) override {
    std::memcpy(to.data(), rank_->data(tensor, slot), to.size());
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
  CommStats stats(GroupKind kind) const override {
    CommStats stats;
    table_.rank_comm(rank_, static_cast<int32_t>(kind), &stats);
    return stats;
  }
  Result<std::optional<NotFinite>> find_not_finite(const StepInput& input) override {
    CudaText error{};
    profiler::CudaNotFinite found{};
    MB_TRY(profiler::cuda_answer(table_.rank_find_not_finite(rank_, &input, &found, &error), error));
    if (!found.found) return std::optional<NotFinite>{};
    return std::optional(NotFinite{found.op.text, found.tensor.text, found.micro_batch, found.communicates});
  }
  Status read(TensorId tensor, int slot, std::span<std::byte> to) override {
    CudaText error{};
    return profiler::cuda_answer(
        table_.rank_read(rank_, tensor, slot, to.data(), static_cast<int64_t>(to.size()), &error), error);
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
  Status plant_trap() override {
    CudaText error{};
    return profiler::cuda_answer(table_.rank_trap(rank_, &error), error);
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
  request.tune = !request.share_device;  // a device that others use too times nothing
  CudaText error{};
  void* rank = nullptr;
  MB_TRY(profiler::cuda_answer(table.rank_open(&request, &rank, &error), error));
  return rank;
}

// Rank threads share the devices there are; a process has the device of its place on its host.
Result<int> device_of_rank(const CudaTable& table, const HostConfig& host, const World& world) {
  CudaText error{};
  int count = 0;
  MB_TRY(profiler::cuda_answer(table.device_count(&count, &error), error));
  if (count == 0) return fail(ErrorCode::kUnavailable, "no CUDA device is visible", "use host.device = cpu");
  if (!world.one_process()) {
    MB_ASSIGN(const auto place, process_place());
    MB_CHECK(place.has_value(), "a world of processes has a launcher");
    return device_of_process(place->local_rank, place->local_size, count);
  }
  if (!host.share_device)
    return fail(ErrorCode::kUnavailable, fmt::format("host.device = cuda with {} ranks in one process", world.size()),
                "start one process a GPU (mbbench run --gpus N), or set host.share_device = true, where ranks are "
                "threads that share the GPUs for their numerics alone");
  return world.rank() % count;
}

// Every rank of a world of processes tells which GPU it has.
Status meet_devices(const CudaTable& table, const Mesh& mesh, World& world, int device) {
  CudaText error{};
  profiler::CudaDeviceFacts facts{};
  MB_TRY(profiler::cuda_answer(table.device_facts(device, &facts, &error), error));
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  MB_ASSIGN(auto everyone, world.group(GroupKind::kWorld, mesh));
  MB_ASSIGN(const auto all, gather_at_first(*everyone, fmt::format("{} {}", host, facts.pci_bus_id)));
  MB_TRY(check_distinct_devices(all));
  int count = 0;
  MB_TRY(profiler::cuda_answer(table.device_count(&count, &error), error));
  for (int peer = 0; peer < count; ++peer) {
    bool possible = true;
    if (peer != device) MB_TRY(profiler::cuda_answer(table.peer_access(device, peer, &possible, &error), error));
    MB_TRY(check_peer(device, peer, possible));
  }
  return {};
}

}  // namespace

profiler::CudaRankRequest rank_request(const HostConfig& host) {
  profiler::CudaRankRequest request{};
  request.graphs = captures(host);
  request.deterministic = host.deterministic_mode;
  request.graph_scope = host.cuda_graph_scope.c_str();
  request.tuning_file = host.gemm_tuning_file.c_str();
  request.side_sms = static_cast<int32_t>(host.side_sms);
  request.share_device = host.share_device;
  return request;
}

Result<int> device_of_process(int local_rank, int local_size, int devices) {
  // A launcher that shows each process its own GPU shows one.
  if (devices == 1 && local_size > 1) return 0;
  if (local_size <= devices) return local_rank;
  return fail(ErrorCode::kBadArgument, fmt::format("{} ranks on this host, which has {} GPUs", local_size, devices),
              "start one rank a GPU, on more hosts or with less parallelism");
}

Status check_distinct_devices(std::span<const std::string> of_rank) {
  for (size_t later = 1; later < of_rank.size(); ++later)
    for (size_t earlier = 0; earlier < later; ++earlier)
      if (of_rank[later] == of_rank[earlier])
        return fail(ErrorCode::kBadArgument,
                    fmt::format("ranks {} and {} have one GPU, {}", earlier, later, of_rank[later]),
                    "start at most one rank a GPU; the launcher or CUDA_VISIBLE_DEVICES shows each process its own");
  return {};
}

Status check_peer(int device, int peer, bool possible) {
  if (possible || env_text("NCCL_P2P_DISABLE").value_or("0") == "1") return {};
  return fail(
      ErrorCode::kUnavailable, fmt::format("GPU {} cannot reach the memory of GPU {}", device, peer),
      "hide the GPUs that are not connected (CUDA_VISIBLE_DEVICES), or set NCCL_P2P_DISABLE=1 to go through the "
      "host's memory all the same");
}

Result<std::unique_ptr<Executor>> make_executor(const HostConfig& host, const Program& program, const MemoryPlan& plan,
                                                const Mesh& mesh, World& world, uint64_t seed) {
  if (host.device == Device::kCpu) {
    MB_ASSIGN(auto rank, CpuRank::create(program, plan, mesh, world, seed));
    return std::unique_ptr<Executor>(std::make_unique<CpuExecutor>(std::move(rank)));
  }
  MB_ASSIGN(const CudaTable* const table, profiler::cuda_table());
  profiler::CudaRankRequest request = rank_request(host);
  request.rank = world.rank();
  request.seed = seed;
  request.world = &world;
  request.share_device = host.share_device && mesh.world_size() > 1;
  if (mesh.world_size() > 1) {
    MB_ASSIGN(request.device, device_of_rank(*table, host, world));
    if (!world.one_process()) MB_TRY(meet_devices(*table, mesh, world, request.device));
  }
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
  request.graphs = request.deterministic = false;  // a deterministic run times nothing
  request.write_tuning = true;
  request.brief_tuning = brief;
  MB_ASSIGN(void* const rank, open_rank(*table, request, program, plan, mesh));
  table->rank_close(rank);
  return {};
}

}  // namespace mbb::trainer
