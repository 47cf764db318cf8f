// Every mapping trains the same model: losses equal one rank's, step by step.
#include "trainer/ops/op_kind.h"
#include "trainer/run/train.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <map>
#include <mutex>
#include <string_view>
#include <thread>

#include "trainer/data/rng.h"
#include "trainer/program/verify.h"

namespace mbb::trainer {
namespace {

// Tokens with structure to learn: each follows from the one before, with noise.
Status sample(int64_t index, std::span<int32_t> tokens) {
  const RandomStream random(7, "test.tokens", 0);
  int32_t token = static_cast<int32_t>(random.bits(static_cast<uint64_t>(index), 0) % 256);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const uint32_t bits = random.bits(static_cast<uint64_t>(index), i + 1);
    token = bits % 4 == 0 ? static_cast<int32_t>((bits >> 8) % 256) : (token * 5 + 17) % 256;
    tokens[i] = token;
  }
  return {};
}

Config small() {
  Config c;
  c.train.seq_length = 32;
  c.train.micro_batch_size = 2;
  c.train.global_batch_size = 8;
  c.train.train_iters = 6;
  return c;
}

TrainResult run(const Config& config) {
  auto layout = resolve(config);
  EXPECT_TRUE(layout.has_value()) << (layout ? "" : layout.error().what);
  auto programs = build_programs(*layout);
  EXPECT_TRUE(programs.has_value()) << (programs ? "" : programs.error().what);
  const auto by_rank = programs->by_rank(layout->mesh);
  const Status world = verify_world(layout->mesh, by_rank);
  EXPECT_TRUE(world.has_value()) << (world ? "" : world.error().what);
  TrainOptions options;
  options.trace_first = 4;
  options.trace_end = 6;
  auto result = train(*layout, *programs, sample, options);
  EXPECT_TRUE(result.has_value()) << (result ? "" : result.error().what);
  return result ? *result : TrainResult{};
}

TEST(Train, RanksEndTogetherWhenThereIsEnough) {
  Config config = small();
  config.parallel.tensor_model_parallel_size = 2;
  config.parallel.pipeline_model_parallel_size = 2;
  const auto layout = resolve(config);
  ASSERT_TRUE(layout) << layout.error().what;
  const auto programs = build_programs(*layout);
  ASSERT_TRUE(programs) << programs.error().what;
  TrainOptions options;
  options.trace_first = 1;
  options.trace_end = 4;
  std::vector<double> losses;
  options.enough = [&](const StepReport& r) {
    losses.push_back(r.loss);
    return r.index == 2;  // inside the window, which still ends well
  };
  const auto result = train(*layout, *programs, sample, options);
  ASSERT_TRUE(result) << result.error().what;
  ASSERT_EQ(result->steps.size(), 3U);
  EXPECT_EQ(result->traces.size(), 2U);
  options.enough = {};
  const auto whole = train(*layout, *programs, sample, options);
  ASSERT_TRUE(whole);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(result->steps[i].loss, whole->steps[i].loss) << "an early end changes no step before it";
    EXPECT_EQ(result->steps[i].learning_rate, whole->steps[i].learning_rate);
  }
}

Config two_replicas(int64_t interval) {
  Config config = small();
  config.train.train_iters = 8;
  config.parallel.gpus = 2;
  config.host.manual_gc_interval = interval;
  return config;
}

// What rank 0 reports and what every rank is told, in order.
struct HostWork {
  std::string reported;                    // "0 1 2 | 3 ...", a bar at each host work
  std::map<int, std::vector<int64_t>> by;  // rank: the steps it worked after
  Result<TrainResult> result = TrainResult{};
};

HostWork host_work_of(const Config& config, TrainOptions options = {}) {
  HostWork seen;
  std::mutex mutex;
  options.on_step = [&](const StepReport& r) { seen.reported += std::to_string(r.index) + " "; };
  options.on_host_work = [&](int rank, int64_t step) {
    const std::lock_guard lock(mutex);
    seen.by[rank].push_back(step);
    if (rank == 0) seen.reported += "| ";
  };
  const auto layout = resolve(config);
  const auto programs = build_programs(*layout);
  seen.result = train(*layout, *programs, sample, options);
  return seen;
}

