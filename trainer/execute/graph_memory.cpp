// Captured positions of the walk, and which of them share a graph.
#include "trainer/execute/graph_memory.h"

#include <algorithm>
#include <set>
#include <vector>

#include "profiler/base/check.h"
#include "trainer/program/walk.h"

namespace mbb::trainer {
namespace {

// What makes two positions the same work: the op and the places of its operands.
void add_identity(const Program& program, const MemoryPlan& plan, const Call& call, const Op& op,
                  std::vector<uint64_t>& to) {
  to.push_back(reinterpret_cast<uintptr_t>(&op));
  for (const std::vector<TensorId>* operands : {&op.in, &op.out})
    for (const TensorId id : *operands)
      to.push_back(static_cast<uint64_t>(plan.offset(program, id, slot(program.tensor(id), call))));
}

}  // namespace

int64_t captured_ops(const Program& program, const MemoryPlan& plan, std::span<const GraphScope> scopes) {
  if (scopes.empty()) return 0;
  if (std::find(scopes.begin(), scopes.end(), GraphScope::kFullIteration) != scopes.end()) {
    // Forward and backward are one graph and the optimizer is another: no position occurs twice.
    int64_t positions = 0;
    walk(program, [&](int, const Call&, int, const Op&) { ++positions; });
    return positions;
  }
  std::vector<GraphStep> steps;
  std::vector<const Op*> op_of;
  walk(program, [&](int index, const Call& call, int, const Op& op) {
    steps.push_back({op.path, index, program.segment(call).kind == SegmentKind::kOptimizer});
    op_of.push_back(&op);
  });
  std::set<std::vector<uint64_t>> graphs;
  std::vector<uint64_t> identity;
  int64_t ops = 0;
  for (const GraphPiece& piece : graph_pieces(steps, scopes)) {
    if (!piece.captured) continue;
    identity.clear();
    for (size_t i = piece.begin; i < piece.end; ++i)
      add_identity(program, plan, program.schedule[static_cast<size_t>(steps[i].call)], *op_of[i], identity);
    if (graphs.insert(identity).second) ops += static_cast<int64_t>(piece.end - piece.begin);
  }
  return ops;
}

int64_t graph_bytes(int64_t ops) {
  return ops == 0 ? 0 : kGraphBytes + ops * kGraphOpBytes;
}

GraphMemory graph_memory(const HostConfig& host, const Program& program, const MemoryPlan& plan) {
  if (!captures(host) || host.share_device) return {};  // ranks of a shared device meet on the host
  const auto scopes = parse_graph_scopes(host.cuda_graph_scope);
  MB_CHECK(scopes.has_value(), "scopes of graphs are checked when the layout is resolved");
  const int64_t ops = captured_ops(program, plan, *scopes);
  return {ops, graph_bytes(ops)};
}

}  // namespace mbb::trainer
