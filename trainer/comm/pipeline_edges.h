// Neighbours along a pipeline, sorted so that no rank has two of one colour: the pairs of a colour can have a
// communicator each at once.
#pragma once

#include <array>

namespace mbb::trainer {

// Edge i goes from stage i to stage (i + 1) mod stages.
inline constexpr int kEdgeColours = 3;
constexpr int edge_colour(int edge, int stages) {
  return stages % 2 != 0 && edge == stages - 1 ? 2 : edge % 2;
}

struct Edge {
  int index = -1;  // -1: the stage has no edge of that colour
  bool source = false;
};

// The stage's edge of each colour.
constexpr std::array<Edge, kEdgeColours> edges_of(int stage, int stages) {
  std::array<Edge, kEdgeColours> edges{};
  if (stages < 2) return edges;
  const int before = (stage + stages - 1) % stages;
  edges[static_cast<unsigned>(edge_colour(before, stages))] = {before, false};
  edges[static_cast<unsigned>(edge_colour(stage, stages))] = {stage, true};
  return edges;
}

}  // namespace mbb::trainer
