// Offload: results equal bit for bit, the host holds what the device does not, copies run ahead of their readers.
#include "trainer/passes/offload.h"

#include <set>

#include "trainer/models/small_families.h"
#include "trainer/ops/op_kind.h"
#include "trainer/passes/one_step_test.h"
#include "trainer/run/train.h"

namespace mbb::trainer {
namespace {

class Offload : public testing::TestWithParam<Small> {};

TEST_P(Offload, ResultsAreEqualBitForBit) {
  Config c = config_of(GetParam());
  c.model.num_layers = 3;
  const Stepped kept = step_once(c);
  for (const int64_t layers : {0, 1, 3})
    for (const auto granularity : {RecomputeGranularity::kNone, RecomputeGranularity::kFull}) {
      Config away = c;
      away.memory.cpu_offloading = true;
      away.memory.cpu_offloading_num_layers = layers;
      away.memory.recompute_granularity = granularity;
      const Stepped stepped = step_once(away);
      expect_equal(stepped, kept);
      EXPECT_GT(stepped.programs.plans[0].host_bytes, 0);
      away.memory.cpu_offloading_weights = true;
      const Stepped weights = step_once(away);
      expect_equal(weights, kept);
      EXPECT_GT(weights.programs.plans[0].host_bytes, stepped.programs.plans[0].host_bytes);
    }
}

INSTANTIATE_TEST_SUITE_P(All, Offload, testing::ValuesIn(kFamilies),
                         [](const auto& test) { return std::string(test.param.name); });

Config llama(int pp) {
  Config c;
  c.model.num_layers = 8;
  c.precision.recipe = Recipe::kBf16;
  c.parallel.pipeline_model_parallel_size = pp;
  return c;
}

StepPrograms programs_of(const Config& config) {
  const auto layout = resolve(config);
  EXPECT_TRUE(layout.has_value()) << (layout ? "" : format(layout.error()));
  auto programs = build_programs(*layout);
  EXPECT_TRUE(programs.has_value()) << (programs ? "" : format(programs.error()));
  return std::move(*programs);
}

// Bytes a micro-batch keeps of a layer, from its forward to its backward.
int64_t kept_bytes(const Program& program, const std::string& layer, Space space) {
  int64_t bytes = 0;
  for (const Tensor& t : program.tensors)
    if (t.path.starts_with(layer) && t.view_of == kNoTensor && t.scope == Scope::kMicroBatch && t.space == space)
      bytes += t.bytes();
  return bytes;
}

TEST(OffloadMemory, LayersMoveToTheHostWholeAndThePeakFalls) {
  for (const int pp : {1, 2}) {
    Config c = llama(pp);
    const StepPrograms kept = programs_of(c);
    c.memory.cpu_offloading = true;
    c.memory.cpu_offloading_num_layers = 2;
    const StepPrograms away = programs_of(c);
    const Program& before = kept.programs[0];
    const Program& after = away.programs[0];
    const int64_t layer = kept_bytes(before, "layers.1.", Space::kDevice);
    EXPECT_GT(layer, 0);
    for (const char* moved : {"layers.0.", "layers.1."}) {
      EXPECT_EQ(kept_bytes(after, moved, Space::kDevice), 0);
      EXPECT_EQ(kept_bytes(after, moved, Space::kHost), layer);
    }
    EXPECT_EQ(kept_bytes(after, "layers.2.", Space::kDevice), layer);
    EXPECT_EQ(kept_bytes(after, "layers.2.", Space::kHost), 0);
    // The host holds what every micro-batch in flight had on the device.
    int64_t host = 0;
    for (const LiveBuffer& buffer : away.plans[0].buffers)
      if (after.tensor(buffer.tensor).space == Space::kHost) host += buffer.bytes;
    EXPECT_EQ(host, 2 * layer * pp);
    EXPECT_GE(away.plans[0].host_bytes, host);
    // What the device saves: both layers of all micro-batches in flight, but what is being copied at the peak.
    const int64_t saved = kept.plans[0].peak_live_bytes - away.plans[0].peak_live_bytes;
    EXPECT_LE(saved, 2 * layer * pp);
    EXPECT_GE(saved, 2 * layer * pp - layer);
  }
}

TEST(OffloadMemory, WeightsOfALayerLeaveTheDevice) {
  Config c = llama(1);
  c.memory.cpu_offloading = true;
  c.memory.cpu_offloading_num_layers = 4;
  const StepPrograms here = programs_of(c);
  c.memory.cpu_offloading_weights = true;
  const StepPrograms away = programs_of(c);
  const auto weights = [](const StepPrograms& programs, Space space) {
    int64_t bytes = 0;
    for (const LiveBuffer& buffer : programs.plans[0].buffers) {
      const Tensor& t = programs.programs[0].tensor(buffer.tensor);
      if (t.category == Category::kWeight && t.space == space) bytes += buffer.bytes;
    }
    return bytes;
  };
  int64_t layers = 0;
  for (const Tensor& t : here.programs[0].tensors)
    for (const char* layer : {"layers.0.", "layers.1.", "layers.2.", "layers.3."})
      if (t.path.starts_with(layer) && t.category == Category::kWeight && t.main_grad != kNoTensor) layers += t.bytes();
  EXPECT_EQ(weights(here, Space::kHost), 0);
  EXPECT_EQ(weights(away, Space::kHost), layers);
  EXPECT_EQ(weights(away, Space::kDevice), weights(here, Space::kDevice) - layers);
  EXPECT_LT(away.plans[0].arena_bytes, here.plans[0].arena_bytes);
}

TEST(OffloadTraining, WeightsOnTheHostTrainAsOnTheDevice) {
  Config c = config_of(kFamilies[2]);
  c.train.train_iters = 4;
  const auto losses = [](const Config& config) {
    const auto layout = resolve(config);
    EXPECT_TRUE(layout.has_value());
    const auto programs = build_programs(*layout);
    EXPECT_TRUE(programs.has_value());
    const auto sample = [](int64_t index, std::span<int32_t> tokens) -> Status {
      for (size_t i = 0; i < tokens.size(); ++i)
        tokens[i] = static_cast<int32_t>((static_cast<size_t>(index) * 7 + i * 3) % 64);
      return {};
    };
    const auto result = train(*layout, *programs, sample);
    EXPECT_TRUE(result.has_value()) << (result ? "" : format(result.error()));
    std::vector<double> all;
    for (const StepReport& step : result->steps) all.insert(all.end(), {step.loss, step.grad_norm});
    return all;
  };
  for (const int dp : {1, 2}) {
    c.parallel.gpus = dp;
    Config away = c;
    away.memory.cpu_offloading = away.memory.cpu_offloading_weights = true;
    EXPECT_EQ(losses(away), losses(c)) << dp << " data-parallel ranks";
  }
}

TEST(OffloadProgram, CopiesFollowTheirWritersAndRunALayerAhead) {
  Config c = llama(1);
  c.memory.cpu_offloading = true;
  c.memory.cpu_offloading_num_layers = 3;
  const StepPrograms programs = programs_of(c);
  const Program& program = programs.programs[0];
  const auto at = [&](size_t segment, const std::string& path) {
    const auto& ops = program.segments[segment].ops;
    for (size_t o = 0; o < ops.size(); ++o)
      if (ops[o].path == path) return static_cast<int>(o);
    ADD_FAILURE() << "no op " << path;
    return -1;
  };
  EXPECT_EQ(at(0, "layers.1.mlp.act.out.offload"), at(0, "layers.1.mlp.act.fwd") + 1);
  EXPECT_LT(at(1, "layers.1.mlp.act.out.reload"), at(1, "layers.2.mlp.fc2.dgrad"));
  EXPECT_GT(at(1, "layers.1.mlp.act.out.reload"), at(1, "layers.3.mlp.fc2.dgrad"));
  for (const Segment& segment : program.segments)
    for (const Op& op : segment.ops) EXPECT_EQ(op.kind->name == "copy", op.stream == Stream::kCopy) << op.path;
}

TEST(OffloadRules, LayersWithoutOffloadingAreRefused) {
  Config c = llama(1);
  c.memory.cpu_offloading_num_layers = 2;
  const auto layout = resolve(c);
  ASSERT_FALSE(layout.has_value());
  EXPECT_EQ(layout.error().what, "memory.cpu_offloading_num_layers is given, and memory.cpu_offloading is off");
}

TEST(OffloadRules, MoreLayersThanAChunkHasAreRefused) {
  Config c = llama(1);
  c.model.num_layers = 4;
  c.memory.cpu_offloading = true;
  c.memory.cpu_offloading_num_layers = 4;
  EXPECT_TRUE(resolve(c).has_value());
  c.memory.cpu_offloading_num_layers = 5;
  const auto layout = resolve(c);
  ASSERT_FALSE(layout.has_value());
  EXPECT_EQ(layout.error().what, "memory.cpu_offloading_num_layers = 5 is more than the 4 layers of a chunk");
}

}  // namespace
}  // namespace mbb::trainer
