// Expert parallelism trains the same model: losses of five steps and the gradient of every weight equal one rank's,
// whatever ranks hold the experts and however their tokens travel.
#include <gtest/gtest.h>

#include <random>

#include "trainer/models/small_families.h"
#include "trainer/program/explain.h"
#include "trainer/program/sample_programs_test.h"
#include "trainer/run/equal_training_test.h"

#include "trainer/ops/table.h"

namespace mbb::trainer {
namespace {

struct Mapping {
  const char* name;
  int tp, pp, dp, ep, etp;
  int cp = 1;
};

constexpr Mapping kMappings[] = {
    {"ep2", 1, 1, 2, 2, 1},      {"ep4", 1, 1, 4, 4, 1},          {"ep2_of_dp4", 1, 1, 4, 2, 1},
    {"ep2_etp2", 1, 1, 4, 2, 2}, {"tp2_ep2_etp2", 2, 1, 2, 2, 2}, {"tp2_ep4_etp1", 2, 1, 2, 4, 1},
    {"tp2_etp1", 2, 1, 1, 1, 1}, {"ep2_pp2", 1, 2, 2, 2, 1},
};

Config moe_config(std::string_view name) {
  Config c = config_of(family_of(name));
  c.model.num_experts = 8;
  c.train.global_batch_size = 8;
  c.train.train_iters = 5;
  c.parallel.use_distributed_optimizer = false;
  return c;
}

Config mapped(Config c, const Mapping& m) {
  c.parallel.tensor_model_parallel_size = m.tp;
  c.parallel.pipeline_model_parallel_size = m.pp;
  c.parallel.expert_model_parallel_size = m.ep;
  c.parallel.expert_tensor_parallel_size = m.etp;
  c.parallel.context_parallel_size = m.cp;
  c.parallel.gpus = m.tp * m.cp * m.pp * m.dp;
  return c;
}

void expect_equal(const Config& config, const Trained& one) {
  const auto many = train_and_collect(config);
  ASSERT_TRUE(many.has_value()) << format(many.error());
  ASSERT_EQ(many->steps.size(), one.steps.size());
  for (size_t i = 0; i < one.steps.size(); ++i) {
    EXPECT_NEAR(many->steps[i].loss, one.steps[i].loss, 1e-5 * one.steps[i].loss) << "step " << i;
    const double balance = one.steps[i].balance_loss.value_or(0);
    EXPECT_EQ(many->steps[i].balance_loss.has_value(), one.steps[i].balance_loss.has_value());
    EXPECT_NEAR(many->steps[i].balance_loss.value_or(0), balance, 1e-5 * balance) << "step " << i;
    EXPECT_NEAR(many->steps[i].grad_norm, one.steps[i].grad_norm, 1e-4 * one.steps[i].grad_norm) << "step " << i;
  }
  expect_equal_gradients(many->gradients[0], one.gradients[0], 1e-5);
}

class Experts : public testing::TestWithParam<const char*> {};

TEST_P(Experts, EveryMappingEqualsOneRank) {
  const Config base = moe_config(GetParam());
  const auto one = train_and_collect(base);
  ASSERT_TRUE(one.has_value()) << format(one.error());
  for (const Mapping& m : kMappings) {
    SCOPED_TRACE(m.name);
    expect_equal(mapped(base, m), *one);
  }
  Config sharded = mapped(base, kMappings[2]);
  sharded.parallel.use_distributed_optimizer = true;
  SCOPED_TRACE("distributed optimizer");
  expect_equal(sharded, *one);
}

TEST_P(Experts, RowsThatAreThereGiveWhatPaddedSlotsGive) {
  const Config base = moe_config(GetParam());
  const auto one = train_and_collect(base);
  ASSERT_TRUE(one.has_value()) << format(one.error());
  for (const Mapping& m : {kMappings[1], kMappings[4], kMappings[7]}) {
    SCOPED_TRACE(m.name);
    Config c = mapped(base, m);
    c.parallel.moe_exchange = MoeExchange::kCounts;
    expect_equal(c, *one);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Experts, testing::Values("mixtral", "qwen3_moe", "gpt_oss", "deepseek_v3"),
                         [](const auto& test) { return std::string(test.param); });

// Experts take ranks of context and data parallelism alike.
TEST(ExpertFolding, OverContextParallelRanksEqualsOneRank) {
  for (const char* name : {"mixtral", "mixtral_balanced", "qwen3_moe"}) {
    const Config base = moe_config(name);
    const auto one = train_and_collect(base);
    ASSERT_TRUE(one.has_value()) << format(one.error());
    for (const Mapping& m : {Mapping{"cp2_ep2", 1, 1, 1, 2, 1, 2}, Mapping{"cp2_dp2_ep4", 1, 1, 2, 4, 1, 2},
                             Mapping{"cp2_tp2_ep4_etp1", 2, 1, 1, 4, 1, 2}}) {
      SCOPED_TRACE(std::string(name) + " " + m.name);
      expect_equal(mapped(base, m), *one);
    }
  }
}

TEST(ExpertRouting, ForcedBalanceEqualsOneRank) {
  const Config base = moe_config("mixtral_balanced");
  const auto one = train_and_collect(base);
  ASSERT_TRUE(one.has_value()) << format(one.error());
  for (const int m : {1, 3, 5, 7}) {  // 5: counts on over sequence-parallel ranks
    SCOPED_TRACE(kMappings[m].name);
    expect_equal(mapped(base, kMappings[m]), *one);
  }
}

// Tensor-parallel ranks hold parts of a micro-batch and drop what one rank drops, also where parts are uneven: of
// `half` tokens the experts' load is far from balanced.
class ExpertCapacity : public testing::TestWithParam<std::tuple<TokenDrop, double>> {};

TEST_P(ExpertCapacity, DropsTheSameTokensUnderEveryMapping) {
  Config base = moe_config("mixtral_capacity");
  std::tie(base.parallel.moe_token_drop_policy, base.parallel.moe_expert_capacity_factor) = GetParam();
  const auto one = train_and_collect(base);
  ASSERT_TRUE(one.has_value()) << format(one.error());
  for (const Mapping& m : kMappings) {
    SCOPED_TRACE(m.name);
    expect_equal(mapped(base, m), *one);
  }
  const auto changed = [&](const char* what, int m, void (*change)(Config&)) {
    SCOPED_TRACE(what);
    Config c = mapped(base, kMappings[m]);
    change(c);
    expect_equal(c, *one);
  };
  changed("beside another micro-batch", 5, [](Config& c) { c.overlap.overlap_moe_expert_parallel_comm = true; });
  changed("recomputed", 5, [](Config& c) {
    c.memory.recompute_granularity = RecomputeGranularity::kSelective;
    c.memory.recompute_modules = "moe";
  });
  changed("rows in turn", 4, [](Config& c) { c.parallel.moe_permute_fusion = !c.parallel.moe_permute_fusion; });
}

INSTANTIATE_TEST_SUITE_P(Policies, ExpertCapacity,
                         testing::Combine(testing::Values(TokenDrop::kProbs, TokenDrop::kPosition),
                                          testing::Values(1.0, 0.5)),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param) == TokenDrop::kProbs ? "probs" : "position") +
                                  (std::get<1>(test.param) == 1.0 ? "_whole" : "_half");
                         });

