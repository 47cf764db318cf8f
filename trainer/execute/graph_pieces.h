// Which parts of a step are captured as CUDA graphs (host.cuda_graph_scope), by the paths of their ops: pure, so that a
// configuration is judged without a device.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "profiler/base/error.h"
#include "trainer/run/config.h"

namespace mbb::trainer {

// What a graph holds: attention (cross attention too), the MLP or experts, the router of experts, all of a layer, or
// forward and backward as one and the optimizer as another.
enum class GraphScope : uint8_t { kAttn, kMlp, kMoeRouter, kLayer, kFullIteration };

// Names with commas between. kBadArgument names one that there is not, and scopes that hold each other.
Result<std::vector<GraphScope>> parse_graph_scopes(std::string_view names);

// Whether the configuration captures anything, and refusal of scopes that cannot apply: to a model without experts,
// where nothing is captured, or to an exchange of tokens whose counts the host of a GPU reads in the step
// (`reads_counts`). Shapes never vary in a step here (packs and dropless buffers have a static size), so no scope is
// refused for that.
Status check_graphs(const HostConfig& host, int64_t experts, bool reads_counts = false);
bool captures(const HostConfig& host);

// A position of the walk, as pieces are made of it.
struct GraphStep {
  std::string_view path;  // of the op
  int call = 0;           // of the schedule
  bool optimizer = false;
};

// Positions [begin, end) that are one graph, or run op by op.
struct GraphPiece {
  size_t begin = 0, end = 0;
  bool captured = false;
};

// All positions in order; a piece ends where the optimizer begins. No scopes: nothing is captured.
std::vector<GraphPiece> graph_pieces(std::span<const GraphStep> steps, std::span<const GraphScope> scopes);

}  // namespace mbb::trainer
