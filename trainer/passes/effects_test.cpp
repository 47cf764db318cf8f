// The summary of passes: what each one changes is what its before and after say.
#include "trainer/passes/effects.h"

#include <nlohmann/json.hpp>

#include "trainer/program/explain.h"
#include "trainer/program/sample_programs_test.h"

namespace mbb::trainer {
namespace {

TEST(PassEffects, FollowEachOtherAndSayWhatChanged) {
  Config c = mapped(1, 1, 1);
  c.fusion.residual_fusion = true;
  c.memory.recompute_granularity = RecomputeGranularity::kFull;
  c.memory.cpu_offloading = true;
  const Built built = build(c);
  const std::vector<PassEffect>& effects = built.programs.effects.at(0);
  ASSERT_EQ(effects.size(), 3U);
  EXPECT_EQ(effects[0].pass, "residual_fusion");
  EXPECT_EQ(effects[1].pass, "recompute");
  EXPECT_EQ(effects[2].pass, "cpu_offloading");
  for (size_t i = 1; i < effects.size(); ++i) EXPECT_EQ(effects[i].before, effects[i - 1].after);
  // Two sums a layer move into GEMMs, and two in the backward into norms.
  EXPECT_EQ(effects[0].before.forward_ops - effects[0].after.forward_ops, 2 * 4);
  EXPECT_EQ(effects[0].before.backward_ops - effects[0].after.backward_ops, 2 * 4);
  EXPECT_EQ(effects[0].before.flops, effects[0].after.flops);
  EXPECT_LT(effects[0].after.bytes, effects[0].before.bytes);
  EXPECT_EQ(effects[1].before.forward_ops, effects[1].after.forward_ops);
  EXPECT_GT(effects[1].after.backward_ops, effects[1].before.backward_ops);
  EXPECT_GT(effects[1].after.flops, effects[1].before.flops);
  EXPECT_LT(effects[1].after.kept_bytes, effects[1].before.kept_bytes);
  EXPECT_LT(effects[2].after.kept_bytes, effects[2].before.kept_bytes);
  EXPECT_EQ(effects[2].after.host_bytes, effects[2].before.kept_bytes - effects[2].after.kept_bytes);
}

TEST(PassEffects, OverlapCutsProductsAndCollectivesIntoMoreOfThem) {
  Config c = mapped(2, 1, 1);
  c.tp_overlap.tp_comm_overlap = true;
  const Built built = build(c);
  ASSERT_FALSE(built.programs.effects.at(0).empty());
  const PassEffect& overlap = built.programs.effects[0].back();
  EXPECT_EQ(overlap.pass, "tp_comm_overlap");
  EXPECT_GT(overlap.after.forward_ops, overlap.before.forward_ops);
  EXPECT_EQ(overlap.after.flops, overlap.before.flops);
}

TEST(PassEffects, StandInTextAndJson) {
  Config c = mapped(1, 1, 1);
  const Built plain = build(c);
  c.memory.recompute_granularity = RecomputeGranularity::kFull;
  const Built built = build(c);
  const auto text = to_text(explain(built.layout, built.programs));
  ASSERT_TRUE(text.has_value());
  EXPECT_NE(text->find("passes, a micro-batch"), std::string::npos);
  EXPECT_NE(text->find("  recompute"), std::string::npos);
  EXPECT_NE(text->find(" → "), std::string::npos);
  EXPECT_EQ(to_text(explain(plain.layout, plain.programs))->find("passes, a micro-batch"), std::string::npos);
  const auto json = nlohmann::json::parse(explain_json(built.layout, built.programs), nullptr, false);
  const auto& pass = json["rank_classes"][0]["summary"]["passes"][0];
  EXPECT_EQ(pass["pass"], "recompute");
  EXPECT_LT(pass["after"]["kept_bytes"], pass["before"]["kept_bytes"]);
}

}  // namespace
}  // namespace mbb::trainer