TEST(ExpertRouting, DroppingTogetherKeepsToTheBoundOfSlots) {
  Config base = moe_config("mixtral_capacity");
  base.parallel.moe_expert_capacity_factor = 1.0;
  const auto one = train_and_collect(base);
  ASSERT_TRUE(one.has_value()) << format(one.error());
  const auto buffer = [](const Config& c) {
    const Built built = build(c);
    const Program& program = built.programs.programs[0];
    for (const Segment& segment : program.segments)
      for (const Op& op : segment.ops)
        if (op.kind == &kPermute) return program.tensor(op.out[0]).shape[0];
    ADD_FAILURE() << "no buffer of experts";
    return int64_t{0};
  };
  Config c = mapped(base, kMappings[5]);
  // 16 tokens a rank: an expert of two takes at most 8 of the micro-batch's 32, and each of four peers has two experts.
  EXPECT_EQ(buffer(c), 4 * 2 * 8);
  c.parallel.moe_dropless_bound = 1.75;
  EXPECT_EQ(buffer(c), 4 * 14);
  expect_equal(c, *one);
  c.parallel.moe_dropless_bound = 1.0;
  EXPECT_EQ(buffer(c), 4 * 8);
  const auto tight = train_and_collect(c);
  ASSERT_FALSE(tight.has_value());
  EXPECT_NE(format(tight.error()).find("parallel.moe_dropless_bound must be at least"), std::string::npos);
}

