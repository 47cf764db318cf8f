// What the CUDA graphs of a step cost in device memory, before they are captured: the driver keeps every op of an
// instantiated graph on the device, beside the plan's arena.
#pragma once

#include <cstdint>
#include <span>

#include "trainer/execute/graph_pieces.h"
#include "trainer/program/memory_plan.h"
#include "trainer/program/program.h"

namespace mbb::trainer {

// Bytes of an op of a graph, as a card's driver took them (baselines/measured, RankOnDevice.GraphsTakeTheirBytesAnOp);
// 0: not measured yet, and plans say how many ops are captured but not what they take.
inline constexpr int64_t kGraphOpBytes = 0;

// What executors call that memory among the allocations beside the arena.
inline constexpr const char* kCapturedGraphs = "captured graphs";

// Ops of the graphs of one rank: positions of the walk that `scopes` capture, those of pieces with the same ops on the
// same operands, which share a graph, once.
int64_t captured_ops(const Program& program, const MemoryPlan& plan, std::span<const GraphScope> scopes);

struct GraphMemory {
  int64_t ops = 0;
  int64_t bytes = 0;
};

// Of the graphs that `host` asks for: nothing where none is captured. Scopes are valid (check_graphs).
GraphMemory graph_memory(const HostConfig& host, const Program& program, const MemoryPlan& plan,
                         int64_t op_bytes = kGraphOpBytes);

}  // namespace mbb::trainer
