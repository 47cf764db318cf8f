// Runs one rank's step program on the device the configuration names; the training loop sees nothing else of it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "profiler/host/cuda_table.h"
#include "trainer/execute/cpu/cpu_rank.h"
#include "trainer/run/config.h"

namespace mbb::trainer {

// Device time of the last step, from events; zero where the device is the CPU.
struct DeviceTimes {
  int64_t forward_backward_ns = 0;  // until the first op of the optimizer
  int64_t step_ns = 0;
};

// An allocation beside the memory plan's arena.
struct OutsideBytes {
  std::string what;
  int64_t bytes = 0;
};

class Executor {
 public:
  virtual ~Executor() = default;
  // One step. With `op_ns` each op's own time is stored in walk order (CPU time, or device time of ops run one by one).
  virtual Result<StepOutput> step(const StepInput& input, std::vector<int64_t>* op_ns) = 0;
  // Runs the step again, as CpuRank::step does with `not_finite`.
  virtual Result<std::optional<NotFinite>> find_not_finite(const StepInput& input) = 0;
  virtual CommStats stats(GroupKind kind) const = 0;
  // Copies the bytes of a tensor in a slot, as the last step left them.
  virtual Status read(TensorId tensor, int slot, std::span<std::byte> to) = 0;
  virtual DeviceTimes device_times() const { return {}; }
  // The CUDA device this rank runs on; -1 on the CPU.
  virtual int device() const { return -1; }
  // Call on every rank after a capture of the process (profiler/capture/capture.h) began or ended, between steps.
  virtual Status capture_changed() { return {}; }
  // Lets the device fail in the next step, for good.
  virtual Status plant_trap() { return fail(ErrorCode::kUnavailable, "a trap needs a GPU"); }
  // What the rank holds beside the arena (workspaces, tables, what the driver and libraries took); empty on the CPU.
  virtual std::vector<OutsideBytes> outside_arena() const { return {}; }
  // What a library or the driver did not take on this rank, and what runs instead.
  virtual std::vector<std::string> notes() const { return {}; }
  // Bytes beside the arena (workspaces, tables); 0 on the CPU.
  virtual int64_t extra_bytes() const { return 0; }
};

// `program`, `plan`, `mesh` and `world` must outlive the executor. CUDA: the device with the rank's index on this host;
// fails with the reason and the remedy where libmbbench_cuda.so, a device or an op's function is missing.
Result<std::unique_ptr<Executor>> make_executor(const HostConfig& host, const Program& program, const MemoryPlan& plan,
                                                const Mesh& mesh, World& world, uint64_t seed);

// Which of the host's `devices` a process takes that is `local_rank` of `local_size` there. Refuses more ranks than
// GPUs.
Result<int> device_of_process(int local_rank, int local_size, int devices);
// "host pci-bus-id" of every rank: no two have one GPU.
Status check_distinct_devices(std::span<const std::string> of_rank);
// Refuses GPUs of a host that cannot reach each other, unless NCCL_P2P_DISABLE=1 says that it is known.
Status check_peer(int device, int peer, bool possible);

// What of the configuration a CUDA rank is opened with; valid as long as `host`.
profiler::CudaRankRequest rank_request(const HostConfig& host);

// Times cuBLASLt's algorithms for every GEMM of rank 0's program on device 0, under sustained load, and writes the
// choices to host.gemm_tuning_file; what that file holds already stays. `brief`: about a twentieth of the time.
Status tune_gemms(const HostConfig& host, const Program& program, const MemoryPlan& plan, const Mesh& mesh,
                  uint64_t seed, bool brief = false);

}  // namespace mbb::trainer
