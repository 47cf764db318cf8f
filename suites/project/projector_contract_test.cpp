// Projections: short walks equal the whole one, parts sum to the step, knobs move it the way they should.
#include "suites/project/projector.h"

#include <gtest/gtest.h>

#include "trainer/models/transformer.h"

namespace mbb::suites {
namespace {

using trainer::Config;
using trainer::Recipe;

Config llama(int64_t gpus, int64_t tp, int64_t pp, int64_t vpp, int64_t cp, int64_t batch) {
  Config config;
  config.model.name = "llama3-8b";
  config.train.seq_length = 8192;
  config.train.global_batch_size = batch;
  config.precision.recipe = Recipe::kBf16;
  config.parallel.gpus = gpus;
  config.parallel.tensor_model_parallel_size = tp;
  config.parallel.pipeline_model_parallel_size = pp;
  config.parallel.virtual_pipeline_model_parallel_size = vpp;
  config.parallel.context_parallel_size = cp;
  config.data_parallel.overlap_grad_reduce = config.data_parallel.overlap_param_gather = true;
  return config;
}

Projection must(const Config& config, const std::string& hardware = kDefaultHardware, ProjectOptions options = {}) {
  auto projected = project(config, hardware, options);
  EXPECT_TRUE(projected.has_value()) << (projected ? "" : projected.error().what);
  return projected ? std::move(*projected) : Projection{};
}

TEST(Projector, ShortWalksGiveTheWholeStep) {
  for (const Config& config :
       {llama(16, 2, 4, 1, 1, 80), llama(8, 1, 4, 2, 1, 96), llama(8, 2, 2, 1, 2, 40), llama(4, 1, 1, 1, 1, 60)}) {
    const Projection few = must(config);
    ProjectOptions options;
    options.trace = true;
    const Projection all = must(config, kDefaultHardware, options);
    EXPECT_GT(all.trace.spans.size(), 0U);
    EXPECT_TRUE(few.trace.spans.empty());
    EXPECT_NEAR(few.step_ns / all.step_ns, 1, 1e-3);
    EXPECT_NEAR(few.parts.compute_ns / all.parts.compute_ns, 1, 1e-3);
    EXPECT_NEAR((few.parts.exposed_comm_ns() - all.parts.exposed_comm_ns()) / all.step_ns, 0, 2e-3);
    EXPECT_NEAR((few.parts.bubble_ns - all.parts.bubble_ns) / all.step_ns, 0, 2e-3);
  }
}

TEST(Projector, PartsSumToTheStep) {
  for (const Config& config : {llama(16, 2, 4, 1, 1, 80), llama(64, 2, 2, 1, 2, 256)}) {
    const Projection p = must(config);
    EXPECT_NEAR(p.parts.sum_ns() / p.step_ns, 1, 1e-6);
    EXPECT_LT(p.low_ns, p.step_ns);
    EXPECT_GT(p.high_ns, p.step_ns);
    double shares = 0;
    for (const ProjectedTerm& term : p.terms) shares += term.share;
    EXPECT_NEAR(shares, (p.parts.compute_ns + p.parts.exposed_comm_ns()) / p.step_ns, 1e-6);
  }
}

TEST(Projector, KnobsMoveTheStep) {
  const Projection base = must(llama(8, 1, 1, 1, 1, 64));
  Config fp8 = llama(8, 1, 1, 1, 1, 64);
  fp8.precision.recipe = Recipe::kFp8Current;
  EXPECT_LT(must(fp8).step_ns, 0.85 * base.step_ns);
  Config recompute = llama(8, 1, 1, 1, 1, 64);
  recompute.memory.recompute_granularity = trainer::RecomputeGranularity::kFull;
  const Projection again = must(recompute);
  EXPECT_NEAR(again.step_ns / base.step_ns, 1.3, 0.07);
  EXPECT_LT(again.memory.arena_bytes, base.memory.arena_bytes);
  Config serial = llama(16, 1, 1, 1, 1, 32);
  const Projection hidden = must(serial);
  serial.data_parallel.overlap_grad_reduce = serial.data_parallel.overlap_param_gather = false;
  const Projection exposed = must(serial);
  const auto dp = static_cast<size_t>(analysis::CommKind::kDp);
  EXPECT_GT(exposed.parts.exposed_ns[dp], 2 * hidden.parts.exposed_ns[dp]);
  EXPECT_GT(exposed.step_ns, hidden.step_ns);
  // A bubble shrinks with interleaving and with more micro-batches.
  const Projection pipe = must(llama(8, 1, 8, 1, 1, 32)), interleaved = must(llama(8, 1, 8, 2, 1, 32)),
                   longer = must(llama(8, 1, 8, 1, 1, 64));
  const auto bubble = [](const Projection& p) { return p.parts.bubble_ns / p.step_ns; };
  EXPECT_LT(bubble(interleaved), bubble(pipe));
  EXPECT_LT(bubble(longer), bubble(pipe));
}

TEST(Projector, HidingCostsProductsWhereCollectivesTakeSms) {
  Config config = llama(2, 1, 1, 1, 1, 2);
  config.model.num_layers = 4;
  const Projection on_sms = must(config, "h200-sxm");
  config.memory.nccl_ub = true;
  config.memory.nccl_cta_policy = trainer::CtaPolicy::kZero;
  const Projection by_copies = must(config, "h200-sxm");
  EXPECT_GT(on_sms.parts.compute_ns, 1.005 * by_copies.parts.compute_ns);
  EXPECT_GT(on_sms.step_ns, by_copies.step_ns);
  config.data_parallel.overlap_grad_reduce = config.data_parallel.overlap_param_gather = false;
  EXPECT_NEAR(must(config, "h200-sxm").parts.compute_ns / by_copies.parts.compute_ns, 1, 1e-3);
}

TEST(Projector, CardsAndFits) {
  const Config config = llama(8, 1, 1, 1, 1, 64);
  const Projection h100 = must(config), b200 = must(config, "b200");
  EXPECT_LT(b200.step_ns, 0.6 * h100.step_ns);
  EXPECT_FALSE(b200.measured_costs);
  EXPECT_GT(b200.sigma, h100.sigma);
  EXPECT_FALSE(h100.memory.fits());  // 8 layers of activations short
  EXPECT_TRUE(must(llama(8, 2, 4, 1, 1, 64)).memory.fits());
  Config fp32 = config;
  fp32.precision.recipe = Recipe::kFp32;
  const auto refused = project(fp32);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace mbb::suites
