// Exchanges of experts under another micro-batch's compute: the numbers stay, the exposed time falls.
#include <gtest/gtest.h>

#include <algorithm>

#include "trainer/execute/simulate/replay.h"
#include "trainer/models/small_families.h"
#include "trainer/ops/op_kind.h"
#include "trainer/program/walk.h"
#include "trainer/run/equal_training_test.h"

namespace mbb::trainer {
namespace {

Config expert_config(int pp) {
  Config c = config_of(family_of("mixtral"));
  c.model.num_layers = 4;
  c.train.global_batch_size = int64_t{24} * pp;
  c.train.train_iters = 5;
  c.parallel.use_distributed_optimizer = false;
  c.parallel.pipeline_model_parallel_size = pp;
  c.parallel.expert_model_parallel_size = 2;
  c.parallel.gpus = int64_t{2} * pp;
  return c;
}

using Interval = std::pair<int64_t, int64_t>;

int64_t length(std::vector<Interval> intervals) {
  std::sort(intervals.begin(), intervals.end());
  int64_t total = 0, end = 0;
  for (const auto& [from, to] : intervals) {
    total += std::max<int64_t>(0, to - std::max(from, end));
    end = std::max(end, to);
  }
  return total;
}

// Time of rank 0's exchanges outside its compute, and the step's: every exchange of tokens costs 12, every op 4.
struct Times {
  int64_t exposed = 0, step = 0;
};

Times replay_times(const Config& config) {
  const auto layout = resolve(config);
  EXPECT_TRUE(layout.has_value()) << (layout ? "" : format(layout.error()));
  const auto programs = build_programs(*layout);
  EXPECT_TRUE(programs.has_value()) << (programs ? "" : format(programs.error()));
  const auto by_rank = programs->by_rank(layout->mesh);
  std::vector<std::vector<int64_t>> costs;
  for (const Program* program : by_rank) {
    costs.emplace_back();
    walk(*program, [&](int, const Call&, int, const Op& op) {
      const bool exchange = op.stream == Stream::kEp && program->tensor(op.out[0]).dtype != DType::kI32;
      costs.back().push_back(exchange ? 12 : op.kind->communicates ? 0 : 4);
    });
  }
  const auto replayed =
      replay(layout->mesh, by_rank, [&](int rank, size_t i) { return costs[static_cast<size_t>(rank)][i]; });
  EXPECT_TRUE(replayed.has_value()) << (replayed ? "" : format(replayed.error()));
  std::vector<Interval> compute, all;
  for (const profiler::Span& span : replayed->trace.spans) {
    if (replayed->trace.tracks[span.track].rank != 0) continue;
    const Interval at{span.start_ns, span.end_ns};
    if (span.kind == profiler::SpanKind::kCompute) compute.push_back(at);
    if (span.kind == profiler::SpanKind::kCompute || span.kind == profiler::SpanKind::kCommEp) all.push_back(at);
  }
  return {length(all) - length(compute), replayed->step_ns};
}

class ExpertOverlap : public testing::TestWithParam<int> {};

TEST_P(ExpertOverlap, HidesExchangesAndKeepsTheNumbers) {
  const Config plain = expert_config(GetParam());
  const auto one = train_and_collect(plain);
  ASSERT_TRUE(one.has_value()) << format(one.error());
  const Times before = replay_times(plain);
  const auto expect_equal = [&](const Config& c) {
    const auto other = train_and_collect(c);
    ASSERT_TRUE(other.has_value()) << format(other.error());
    for (size_t i = 0; i < one->steps.size(); ++i) EXPECT_EQ(other->steps[i].loss, one->steps[i].loss) << "step " << i;
    expect_equal_gradients(other->gradients.back(), one->gradients.back(), 0.0);
  };
  Config delayed = plain;
  delayed.overlap.delay_wgrad_compute = true;
  expect_equal(delayed);
  const Times with_delay = replay_times(delayed);
  EXPECT_LT(5 * with_delay.exposed, 4 * before.exposed);
  EXPECT_LE(with_delay.step, before.step);

  Config paired = plain;
  paired.overlap.overlap_moe_expert_parallel_comm = true;
  expect_equal(paired);
  const Times with_pairs = replay_times(paired);
  EXPECT_LT(2 * with_pairs.exposed, before.exposed);

  Config both = paired;
  both.overlap.delay_wgrad_compute = true;
  expect_equal(both);
  const Times with_both = replay_times(both);
  EXPECT_LT(with_both.exposed, with_pairs.exposed);
  if (GetParam() == 1) {
    EXPECT_LT(with_pairs.step, before.step);
    EXPECT_LT(with_both.step, with_delay.step);
  }
}

INSTANTIATE_TEST_SUITE_P(Stages, ExpertOverlap, testing::Values(1, 2),
                         [](const auto& test) { return "pp" + std::to_string(test.param); });

TEST(ExpertOverlapRules, AreNamed) {
  const auto refusal = [](const std::function<void(Config&)>& change) {
    Config c = expert_config(1);
    c.overlap.overlap_moe_expert_parallel_comm = true;
    change(c);
    const auto layout = resolve(c);
    return layout ? "accepted" : format(layout.error());
  };
  EXPECT_NE(refusal([](Config& c) {
              c.parallel.expert_model_parallel_size = 1;
            }).find("overlap.overlap_moe_expert_parallel_comm with parallel.expert_model_parallel_size = 1"),
            std::string::npos);
  EXPECT_NE(refusal([](Config& c) { c.train.global_batch_size = 4; }).find("one micro-batch"), std::string::npos);
}

}  // namespace
}  // namespace mbb::trainer