TEST(HostWork, HappensAfterTheSameStepsOnEveryRank) {
  TrainOptions traced;
  traced.trace_first = 1;
  traced.trace_end = 4;
  const HostWork third = host_work_of(two_replicas(3), traced);
  ASSERT_TRUE(third.result) << third.result.error().what;
  EXPECT_EQ(third.reported, "0 1 2 | 3 4 5 | 6 7 | ");
  EXPECT_EQ(third.by, (std::map<int, std::vector<int64_t>>{{0, {2, 5, 7}}, {1, {2, 5, 7}}}));
  // Put off, not lost: what each step reports, and its trace.
  const HostWork each = host_work_of(two_replicas(1), traced);
  ASSERT_TRUE(each.result);
  EXPECT_EQ(each.reported, "0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 | ");
  EXPECT_EQ(third.result->traces.size(), 3U);
  ASSERT_EQ(third.result->steps.size(), each.result->steps.size());
  for (size_t i = 0; i < each.result->steps.size(); ++i) {
    const StepReport &a = third.result->steps[i], &b = each.result->steps[i];
    EXPECT_EQ(a.index, b.index);
    EXPECT_EQ(a.loss, b.loss);
    EXPECT_GT(a.wall_ns, 0);
    EXPECT_GT(a.cpu_ns, 0);
    EXPECT_EQ(a.modelled_ns > 0, i >= 1 && i < 4) << "step " << i;
  }
}

TEST(HostWork, ARunThatHasEnoughEndsWithTheStepsThatWereDone) {
  TrainOptions options;
  options.enough = [](const StepReport& r) { return r.index == 3; };
  const HostWork third = host_work_of(two_replicas(3), options);
  ASSERT_TRUE(third.result) << third.result.error().what;
  EXPECT_EQ(third.reported, "0 1 2 | 3 4 5 | ");
}

TEST(HostWork, StepsBeforeOneThatIsNotFiniteAreReported) {
  Config config = two_replicas(100);
  config.optimizer.lr = config.optimizer.min_lr = 1e30;
  config.optimizer.clip_grad = 0;
  config.optimizer.lr_warmup_iters = 0;
  const HostWork seen = host_work_of(config);
  ASSERT_FALSE(seen.result);
  EXPECT_EQ(seen.result.error().code, ErrorCode::kNumerics) << seen.result.error().what;
  EXPECT_TRUE(seen.reported.starts_with("0 ")) << seen.reported;
  EXPECT_EQ(seen.by.at(0), seen.by.at(1));
}

