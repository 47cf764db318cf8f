// The summary of passes: what each one changes is what its before and after say.
#include "trainer/passes/effects.h"

#include <nlohmann/json.hpp>

#include "profiler/base/text.h"
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
  EXPECT_EQ(effects[0].knob, "fusion.residual_fusion");
  EXPECT_EQ(effects[1].pass, "recompute");
  EXPECT_EQ(effects[2].pass, "cpu_offloading");
  for (size_t i = 1; i < effects.size(); ++i) EXPECT_EQ(effects[i].before, effects[i - 1].after);
  // Two sums a layer move into GEMMs, and two in the backward into norms.
  const int64_t in_half = 2 * 4 * built.layout.micro_batches;
  EXPECT_EQ(effects[0].before.forward_launches - effects[0].after.forward_launches, in_half);
  EXPECT_EQ(effects[0].before.backward_launches - effects[0].after.backward_launches, in_half);
  EXPECT_EQ(effects[0].before.launches - effects[0].after.launches, 4 * 4 * built.layout.micro_batches);
  EXPECT_EQ(effects[0].before.flops, effects[0].after.flops);
  EXPECT_LT(effects[0].after.bytes, effects[0].before.bytes);
  EXPECT_EQ(effects[0].edits.gone, 4 * 4);
  EXPECT_EQ(effects[0].edits.added, 0);
  EXPECT_EQ(effects[1].before.forward_launches, effects[1].after.forward_launches);
  EXPECT_GT(effects[1].after.backward_launches, effects[1].before.backward_launches);
  EXPECT_GT(effects[1].after.flops, effects[1].before.flops);
  EXPECT_LT(effects[1].after.kept_bytes, effects[1].before.kept_bytes);
  EXPECT_LT(effects[2].after.kept_bytes, effects[2].before.kept_bytes);
  EXPECT_EQ(effects[2].after.host_bytes, effects[2].before.kept_bytes - effects[2].after.kept_bytes);
}

// All rows have one basis: the step that runs, also those of passes that ran before its optimizer was built.
TEST(PassEffects, EndAtTheWholeStep) {
  Config c = mapped(2, 1, 2);
  c.memory.recompute_granularity = RecomputeGranularity::kFull;
  c.data_parallel.overlap_grad_reduce = true;
  c.tp_overlap.tp_comm_overlap = true;
  Built built = build(c);
  std::vector<PassEffect>& effects = built.programs.effects.at(0);
  ASSERT_EQ(effects.size(), 3U);
  EXPECT_EQ(effects.back().after, pass_facts(built.programs.programs[0]));
  for (size_t i = 1; i < effects.size(); ++i) EXPECT_EQ(effects[i].before, effects[i - 1].after);
  for (const PassEffect& effect : effects)
    for (const PassFacts* facts : {&effect.before, &effect.after})
      EXPECT_EQ(facts->launches, facts->forward_launches + facts->backward_launches + facts->once_launches);
  const Explain e = explain(built.layout, built.programs);
  EXPECT_EQ(effects.back().after.bytes, e.classes[0].bytes);
  EXPECT_EQ(effects.back().after.flops, e.classes[0].flops);
}

TEST(PassEffects, OverlapCutsProductsAndCollectivesIntoMoreOfThem) {
  Config c = mapped(2, 1, 1);
  c.tp_overlap.tp_comm_overlap = true;
  const Built built = build(c);
  ASSERT_FALSE(built.programs.effects.at(0).empty());
  const PassEffect& overlap = built.programs.effects[0].back();
  EXPECT_EQ(overlap.pass, "tp_comm_overlap");
  EXPECT_GT(overlap.after.forward_launches, overlap.before.forward_launches);
  EXPECT_EQ(overlap.after.flops, overlap.before.flops);
  EXPECT_GT(overlap.after.comm_calls, overlap.before.comm_calls);
  EXPECT_GT(overlap.after.side_ops, overlap.before.side_ops);
}

TEST(PassEffects, StandInTextAndJson) {
  Config c = mapped(1, 1, 1);
  const Built plain = build(c);
  c.memory.recompute_granularity = RecomputeGranularity::kFull;
  const Built built = build(c);
  const auto text = to_text(explain(built.layout, built.programs));
  ASSERT_TRUE(text.has_value());
  EXPECT_NE(text->find("\npasses "), std::string::npos) << *text;
  EXPECT_NE(text->find("  recompute  "), std::string::npos) << *text;
  EXPECT_NE(text->find(" → "), std::string::npos);
  EXPECT_NE(text->find(" (backward +"), std::string::npos) << "recompute leaves the forward alone\n" << *text;
  EXPECT_EQ(to_text(explain(plain.layout, plain.programs))->find("\npasses "), std::string::npos);
  const auto json = nlohmann::json::parse(explain_json(built.layout, built.programs), nullptr, false);
  const auto& pass = json["rank_classes"][0]["summary"]["passes"][0];
  EXPECT_EQ(pass["pass"], "recompute");
  EXPECT_EQ(pass["knob"], "memory.recompute_granularity");
  EXPECT_LT(pass["after"]["kept_bytes"], pass["before"]["kept_bytes"]);
  EXPECT_GT(pass["ops"]["added"], 0);
}

// Marks as of ops a, b, c, ... in places of their own.
std::vector<OpMark> marks(const std::string& ops) {
  std::vector<OpMark> all;
  for (const char op : ops) all.push_back({static_cast<uint64_t>(op), 1, 1});
  return all;
}

TEST(OpEdits, CountWhatIsNewGoneChangedMovedAndInAnotherOrder) {
  EXPECT_EQ(op_edits(marks("abc"), marks("abc")), OpEdits{});
  EXPECT_EQ(op_edits(marks("abc"), marks("acd")), (OpEdits{.added = 1, .gone = 1}));
  EXPECT_EQ(op_edits(marks("abcde"), marks("bcdea")), (OpEdits{.reordered = 1}));
  EXPECT_EQ(op_edits(marks("abcd"), marks("dcba")), (OpEdits{.reordered = 3}));
  // Of equal paths the first goes with the first.
  EXPECT_EQ(op_edits(marks("aab"), marks("ab")), (OpEdits{.gone = 1}));
  std::vector<OpMark> other = marks("abc");
  other[0].content = 2;
  other[2].place = 2;
  EXPECT_EQ(op_edits(marks("abc"), other), (OpEdits{.changed = 1, .moved = 1}));
}

TEST(PassEffects, ChangesSayWhatDiffersAndNothingElse) {
  PassEffect effect;
  EXPECT_TRUE(changes(effect).empty());
  EXPECT_FALSE(effect.changed());
  effect.before.launches = 10;
  effect.after.launches = 8;
  effect.before.backward_launches = 6;
  effect.after.backward_launches = 4;
  effect.before.bytes = 1e9;
  effect.after.bytes = 1e9 + 512;
  effect.edits.reordered = 1;
  EXPECT_TRUE(effect.changed());
  EXPECT_EQ(join(changes(effect), ", "), "launches 10 → 8 (backward -2), bytes 1.0 GB + 512 B, 1 op in another order");
}

}  // namespace
}  // namespace mbb::trainer
