// Schedules: every micro-batch once forward and once backward in each chunk, in order, and what is in flight.
#include "trainer/schedule/pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

namespace mbb::trainer {
namespace {

TEST(OneFOneB, RunsEachMicroBatchAndBoundsWhatIsInFlight) {
  for (int stages = 1; stages <= 8; ++stages) {
    for (int stage = 0; stage < stages; ++stage) {
      for (int m = 1; m <= 12; ++m) {
        int forward = 0;
        int backward = 0;
        int most = 0;
        for (const Call& call : one_f_one_b(stage, stages, m, {0, 1})) {
          int& next = call.segment == 0 ? forward : backward;
          EXPECT_EQ(call.micro_batch, next++);
          EXPECT_LE(backward, forward);
          most = std::max(most, forward - backward);
        }
        EXPECT_EQ(forward, m);
        EXPECT_EQ(backward, m);
        EXPECT_EQ(most, std::min(stages - stage, m));
      }
    }
  }
}

std::vector<ChunkSegments> chunks_of(int count) {
  std::vector<ChunkSegments> chunks;
  for (int c = 0; c < count; ++c) chunks.push_back({2 * c, 2 * c + 1});
  return chunks;
}

// "F0.1" is the forward of micro-batch 1 in chunk 0.
std::string text_of(const std::vector<Call>& calls) {
  std::string text;
  for (const Call& call : calls)
    text += (text.empty() ? "" : " ") + std::string(call.segment % 2 == 0 ? "F" : "B") +
            std::to_string(call.segment / 2) + "." + std::to_string(call.micro_batch);
  return text;
}

TEST(Interleaved, TwoStagesOfTwoChunksRunInThePublishedOrder) {
  EXPECT_EQ(text_of(interleaved(0, 2, 4, 2, chunks_of(2))),
            "F0.0 F0.1 F1.0 F1.1 F0.2 B1.0 F0.3 B1.1 F1.2 B0.0 F1.3 B0.1 B1.2 B1.3 B0.2 B0.3");
  EXPECT_EQ(text_of(interleaved(1, 2, 4, 2, chunks_of(2))),
            "F0.0 F0.1 F1.0 B1.0 F1.1 B1.1 F0.2 B0.0 F0.3 B0.1 F1.2 B1.2 F1.3 B1.3 B0.2 B0.3");
}

// A group larger than the pipeline, and a last group that is smaller than the others.
TEST(Interleaved, GroupsPassChunkAfterChunk) {
  EXPECT_EQ(text_of(interleaved(1, 2, 5, 3, chunks_of(2))),
            "F0.0 F0.1 F0.2 F1.0 B1.0 F1.1 B1.1 F1.2 B1.2 F0.3 B0.0 F0.4 B0.1 F1.3 B0.2 F1.4 B1.3 B1.4 B0.3 B0.4");
}

TEST(Interleaved, EveryChunkRunsEachMicroBatchOnceInOrderAndNeighboursAgree) {
  for (int stages : {2, 3, 4, 8})
    for (int chunks : {2, 3, 4})
      for (int m : {stages, 2 * stages, 3 * stages, 2 * stages + stages + 1})
        for (int group : {stages, stages + 1}) {
          if (m % group != 0 && m % group < stages) continue;
          SCOPED_TRACE(std::to_string(stages) + " stages, " + std::to_string(chunks) + " chunks, " + std::to_string(m) +
                       " micro-batches in groups of " + std::to_string(group));
          for (int stage = 0; stage < stages; ++stage) {
            std::map<int, int> next;  // by segment
            for (const Call& call : interleaved(stage, stages, m, group, chunks_of(chunks))) {
              EXPECT_EQ(call.micro_batch, next[call.segment]++);
              if (call.segment % 2 == 1) {
                EXPECT_LE(next[call.segment], next[call.segment - 1]);
              }
            }
            ASSERT_EQ(next.size(), static_cast<size_t>(2 * chunks));
            for (const auto& [segment, count] : next) EXPECT_EQ(count, m);
          }
        }
}

}  // namespace
}  // namespace mbb::trainer
