// Replay: durations of ops, put through the dependency graph of a world's programs, give the step as if every rank and
// every stream ran by itself. One function times CPU runs (per-op CPU time), bubbles (unit costs) and simulations (cost
// tables).
//
// Rules: a stream runs its ops in program order; an op starts when its stream is free, its operands are written and
// nobody still reads what it overwrites; a collective ends everywhere at (last member ready) + (longest member's
// duration); a message is received at max(receiver ready, send ended) + the receiver's duration; batched messages that
// follow each other on a stream run at once; of a product, what runs beside a collective before it in the program takes
// longer (one that comes after it in the program and starts before it ends is not seen). Times are ns from the start of
// the step.
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

// Duration in ns of an op of a class's program.
using SiteDuration = std::function<int64_t(int rank_class, int segment, int op)>;

// What ops of a class's program that share SMs do to each other.
struct Contention {
  double slows = 1;  // how many times as long those take that are slowed, while this one runs or waits
  bool slowed = false;
};
using SiteContention = std::function<Contention(int rank_class, int segment, int op)>;

struct ClassReplayOptions {
  // Walks the first so many micro-batches only, as a step of so many would; 0: all.
  int micro_batches = 0;
  // Host time to issue one op: none starts before those before it are issued. 0: the host is never late.
  int64_t issue_ns = 0;
  bool spans = true;          // off: only the step's length
  bool paths = true;          // off: spans without the paths of their ops
  SiteContention contention;  // none: nothing slows another
};

// The same for a world of any size: ranks of a class do the same at the same time, so that one of each, the lowest,
// stands for all. `programs` by Mesh::rank_class_index. A collective waits for the classes that have members in it.
Result<Replay> replay_classes(const Mesh& mesh, std::span<const Program> programs, const SiteDuration& duration,
                              const ClassReplayOptions& options = {});

}  // namespace mbb::trainer
