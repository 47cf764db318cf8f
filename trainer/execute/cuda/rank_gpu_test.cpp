// What a rank on a real device tells of itself: tensors read back, the op of a NaN, memory, and trouble.
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <tuple>

#include "trainer/comm/places.h"
#include "trainer/data/rng.h"
#include "trainer/execute/executor.h"
#include "trainer/execute/graph_memory.h"
#include "trainer/models/small_families.h"
#include "trainer/ops/cuda/gpu_fixture_test.h"
#include "trainer/run/precision_rules.h"
#include "trainer/run/train.h"

namespace mbb::trainer::cuda {
namespace {

Status sample(int64_t index, std::span<int32_t> tokens) {
  const RandomStream random(11, "rank.tokens", 0);
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<int32_t>(random.below(64, static_cast<uint64_t>(index), i));
  return {};
}

Config small() {
  Config c;
  sizes(c, "llama3-8b", 2);
  c.train.seq_length = 32;
  c.train.global_batch_size = 2;
  c.train.train_iters = 3;
  return c;
}

Result<TrainResult> train_small(const Config& c, const TrainOptions& options = {}) {
  MB_ASSIGN(const Layout layout, resolve(c));
  MB_ASSIGN(const StepPrograms programs, build_programs(layout));
  return train(layout, programs, sample, options);
}

using RankOnDevice = GpuTest;

struct Gradients {
  std::map<std::string, std::vector<double>> of;
  double loss = 0;
};

Gradients gradients_of(Config c, bool device) {
  c.debug.record_gradients = true;
  c.train.train_iters = 1;
  if (device) c.host.device = trainer::Device::kCuda;
  Gradients all;
  TrainOptions options;
  options.on_gradient = [&](const MeshCoordinates&, int64_t, const trainer::Tensor& weight, int64_t first,
                            std::span<const float> values) {
    auto& mine = all.of[weight.path];
    mine.resize(std::max(mine.size(), static_cast<size_t>(first) + values.size()));
    std::copy(values.begin(), values.end(), mine.begin() + first);
  };
  const auto result = train_small(c, options);
  EXPECT_TRUE(result.has_value()) << format(result.error());
  if (result) all.loss = result->steps[0].loss;
  return all;
}

TEST_F(RankOnDevice, GradientsAreReadBackAsTheOraclesAre) {
  Config fp32 = small(), fp8 = small();
  fp8.model.hidden_size = 64, fp8.model.ffn_hidden_size = 128, fp8.model.kv_channels = 16;
  fp8.precision.recipe = Recipe::kFp8Current;
  Config fp8_param = fp8;
  fp8_param.precision.fp8_param = true;
  // Gradients in E5M2 have two bits behind the point, and round the other way where their inputs differ in a last bit.
  for (const auto& [config, bound] : {std::pair{fp32, 1e-4}, {fp8, 0.1}, {fp8_param, 0.1}}) {
    const Gradients oracle = gradients_of(config, false), device = gradients_of(config, true);
    ASSERT_GT(oracle.of.size(), 10U);
    EXPECT_NEAR(device.loss, oracle.loss, 1e-3 * oracle.loss);
    for (const auto& [path, reference] : oracle.of)
      EXPECT_LT(relative_error(device.of.at(path), reference), bound) << path << " " << recipe_name(config);
  }
}

// What a report of a hang names, of a rank that is alone: its place in the last step, whether graphs ran or ops.
TEST_F(RankOnDevice, TellsWhereItStands) {
  for (const bool graphs : {false, true}) {
    Config c = small();
    c.host.device = trainer::Device::kCuda;
    c.host.enable_cuda_graph = graphs;
    TrainOptions options;
    options.places_file =
        (std::filesystem::temp_directory_path() / fmt::format("places.{}.{}", getpid(), graphs)).string();
    const auto result = train_small(c, options);
    ASSERT_TRUE(result.has_value()) << format(result.error());
    const auto places = read_places(options.places_file);
    ASSERT_TRUE(places.has_value()) << format(places.error());
    EXPECT_EQ(*places, "rank 0 at the end of a step (call 2)");
    std::filesystem::remove(options.places_file);
  }
}

// A learning rate that blows the weights up in the first step: the second one overflows, at the same op with graphs and
// without.
TEST_F(RankOnDevice, NamesTheOpThatMadeTheFirstNaN) {
  std::set<std::string> said;
  for (const bool graphs : {false, true}) {
    Config c = small();
    c.optimizer.lr = 1e30, c.optimizer.min_lr = 1e30, c.optimizer.lr_warmup_iters = 0;
    c.host.device = trainer::Device::kCuda;
    c.host.enable_cuda_graph = graphs;
    const auto result = train_small(c);
    ASSERT_FALSE(result.has_value());
    EXPECT_EQ(result.error().code, ErrorCode::kNumerics) << format(result.error());
    const std::string& what = result.error().what;
    EXPECT_NE(what.find("the first such value is written by op "), std::string::npos) << what;
    said.insert(what);
  }
  EXPECT_EQ(said.size(), 1U) << *said.begin();
}

constexpr int64_t kPage = int64_t{2} << 20;
// The driver gives whole pages; allocations below one share them.
int64_t on_pages(std::vector<int64_t> allocations) {
  int64_t pages = 0, shared = 0;
  for (const int64_t bytes : allocations) {
    if (bytes < kPage)
      shared += bytes;
    else
      pages += (bytes + kPage - 1) / kPage;
  }
  return (pages + (shared + kPage - 1) / kPage) * kPage;
}

// What the driver takes for a rank, given what the plan has and what the rank names beside it: a GEMM workspace a
// stream, scratch memory, tables, the pages that end an arena, and what captured graphs took beyond what the driver
// kept of earlier ones. Pinned host memory is none of the device's.
int64_t taken(const MemoryPlan& plan, const std::vector<OutsideBytes>& outside, std::string* said) {
  std::vector<int64_t> allocations;
  int64_t arena = 0;
  if (plan.options.one_range)
    arena = plan.arena_bytes;
  else
    allocations.assign(plan.slab_bytes.begin(), plan.slab_bytes.end());
  *said = fmt::format("plan {}", plan.arena_bytes);
  int64_t graphs = 0;
  for (const OutsideBytes& one : outside) {
    *said += fmt::format(", {} {}", one.what, one.bytes);
    if (one.what == "driver and libraries") continue;
    if (one.what == "pages of the arena beyond the plan")
      arena += one.bytes;
    else if (one.what == kCapturedGraphs)
      graphs = one.bytes;
    else
      allocations.push_back(one.bytes);
  }
  EXPECT_EQ(arena % kPage, 0);
  return arena + graphs + on_pages(std::move(allocations));
}

struct MemoryCase {
  const char* name;
  void (*set)(Config&);
};
void PrintTo(const MemoryCase& memory, std::ostream* out) {
  *out << memory.name;
}

void mixtral(Config& c) {
  sizes(c, "mixtral-8x7b", 2);
  experts(c, 4, 2);
  c.model.hidden_size = 512, c.model.ffn_hidden_size = c.model.moe_ffn_hidden_size = 512;
  c.model.kv_channels = 64;
}
void latent(Config& c) {
  c.model = Config{}.model;
  deepseek_sixteens(c);
  c.train.seq_length = 64;
}

const MemoryCase kMemoryCases[] = {
    {"bf16", [](Config&) {}},
    {"slabs", [](Config& c) { c.memory.expandable_segments = false; }},
    {"op_by_op", [](Config& c) { c.host.enable_cuda_graph = false; }},
    {"fp8_current", [](Config& c) { c.precision.recipe = Recipe::kFp8Current; }},
    {"fp8_param",
     [](Config& c) {
       c.precision.recipe = Recipe::kFp8Current;
       c.precision.fp8_param = true;
     }},
    {"fp8_blockwise", [](Config& c) { c.precision.recipe = Recipe::kFp8Blockwise; }},
    {"mxfp8", [](Config& c) { c.precision.recipe = Recipe::kMxfp8; }},
    {"mixtral", mixtral},
    {"mixtral_slabs",
     [](Config& c) {
       mixtral(c);
       c.memory.expandable_segments = false;
     }},
    {"mixtral_fp8",
     [](Config& c) {
       mixtral(c);
       c.precision.recipe = Recipe::kFp8Current;
     }},
    {"latent_attention", latent},
    {"latent_attention_blockwise",
     [](Config& c) {
       latent(c);
       c.precision.recipe = Recipe::kFp8Blockwise;
     }},
    {"recompute", [](Config& c) { c.memory.recompute_granularity = RecomputeGranularity::kFull; }},
    {"offload",
     [](Config& c) {
       c.memory.cpu_offloading = true;
       c.memory.cpu_offloading_num_layers = 1;
     }},
    {"precision_aware_optimizer",
     [](Config& c) {
       c.optimizer.use_precision_aware_optimizer = true;
       c.optimizer.exp_avg_dtype = c.optimizer.exp_avg_sq_dtype = StateType::kBf16;
     }},
    {"fp8_moments",
     [](Config& c) {
       c.optimizer.use_precision_aware_optimizer = true;
       c.optimizer.exp_avg_dtype = c.optimizer.exp_avg_sq_dtype = StateType::kFp8;
     }},
};

class MemoryOnDevice : public GpuTest, public testing::WithParamInterface<MemoryCase> {};

// What the driver counts for this process is the plan and what is named, nothing grows unnamed while it trains. To a
// page: one that something before this holds may have room for what is small.
TEST_P(MemoryOnDevice, IsThePlanAndNamedCosts) {
  Config c = small();
  c.model.hidden_size = 512, c.model.ffn_hidden_size = 2048, c.model.kv_channels = 64;
  c.precision.recipe = Recipe::kBf16;
  GetParam().set(c);
  c.host.device = trainer::Device::kCuda;
  const auto layout = resolve(c);
  ASSERT_TRUE(layout.has_value()) << format(layout.error());
  const auto programs = build_programs(*layout);
  ASSERT_TRUE(programs.has_value()) << format(programs.error());
  // Kernels of the libraries are loaded when they first run, and stay.
  ASSERT_TRUE(train(*layout, *programs, sample).has_value());
  size_t free_before = 0, free_now = 0, total = 0;
  ASSERT_EQ(cudaMemGetInfo(&free_before, &total), cudaSuccess);
  std::vector<int64_t> used;
  TrainOptions options;
  options.on_step = [&](const StepReport&) {
    EXPECT_EQ(cudaMemGetInfo(&free_now, &total), cudaSuccess);
    used.push_back(static_cast<int64_t>(free_before) - static_cast<int64_t>(free_now));
  };
  const auto result = train(*layout, *programs, sample, options);
  ASSERT_TRUE(result.has_value()) << format(result.error());
  std::string said;
  const int64_t expected = taken(programs->plans[0], result->outside, &said);
  EXPECT_GE(used.back(), programs->plans[0].arena_bytes) << said;
  EXPECT_LE(std::abs(used.back() - expected), kPage) << "used " << used.back() << ", named " << said;
  printf("%s: used %lld, expected %lld: %s\n", GetParam().name, static_cast<long long>(used.back()),
         static_cast<long long>(expected), said.c_str());
}
INSTANTIATE_TEST_SUITE_P(All, MemoryOnDevice, testing::ValuesIn(kMemoryCases),
                         [](const auto& test) { return std::string(test.param.name); });

// What does not fit is refused by the plan's words before anything is allocated; what does runs afterwards.
TEST_F(RankOnDevice, TooLargeIsThePlansRefusal) {
  Config c = small();
  c.host.device = trainer::Device::kCuda;
  ASSERT_TRUE(train_small(c).has_value());
  size_t free_before = 0, free_after = 0, total = 0;
  ASSERT_EQ(cudaMemGetInfo(&free_before, &total), cudaSuccess);
  Config large = c;
  large.model.num_layers = 8;
  large.model.hidden_size = 16384, large.model.ffn_hidden_size = 65536, large.model.kv_channels = 4096;
  for (const bool one_range : {true, false}) {
    large.memory.expandable_segments = one_range;
    const auto refused = train_small(large);
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code, ErrorCode::kOutOfMemory);
    EXPECT_NE(refused.error().what.find("the step needs "), std::string::npos) << format(refused.error());
    EXPECT_EQ(format(refused.error()).find("cudaError"), std::string::npos) << format(refused.error());
  }
  ASSERT_EQ(cudaMemGetInfo(&free_after, &total), cudaSuccess);
  EXPECT_LE(free_before, free_after + (size_t{64} << 20));  // what a context keeps
  EXPECT_TRUE(train_small(c).has_value());
}

// In the result's notes, which a bundle keeps: what was chosen by which times, and what was asked for in vain.
TEST_F(RankOnDevice, SaysWhatComputesAttentionAndWhy) {
  Config c = small();
  c.model.hidden_size = 128, c.model.ffn_hidden_size = 256, c.model.kv_channels = 64;
  c.host.device = trainer::Device::kCuda;
  const auto note = [&](const char* part) {
    const auto result = train_small(c);
    EXPECT_TRUE(result.has_value()) << format(result.error());
    if (!result) return false;
    return std::any_of(result->notes.begin(), result->notes.end(), [&](const std::string& text) {
      return text.starts_with("attention backward of 32 x 1") && text.find(part) != std::string::npos;
    });
  };
  EXPECT_FALSE(note(""));  // fp32, and nothing asked for
  c.fusion.attention_backend = AttentionBackend::kFused;
  EXPECT_TRUE(note("fp32: our general kernel computes it"));
  c.precision.recipe = Recipe::kBf16;
  c.fusion.attention_backend = AttentionBackend::kAuto;
  EXPECT_TRUE(note(" ms: "));
  c.host.deterministic_mode = true;
  EXPECT_TRUE(note("deterministic, not timed here: "));
  // Heads that no fused kernel has, whatever is asked for.
  c.model.kv_channels = 20;
  for (const bool deterministic : {true, false}) {
    c.host.deterministic_mode = deterministic;
    for (const AttentionBackend backend :
         {AttentionBackend::kAuto, AttentionBackend::kFused, AttentionBackend::kFlash}) {
      c.fusion.attention_backend = backend;
      EXPECT_TRUE(note("heads of 20 (this kernel knows 64 and 128): our general kernel computes it")) << name(backend);
    }
  }
}

// What tuning the first stage's program writes into the file of c, which goes after `meanwhile`; empty where it failed.
template <typename Meanwhile>
std::string tuned_file(Config& c, Program& program, Meanwhile&& meanwhile) {
  const std::filesystem::path file = std::filesystem::temp_directory_path() / fmt::format("mbb-tuned-{}", getpid());
  c.host.gemm_tuning_file = file.string();
  const auto layout = resolve(c);
  EXPECT_TRUE(layout.has_value()) << format(layout.error());
  if (!layout) return "";
  auto programs = build_programs(*layout);
  EXPECT_TRUE(programs.has_value()) << format(programs.error());
  if (!programs) return "";
  const Status tuned = tune_gemms(c.host, programs->programs[0], programs->plans[0], layout->mesh, 7, true);
  EXPECT_TRUE(tuned.has_value()) << format(tuned.error());
  meanwhile();
  std::ifstream stream(file);
  const std::string text(std::istreambuf_iterator<char>(stream), {});
  std::filesystem::remove(file);
  program = std::move(programs->programs[0]);
  return tuned ? text : "";
}

// Of one launch and two, whatever lies in an op's inputs while all of a step are tuned.
TEST_F(RankOnDevice, EveryQuantizationIsChosenByTime) {
  Config c = small();
  c.model.num_layers = 3;
  c.model.hidden_size = 256, c.model.ffn_hidden_size = 512, c.model.kv_channels = 64;
  c.train.seq_length = 128;
  c.precision.recipe = Recipe::kFp8Current;
  c.host.device = trainer::Device::kCuda;
  Program program;
  const std::string text = tuned_file(c, program, [] {});
  ASSERT_FALSE(text.empty());
  std::set<std::string> kinds;
  for (const Segment& segment : program.segments) {
    for (const Op& op : segment.ops) {
      const std::string kind(op.kind->name);
      if (!kind.ends_with("quantize")) continue;
      kinds.insert(kind);
      const Shape& shape = program.tensor(kind == "swiglu_quantize" ? op.out[0] : op.in[0]).shape;
      EXPECT_NE(text.find(fmt::format("\n{} of {} x {} to ", kind, shape.rows(), shape.cols())), std::string::npos)
          << op.path;
    }
  }
  EXPECT_EQ(kinds, (std::set<std::string>{"quantize", "rmsnorm_quantize", "swiglu_grad_quantize", "swiglu_quantize"}));
}

// Products of blocks are timed like any other, and what is chosen gives the gradients that the library's first choice
// does.
TEST_F(RankOnDevice, ProductsOfBlocksAreChosenByTime) {
  Config c = small();
  c.model.hidden_size = 256, c.model.ffn_hidden_size = 512, c.model.kv_channels = 64;
  c.train.seq_length = 128;
  c.precision.recipe = Recipe::kFp8Blockwise;
  c.host.device = trainer::Device::kCuda;
  c.host.deterministic_mode = true;
  const Gradients first_choice = gradients_of(c, true);
  c.host.deterministic_mode = false;
  Program program;
  Gradients chosen;
  const std::string text = tuned_file(c, program, [&] { chosen = gradients_of(c, true); });
  ASSERT_FALSE(text.empty());
  std::set<std::string> products;
  for (const Segment& segment : program.segments) {
    for (const Op& op : segment.ops) {
      if (op.kind->name != "gemm_blocks") continue;
      const Shape &a = program.tensor(op.in[0]).shape, &b = program.tensor(op.in[1]).shape;
      const std::string product = fmt::format("\nm{} n{} k{} nt e4m3 e4m3 ", a.rows(), b.rows(), a.cols());
      products.insert(product);
      EXPECT_NE(text.find(product), std::string::npos) << op.path << "\n" << text;
    }
  }
  EXPECT_GT(products.size(), 6U);
  EXPECT_NE(text.find(" blocks 1x128·128x128"), std::string::npos) << text;
  EXPECT_NE(text.find(" blocks 1x128·1x128"), std::string::npos) << text;
  EXPECT_NEAR(chosen.loss, first_choice.loss, 1e-3 * first_choice.loss);
  ASSERT_GT(first_choice.of.size(), 10U);
  for (const auto& [path, reference] : first_choice.of)
    EXPECT_LT(relative_error(chosen.of.at(path), reference), 0.1) << path;
}

// In a process of its own: nothing runs on a device after a trap.
void train_into_a_trap(bool graphs) {
  Config c = small();
  c.host.device = trainer::Device::kCuda;
  c.host.enable_cuda_graph = graphs;
  c.debug.inject_fault = "trap@0";
  int steps = 0;
  TrainOptions options;
  options.on_step = [&](const StepReport&) { ++steps; };
  const auto result = train_small(c, options);
  fmt::print("ENDED with {} steps: {}\n", steps, result ? "well" : format(result.error()));
  std::fflush(stdout);
  _exit(0);
}
TEST(Trap, DISABLED_OpByOp) {
  train_into_a_trap(false);
}
TEST(Trap, DISABLED_InAGraph) {
  train_into_a_trap(true);
}

// What the device never recovers from ends the cell with the step, what ran and what the driver says; the process ends
// in order.
TEST_F(RankOnDevice, ATrapEndsTheCellWithWhatWasRunning) {
  for (const char* test : {"OpByOp", "InAGraph"}) {
    char own[4096] = {};
    ASSERT_GT(readlink("/proc/self/exe", own, sizeof own - 1), 0);
    const std::string command = fmt::format(
        "env -u GTEST_TOTAL_SHARDS -u GTEST_SHARD_INDEX '{}' --gtest_also_run_disabled_tests "
        "--gtest_filter=Trap.DISABLED_{} 2>&1",
        own, test);
    FILE* const pipe = popen(command.c_str(), "r");
    ASSERT_NE(pipe, nullptr);
    std::string said;
    for (char line[1024]; std::fgets(line, sizeof line, pipe) != nullptr;) said += line;
    EXPECT_EQ(pclose(pipe), 0) << said;
    EXPECT_NE(said.find("ENDED with 1 steps: "), std::string::npos) << said;
    EXPECT_NE(said.find("step 1 on GPU 0: "), std::string::npos) << said;  // whatever of it met the trap first
    EXPECT_NE(said.find("(cudaError"), std::string::npos) << said;
  }
}

// What the driver takes for a step's graphs is that figure an op, whatever the model: a plan knows it before. Every
// case takes far more than the one before it: the driver may have kept what that gave back.
TEST_F(RankOnDevice, GraphsTakeTheirBytesAnOp) {
  for (const auto& [layers, micro_batches, recipe] : {std::tuple{4, 16, Recipe::kBf16},
                                                      {16, 16, Recipe::kBf16},
                                                      {16, 64, Recipe::kBf16},
                                                      {16, 128, Recipe::kFp8Current}}) {
    Config c = small();
    c.model.num_layers = layers;
    c.model.hidden_size = 128, c.model.ffn_hidden_size = 256, c.model.kv_channels = 64;
    c.train.micro_batch_size = 1, c.train.global_batch_size = micro_batches;
    c.precision.recipe = recipe;
    c.host.device = trainer::Device::kCuda;
    for (const bool graphs : {false, true}) {
      c.host.enable_cuda_graph = graphs;
      const auto layout = resolve(c);
      ASSERT_TRUE(layout.has_value()) << format(layout.error());
      const auto programs = build_programs(*layout);
      ASSERT_TRUE(programs.has_value()) << format(programs.error());
      const auto result = train(*layout, *programs, sample);
      ASSERT_TRUE(result.has_value()) << format(result.error());
      int64_t taken = 0;
      for (const OutsideBytes& one : result->outside)
        if (one.what == kCapturedGraphs) taken += one.bytes;
      const MemoryPlan& plan = programs->plans[0];
      printf("%d layers, %d micro-batches, %s: %lld ops in graphs, %lld bytes, %.0f an op; planned %lld\n", layers,
             micro_batches, recipe_name(c).c_str(), static_cast<long long>(plan.graph_ops),
             static_cast<long long>(taken),
             plan.graph_ops > 0 ? static_cast<double>(taken) / static_cast<double>(plan.graph_ops) : 0.0,
             static_cast<long long>(plan.graph_bytes));
      if (!graphs) {
        EXPECT_EQ(taken, 0);
        EXPECT_EQ(plan.graph_ops, 0);
        continue;
      }
      EXPECT_GT(plan.graph_ops, 10 * layers * micro_batches);
      // The driver takes pages of 2 MiB and keeps some ready.
      const int64_t pages = int64_t{8} << 20;
      EXPECT_LT(plan.graph_bytes, 2 * taken + pages);
      EXPECT_LT(taken, 2 * plan.graph_bytes + pages);
    }
  }
}

// The same losses, bit by bit, in two runs: no atomics decide an order.
TEST_F(RankOnDevice, TwoRunsAreOneBitByBit) {
  for (const Recipe recipe : {Recipe::kFp32, Recipe::kBf16, Recipe::kFp8Current}) {
    Config c = small();
    c.model.hidden_size = 128, c.model.ffn_hidden_size = 256, c.model.kv_channels = 64;
    c.precision.recipe = recipe;
    c.host.deterministic_mode = true;
    c.host.device = trainer::Device::kCuda;
    const auto first = train_small(c), second = train_small(c);
    ASSERT_TRUE(first.has_value()) << format(first.error());
    ASSERT_TRUE(second.has_value()) << format(second.error());
    for (size_t i = 0; i < first->steps.size(); ++i) {
      EXPECT_EQ(first->steps[i].loss, second->steps[i].loss) << i;
      EXPECT_EQ(first->steps[i].grad_norm, second->steps[i].grad_norm) << i;
    }
  }
}

}  // namespace
}  // namespace mbb::trainer::cuda
