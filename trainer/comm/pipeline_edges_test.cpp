// No stage has two edges of one colour, and both ends of an edge see it alike.
#include "trainer/comm/pipeline_edges.h"

#include <gtest/gtest.h>

#include <set>

namespace mbb::trainer {
namespace {

TEST(PipelineEdges, ColoursKeepNeighboursApart) {
  for (const int stages : {2, 3, 4, 5, 8, 9}) {
    SCOPED_TRACE(stages);
    std::multiset<int> sources, ends;
    for (int stage = 0; stage < stages; ++stage) {
      int found = 0;
      for (int colour = 0; colour < kEdgeColours; ++colour) {
        const Edge edge = edges_of(stage, stages)[static_cast<size_t>(colour)];
        if (edge.index < 0) continue;
        ++found;
        EXPECT_EQ(edge_colour(edge.index, stages), colour);
        EXPECT_EQ(edge.source ? edge.index : (edge.index + 1) % stages, stage);
        (edge.source ? sources : ends).insert(edge.index);
      }
      EXPECT_EQ(found, 2) << "stage " << stage << " has a neighbour on both sides";
    }
    for (int edge = 0; edge < stages; ++edge) {
      EXPECT_EQ(sources.count(edge), 1U);
      EXPECT_EQ(ends.count(edge), 1U);
    }
  }
  for (const Edge& edge : edges_of(0, 1)) EXPECT_EQ(edge.index, -1);
}

}  // namespace
}  // namespace mbb::trainer
