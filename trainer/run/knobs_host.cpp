// Knobs of [host]: where the ranks run.
#include "trainer/run/knob_needs.h"
#include "trainer/run/knobs.h"

namespace mbb::trainer {

namespace {

// Which devices, and who shares them.
std::vector<Knob> device_knobs() {
  return {
      {.key = "host.device",
       .field = field(&Config::host, &HostConfig::device),
       .choices = {choice("cpu", Device::kCpu, "ranks are threads, or the processes of mpirun; the oracle"),
                   choice("cuda", Device::kCuda, "one GPU a rank")},
       .doc = "What computes the step."},
      {.key = "host.share_device",
       .field = field(&Config::host, &HostConfig::share_device),
       .doc = "Ranks are threads that share the GPUs there are, one or more a GPU: collectives copy and sum between "
              "meetings of the host, without graphs. For the numerics of a mapping alone; its times say nothing."},
      {.key = "host.deterministic_mode",
       .field = field(&Config::host, &HostConfig::deterministic_mode),
       .doc = "Two runs on a GPU give the same bits: cuDNN's attention backward sums in a fixed order, and slower, and "
              "nothing is chosen by time (GEMMs are the tuning file's or cuBLASLt's first choice, attention is cuDNN's "
              "where it takes the shape). Every other kernel gives the same bits in any case, and so does the CPU.",
       .needs = {needs::kGpu},
       .projected = false},
  };
}

// What the processors beside the devices do, and the clocks.
std::vector<Knob> processor_knobs() {
  return {
      {.key = "host.cpu_binding",
       .field = field(&Config::host, &HostConfig::cpu_binding),
       .doc = "CPUs of the rank threads: none, local (those near the rank's GPU; on the CPU a part each), or a list as "
              "numactl takes it (0-7,16). What is in force is read back and stored.",
       .projected = false},
      {.key = "host.vboost",
       .field = field(&Config::host, &HostConfig::vboost),
       .range = within(-1, 16),
       .doc = "The driver's video boost slider during the cell; -1 = as found. Changing it needs "
              "--allow-clock-changes, and the old value returns whatever ends the run.",
       .projected = false},
      {.key = "host.manual_gc_interval",
       .field = field(&Config::host, &HostConfig::manual_gc_interval),
       .range = within(0, 1'000'000),
       .unit = "steps",
       .doc =
           "All periodic host work (step reports and log lines, traced times, telemetry) happens after every so many "
           "steps, at the same step on every rank, and none goes on before all are done; 0 = after each step, while "
           "the other ranks go on: what such work costs where it is not aligned.",
       .history = "Megatron-Core: 0, Python's collector runs when it likes; here nothing collects, and what is left to "
                  "do between steps is aligned.",
       .projected = false},
  };
}

std::vector<Knob> graph_knobs() {
  return {
      {.key = "host.enable_cuda_graph",
       .field = field(&Config::host, &HostConfig::enable_cuda_graph),
       .doc = "After its first step what host.cuda_graph_scope holds is captured and replayed as CUDA graphs.",
       .history = "Megatron-Core: off; here nothing in a step depends on the host, so that a capture costs nothing.",
       .needs = {needs::kGpu},
       .projected = false},
      {.key = "host.cuda_graph_impl",
       .field = field(&Config::host, &HostConfig::cuda_graph_impl),
       .choices = {choice("none", GraphImpl::kNone, "every op is launched"),
                   choice("local", GraphImpl::kLocal, "the executor captures its own ops")},
       .doc = "Who captures CUDA graphs where host.enable_cuda_graph is on.",
       .history = "Megatron-Core: none.",
       .needs = {needs::kGpu},
       .projected = false},
      {.key = "host.cuda_graph_scope",
       .field = field(&Config::host, &HostConfig::cuda_graph_scope),
       .doc = "What is captured, commas between: attn, mlp (experts too), moe_router; layer, all of a layer; "
              "full_iteration, the forward and backward as one graph and the optimizer as another. Pieces with the "
              "same ops on the same buffers share a graph; what no scope holds is launched op by op, and streams meet "
              "where a piece ends. Shapes never vary in a step, so that none is refused for its shapes.",
       .history = "Megatron-Core: empty, which captures layers.",
       .needs = {needs::kGpu},
       .projected = false},
  };
}

std::vector<Knob> kernel_and_limit_knobs() {
  return {
      {.key = "host.side_sms",
       .field = field(&Config::host, &HostConfig::side_sms),
       .range = within(0, 128),
       .doc = "SMs that the optimizer's kernels take while they run on a stream beside compute, and that GEMMs there "
              "leave free; 0 = whatever fits.",
       .needs = {needs::kGpu},
       .projected = false},
      {.key = "host.gemm_tuning_file",
       .field = field(&Config::host, &HostConfig::gemm_tuning_file),
       .doc = "GEMM algorithms that `mbbench tune` chose on such a device, driver and cuBLASLt; a GEMM the file lacks, "
              "and every GEMM without a file, is timed briefly when a run starts.",
       .needs = {needs::kGpu},
       .path = true,
       .projected = false},
      {.key = "host.no_progress_limit_s",
       .field = field(&Config::host, &HostConfig::no_progress_limit_s),
       .range = within(0, 86'400),
       .unit = "seconds",
       .doc = "A run in which no rank begins an op for so long ends, and says where each rank stands. 0 = 120 s until "
              "two steps have ended and while the host writes; then 20 times the longest step, at least 10 s.",
       .identity = false},
  };
}

}  // namespace

std::vector<Knob> host_knobs() {
  std::vector<Knob> all = device_knobs();
  for (const auto part : {processor_knobs, graph_knobs, kernel_and_limit_knobs}) {
    const std::vector<Knob> some = part();
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

}  // namespace mbb::trainer
