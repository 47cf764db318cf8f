// What the CUDA graphs of a step cost in device memory, before they are captured: the driver keeps every op of an
// instantiated graph on the device, beside the plan's arena.
#pragma once

#include <cstdint>
#include <span>

#include "trainer/execute/graph_pieces.h"
#include "trainer/program/memory_plan.h"
#include "trainer/program/program.h"

namespace mbb::trainer {

// What an H100's driver (580.159.04) took of its memory for the graphs of a step, in granules of 2 MiB: something
// before the first op, and so much an op (RankOnDevice.GraphsTakeTheirBytesAnOp; the figures stand in
// baselines/measured/h100-sxm). bf16 steps of 1843 to 27331 ops lie on that line within a granule; an FP8 step took 1.2
// KiB an op, for which it is an upper bound.
inline constexpr int64_t kGraphBytes = int64_t{3} << 20;
inline constexpr int64_t kGraphOpBytes = 2048;

// What executors call that memory among the allocations beside the arena.
inline constexpr const char* kCapturedGraphs = "captured graphs";

// Ops of the graphs of one rank: positions of the walk that `scopes` capture, those of pieces with the same ops on the
// same operands, which share a graph, once.
int64_t captured_ops(const Program& program, const MemoryPlan& plan, std::span<const GraphScope> scopes);

struct GraphMemory {
  int64_t ops = 0;
  int64_t bytes = 0;
};

// Of graphs of so many ops: nothing without one.
int64_t graph_bytes(int64_t ops);

// Of the graphs that `host` asks for: nothing where none is captured. Scopes are valid (check_graphs).
GraphMemory graph_memory(const HostConfig& host, const Program& program, const MemoryPlan& plan);

}  // namespace mbb::trainer