// NUMERICS, section 7: tokens · k · h · bytes · (e − 1)/e each way, mirrored in the backward.
TEST(ExpertAccounting, BytesOfDispatchAndCombineEqualTheFormula) {
  constexpr int kEpSize = 4;
  for (const MoeExchange form : {MoeExchange::kPadded, MoeExchange::kCounts}) {
    for (const double bound : {1.0, 1.5}) {
      Config c = mapped(moe_config("mixtral_balanced"), kMappings[1]);
      c.parallel.moe_exchange = form;
      c.parallel.moe_dropless_bound = bound;
      const auto layout = resolve(c);
      ASSERT_TRUE(layout.has_value()) << format(layout.error());
      const auto programs = build_programs(*layout);
      ASSERT_TRUE(programs.has_value()) << format(programs.error());
      const double tokens = static_cast<double>(c.train.seq_length * c.train.micro_batch_size);
      const double share = (kEpSize - 1.0) / kEpSize;
      const double per_way = tokens * 2 * 32 * 4 * share;
      const double counts = 8 * 4 * share;
      const double times = 2.0 * layout->micro_batches;  // layers x micro-batches
      const double useful = times * (4 * per_way + counts);
      const double padding = form == MoeExchange::kPadded ? bound : 1.0;
      const Explain costs = explain(*layout, *programs);
      const CommRow* row = nullptr;
      for (const CommRow& each : costs.classes[0].comm)
        if (each.group == GroupKind::kEp) row = &each;
      ASSERT_NE(row, nullptr);
      EXPECT_DOUBLE_EQ(row->useful_bytes, useful);
      EXPECT_DOUBLE_EQ(row->wire_bytes, times * (4 * per_way * padding + counts));
      EXPECT_EQ(row->calls, static_cast<int64_t>(times) * 5);

      const auto run = train_and_collect(c);
      ASSERT_TRUE(run.has_value()) << format(run.error());
      const CommTally moved = run->result.comm[0][static_cast<size_t>(GroupKind::kEp)].total();
      const auto steps = static_cast<double>(c.train.train_iters);
      EXPECT_DOUBLE_EQ(static_cast<double>(moved.wire_bytes), steps * row->wire_bytes);
      EXPECT_EQ(moved.calls, static_cast<uint64_t>(steps) * static_cast<uint64_t>(row->calls));
    }
  }
}

TEST(ExpertAccounting, ShardedExpertsAddUpToTheModelsFlops) {
  for (const Mapping& m : kMappings) {
    const auto layout = resolve(mapped(moe_config("deepseek_v3"), m));
    ASSERT_TRUE(layout.has_value()) << format(layout.error());
    const auto programs = build_programs(*layout);
    ASSERT_TRUE(programs.has_value()) << format(programs.error());
    const Explain costs = explain(*layout, *programs);
    EXPECT_DOUBLE_EQ(costs.model_flops, costs.closed_form_flops) << m.name;
  }
}

