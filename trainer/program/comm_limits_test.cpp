// Limits of collectives in a program, and what fits a device.
#include "trainer/program/comm_limits.h"

#include <gtest/gtest.h>

#include "trainer/comm/local/run_ranks.h"
#include "trainer/ops/op_kind.h"
#include "trainer/run/layout.h"
#include "trainer/run/step_programs.h"

namespace mbb::trainer {
namespace {

TEST(CommLimits, EveryNumberOfSmsIsOnceAndWholeCollectivesHaveNone) {
  Config config;
  config.parallel.gpus = config.parallel.tensor_model_parallel_size = 2;
  auto layout = resolve(config);
  ASSERT_TRUE(layout) << format(layout.error());
  auto built = build_programs(*layout);
  ASSERT_TRUE(built) << format(built.error());
  EXPECT_TRUE(built->programs[0].limits.empty());

  config.tp_overlap.tp_comm_overlap = true;
  config.tp_overlap.tp_comm_overlap_cfg = {{"fc2_fprop.num_sm", "8"}, {"fc1_fprop.use_ce", "false"}};
  layout = resolve(config);
  ASSERT_TRUE(layout) << format(layout.error());
  built = build_programs(*layout);
  ASSERT_TRUE(built) << format(built.error());
  const std::vector<CommLimit> expected{{GroupKind::kTp, 4, 2}, {GroupKind::kTp, 8, 2}, {GroupKind::kTp, 16, 2}};
  EXPECT_EQ(built->programs[0].limits, expected);
  EXPECT_EQ(comm_limits(built->programs[0]), expected);
}

// The first and the last stage of a pipeline do not have the same ops, and open the same communicators.
TEST(CommLimits, AreTheWorlds) {
  Config config;
  config.parallel.gpus = 4;
  config.parallel.tensor_model_parallel_size = config.parallel.pipeline_model_parallel_size = 2;
  config.tp_overlap.tp_comm_overlap = true;
  const auto layout = resolve(config);
  ASSERT_TRUE(layout) << format(layout.error());
  const auto built = build_programs(*layout);
  ASSERT_TRUE(built) << format(built.error());
  ASSERT_GT(built->programs.size(), 1U);
  for (const Program& program : built->programs) EXPECT_EQ(program.limits, built->programs[0].limits);
}

// Others of the group, and all where a backend has no such communicators, go by the group's.
TEST(CommLimits, AnOpFindsTheCommunicatorOfItsLimit) {
  const Status ran = run_ranks(1, [](World& world) -> Status {
    MB_ASSIGN(const auto whole, world.group(GroupKind::kTp, std::vector<int>{0}));
    MB_ASSIGN(const auto held, world.group(GroupKind::kTp, std::vector<int>{0}));
    RankContext context;
    context.communicators.assign(kGroupKinds.size(), nullptr);
    context.communicators[static_cast<size_t>(GroupKind::kTp)] = whole.get();
    CommAttrs attrs;
    attrs.num_sm = 8, attrs.cga_size = 2;
    EXPECT_EQ(&context.communicator(attrs), whole.get());
    context.limited.emplace_back(CommLimit{GroupKind::kTp, 8, 2}, held.get());
    EXPECT_EQ(&context.communicator(attrs), held.get());
    attrs.num_sm = 16;
    EXPECT_EQ(&context.communicator(attrs), whole.get());
    return {};
  });
  EXPECT_TRUE(ran) << format(ran.error());
}

TEST(CommLimits, CollectivesSideStreamsAndAProductShareADevice) {
  EXPECT_TRUE(check_sms("x.num_sm", 112, 0, 114));
  EXPECT_FALSE(check_sms("x.num_sm", 113, 0, 114));
  EXPECT_TRUE(check_sms("x.num_sm", 100, 12, 114));
  const Status refused = check_sms("x.num_sm", 100, 13, 114);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().what.find("x.num_sm: 100 SMs and host.side_sms = 13 leave no 2 of a device's 114"),
            std::string::npos)
      << refused.error().what;
}

}  // namespace
}  // namespace mbb::trainer
