// Knobs of [profiling]: which steps and ranks are traced, and with what.
#include "trainer/run/knobs.h"

namespace mbb::trainer {

std::vector<Knob> profiling_knobs() {
  return {
      {.key = "profiling.profile_step_start",
       .aliases = {"profile_start_step"},
       .field = field(&Config::profiling, &ProfilingConfig::profile_step_start),
       .range = at_least(-1),
       .unit = "steps",
       .doc = "First profiled step; -1 = as far before profile_step_end as five steps or half the run reach.",
       .history = "Megatron-Core: 10, and only with profile = true.",
       .identity = false},
      {.key = "profiling.profile_step_end",
       .aliases = {"profile_end_step"},
       .field = field(&Config::profiling, &ProfilingConfig::profile_step_end),
       .range = at_least(-1),
       .unit = "steps",
       .doc = "Step before which profiling ends; -1 = five steps after profile_step_start, or the end of the run. "
              "Equal to profile_step_start: nothing is profiled.",
       .history = "Megatron-Core: 12.",
       .identity = false},
      {.key = "profiling.profile_ranks",
       .field = field(&Config::profiling, &ProfilingConfig::profile_ranks),
       .range = at_least(0),
       .doc = "Ranks whose spans the trace keeps; empty = all.",
       .history = "Megatron-Core: 0.",
       .identity = false},
      {.key = "profiling.use_nsys_profiler",
       .field = field(&Config::profiling, &ProfilingConfig::use_nsys_profiler),
       .doc = "Bracket the window with cudaProfilerStart and cudaProfilerStop for nsys -c cudaProfilerApi, instead of "
              "capturing it here; needs host.device = cuda.",
       .identity = false},
      {.key = "profiling.record_memory_history",
       .field = field(&Config::profiling, &ProfilingConfig::record_memory_history),
       .doc = "Store every tensor with its bytes, place and traced lifetime, from its first writer to its last reader.",
       .identity = false},
      {.key = "profiling.memory_snapshot_path",
       .field = field(&Config::profiling, &ProfilingConfig::memory_snapshot_path),
       .doc =
           "Also write that history as an allocator snapshot (PyTorch's pickle, for memory_viz); a relative path lies "
           "in the launch's folder.",
       .history = "Megatron-Core: snapshot.pickle.",
       .identity = false},
      {.key = "profiling.reference_work",
       .field = field(&Config::profiling, &ProfilingConfig::reference_work),
       .doc = "Beside each step of a CPU rank, 1 ms of work that never changes. A neighbour on the core slows both, so "
              "the gate judges their ratio (cpu_step_ratio) in the place of the CPU time; needs host.device = cpu."},
  };
}

}  // namespace mbb::trainer