TEST(DroplessBound, MoreRowsEndTheRunWithTheOpAndTheBoundItNeeds) {
  for (const MoeExchange form : {MoeExchange::kPadded, MoeExchange::kCounts}) {
    Config c = mapped(moe_config("mixtral"), kMappings[1]);
    c.parallel.moe_exchange = form;
    c.parallel.moe_dropless_bound = 1.0;
    const auto many = train_and_collect(c);
    ASSERT_FALSE(many.has_value());
    const std::string text = many.error().what;  // what a table's line has
    EXPECT_NE(text.find(form == MoeExchange::kPadded ? ".mlp.plan.fwd" : ".mlp.dispatch.all_to_all.fwd"),
              std::string::npos)
        << text;
    const std::string before = "parallel.moe_dropless_bound must be at least ";
    const size_t at = text.find(before);
    ASSERT_NE(at, std::string::npos) << text;
    EXPECT_GT(std::stod(text.substr(at + before.size())), 1.0);
  }
}

int64_t count_ops(const Config& config, const char* kind) {
  const auto layout = resolve(config);
  EXPECT_TRUE(layout.has_value()) << format(layout.error());
  const auto programs = build_programs(*layout);
  EXPECT_TRUE(programs.has_value());
  int64_t count = 0;
  for (const Segment& segment : programs->programs[0].segments)
    for (const Op& op : segment.ops) count += op.kind->name == kind ? 1 : 0;
  return count;
}

TEST(ExpertKnobs, ChangeTheProgramAndNotTheNumbers) {
  for (const Mapping& m : {Mapping{"one rank", 1, 1, 1, 1, 1}, kMappings[4]}) {
    SCOPED_TRACE(m.name);
    Config apart = mapped(moe_config("gpt_oss"), m);
    apart.parallel.moe_permute_fusion = false;
    const auto one = train_and_collect(apart);
    ASSERT_TRUE(one.has_value()) << format(one.error());
    Config router = apart;
    router.parallel.moe_router_fusion = true;
    EXPECT_EQ(count_ops(router, "router"), 2);  // layers
    EXPECT_EQ(count_ops(router, "router_select") + count_ops(router, "router_weights"), 0);
    expect_equal(router, *one);
    Config permute = apart;
    permute.parallel.moe_permute_fusion = true;
    EXPECT_EQ(count_ops(permute, "combine"), 2);
    const int unsorted = m.ep * m.etp > 1 ? 2 : 0;  // rows go back to where they came from before the exchange
    EXPECT_EQ(count_ops(permute, "unpermute") + count_ops(permute, "weighted_sum"), unsorted);
    expect_equal(permute, *one);
    Config turn = apart;
    turn.parallel.moe_grouped_gemm = false;
    EXPECT_EQ(count_ops(turn, "grouped_gemm"), count_ops(apart, "grouped_gemm") * 8 / m.ep);
    EXPECT_EQ(count_ops(turn, "grouped_gemm_wgrad"), count_ops(apart, "grouped_gemm_wgrad") * 8 / m.ep);
    expect_equal(turn, *one);
  }
}

// E4M3 has three bits behind the point: half a unit is 2^-4 of a value, and below its normal numbers 2^-10 of the unit.
TEST(Fp8Dispatch, TokensComeBackWithinHalfAUnit) {
  std::mt19937 random(std::random_device{}());
  std::normal_distribution<float> normal;
  constexpr int64_t kRows = 5, kHidden = 200, kBlocks = 2;
  std::vector<float> x(kRows * kHidden), back(x.size()), scales(kRows * kBlocks);
  for (size_t i = 0; i < x.size(); ++i) x[i] = i < kHidden ? 0.0F : normal(random) * std::pow(10.0F, normal(random));
  std::vector<uint8_t> q(x.size());
  const auto tensor = [](Shape shape, DType dtype) {
    Tensor t;
    t.shape = shape;
    t.dtype = dtype;
    return t;
  };
  const Tensor rows = tensor(Shape{kRows, kHidden}, DType::kF32), bytes = tensor(rows.shape, DType::kE4M3),
               blocks = tensor(Shape{kRows, kBlocks}, DType::kF32);
  Op op;
  const RankContext rank;
  const CpuOperand value{x.data(), &rows}, quantized{q.data(), &bytes}, scale{scales.data(), &blocks},
      again{back.data(), &rows};
  op.attrs = QuantizeAttrs{DType::kE4M3};
  ASSERT_TRUE(kQuantizeTokens.cpu({op, std::array{value}, std::array{quantized, scale}, rank}));
  op.attrs = QuantizeAttrs{DType::kF32};
  ASSERT_TRUE(kDequantizeTokens.cpu({op, std::array{quantized, scale}, std::array{again}, rank}));
  for (size_t i = 0; i < x.size(); ++i) {
    const float unit = scales[i / kHidden * kBlocks + i % kHidden / kTokenBlock];
    EXPECT_LE(std::abs(back[i] - x[i]), 1.0001F * std::max(std::abs(x[i]) / 16, unit / 1024)) << i;
  }
}

