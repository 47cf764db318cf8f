// Mappings that only meet in large runs: each trains five steps like one rank, with every weight's gradient.
#include <gtest/gtest.h>

#include <algorithm>

#include "trainer/models/small_families.h"
#include "trainer/ops/op_kind.h"
#include "trainer/run/equal_training_test.h"

namespace mbb::trainer {
namespace {

Config five_steps(std::string_view name) {
  Config c = config_of(family_of(name));
  c.model.num_layers = 4;
  c.train.global_batch_size = 8;
  c.train.train_iters = 5;
  return c;
}

// The first step's gradients of equal weights; the last step's carry the rounding of four optimizer steps.
void expect_equal(const Config& config, const Trained& one, double last_tolerance = 2e-4) {
  const auto many = train_and_collect(config);
  ASSERT_TRUE(many.has_value()) << format(many.error());
  ASSERT_EQ(many->steps.size(), one.steps.size());
  for (size_t i = 0; i < one.steps.size(); ++i)
    EXPECT_NEAR(many->steps[i].loss, one.steps[i].loss, 1e-5 * one.steps[i].loss) << "step " << i;
  expect_equal_gradients(many->gradients.front(), one.gradients.front(), 1e-5);
  expect_equal_gradients(many->gradients.back(), one.gradients.back(), last_tolerance);
}

Trained one_rank(const Config& config) {
  auto one = train_and_collect(config);
  EXPECT_TRUE(one.has_value()) << (one ? "" : format(one.error()));
  return one ? std::move(*one) : Trained{};
}

void context(Config& c, int64_t size, const char* comm) {
  c.parallel.context_parallel_size = size;
  c.parallel.cp_comm_type = comm;
  if (std::string_view(comm) == "a2a+p2p") c.parallel.hierarchical_context_parallel_sizes = {2, size / 2};
}

class RecomputedRing : public testing::TestWithParam<const char*> {};

TEST_P(RecomputedRing, EqualsOneRankThatKeepsAll) {
  Config base = five_steps(GetParam());
  if (base.model.num_query_groups > 0) base.model.num_query_groups = 4;
  const Trained one = one_rank(base);
  for (const char* comm : {"p2p", "a2a+p2p", "p2p,all_gather,a2a,p2p"}) {
    for (const bool full : {true, false}) {
      SCOPED_TRACE(std::string(comm) + (full ? " full" : " core_attn"));
      Config c = base;
      context(c, 4, comm);
      c.memory.recompute_granularity = full ? RecomputeGranularity::kFull : RecomputeGranularity::kSelective;
      c.memory.recompute_num_layers = full ? 2 : 1;
      expect_equal(c, one);
    }
  }
  Config pipeline = base;
  context(pipeline, 2, "p2p");
  pipeline.parallel.tensor_model_parallel_size = pipeline.parallel.pipeline_model_parallel_size = 2;
  pipeline.memory.recompute_granularity = RecomputeGranularity::kSelective;
  pipeline.memory.recompute_modules = "core_attn,layernorm";
  expect_equal(pipeline, one);
}

INSTANTIATE_TEST_SUITE_P(Families, RecomputedRing, testing::Values("llama31", "gpt_dropout", "gpt_oss", "mixtral"),
                         [](const auto& test) { return std::string(test.param); });

int64_t recomputed_exchanges(const Program& program) {
  int64_t count = 0;
  for (const Segment& segment : program.segments)
    count += std::count_if(segment.ops.begin(), segment.ops.end(),
                           [](const Op& op) { return op.recompute && op.kind->name == "ring_shift"; });
  return count;
}

// Each rank of the ring has other steps, and all run the same exchanges again.
TEST(RecomputedRingProgram, RunsItsExchangesAgainOnEveryRank) {
  Config c = five_steps("llama31");
  context(c, 4, "p2p");
  c.memory.recompute_granularity = RecomputeGranularity::kFull;
  const auto layout = resolve(c);
  ASSERT_TRUE(layout.has_value()) << format(layout.error());
  const auto programs = build_programs(*layout);
  ASSERT_TRUE(programs.has_value()) << format(programs.error());
  ASSERT_EQ(programs->programs.size(), 4U);
  for (const Program& program : programs->programs) EXPECT_EQ(recomputed_exchanges(program), 4 * 3);
}

// What is gathered under a product may come from a norm that runs again behind it.
TEST(RecomputedNorms, UnderOverlappedTensorParallelismEqualOneRank) {
  for (const char* name : {"nemotron", "llama31"}) {
    const Config base = five_steps(name);
    const Trained one = one_rank(base);
    for (const char* modules : {"layernorm", "core_attn,layernorm,act,mlp"}) {
      SCOPED_TRACE(std::string(name) + " " + modules);
      Config c = base;
      c.parallel.tensor_model_parallel_size = 2;
      c.memory.recompute_granularity = RecomputeGranularity::kSelective;
      c.memory.recompute_modules = modules;
      c.tp_overlap.tp_comm_overlap = true;
      expect_equal(c, one);
    }
  }
}

// A depth's tokens lie on other ranks.
TEST(MultiTokenPrediction, OverContextRanksEqualsOneRank) {
  const Config base = five_steps("deepseek_v3_mtp");
  const Trained one = one_rank(base);
  for (const auto& [cp, comm, tp, pp] :
       {std::tuple{2, "p2p", 1, 1}, {4, "p2p", 1, 1}, {2, "all_gather", 2, 1}, {2, "a2a", 1, 2}}) {
    SCOPED_TRACE(std::string(comm) + std::to_string(cp));
    Config c = base;
    context(c, cp, comm);
    c.parallel.tensor_model_parallel_size = tp;
    c.parallel.pipeline_model_parallel_size = pp;
    expect_equal(c, one);
  }
}

TEST(PairedExperts, InterleavedEqualOneRank) {
  Config base = five_steps("mixtral");
  base.train.micro_batch_size = 1;
  const Trained one = one_rank(base);
  for (const bool delayed : {false, true}) {
    SCOPED_TRACE(delayed ? "delayed wgrad" : "paired");
    Config c = base;
    c.parallel.pipeline_model_parallel_size = 2;
    c.parallel.virtual_pipeline_model_parallel_size = 2;
    c.parallel.expert_model_parallel_size = 2;
    c.parallel.expert_tensor_parallel_size = 1;
    c.parallel.gpus = 4;
    c.overlap.overlap_moe_expert_parallel_comm = true;
    c.overlap.delay_wgrad_compute = delayed;
    expect_equal(c, one);
  }
}

TEST(FoldedExperts, OverTensorAndDataRanksEqualOneRankAfterFiveSteps) {
  for (const char* name : {"mixtral", "deepseek_v3", "gpt_oss"}) {
    Config base = five_steps(name);
    base.model.num_experts = 8;
    base.train.micro_batch_size = 1;
    const Trained one = one_rank(base);
    for (const auto& [tp, ep, etp, fsdp] :
         {std::tuple{2, 4, 1, false}, {2, 4, 1, true}, {1, 4, 1, false}, {2, 2, 2, true}}) {
      SCOPED_TRACE(std::string(name) + " tp" + std::to_string(tp) + " ep" + std::to_string(ep) + " etp" +
                   std::to_string(etp) + (fsdp ? " fsdp" : ""));
      Config c = base;
      c.parallel.tensor_model_parallel_size = tp;
      c.parallel.expert_model_parallel_size = ep;
      c.parallel.expert_tensor_parallel_size = etp;
      c.parallel.gpus = 8;
      c.data_parallel.use_torch_fsdp2 = fsdp;
      expect_equal(c, one);
    }
  }
}

TEST(EncoderMesh, SmallEncoderBesideAPipelineOfDecodersEqualsOneRank) {
  Config base = five_steps("t5");
  base.train.micro_batch_size = 1;
  const Trained one = one_rank(base);
  for (const int64_t replicas : {1, 2}) {
    SCOPED_TRACE(replicas);
    Config c = base;
    c.parallel.tensor_model_parallel_size = c.parallel.pipeline_model_parallel_size = 2;
    c.parallel.encoder_pipeline_model_parallel_size = c.parallel.encoder_tensor_model_parallel_size = 1;
    c.parallel.gpus = replicas * (1 * 1 + 2 * 2);
    expect_equal(c, one);
  }
}

TEST(ShardedParameters, OverTensorAndContextRanksEqualOneRank) {
  for (const char* name : {"llama31", "gpt_dropout", "qwen25_tied"}) {
    Config base = five_steps(name);
    base.train.micro_batch_size = 1;
    const Trained one = one_rank(base);
    for (const int64_t instances : {1, 2}) {
      SCOPED_TRACE(std::string(name) + " instances " + std::to_string(instances));
      Config c = base;
      context(c, 2, "p2p");
      c.parallel.tensor_model_parallel_size = 2;
      c.parallel.gpus = 8;
      c.data_parallel.use_torch_fsdp2 = true;
      c.data_parallel.num_distributed_optimizer_instances = instances;
      expect_equal(c, one);
    }
  }
}

}  // namespace
}  // namespace mbb::trainer
