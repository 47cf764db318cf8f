// The planted delay costs what it says and changes no number.
#include "trainer/passes/delay.h"

#include "trainer/passes/one_step_test.h"
#include "trainer/program/explain.h"
#include "trainer/program/walk.h"

namespace mbb::trainer {
namespace {

Config small(int tp, int64_t delay_us) {
  Config c;
  c.model.num_layers = 2;
  c.train.seq_length = 16;
  c.train.micro_batch_size = 1;
  c.train.global_batch_size = 2;
  c.parallel.tensor_model_parallel_size = tp;
  c.debug.delay_us = delay_us;
  return c;
}

TEST(Delay, EveryRankHasOneOpAStepAndTheSameNumbers) {
  for (const int tp : {1, 2}) {
    const Stepped without = step_once(small(tp, 0));
    const Stepped with = step_once(small(tp, 3));
    EXPECT_NE(program_hash(with.programs), program_hash(without.programs)) << "a program with a delay is another one";
    for (const Program& program : with.programs.programs) {
      int delays = 0;
      walk(program, [&](int, const Call&, int, const Op& op) { delays += op.path == "debug.delay" ? 1 : 0; });
      EXPECT_EQ(delays, 1);
    }
    ASSERT_EQ(with.outputs.size(), without.outputs.size());
    for (size_t r = 0; r < with.outputs.size(); ++r) {
      EXPECT_EQ(with.outputs[r].loss_sum, without.outputs[r].loss_sum);
      EXPECT_EQ(with.outputs[r].grad_norm, without.outputs[r].grad_norm);
    }
    EXPECT_EQ(with.grads, without.grads);
  }
}

TEST(Delay, BurnsTheThreadsOwnCpuTime) {
  constexpr int64_t kDelayNs = 4'000'000;
  const auto layout = resolve(small(1, kDelayNs / 1000));
  ASSERT_TRUE(layout.has_value());
  const auto programs = build_programs(*layout);
  ASSERT_TRUE(programs.has_value());
  int64_t burnt = 0, others = 0;
  const Status ran = run_ranks(1, [&](World& world) -> Status {
    MB_ASSIGN(auto rank, CpuRank::create(programs->programs[0], programs->plans[0], layout->mesh, world, 1));
    std::vector<int64_t> op_ns;
    MB_TRY(rank->step(one_step_input(*layout, 0), &op_ns));
    size_t at = 0;
    walk(programs->programs[0], [&](int, const Call&, int, const Op& op) {
      (op.path == "debug.delay" ? burnt : others) += op_ns[at];
      ++at;
    });
    return {};
  });
  ASSERT_TRUE(ran.has_value()) << format(ran.error());
  EXPECT_GE(burnt, kDelayNs);
  EXPECT_GT(others, 0);
}

}  // namespace
}  // namespace mbb::trainer
