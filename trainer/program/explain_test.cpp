// Explain as machines read it: JSON that parses and agrees with the programs, a hash that sees every change.
#include "trainer/program/explain.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "trainer/ops/op_kind.h"
#include "trainer/program/sample_programs_test.h"

namespace mbb::trainer {
namespace {

Built build(int tp, int pp, int dp) {
  return build(mapped(tp, pp, dp));
}

TEST(ExplainJson, ParsesAndHoldsEveryTensorOpAndCall) {
  const Built b = build(2, 2, 2);
  const auto json = nlohmann::json::parse(explain_json(b.layout, b.programs), nullptr, false);
  ASSERT_FALSE(json.is_discarded());
  EXPECT_EQ(json["program_hash"], program_hash(b.programs));
  EXPECT_EQ(json["model_flops_per_step"], json["closed_form_flops_per_step"]);
  ASSERT_EQ(json["rank_classes"].size(), b.programs.programs.size());
  for (size_t i = 0; i < b.programs.programs.size(); ++i) {
    const Program& program = b.programs.programs[i];
    const auto& rank_class = json["rank_classes"][i];
    EXPECT_EQ(rank_class["summary"]["arena_bytes"], b.programs.plans[i].arena_bytes);
    int64_t peak = 0;
    for (const auto& bytes : rank_class["summary"]["peak_by_category"]) peak += bytes.get<int64_t>();
    EXPECT_EQ(peak, b.programs.plans[i].peak_live_bytes);
    ASSERT_EQ(rank_class["tensors"].size(), program.tensors.size());
    for (size_t t = 0; t < program.tensors.size(); ++t) {
      EXPECT_EQ(rank_class["tensors"][t]["path"], program.tensors[t].path);
      EXPECT_EQ(rank_class["tensors"][t]["shape"].size(), static_cast<size_t>(program.tensors[t].shape.rank()));
    }
    ASSERT_EQ(rank_class["segments"].size(), program.segments.size());
    int64_t calls = 0;
    for (size_t s = 0; s < program.segments.size(); ++s) {
      const auto& segment = rank_class["segments"][s];
      calls += segment["calls"].get<int64_t>();
      ASSERT_EQ(segment["ops"].size(), program.segments[s].ops.size());
      for (size_t o = 0; o < program.segments[s].ops.size(); ++o) {
        const Op& op = program.segments[s].ops[o];
        EXPECT_EQ(segment["ops"][o]["path"], op.path);
        EXPECT_EQ(segment["ops"][o]["kind"], std::string(op.kind->name));
        EXPECT_EQ(segment["ops"][o]["in"].get<std::vector<TensorId>>(), op.in);
      }
    }
    EXPECT_EQ(calls, static_cast<int64_t>(program.schedule.size()));
    ASSERT_EQ(rank_class["schedule"].size(), program.schedule.size());
    EXPECT_EQ(rank_class["schedule"][0][1], program.schedule[0].micro_batch);
  }
}

TEST(ProgramHash, IsTheSameForEqualProgramsAndSeesEveryChange) {
  const Built a = build(2, 2, 1);
  const std::string hash = program_hash(a.programs);
  EXPECT_EQ(hash.size(), 16U);
  EXPECT_EQ(hash.find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_EQ(program_hash(build(2, 2, 1).programs), hash);
  EXPECT_NE(program_hash(build(2, 1, 1).programs), hash);

  const auto changed = [&](auto&& change) {
    StepPrograms copy = a.programs;
    change(copy.programs[1]);
    return program_hash(copy) != hash;
  };
  const auto op_with = [](Program& p, auto tag) -> Op& {
    for (Segment& segment : p.segments)
      for (Op& op : segment.ops)
        if (std::holds_alternative<decltype(tag)>(op.attrs)) return op;
    ADD_FAILURE() << "no such op";
    return p.segments[0].ops[0];
  };
  EXPECT_TRUE(changed([&](Program& p) { std::get<NormAttrs>(op_with(p, NormAttrs{}).attrs).eps *= 2; }));
  EXPECT_TRUE(
      changed([&](Program& p) { std::get<AttentionAttrs>(op_with(p, AttentionAttrs{}).attrs).causal = false; }));
  EXPECT_TRUE(changed([&](Program& p) { std::get<CommAttrs>(op_with(p, CommAttrs{}).attrs).group = GroupKind::kDp; }));
  EXPECT_TRUE(changed(
      [&](Program& p) { std::get<AdamAttrs>(op_with(p, AdamAttrs{}).attrs).bucket.ranges.back().decay ^= true; }));
  EXPECT_TRUE(changed([](Program& p) { p.segments[0].ops[3].path += "x"; }));
  EXPECT_TRUE(changed([](Program& p) { p.segments[0].ops[3].kind = p.segments[0].ops[2].kind; }));
  EXPECT_TRUE(changed([](Program& p) { p.segments[0].ops[3].stream = Stream::kCopy; }));
  EXPECT_TRUE(changed([](Program& p) { p.segments[0].ops[3].when = When::kLast; }));
  EXPECT_TRUE(changed([](Program& p) { p.segments[0].ops[3].role = Role::kDgrad; }));
  EXPECT_TRUE(changed([](Program& p) { std::swap(p.segments[0].ops[3], p.segments[0].ops[4]); }));
  EXPECT_TRUE(changed([](Program& p) { p.segments[1].ops.pop_back(); }));
  EXPECT_TRUE(changed([](Program& p) { p.tensors[7].shape[0] += 1; }));
  EXPECT_TRUE(changed([](Program& p) { p.tensors[7].dtype = DType::kBf16; }));
  EXPECT_TRUE(changed([](Program& p) { p.tensors[7].ring += 1; }));
  EXPECT_TRUE(changed([](Program& p) { std::swap(p.schedule[1], p.schedule[2]); }));
  EXPECT_TRUE(changed([](Program& p) { p.micro_batches += 1; }));
}

TEST(ExplainText, ListsTheSegmentsAndPathsAskedFor) {
  const Built b = build(2, 2, 1);
  const Explain e = explain(b.layout, b.programs);
  const auto text = [&](const ExplainOptions& options) {
    const auto result = to_text(e, options);
    return result ? *result : "error: " + result.error().what + " | " + result.error().hint;
  };
  const auto has = [](const std::string& all, const std::string& part) { return all.find(part) != std::string::npos; };

  EXPECT_FALSE(has(text({}), "chunk0.forward"));
  const std::string backward = text({.segment = "backward"});
  EXPECT_TRUE(has(backward, "chunk0.backward, 12 calls a step"));
  EXPECT_FALSE(has(backward, "chunk0.forward"));
  for (const char* segment : {"chunk0.forward", "chunk0.backward", "grad_sync", "optimizer"})
    EXPECT_TRUE(has(text({.ops = true}), "\n" + std::string(segment) + ", ")) << segment;
  const std::string one = text({.path = "layers.1.mlp.fc1.*"});
  EXPECT_TRUE(has(one, "layers.1.mlp.fc1.wgrad"));
  EXPECT_FALSE(has(one, "layers.0.mlp.fc1.wgrad"));
  EXPECT_FALSE(has(one, "optimizer.grad_scale")) << "a segment without a match is left out";
  EXPECT_TRUE(has(text({.stage = 1, .ops = true}), "lm_head.fwd"));
}

TEST(ExplainText, RefusesWhatIsNotThereAndSaysWhatIs) {
  const Built b = build(1, 2, 1);
  const Explain e = explain(b.layout, b.programs);
  const auto error = [&](const ExplainOptions& options) {
    const auto result = to_text(e, options);
    return result ? "no error" : result.error().what + " | " + result.error().hint;
  };
  EXPECT_EQ(error({.stage = 2}), "stage 2 is not one of the 2 pipeline stages | stages count from 0 to 1");
  EXPECT_EQ(error({.stage = -1}), "stage -1 is not one of the 2 pipeline stages | stages count from 0 to 1");
  EXPECT_EQ(error({.segment = "warmup"}),
            "stage 0 has no segment named like 'warmup' | segments: chunk0.forward, chunk0.backward, grad_sync, "
            "optimizer");
  EXPECT_EQ(error({.path = "layers.99.*"}),
            "no op of the segments listed has a path like 'layers.99.*' | '*' stands for any text, '?' for one "
            "letter: layers.0.*");
}

TEST(ExplainText, TheFirstLineNamesStagesAndChunks) {
  Config config = mapped(2, 2, 1, 8);
  config.parallel.virtual_pipeline_model_parallel_size = 4;
  const Built b = build(config);
  const auto text = to_text(explain(b.layout, b.programs));
  ASSERT_TRUE(text.has_value());
  EXPECT_NE(text->find("2 stages of 4 chunks, TP2+SP"), std::string::npos) << *text;
}

TEST(ExplainText, SummaryFitsOneScreen) {
  const Built b = build(mapped(1, 12, 1, 12));
  const auto text = to_text(explain(b.layout, b.programs));
  ASSERT_TRUE(text.has_value());
  EXPECT_NE(text->find("and 4 stages between"), std::string::npos);
  EXPECT_LE(std::count(text->begin(), text->end(), '\n'), 50);
}

TEST(ExplainText, RowsLeftOutAreStagesOrPartsOfThem) {
  const auto text_of = [](int cp, int pp) {
    Config config = mapped(1, pp, 1, pp);
    config.parallel.context_parallel_size = cp;
    config.parallel.gpus = int64_t{cp} * pp;
    const Built b = build(config);
    const auto text = to_text(explain(b.layout, b.programs));
    EXPECT_TRUE(text.has_value());
    return text.value_or("");
  };
  EXPECT_NE(text_of(2, 6).find("and 2 stages, 2 CP ranks each, between"), std::string::npos);
  EXPECT_NE(text_of(8, 2).find("and 8 rows between, stage 0 cp 4 to stage 1 cp 3"), std::string::npos);
}

}  // namespace
}  // namespace mbb::trainer
