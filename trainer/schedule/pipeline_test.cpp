// 1F1B: every micro-batch once forward and once backward, in order, never more in flight than the depth.
#include "trainer/schedule/pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace mbb::trainer {
namespace {

TEST(OneFOneB, RunsEachMicroBatchAndBoundsWhatIsInFlight) {
  for (int stages = 1; stages <= 8; ++stages) {
    for (int stage = 0; stage < stages; ++stage) {
      for (int m = 1; m <= 12; ++m) {
        int forward = 0;
        int backward = 0;
        int most = 0;
        for (const Call& call : one_f_one_b(stage, stages, m, 0, 1)) {
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

}  // namespace
}  // namespace mbb::trainer