// Whether rank 1 begins step 3 while rank 0 is at its work after step 2.
bool goes_on_meanwhile(int64_t interval, std::chrono::milliseconds wait) {
  const Config config = two_replicas(interval);
  const auto layout = resolve(config);
  const auto programs = build_programs(*layout);
  std::atomic<int64_t> read = 0;
  bool seen = false;
  TrainOptions options;
  options.on_host_work = [&](int rank, int64_t step) {
    if (rank != 0 || step != 2) return;
    const auto end = std::chrono::steady_clock::now() + wait;
    while (!seen && std::chrono::steady_clock::now() < end) {
      seen = read.load() >= (step + 1) * config.train.global_batch_size;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  };
  const auto data = [&](int64_t index, std::span<int32_t> tokens) {
    int64_t most = read.load();
    while (most < index && !read.compare_exchange_weak(most, index)) {
    }
    return sample(index, tokens);
  };
  const auto result = train(*layout, *programs, data, options);
  EXPECT_TRUE(result) << (result ? "" : result.error().what);
  return seen;
}

TEST(HostWork, NobodyGoesOnBeforeAllAreDoneUnlessUnaligned) {
  EXPECT_FALSE(goes_on_meanwhile(1, std::chrono::milliseconds(300)));
  EXPECT_FALSE(goes_on_meanwhile(3, std::chrono::milliseconds(300)));
  EXPECT_TRUE(goes_on_meanwhile(0, std::chrono::minutes(1)));
}

struct Mapping {
  const char* name;
  int tp, pp, dp;
  bool sequence_parallel, distributed_optimizer;
};

// Four layers over stages with several chunks, or of different depth.
struct Pipeline {
  const char* name;
  int tp, pp, dp, vpp;
  void (*more)(Config&) = [](Config&) {};
};

void PrintTo(const Pipeline& pipeline, std::ostream* out) {
  *out << pipeline.name;
}

void PrintTo(const Mapping& mapping, std::ostream* out) {
  *out << mapping.name;
}

void expect_equal(const TrainResult& many, const TrainResult& one) {
  ASSERT_EQ(many.steps.size(), one.steps.size());
  for (size_t i = 0; i < one.steps.size(); ++i) {
    EXPECT_NEAR(many.steps[i].loss, one.steps[i].loss, 1e-5 * one.steps[i].loss) << "step " << i;
    EXPECT_NEAR(many.steps[i].grad_norm, one.steps[i].grad_norm, 1e-4 * one.steps[i].grad_norm) << "step " << i;
    EXPECT_EQ(many.steps[i].tokens, one.steps[i].tokens);
  }
  EXPECT_LT(one.steps.back().loss, one.steps.front().loss - 0.1);
  EXPECT_GT(many.steps.back().modelled_ns, 0);
}

class Mappings : public testing::TestWithParam<Mapping> {};

TEST_P(Mappings, LossesEqualOneRank) {
  static const TrainResult one = run(small());
  const Mapping& m = GetParam();
  Config c = small();
  c.parallel.tensor_model_parallel_size = m.tp;
  c.parallel.pipeline_model_parallel_size = m.pp;
  c.parallel.gpus = m.tp * m.pp * m.dp;
  c.parallel.sequence_parallel = m.sequence_parallel;
  c.parallel.use_distributed_optimizer = m.distributed_optimizer;
  expect_equal(run(c), one);
}

class Pipelines : public testing::TestWithParam<Pipeline> {};

TEST_P(Pipelines, LossesEqualOneRank) {
  Config c = small();
  c.model.num_layers = 4;
  c.train.micro_batch_size = 1;
  static const TrainResult one = run(c);
  const Pipeline& p = GetParam();
  c.parallel.tensor_model_parallel_size = p.tp;
  c.parallel.pipeline_model_parallel_size = p.pp;
  c.parallel.virtual_pipeline_model_parallel_size = p.vpp;
  c.parallel.gpus = p.tp * p.pp * p.dp;
  p.more(c);
  expect_equal(run(c), one);
}

INSTANTIATE_TEST_SUITE_P(
    All, Pipelines,
    testing::Values(Pipeline{"pp2_vpp2", 1, 2, 1, 2}, Pipeline{"tp2_pp2_vpp2_dp2", 2, 2, 2, 2},
                    Pipeline{"pp2_vpp2_group3", 1, 2, 1, 2,
                             [](Config& c) { c.parallel.microbatch_group_size_per_virtual_pipeline_stage = 3; }},
                    Pipeline{"pp2_vpp2_no_overlap", 1, 2, 1, 2, [](Config& c) { c.overlap.overlap_p2p_comm = false; }},
                    Pipeline{"pp2_in_turn", 1, 2, 1, 1, [](Config& c) { c.overlap.batch_p2p_comm = false; }},
                    Pipeline{"pp2_overlap", 1, 2, 1, 1, [](Config& c) { c.overlap.overlap_p2p_comm = true; }},
                    Pipeline{"pp3_both_accounted", 1, 3, 1, 1,
                             [](Config& c) {
                               c.parallel.account_for_embedding_in_pipeline_split = true;
                               c.parallel.account_for_loss_in_pipeline_split = true;
                             }},
                    Pipeline{"layout", 1, 2, 1, 1, [](Config& c) { c.parallel.pipeline_layout = "E|tt|t|tL"; }},
                    Pipeline{"layout_pp4_empty_chunk", 1, 4, 1, 2,
                             [](Config& c) { c.parallel.pipeline_layout = "E|t|t|||t|t|L"; }}),
    [](const auto& test) { return std::string(test.param.name); });

INSTANTIATE_TEST_SUITE_P(All, Mappings,
                         testing::Values(Mapping{"tp2_sp", 2, 1, 1, true, true}, Mapping{"tp2", 2, 1, 1, false, true},
                                         Mapping{"pp2", 1, 2, 1, false, true}, Mapping{"dp2", 1, 1, 2, false, true},
                                         Mapping{"dp2_replicated", 1, 1, 2, false, false},
                                         Mapping{"dp4", 1, 1, 4, false, true},
                                         Mapping{"tp2_pp2_dp2", 2, 2, 2, true, true},
                                         Mapping{"tp2_pp2_dp2_no_sp", 2, 2, 2, false, false}),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(Train, Bf16StaysNearFp32) {
  const TrainResult one = run(small());
  Config c = small();
  c.precision.recipe = Recipe::kBf16;
  const TrainResult bf16 = run(c);
  for (size_t i = 0; i < one.steps.size(); ++i)
    EXPECT_NEAR(bf16.steps[i].loss, one.steps[i].loss, 1e-2 * one.steps[i].loss);
  EXPECT_NE(bf16.steps.back().loss, one.steps.back().loss);
}

TEST(Train, Fp8CurrentStaysNearBf16AndQuantizesTheBlocksOnly) {
  Config c = small();
  c.precision.recipe = Recipe::kBf16;
  const TrainResult bf16 = run(c);
  c.precision.recipe = Recipe::kFp8Current;
  const TrainResult fp8 = run(c);
  for (size_t i = 0; i < bf16.steps.size(); ++i)
    EXPECT_NEAR(fp8.steps[i].loss, bf16.steps[i].loss, 2e-2 * bf16.steps[i].loss) << "step " << i;
  EXPECT_NE(fp8.steps.back().loss, bf16.steps.back().loss);

  const auto layout = resolve(c);
  ASSERT_TRUE(layout.has_value());
  const auto programs = build_programs(*layout);
  ASSERT_TRUE(programs.has_value());
  int64_t scaled = 0;
  for (const Segment& segment : programs->programs[0].segments) {
    for (const Op& op : segment.ops) {
      const bool block = op.path.starts_with("layers.");
      EXPECT_FALSE(block && op.kind->name == "gemm") << op.path << " stayed in bf16";
      EXPECT_FALSE(block && op.kind->name == "rmsnorm") << op.path << " writes a bf16 value that nobody reads";
      EXPECT_TRUE(block || op.kind->name != "gemm_scaled") << op.path << " lies outside the blocks";
      scaled += op.kind->name == "gemm_scaled" ? 1 : 0;
    }
  }
  // Four layers of weights a block: fprop, dgrad, and wgrad once overwriting and once accumulating.
  EXPECT_EQ(scaled, layout->model.num_layers * 4 * 4);
}

TEST(Train, FusionChangesTheProgramAndNotTheNumbers) {
  for (const Recipe recipe : {Recipe::kFp32, Recipe::kFp8Current}) {
    Config c = small();
    c.precision.recipe = recipe;
    const TrainResult apart = run(c);
    c.fusion.residual_fusion = true;
    c.fusion.cross_entropy_loss_fusion = true;
    const TrainResult fused = run(c);
    const double bound = recipe == Recipe::kFp32 ? 1e-5 : 1e-2;
    for (size_t i = 0; i < apart.steps.size(); ++i)
      EXPECT_NEAR(fused.steps[i].loss, apart.steps[i].loss, bound * apart.steps[i].loss) << "step " << i;
    const auto layout = resolve(c);
    ASSERT_TRUE(layout.has_value());
    const auto programs = build_programs(*layout);
    ASSERT_TRUE(programs.has_value());
    std::map<std::string_view, int64_t> kinds;
    for (const Segment& segment : programs->programs[0].segments)
      for (const Op& op : segment.ops) ++kinds[op.kind->name];
    EXPECT_EQ(kinds["cross_entropy_fused"], 1);
    EXPECT_EQ(kinds["cross_entropy_max"] + kinds["cross_entropy_sum"] + kinds["cross_entropy_grad"], 0);
    EXPECT_EQ(kinds["gemm_add"] + kinds["gemm_scaled_add"], 2 * layout->model.num_layers);
    // Two norms a layer, each with a first and a later form.
    EXPECT_EQ(kinds["rmsnorm_grad_add"], 2 * 2 * layout->model.num_layers);
    EXPECT_EQ(kinds["add"], 0);
  }
}

}  // namespace
}  // namespace mbb::trainer
