// Context parallelism trains the same model: losses of five steps and the gradient of every weight equal one rank's.
#include <gtest/gtest.h>

#include "trainer/models/small_families.h"
#include "trainer/run/equal_training_test.h"

namespace mbb::trainer {
namespace {

struct Mapping {
  const char* name;
  int cp, tp, pp, dp;
};

constexpr Mapping kMappings[] = {
    {"cp2", 2, 1, 1, 1}, {"cp4", 4, 1, 1, 1}, {"cp2_tp2_pp2", 2, 2, 2, 1}, {"cp2_dp2", 2, 1, 1, 2}};

Config config_of_five_steps(std::string_view name) {
  Config c = config_of(family_of(name));
  c.train.train_iters = 5;
  if (c.train.encoder_seq_length > 0) c.train.encoder_seq_length = 16;  // four ranks' chunks
  if (c.model.num_query_groups > 0) c.model.num_query_groups = 4;       // an a2a of four ranks divides them
  return c;
}

Config mapped(Config c, const Mapping& m, const char* comm) {
  c.parallel.context_parallel_size = m.cp;
  c.parallel.tensor_model_parallel_size = m.tp;
  c.parallel.pipeline_model_parallel_size = m.pp;
  c.parallel.gpus = m.cp * m.tp * m.pp * m.dp;
  c.parallel.cp_comm_type = comm;
  if (std::string_view(comm) == "a2a+p2p") c.parallel.hierarchical_context_parallel_sizes = {2, m.cp / 2};
  return c;
}

void expect_equal(const Config& config, const Trained& one) {
  const auto many = train_and_collect(config);
  ASSERT_TRUE(many.has_value()) << format(many.error());
  ASSERT_EQ(many->steps.size(), one.steps.size());
  for (size_t i = 0; i < one.steps.size(); ++i) {
    EXPECT_NEAR(many->steps[i].loss, one.steps[i].loss, 1e-5 * one.steps[i].loss) << "step " << i;
    EXPECT_EQ(many->steps[i].tokens, one.steps[i].tokens);
  }
  expect_equal_gradients(many->gradients[0], one.gradients[0], 1e-5);
}

class Context : public testing::TestWithParam<const char*> {};

TEST_P(Context, EveryMappingAndCommTypeEqualsOneRank) {
  const Config base = config_of_five_steps(GetParam());
  const auto one = train_and_collect(base);
  ASSERT_TRUE(one.has_value()) << format(one.error());
  for (const char* comm : {"p2p", "all_gather", "a2a", "a2a+p2p"}) {
    for (const Mapping& m : kMappings) {
      if (std::string_view(comm) == "a2a+p2p" && m.cp < 4) continue;
      SCOPED_TRACE(std::string(comm) + " " + m.name);
      expect_equal(mapped(base, m, comm), *one);
    }
  }
  // A list, and weights' states on every rank.
  Config whole = mapped(base, kMappings[3], "p2p,a2a");
  whole.parallel.use_distributed_optimizer = false;
  expect_equal(whole, *one);
}

INSTANTIATE_TEST_SUITE_P(Families, Context,
                         testing::Values("llama31", "gpt", "gpt_dropout", "qwen3", "gpt_oss", "mixtral",
                                         "mixtral_balanced", "qwen3_moe", "deepseek_v3", "deepseek_v3_mtp", "t5"),
                         [](const auto& test) { return std::string(test.param); });

// An encoder of another length, dropout in both, the encoder on ranks of its own, table gradients that are added apart.
TEST(ContextEncoder, EveryFormEqualsOneRank) {
  Config base = config_of_five_steps("t5");
  base.train.encoder_seq_length = 24;
  base.train.hidden_dropout = base.train.attention_dropout = 0.1;
  const auto one = train_and_collect(base);
  ASSERT_TRUE(one.has_value()) << format(one.error());
  for (const char* comm : {"p2p", "all_gather", "a2a"}) {
    SCOPED_TRACE(comm);
    expect_equal(mapped(base, kMappings[0], comm), *one);
    Config apart = mapped(base, kMappings[0], comm);
    apart.fusion.gradient_accumulation_fusion = false;
    apart.memory.recompute_granularity = RecomputeGranularity::kFull;
    expect_equal(apart, *one);
    Config meshes = mapped(base, {"cp2_tp2", 2, 2, 1, 1}, comm);
    meshes.parallel.encoder_pipeline_model_parallel_size = 1;
    meshes.parallel.encoder_tensor_model_parallel_size = 1;
    meshes.parallel.gpus = 2 * (1 + 2);  // DP·CP·(encoder TP·PP + decoder TP·PP)
    expect_equal(meshes, *one);
  }
}

// What these tests would see: one wrong position, key range, merge or exchange anywhere in the programs.
TEST(ContextFaults, ShowInTheGradients) {
  const Config base = config_of_five_steps("gpt_oss");
  const auto one = train_and_collect(base);
  ASSERT_TRUE(one.has_value());
  const Config ring = mapped(base, kMappings[1], "p2p");
  const Config gathered = mapped(base, kMappings[1], "all_gather");
  const Config heads = mapped(base, kMappings[1], "a2a+p2p");
  const auto error_of = [&](const Config& config, const std::function<bool(Op&)>& plant) {
    bool planted = false;
    const auto many = train_and_collect(config, [&](StepPrograms& programs) {
      for (Program& program : programs.programs)
        for (Segment& segment : program.segments)
          for (Op& op : segment.ops)
            if (!planted) planted = plant(op);
    });
    EXPECT_TRUE(planted);
    EXPECT_TRUE(many.has_value()) << (many ? "" : format(many.error()));
    return many ? gradient_error(many->gradients[0], one->gradients[0]) : 0.0;
  };
  EXPECT_LT(error_of(ring, [](Op&) { return true; }), 1e-5) << "no fault";
  EXPECT_GT(error_of(ring,
                     [](Op& op) {
                       auto* rope = std::get_if<RopeAttrs>(&op.attrs);
                       if (rope != nullptr) rope->rotation.positions.starts[1] += 1;
                       return rope != nullptr;
                     }),
            1e-4);
  const auto move_keys = [](Op& op) {
    const bool step = op.path.ends_with("core.fwd.step2");
    if (step) std::get<AttentionAttrs>(op.attrs).keys.starts[0] += 1;
    return step;
  };
  EXPECT_GT(error_of(ring, move_keys), 1e-4);
  EXPECT_GT(error_of(gathered, move_keys), 1e-4);
  EXPECT_GT(error_of(ring,
                     [](Op& op) {
                       const bool merge = op.path.ends_with("core.fwd.merge");
                       if (merge) std::get<PartAttrs>(op.attrs).sinks = false, op.in.pop_back();
                       return merge;
                     }),
            1e-4);
  EXPECT_GT(error_of(heads,
                     [](Op& op) {
                       const bool order = op.path.ends_with("to_heads.order.fwd");
                       if (order)
                         std::swap(std::get<RunAttrs>(op.attrs).order[0], std::get<RunAttrs>(op.attrs).order[1]);
                       return order;
                     }),
            1e-4);
}

std::string refusal(const std::function<void(Config&)>& change) {
  Config c = config_of_five_steps("llama31");
  c.parallel.context_parallel_size = 2;
  change(c);
  const auto layout = resolve(c);
  return layout ? "accepted" : layout.error().what;
}

TEST(ContextRules, AreNamed) {
  EXPECT_NE(refusal([](Config& c) { c.train.seq_length = 18; }).find("2 × parallel.context_parallel_size = 4"),
            std::string::npos);
  EXPECT_NE(refusal([](Config& c) { c.parallel.cp_comm_type = "ring"; }).find("no type 'ring'"), std::string::npos);
  EXPECT_NE(refusal([](Config& c) {
              c.parallel.cp_comm_type = "all_gather,all_gather,all_gather";
            }).find("lists 3 types for 2 layers"),
            std::string::npos);
  EXPECT_NE(refusal([](Config& c) { c.parallel.gpus = 3; }).find("no multiple of tensor × context × pipeline"),
            std::string::npos);
}

TEST(ContextRules, HeadsAndSizesOfAllToAllAreNamed) {
  const auto with = [](const char* comm, std::vector<int64_t> sizes, int64_t cp) {
    return refusal([&](Config& c) {
      c.parallel.context_parallel_size = cp;
      c.parallel.cp_comm_type = comm;
      c.parallel.hierarchical_context_parallel_sizes = std::move(sizes);
    });
  };
  EXPECT_EQ(with("a2a", {}, 4), "accepted");
  EXPECT_NE(with("a2a", {}, 8).find("needs model.num_attention_heads = 4 to be a multiple of 8"), std::string::npos);
  EXPECT_NE(with("a2a+p2p", {}, 4).find("are not two sizes whose product is"), std::string::npos);
  EXPECT_NE(with("a2a+p2p", {2, 3}, 4).find("are not two sizes whose product is"), std::string::npos);
  EXPECT_EQ(with("a2a+p2p", {2, 4}, 8), "accepted");
  EXPECT_NE(with("p2p", {2, 2}, 4).find("without a layer of parallel.cp_comm_type = a2a+p2p"), std::string::npos);
  EXPECT_NE(with("p2p", {2, 2}, 1).find("with parallel.context_parallel_size = 1"), std::string::npos);
}

TEST(ContextModels, WhatCannotBeCutIsRefused) {
  const auto refused = [](const char* name, const std::function<void(Config&)>& change) {
    Config c = config_of_five_steps(name);
    c.parallel.context_parallel_size = 2;
    change(c);
    const auto layout = resolve(c);
    return layout ? std::string("accepted") : layout.error().what;
  };
  EXPECT_NE(refused("mixtral_capacity", [](Config&) {}).find("parallel.context_parallel_size"), std::string::npos);
  EXPECT_EQ(refused("t5", [](Config&) {}), "accepted");
  EXPECT_EQ(refused("t5", [](Config& c) { c.train.encoder_seq_length = 18; }),
            "train.encoder_seq_length = 18 is no multiple of 2 × parallel.context_parallel_size = 4");
  const auto rows = [](Config& c) {
    c.packing.sequences = SequenceLengths::kUniform;
    c.train.micro_batch_size = 1;
  };
  EXPECT_EQ(refused("t5", rows), "accepted");
}

}  // namespace
}  // namespace mbb::trainer
