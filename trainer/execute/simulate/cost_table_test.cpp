// Costs follow their rates: each rule by itself, on ops of real programs.
#include "trainer/execute/simulate/cost_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "trainer/run/step_programs.h"

namespace mbb::trainer {
namespace {

CostTable round_numbers() {
  CostTable table;
  table.hardware = "test";
  for (GemmPoints* points : {&table.bf16, &table.fp8})
    for (auto& form : *points) form = {{4096, 4096, 4096, points == &table.bf16 ? 500.0 : 1000.0}};
  table.attention_forward = {{64, 200, 0, 0}, {128, 400, 4096, 10}};
  table.attention_backward = {{128, 200, 0, 0}};
  table.copy_gb_s = 1000;
  table.other_share = 0.5;
  table.other_tflops = 10;
  table.sms = 1;
  for (BusBandwidth* bus :
       {&table.all_gather, &table.reduce_scatter, &table.all_reduce, &table.all_to_all, &table.point_to_point})
    *bus = {200, 400};
  table.nvlink_us = 10;
  table.nic_gb_s = 50;
  table.network_us = 20;
  table.domain = 8;
  return table;
}

struct Built {
  Layout layout;
  StepPrograms programs;
};

Built build(int tp, int pp, int dp, Recipe recipe = Recipe::kBf16, const KnobMap* overlap = nullptr) {
  Config config;
  config.tp_overlap.tp_comm_overlap = overlap != nullptr;
  if (overlap != nullptr) config.tp_overlap.tp_comm_overlap_cfg = *overlap;
  config.model.name = "llama3-8b";
  config.model.num_layers = 2;
  config.train.seq_length = 4096;
  config.train.global_batch_size = 2 * dp;
  config.precision.recipe = recipe;
  config.parallel.tensor_model_parallel_size = tp;
  config.parallel.pipeline_model_parallel_size = pp;
  config.parallel.gpus = tp * pp * dp;
  auto layout = resolve(config);
  EXPECT_TRUE(layout.has_value()) << (layout ? "" : layout.error().what);
  auto programs = build_programs(*layout);
  EXPECT_TRUE(programs.has_value()) << (programs ? "" : programs.error().what);
  return {std::move(*layout), std::move(*programs)};
}

// A layer of Mixtral, two micro-batches.
Built build_experts(int64_t sequence, bool balanced, Recipe recipe) {
  Config config;
  config.model.name = "mixtral-8x7b";
  config.model.num_layers = 1;
  config.train.seq_length = sequence;
  config.train.global_batch_size = 2;
  config.precision.recipe = recipe;
  config.parallel.moe_router_force_load_balancing = balanced;
  auto layout = resolve(config);
  EXPECT_TRUE(layout.has_value()) << (layout ? "" : layout.error().what);
  auto programs = build_programs(*layout);
  EXPECT_TRUE(programs.has_value()) << (programs ? "" : programs.error().what);
  return {std::move(*layout), std::move(*programs)};
}

// The first op whose path ends so, with its cost.
std::pair<const Op*, OpCost> find(const Built& b, const StepCosts& costs, std::string_view path) {
  for (size_t c = 0; c < b.programs.programs.size(); ++c)
    for (size_t s = 0; s < b.programs.programs[c].segments.size(); ++s) {
      const auto& ops = b.programs.programs[c].segments[s].ops;
      for (size_t o = 0; o < ops.size(); ++o)
        if (ops[o].path.ends_with(path))
          return {&ops[o], costs.at(static_cast<int>(c), static_cast<int>(s), static_cast<int>(o))};
    }
  ADD_FAILURE() << "no op " << path;
  return {nullptr, {}};
}

TEST(CostTable, GemmTakesItsFlopsAtTheMeasuredRate) {
  const Built b = build(1, 1, 1);
  const auto costs = step_costs(round_numbers(), b.layout.mesh, b.programs.programs);
  ASSERT_TRUE(costs.has_value()) << costs.error().what;
  for (const char* path : {"layers.0.mlp.fc1.fwd", "layers.0.mlp.fc1.dgrad", "layers.0.mlp.fc1.wgrad"}) {
    const OpCost cost = find(b, *costs, path).second;
    EXPECT_NEAR(cost.ns, 2.0 * 4096 * 28672 * 4096 / 500e12 * 1e9, 1) << path;
    EXPECT_EQ(cost.term, CostTerm::kGemm);
  }
}

TEST(CostTable, FactorsMultiplyTheirTermAlone) {
  const Built b = build(1, 1, 1, Recipe::kFp8Current);
  CostTable table = round_numbers();
  const auto before = step_costs(table, b.layout.mesh, b.programs.programs);
  table.terms[static_cast<size_t>(CostTerm::kGemmFp8)].factor = 1.5;
  const auto after = step_costs(table, b.layout.mesh, b.programs.programs);
  ASSERT_TRUE(before.has_value() && after.has_value());
  size_t fp8 = 0, others = 0;
  for (size_t s = 0; s < before->ops[0].size(); ++s)
    for (size_t o = 0; o < before->ops[0][s].size(); ++o) {
      const OpCost &x = before->ops[0][s][o], &y = after->ops[0][s][o];
      const bool scaled = x.term == CostTerm::kGemmFp8;
      (scaled ? fp8 : others) += 1;
      EXPECT_DOUBLE_EQ(y.ns, x.ns * (scaled ? 1.5 : 1.0));
    }
  EXPECT_GT(fp8, 0U);
  EXPECT_GT(others, 0U);
}

TEST(CostTable, AttentionByRowsAndDirection) {
  const Built b = build(1, 1, 1);
  const auto costs = step_costs(round_numbers(), b.layout.mesh, b.programs.programs);
  ASSERT_TRUE(costs.has_value());
  const double flops = 4.0 * 4096 * 4096 / 2 * 4096;  // causal, 32 heads of 128
  EXPECT_NEAR(find(b, *costs, "layers.0.attn.core.fwd").second.ns, flops / 400e12 * 2 * 1e9 + 10e3, 1);
  EXPECT_NEAR(find(b, *costs, "layers.0.attn.core.bwd").second.ns, 2 * flops / 200e12 * 1e9, 1);
}

// One product of all experts' rows, in whole tiles, and the weight gradients over device memory: a second time, and a
// third where they accumulate.
TEST(CostTable, ExpertsProductsFillTilesAndMoveTheirGradients) {
  struct Case {
    int64_t sequence;
    bool balanced;
    Recipe recipe;
    double forward;  // times one product of as many rows in bf16; FP8's weight gradients take as long as that
  };
  CostTable table = round_numbers();
  table.uneven_rows = 256;
  table.grouped_wgrad_fp8 = 0.5;
  for (const auto& [sequence, balanced, recipe, forward] :
       {Case{4096, true, Recipe::kBf16, 1}, Case{4000, true, Recipe::kBf16, 1.024},
        Case{4096, false, Recipe::kBf16, 1.25}, Case{4096, true, Recipe::kFp8Current, 0.5}}) {
    SCOPED_TRACE(testing::Message() << sequence << (balanced ? " balanced" : " uneven"));
    const Built b = build_experts(sequence, balanced, recipe);
    const auto costs = step_costs(table, b.layout.mesh, b.programs.programs);
    ASSERT_TRUE(costs.has_value()) << costs.error().what;
    const double product = 2.0 * 2.0 * static_cast<double>(sequence) * 28672 * 4096 / 500e12 * 1e9;
    const double gradient = 8.0 * 28672 * 4096 * 4 / 1000e9 * 1e9;
    for (const char* path : {"experts.fc1.fwd", "experts.fc1.dgrad"})
      EXPECT_NEAR(find(b, *costs, path).second.ns, product * forward, 1) << path;
    std::vector<double> wgrads;
    for (size_t s = 0; s < costs->ops[0].size(); ++s)
      for (size_t o = 0; o < costs->ops[0][s].size(); ++o)
        if (b.programs.programs[0].segments[s].ops[o].path.ends_with("experts.fc1.wgrad"))
          wgrads.push_back(costs->ops[0][s][o].ns);
    ASSERT_EQ(wgrads.size(), 2U);
    std::sort(wgrads.begin(), wgrads.end());
    EXPECT_NEAR(wgrads[0], product + gradient, 1);
    EXPECT_NEAR(wgrads[1], product + 2 * gradient, 1);
  }
}

TEST(CostTable, InterpolationMeetsThePoints) {
  const std::vector<GemmPoint> points{{1024, 1024, 1024, 300}, {8192, 8192, 8192, 700}};
  EXPECT_NEAR(gemm_tflops(points, 1024, 1024, 1024), 300, 1);
  EXPECT_NEAR(gemm_tflops(points, 8192, 8192, 8192), 700, 1);
  const double between = gemm_tflops(points, 2896, 2896, 2896);
  EXPECT_NEAR(between, 500, 5);
}

TEST(CostTable, CollectivesByDomain) {
  CostTable table = round_numbers();
  const Built b = build(2, 1, 8);
  const auto costs = step_costs(table, b.layout.mesh, b.programs.programs);
  ASSERT_TRUE(costs.has_value()) << costs.error().what;
  // Inside a domain: half of the whole message crosses, between two GPUs.
  const auto [gather, inside] = find(b, *costs, "layers.0.attn.qkv.all_gather.fwd");
  ASSERT_NE(gather, nullptr);
  EXPECT_EQ(inside.term, CostTerm::kNvlink);
  EXPECT_NEAR(inside.ns, 4096.0 * 4096 * 2 / 2 / 200e9 * 1e9 + 10e3, 1);
  // Sixteen ranks in two domains: a data-parallel group has four members in each, so four ports.
  bool found = false;
  const Program& program = b.programs.programs[0];
  for (size_t s = 0; s < program.segments.size(); ++s)
    for (size_t o = 0; o < program.segments[s].ops.size(); ++o) {
      const Op& op = program.segments[s].ops[o];
      if (op.kind->name != "reduce_scatter" || std::get<CommAttrs>(op.attrs).group == GroupKind::kTp) continue;
      found = true;
      const OpCost cost = costs->at(0, static_cast<int>(s), static_cast<int>(o));
      const double part = static_cast<double>(program.tensor(op.in[0]).bytes()) / 8;
      EXPECT_EQ(cost.term, CostTerm::kNetwork);
      EXPECT_NEAR(cost.ns, part * 7 / 200e9 * 1e9 + 20e3, 0.01 * cost.ns) << op.path;
    }
  EXPECT_TRUE(found);
}

// Few SMs move fewer bytes than the link would; many are no more than it.
TEST(CostTable, CollectivesByTheirSms) {
  for (const auto& [sms, gb_s] : {std::pair{"4", 80.0}, {"16", 200.0}}) {
    const KnobMap overlap{{"proj_fprop.num_splits", "2"}, {"proj_fprop.num_sm", sms}};
    const Built b = build(2, 1, 1, Recipe::kBf16, &overlap);
    CostTable table = round_numbers();
    table.reduce_scatter.cta = 20;
    const auto costs = step_costs(table, b.layout.mesh, b.programs.programs);
    ASSERT_TRUE(costs.has_value());
    const auto [op, cost] = find(b, *costs, "attn.proj.reduce_scatter.fwd.split0");
    ASSERT_NE(op, nullptr);
    const double part = static_cast<double>(b.programs.programs[0].tensor(op->in[0]).bytes()) / 2;
    EXPECT_NEAR(cost.ns, part / gb_s + 10e3, 0.01 * cost.ns) << sms;
  }
}

TEST(CostTable, WhatCommunicatesOnSmsSlowsProductsThatLeaveNone) {
  CostTable table = round_numbers();
  table.all_gather.beside = 1.5;
  table.point_to_point.beside = 1.25;
  const KnobMap overlap{{"fc1_fprop.method", "ring_exchange"}, {"fc1_fprop.use_ce", "true"}};
  for (const KnobMap* knobs : {static_cast<const KnobMap*>(nullptr), &overlap}) {
    const Built b = build(2, 1, 1, Recipe::kBf16, knobs);
    const auto costs = step_costs(table, b.layout.mesh, b.programs.programs);
    ASSERT_TRUE(costs.has_value());
    size_t gathers = 0, shifts = 0, products = 0;
    const Program& program = b.programs.programs[0];
    for (size_t s = 0; s < program.segments.size(); ++s)
      for (size_t o = 0; o < program.segments[s].ops.size(); ++o) {
        const Op& op = program.segments[s].ops[o];
        const OpCost cost = costs->at(0, static_cast<int>(s), static_cast<int>(o));
        const auto* gemm = std::get_if<GemmAttrs>(&op.attrs);
        if (gemm != nullptr) {
          EXPECT_EQ(cost.slowed, gemm->sm_margin == 0) << op.path;
        }
        products += cost.slowed ? 1 : 0;
        const bool gather = op.kind->name == "all_gather";
        gathers += gather ? 1 : 0;
        shifts += op.kind->name == "ring_shift" ? 1 : 0;  // by copy engines
        if (std::holds_alternative<CommAttrs>(op.attrs) && std::get<CommAttrs>(op.attrs).group == GroupKind::kTp) {
          EXPECT_EQ(cost.slows, gather ? 1.5 : 1.0) << op.path;
        }
      }
    EXPECT_GT(products, 0U);
    EXPECT_GT(knobs == nullptr ? gathers : shifts, 0U);
  }
}

TEST(CostTable, MessagesCountAtTheirSenders) {
  const Built b = build(1, 2, 8);
  const auto costs = step_costs(round_numbers(), b.layout.mesh, b.programs.programs);
  ASSERT_TRUE(costs.has_value());
  int sends = 0;
  for (size_t c = 0; c < 2; ++c)
    for (size_t s = 0; s < b.programs.programs[c].segments.size(); ++s)
      for (size_t o = 0; o < b.programs.programs[c].segments[s].ops.size(); ++o) {
        const Op& op = b.programs.programs[c].segments[s].ops[o];
        const OpCost cost = costs->at(static_cast<int>(c), static_cast<int>(s), static_cast<int>(o));
        if (op.kind->name == "recv") {
          EXPECT_EQ(cost.ns, 0);
        }
        if (op.kind->name != "send") continue;
        ++sends;
        // The next stage is in the other domain.
        EXPECT_NEAR(cost.ns, 4096.0 * 4096 * 2 / 50e9 * 1e9 + 20e3, 1);
      }
  EXPECT_EQ(sends, 2);
}

TEST(CostTable, RefusesTypesWithoutRates) {
  const Built b = build(1, 1, 1, Recipe::kFp32);
  const auto costs = step_costs(round_numbers(), b.layout.mesh, b.programs.programs);
  ASSERT_FALSE(costs.has_value());
  EXPECT_EQ(costs.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(costs.error().what.find("products of f32"), std::string::npos) << costs.error().what;
}

}  // namespace
}  // namespace mbb::trainer
