// The step programs of one resolved configuration with their memory plans, and whether they fit the machine.
#pragma once

#include <cstdint>
#include <vector>

#include "profiler/base/error.h"
#include "trainer/passes/effects.h"
#include "trainer/program/memory_plan.h"
#include "trainer/program/program.h"
#include "trainer/run/layout.h"

namespace mbb::trainer {

// The programs of a layout, one a rank class, with their memory plans. Verified.
struct StepPrograms {
  std::vector<Program> programs;  // by Mesh::rank_class_index
  std::vector<MemoryPlan> plans;
  std::vector<std::vector<PassEffect>> effects;  // of the passes that changed a class's program, in their order
  std::vector<IdleKnob> idle;                    // of passes that found nothing to change in any of them

  const Program& of_rank(const Mesh& mesh, int rank) const {
    return programs[static_cast<size_t>(mesh.rank_class_index(rank))];
  }
  std::vector<const Program*> by_rank(const Mesh& mesh) const;
};

// Builds, verifies and plans the program of every rank class.
Result<StepPrograms> build_programs(const Layout& layout);

// Refuses (kOutOfMemory) a program whose plan is above memory.limit_gib, naming stage, largest tensors and remedies.
// `capacity_bytes` is what the device has, 0: not known. On the CPU without a limit, ranks share what the host has
// left: all of them when they are threads, a launcher's processes of this host else.
Status check_memory(const Layout& layout, const StepPrograms& programs, int64_t capacity_bytes = 0);

// The same of ranks that share `host_bytes`: all of the layout's, or the first `ranks` of them.
Status check_host_memory(const Layout& layout, const StepPrograms& programs, int64_t host_bytes, int ranks);

}  // namespace mbb::trainer
