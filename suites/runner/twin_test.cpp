// What a twin keeps of a configuration and what it makes small.
#include "suites/runner/twin.h"

#include <gtest/gtest.h>

#include <functional>

#include "trainer/run/layout.h"

namespace mbb::suites {
namespace {

using trainer::Config;

Config llama70b() {
  Config c;
  c.model.name = "llama3-70b";
  c.precision.recipe = trainer::Recipe::kFp8Current;
  c.precision.fp8_param = true;
  c.host.device = trainer::Device::kCuda;
  c.parallel.gpus = 64;
  c.parallel.tensor_model_parallel_size = 4;
  c.parallel.pipeline_model_parallel_size = 8;
  c.parallel.virtual_pipeline_model_parallel_size = 5;
  c.data_parallel.overlap_grad_reduce = c.data_parallel.overlap_param_gather = true;
  c.train.seq_length = 8192;
  c.train.global_batch_size = 256;
  return c;
}

TEST(Twin, KeepsTheStructureAndSaysWhatBecameSmall) {
  const auto twin = twin_of(llama70b());
  ASSERT_TRUE(twin) << format(twin.error());
  const auto small = trainer::resolve(twin->mapped);
  ASSERT_TRUE(small);
  EXPECT_EQ(small->tp, 4);
  EXPECT_EQ(small->pp, 8);
  EXPECT_EQ(small->vpp, 5);
  EXPECT_EQ(small->dp, 2);
  EXPECT_EQ(twin->ranks, 64);
  EXPECT_EQ(small->compute, trainer::DType::kF32);
  EXPECT_EQ(twin->mapped.host.device, trainer::Device::kCpu);
  EXPECT_TRUE(twin->mapped.data_parallel.overlap_grad_reduce);
  EXPECT_EQ(twin->reduction, "layers 80 → 40, hidden 8192 → 32, micro-batches 128 → 16, tokens 8192 → 16, in fp32");
  const auto alone = trainer::resolve(twin->alone);
  ASSERT_TRUE(alone);
  EXPECT_EQ(alone->mesh.world_size(), 1);
  EXPECT_EQ(alone->global_batch, small->global_batch);
  EXPECT_FALSE(twin->is_trivial());
}

TEST(Twin, CellsOfOneStructureShareATwin) {
  Config wider = llama70b();
  wider.parallel.gpus = 256;
  wider.train.global_batch_size = 512;
  wider.precision = {};
  wider.precision.recipe = trainer::Recipe::kBf16;
  EXPECT_EQ(twin_of(wider)->mapped_hash, twin_of(llama70b())->mapped_hash);
  EXPECT_NE(twin_of(wider)->reduction, twin_of(llama70b())->reduction);
  wider.memory.recompute_granularity = trainer::RecomputeGranularity::kFull;
  EXPECT_NE(twin_of(wider)->mapped_hash, twin_of(llama70b())->mapped_hash);
  EXPECT_EQ(twin_of(wider)->alone_hash, twin_of(llama70b())->alone_hash) << "one reference for both";
}

TEST(Twin, SixtyFourRanksAreTheMost) {
  Config c = llama70b();
  c.model.name = "llama3.1-405b";
  c.parallel.gpus = 1024;
  c.parallel.tensor_model_parallel_size = c.parallel.pipeline_model_parallel_size = 8;
  c.parallel.context_parallel_size = 2;
  c.parallel.virtual_pipeline_model_parallel_size = 8;
  c.parallel.account_for_embedding_in_pipeline_split = c.parallel.account_for_loss_in_pipeline_split = true;
  c.train.global_batch_size = 512;
  const auto twin = twin_of(c);
  ASSERT_TRUE(twin) << format(twin.error());
  EXPECT_EQ(twin->ranks, 64);
  EXPECT_NE(twin->reduction.find("pp 8 → 4, dp 8 → 1"), std::string::npos) << twin->reduction;
  EXPECT_EQ(twin->mapped.parallel.context_parallel_size, 2);
  EXPECT_EQ(twin->mapped.parallel.virtual_pipeline_model_parallel_size, 8);
}

TEST(Twin, UnevenStagesStayUneven) {
  Config c = llama70b();
  c.parallel.pipeline_layout = "Et*2|(t*2|)*34,t*3|(t*2|)*3,tL";
  const auto twin = twin_of(c);
  ASSERT_TRUE(twin) << format(twin.error());
  const auto small = trainer::resolve(twin->mapped), whole = trainer::resolve(c);
  ASSERT_TRUE(small && whole);
  ASSERT_EQ(small->stages.size(), whole->stages.size());
  for (size_t s = 0; s < small->stages.size(); ++s)
    for (size_t k = 0; k < small->stages[s].size(); ++k) {
      const bool more = whole->stages[s][k].num_layers > 1;
      EXPECT_EQ(small->stages[s][k].num_layers, more ? 2 : 1);
    }
}

TEST(Twin, ExpertsFoldAsTheyDo) {
  Config c;
  c.model.name = "deepseek-v3";
  c.precision.recipe = trainer::Recipe::kBf16;
  c.parallel.gpus = 1024;
  c.parallel.tensor_model_parallel_size = 2;
  c.parallel.pipeline_model_parallel_size = 8;
  c.parallel.virtual_pipeline_model_parallel_size = 4;
  c.parallel.pipeline_layout = "Et*2|(t*2|)*29,t|L";
  c.parallel.expert_model_parallel_size = 64;
  c.parallel.expert_tensor_parallel_size = 1;
  c.train.seq_length = 4096;
  c.train.global_batch_size = 8192;
  const auto twin = twin_of(c);
  ASSERT_TRUE(twin) << format(twin.error());
  const auto small = trainer::resolve(twin->mapped);
  ASSERT_TRUE(small);
  EXPECT_LE(twin->ranks, kTwinRanks);
  EXPECT_EQ(small->tp, 2);
  EXPECT_GT(small->ep, small->tp) << "experts still lie over data-parallel ranks too: " << twin->reduction;
  EXPECT_EQ(small->etp, 1);
  EXPECT_EQ(small->vpp, 4);
}

// Forced balance deals rows out in turn: 48 rows over 128 experts give the first 24 of 64 ranks two each and the others
// none, so slots of the balanced load would overflow.
TEST(Twin, SlotsOfTheBalancedLoadAreKeptWhereFewTokensAreBalancedToo) {
  const auto bound = [](const char* model, int ep) {
    Config c;
    c.model.name = model;
    c.parallel.gpus = 64;
    c.parallel.expert_model_parallel_size = ep;
    c.parallel.moe_router_force_load_balancing = true;
    c.parallel.moe_dropless_bound = 1.125;
    c.train.seq_length = 4096;
    c.train.global_batch_size = 64;
    const auto twin = twin_of(c);
    EXPECT_TRUE(twin.has_value()) << format(twin.error());
    return twin ? twin->mapped.parallel.moe_dropless_bound : -1;
  };
  EXPECT_EQ(bound("gpt-oss-120b", 64), 0);
  EXPECT_EQ(bound("mixtral-8x7b", 4), 1.125);
}

TEST(Twin, OneRankWithoutPassesIsTrivialAndWithOneIsNot) {
  Config c;
  c.model.name = "llama3-8b";
  c.model.num_layers = 8;
  c.precision.recipe = trainer::Recipe::kBf16;
  c.train.seq_length = 8192;
  EXPECT_TRUE(twin_of(c)->is_trivial());
  c.memory.recompute_granularity = trainer::RecomputeGranularity::kFull;
  EXPECT_FALSE(twin_of(c)->is_trivial());
}

}  // namespace
}  // namespace mbb::suites
