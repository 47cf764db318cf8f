// Replay: durations of ops, put through the dependency graph of a world's programs, give the step as if every rank and
// every stream ran by itself. One function times CPU runs (per-op CPU time), bubbles (unit costs) and simulations (cost
// tables).
//
// Rules: a stream runs its ops in program order; an op starts when its stream is free, its operands are written and
// nobody still reads what it overwrites; a collective ends everywhere at (last member ready) + (longest member's
// duration); a message is received at max(receiver ready, send ended) + the receiver's duration; batched messages that
// follow each other on a stream run at once. Times are ns from the start of the step.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "profiler/base/error.h"
#include "profiler/trace/trace.h"
#include "trainer/program/program.h"

namespace mbb::trainer {

// Duration in ns of walk position `index` on `rank`.
using DurationOf = std::function<int64_t(int rank, size_t index)>;

struct Replay {
  int64_t step_ns = 0;
  profiler::Trace trace;  // one track a (rank, stream); collectives share ids, so that waits can be told from transfers
};

// kMismatch when the programs do not fit together (a collective that not all members reach).
Result<Replay> replay(const Mesh& mesh, std::span<const Program* const> program_of_rank, const DurationOf& duration);

}  // namespace mbb::trainer
