// Explain as machines read it: JSON that parses and agrees with the programs, a hash that sees every change.
#include "trainer/program/explain.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "trainer/ops/op_kind.h"
#include "trainer/run/train.h"

namespace mbb::trainer {
namespace {

struct Built {
  Layout layout;
  StepPrograms programs;
};

Built build(int tp, int pp, int dp) {
  Config config;
  config.parallel.tensor_model_parallel_size = tp;
  config.parallel.pipeline_model_parallel_size = pp;
  config.parallel.gpus = int64_t{tp} * pp * dp;
  auto layout = resolve(config);
  EXPECT_TRUE(layout.has_value()) << (layout ? "" : layout.error().what);
  auto programs = build_programs(*layout);
  EXPECT_TRUE(programs.has_value()) << (programs ? "" : programs.error().what);
  return {std::move(*layout), std::move(*programs)};
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

}  // namespace
}  // namespace mbb::trainer
