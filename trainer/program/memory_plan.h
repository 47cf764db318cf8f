// The static memory plan of a program: every buffer's place in one arena, before anything runs. No allocator in the
// step.
//
// Tensors of Space::kHost lie in a second arena, of pinned host memory; peak, categories and live sets are the
// device's.
//
// Buffers are (storage tensor, ring slot). Two buffers may share bytes when they are never alive at once over the walk
// of the schedule; placement is largest first, lowest offset. Sizes are bytes.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "profiler/base/error.h"
#include "trainer/program/program.h"

namespace mbb::trainer {

// Where a buffer is first written and last read within the walk (call and op of the schedule); persistent: whole walk.
struct LiveBuffer {
  TensorId tensor = kNoTensor;
  int slot = 0;
  int64_t offset = 0;
  int64_t bytes = 0;
};

// How the device's arena is laid out.
struct PlanOptions {
  bool one_range = true;     // else a slab for each category, whose bytes no other category uses
  bool release_comm = true;  // else a communication buffer of a call lives to the end of the call
  bool registered = false;   // communicators work on the arena itself: its memory can be mapped by other processes

  bool operator==(const PlanOptions&) const = default;
};

struct MemoryPlan {
  static constexpr int64_t kAlign = 256;

  PlanOptions options;

  int64_t arena_bytes = 0;      // what is allocated
  int64_t host_bytes = 0;       // the host's arena
  int64_t graph_ops = 0;        // ops that CUDA graphs hold (execute/graph_memory.h)
  int64_t graph_bytes = 0;      // the category `graphs`: what the driver takes for them beside the arena
  int64_t peak_live_bytes = 0;  // sum of live buffers at the fullest moment; the rest is fragmentation
  std::array<int64_t, kCategories> peak_by_category{};  // at that moment
  int peak_call = 0;                                    // the moment: op `peak_op` of call `peak_call`
  int peak_op = 0;
  std::array<int64_t, kCategories> slab_bytes{};  // without one_range: length of each category's slab
  std::vector<LiveBuffer> buffers;
  std::vector<std::vector<int64_t>> offsets;  // [tensor][slot]; empty for views and unused tensors

  // What the step needs of the device.
  int64_t device_bytes() const { return arena_bytes + graph_bytes; }
  // Byte offset of a tensor (a view included) in a slot, in the arena of its space.
  int64_t offset(const Program& program, TensorId id, int slot) const;
  // Buffers alive at the peak, largest first.
  std::vector<LiveBuffer> live_at_peak(const Program& program) const;
};

MemoryPlan plan_memory(const Program& program, const PlanOptions& options = {});

// What a configuration has left to lower, so that nothing is advised that it has done.
struct Lowerable {
  bool micro_batch = true;          // it is above 1
  bool activations = true;          // not all of them are recomputed
  bool optimizer_unsharded = true;  // every data-parallel GPU holds all its states
};

// Refuses a plan (graphs included) above `capacity_bytes`, naming the largest live tensors and, for what takes most at
// the peak, the knobs that would help.
Status check_fits(const Program& program, const MemoryPlan& plan, int64_t capacity_bytes,
                  const Lowerable& lowerable = {});

}  // namespace mbb::trainer