// A byte and a share of a scale instead of four bytes, one way of four.
TEST(Fp8Dispatch, StaysNearAndMovesAQuarterOfTheBytesThatGoThere) {
  Config exact = mapped(moe_config("mixtral_balanced"), kMappings[1]);
  exact.model.hidden_size = 128;
  exact.parallel.moe_dropless_bound = 1;
  const auto plain = train_and_collect(exact);
  ASSERT_TRUE(plain.has_value()) << format(plain.error());
  for (const MoeExchange form : {MoeExchange::kPadded, MoeExchange::kCounts}) {
    Config c = exact;
    c.parallel.moe_fp8_dispatch = true;
    c.parallel.moe_exchange = form;
    const auto rounded = train_and_collect(c);
    ASSERT_TRUE(rounded.has_value()) << format(rounded.error());
    for (size_t i = 0; i < plain->steps.size(); ++i)
      EXPECT_NEAR(rounded->steps[i].loss, plain->steps[i].loss, 1e-2 * plain->steps[i].loss) << "step " << i;
    EXPECT_NE(rounded->steps[0].loss, plain->steps[0].loss);
    const auto bytes = [](const Trained& t) {
      return static_cast<double>(t.result.comm[0][static_cast<size_t>(GroupKind::kEp)].total().wire_bytes);
    };
    // Of four equal messages a layer (dispatch, combine, and back), one shrinks to a byte and 1/32 of a scale.
    const double rows = 5 * 2.0 * (16 * 2 * 2) * 0.75;  // steps, layers, pairs, (e − 1)/e
    EXPECT_DOUBLE_EQ(bytes(*plain) - bytes(*rounded), rows * (128 * 4 - (128 + 4)));
  }
}

std::string refusal(const char* name, const std::function<void(Config&)>& change) {
  Config c = moe_config(name);
  change(c);
  const auto layout = resolve(c);
  return layout ? "accepted" : format(layout.error());
}

TEST(ExpertRules, AreNamed) {
  const auto expect_named = [](const std::string& text, const char* rule) {
    EXPECT_NE(text.find(rule), std::string::npos) << text;
  };
  expect_named(refusal("mixtral", [](Config& c) { c.parallel.expert_model_parallel_size = 3; }),
               "parallel.expert_model_parallel_size = 3 does not divide model.num_experts = 8");
  expect_named(refusal("mixtral", [](Config& c) { c.parallel.expert_tensor_parallel_size = 5; }),
               "parallel.expert_tensor_parallel_size = 5 does not divide model.moe_ffn_hidden_size = 24");
  expect_named(refusal("llama31",
                       [](Config& c) {
                         c.model.num_experts = 0;
                         c.parallel.expert_model_parallel_size = 2;
                       }),
               "has no experts");
  expect_named(refusal("mixtral",
                       [](Config& c) {
                         c.parallel.tensor_model_parallel_size = 2;
                         c.parallel.expert_model_parallel_size = 2;
                         c.parallel.sequence_parallel = false;
                       }),
               "need parallel.sequence_parallel");
  expect_named(refusal("mixtral",
                       [](Config& c) {
                         c.parallel.gpus = 2;
                         c.parallel.expert_model_parallel_size = 4;
                       }),
               "no multiple of expert tensor × expert × pipeline = 1 × 4 × 1");
  expect_named(refusal("mixtral", [](Config& c) { c.parallel.moe_dropless_bound = 0.5; }), "below the balanced load");
}

}  // namespace
}  // namespace mbb::trainer
