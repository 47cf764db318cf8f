// Ops that CUDA graphs hold, by scope, and the category they are in a plan.
#include "trainer/execute/graph_memory.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <string>

#include "trainer/models/small_families.h"
#include "trainer/program/explain.h"
#include "trainer/program/walk.h"
#include "trainer/run/step_programs.h"

namespace mbb::trainer {
namespace {

Config small(int64_t micro_batches) {
  Config c;
  sizes(c, "llama3.1-8b", 2);
  c.train.global_batch_size = micro_batches;
  c.host.device = Device::kCuda;
  return c;
}

struct Planned {
  Layout layout;
  StepPrograms programs;
};

Planned planned(const Config& c) {
  Layout layout = resolve(c).value();
  StepPrograms programs = build_programs(layout).value();
  return {std::move(layout), std::move(programs)};
}

int64_t positions(const Program& program, std::string_view part = "") {
  int64_t count = 0;
  walk(program, [&](int, const Call&, int, const Op& op) { count += op.path.find(part) != std::string::npos ? 1 : 0; });
  return count;
}

TEST(GraphMemory, AWholeStepHoldsEveryOpOfEveryMicroBatch) {
  for (const int64_t micro_batches : {1, 4}) {
    const Planned p = planned(small(micro_batches));
    EXPECT_EQ(p.programs.plans[0].graph_ops, positions(p.programs.programs[0])) << micro_batches;
  }
}

// The first micro-batch begins the gradients and the others add to them; those on the same slots share their graphs.
TEST(GraphMemory, MicroBatchesWithTheSameOpsOnTheSameBuffersShareGraphs) {
  const auto ops = [](int64_t micro_batches) {
    Config c = small(micro_batches);
    c.host.cuda_graph_scope = "layer";
    return planned(c).programs.plans[0].graph_ops;
  };
  const int64_t four = ops(4), eight = ops(8);
  EXPECT_GT(four, 0);
  EXPECT_EQ(four, eight);
  EXPECT_LT(ops(1), four);
  const Planned whole = planned(small(8));
  EXPECT_LT(eight, positions(whole.programs.programs[0], "layers."));
}

TEST(GraphMemory, ScopesHoldWhatTheySay) {
  Config c = small(1);
  c.host.cuda_graph_scope = "attn";
  const Planned p = planned(c);
  EXPECT_EQ(p.programs.plans[0].graph_ops, positions(p.programs.programs[0], ".attn."));
}

TEST(GraphMemory, IsNothingWhereNothingIsCaptured) {
  const auto ops = [](const auto& change) {
    Config c = small(2);
    change(c.host);
    return planned(c).programs.plans[0].graph_ops;
  };
  EXPECT_GT(ops([](HostConfig&) {}), 0);
  EXPECT_EQ(ops([](HostConfig& h) { h.enable_cuda_graph = false; }), 0);
  EXPECT_EQ(ops([](HostConfig& h) { h.cuda_graph_impl = GraphImpl::kNone; }), 0);
  EXPECT_EQ(ops([](HostConfig& h) { h.share_device = true; }), 0);
  EXPECT_EQ(ops([](HostConfig& h) { h.device = Device::kCpu; }), 0) << "no driver keeps anything";
}

// Where a card's driver was asked: ops of a step and what its memory was less by (cudaMemGetInfo, granules of 2 MiB).
TEST(GraphMemory, IsWhatADriverTook) {
  struct Measured {
    int64_t ops, bytes;
    bool fp8;
  };
  constexpr int64_t kGranule = int64_t{2} << 20;
  for (const auto& [ops, bytes, fp8] : {Measured{1843, 6291456, false},
                                        {6835, 16777216, false},
                                        {27331, 58720256, false},
                                        {15779, 18874368, true},
                                        {0, 0, false}}) {
    if (fp8)
      EXPECT_GT(graph_bytes(ops), bytes) << ops;
    else
      EXPECT_NEAR(static_cast<double>(graph_bytes(ops)), static_cast<double>(bytes), kGranule) << ops;
    EXPECT_LT(graph_bytes(ops), 2 * bytes + 1) << ops;
  }
}

TEST(GraphMemory, CountsWhereAPlanIsHeldAgainstADevice) {
  const Planned p = planned(small(2));
  const Program& program = p.programs.programs[0];
  const MemoryPlan& plan = p.programs.plans[0];
  const GraphMemory graphs = graph_memory(p.layout.config.host, program, plan);
  EXPECT_EQ(graphs.bytes, kGraphBytes + kGraphOpBytes * positions(program));
  EXPECT_EQ(plan.graph_bytes, graphs.bytes);
  EXPECT_EQ(plan.device_bytes(), plan.arena_bytes + graphs.bytes);
  EXPECT_TRUE(check_fits(program, plan, plan.device_bytes()).has_value());
  const Status refused = check_fits(program, plan, plan.device_bytes() - 1);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().what.find(fmt::format("graphs of {} ops", graphs.ops)), std::string::npos)
      << refused.error().what;
  EXPECT_NE(refused.error().hint.find("host.enable_cuda_graph = false"), std::string::npos) << refused.error().hint;
  const Status larger = check_fits(program, plan, plan.arena_bytes - 1);
  ASSERT_FALSE(larger.has_value());
  EXPECT_EQ(larger.error().hint.find("host.enable_cuda_graph"), std::string::npos) << "it would not fit without them";
  const auto text = to_text(explain(p.layout, p.programs));
  ASSERT_TRUE(text.has_value());
  EXPECT_NE(text->find(" graphs\n"), std::string::npos) << *text;
  EXPECT_NE(explain_json(p.layout, p.programs).find(fmt::format("\"graph_bytes\":{}", graphs.bytes)),
            std::string::npos);
}

}  // namespace
}  // namespace mbb::trainer
