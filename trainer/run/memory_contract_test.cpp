// The memory plan against what a step does to its arena, refusal before anything runs, and the culprit of a NaN.
#include "trainer/comm/local/run_ranks.h"
#include "trainer/execute/cpu/cpu_rank.h"
#include "trainer/models/small_families.h"
#include "trainer/passes/one_step_test.h"
#include "trainer/program/sample_programs_test.h"

namespace mbb::trainer {
namespace {

using Arenas = std::map<Space, std::vector<std::byte>>;
constexpr Space kSpaces[] = {Space::kDevice, Space::kHost};

// Every rank's arenas after one step that began with `poison` everywhere.
std::vector<Arenas> arenas_after_a_step(const Layout& layout, const StepPrograms& programs, uint8_t poison) {
  const int ranks = layout.mesh.world_size();
  std::vector<Arenas> arenas(static_cast<size_t>(ranks));
  const Status ran = run_ranks(ranks, [&](World& world) -> Status {
    const auto c = static_cast<size_t>(layout.mesh.rank_class_index(world.rank()));
    MB_ASSIGN(auto rank, CpuRank::create(programs.programs[c], programs.plans[c], layout.mesh, world, 1234, poison));
    MB_TRY(rank->step(one_step_input(layout, layout.mesh.coordinates(world.rank()).dp)));
    for (const Space space : kSpaces) {
      const auto bytes = rank->arena(space);
      arenas[static_cast<size_t>(world.rank())][space].assign(bytes.begin(), bytes.end());
    }
    return {};
  });
  EXPECT_TRUE(ran.has_value()) << (ran ? "" : format(ran.error()));
  return arenas;
}

void expect_touched(const Program& program, const MemoryPlan& plan, Space space, const std::vector<std::byte>& a,
                    const std::vector<std::byte>& b) {
  ASSERT_EQ(static_cast<int64_t>(a.size()), space == Space::kHost ? plan.host_bytes : plan.arena_bytes);
  std::vector<bool> planned(a.size());
  for (const LiveBuffer& buffer : plan.buffers)
    if (program.tensor(buffer.tensor).space == space) std::fill_n(planned.begin() + buffer.offset, buffer.bytes, true);
  int64_t beside = 0, untouched = 0;
  for (size_t i = 0; i < planned.size(); ++i) {
    const bool touched = a[i] == b[i];
    beside += touched && !planned[i] ? 1 : 0;
    untouched += !touched && planned[i] ? 1 : 0;
  }
  EXPECT_EQ(beside, 0) << "bytes written outside of every planned buffer";
  EXPECT_EQ(untouched, 0) << "planned bytes that nobody wrote";
}

// What a step writes does not depend on what was there before: bytes that differ afterwards were not written.
void expect_touched_bytes_are_the_plan(const Config& config) {
  const Built built = build(config);
  SCOPED_TRACE(mapping_of(built));
  const auto a = arenas_after_a_step(built.layout, built.programs, 0xff);
  const auto b = arenas_after_a_step(built.layout, built.programs, 0x55);
  for (size_t rank = 0; rank < a.size(); ++rank) {
    const auto c = static_cast<size_t>(built.layout.mesh.rank_class_index(static_cast<int>(rank)));
    for (const Space space : kSpaces)
      expect_touched(built.programs.programs[c], built.programs.plans[c], space, a[rank].at(space), b[rank].at(space));
  }
}

TEST(MemoryPlanRun, AStepTouchesExactlyThePlannedBytes) {
  std::mt19937 random(11);
  for (int i = 0; i < 6; ++i) {
    Config config = random_mapping(random);
    if (i % 3 == 1) config.memory.recompute_granularity = RecomputeGranularity::kFull;
    if (i % 3 == 2) config.fusion.residual_fusion = true;
    config.memory.cpu_offloading = i % 2 == 0;
    config.memory.expandable_segments = i % 4 < 2;
    config.memory.avoid_record_streams = i % 3 == 0;
    expect_touched_bytes_are_the_plan(config);
  }
}

TEST(MemoryPlanRun, HoldsForEveryFamily) {
  for (const Small& family : kFamilies) {
    SCOPED_TRACE(family.name);
    expect_touched_bytes_are_the_plan(config_of(family));
  }
}

// Sizes that every recipe can block.
TEST(MemoryPlanRun, HoldsForEveryRecipeStateAndAdapter) {
  Config c = config_of(kFamilies[2]);
  c.model.hidden_size = c.model.ffn_hidden_size = c.train.seq_length = 128;
  c.model.kv_channels = 32;
  c.train.micro_batch_size = 1;
  c.train.global_batch_size = 2;
  for (const Recipe recipe : {Recipe::kBf16, Recipe::kFp8Delayed, Recipe::kFp8Current, Recipe::kFp8Blockwise,
                              Recipe::kMxfp8, Recipe::kNvfp4}) {
    SCOPED_TRACE(static_cast<int>(recipe));
    Config with = c;
    with.precision.recipe = recipe;
    with.precision.fp8_param = recipe == Recipe::kFp8Current;
    with.optimizer.use_precision_aware_optimizer = recipe != Recipe::kFp8Current;
    with.optimizer.main_params_dtype = recipe == Recipe::kFp8Delayed ? StateType::kFp16 : StateType::kFp32;
    with.optimizer.exp_avg_dtype = recipe == Recipe::kMxfp8 ? StateType::kFp8 : StateType::kBf16;
    if (recipe == Recipe::kFp8Current) with.optimizer.exp_avg_dtype = StateType::kFp32;
    if (recipe == Recipe::kBf16) with.memory.lora_rank = 4;
    expect_touched_bytes_are_the_plan(with);
  }
}

TEST(MemoryLimit, RefusesBeforeAnythingRuns) {
  Config c = mapped(1, 2, 1);
  c.memory.limit_gib = 1e-4;
  const Built built = build(c);
  const auto result = train(built.layout, built.programs, [](int64_t, std::span<int32_t>) -> Status {
    ADD_FAILURE() << "no sample may be asked for";
    return {};
  });
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code, ErrorCode::kOutOfMemory);
  EXPECT_TRUE(result.error().what.starts_with("stage 0: the step needs ")) << result.error().what;
  EXPECT_NE(result.error().what.find("104.9 KiB"), std::string::npos) << result.error().what;
  // The lower of limit and device counts.
  Config wide = c;
  wide.memory.limit_gib = 1;
  const Built other = build(wide);
  EXPECT_TRUE(check_memory(other.layout, other.programs).has_value());
  EXPECT_TRUE(check_memory(other.layout, other.programs, int64_t{1} << 30).has_value());
  EXPECT_FALSE(check_memory(other.layout, other.programs, 1000).has_value());
}

std::string nan_error(Config config) {
  const Built built = build(config);
  const auto result = train(built.layout, built.programs, [&](int64_t index, std::span<int32_t> tokens) -> Status {
    for (size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = static_cast<int32_t>((static_cast<size_t>(index) * 7 + i * 3) % 64);
    return {};
  });
  return result ? "trained" : result.error().what;
}

// Weights so large that the first product of two of them leaves fp32: attention's scores, kept as log-sum-exp.
TEST(NanTrace, NamesTheFirstOpItsRankAndItsMicroBatch) {
  for (const int tp : {1, 2})
    for (const int pp : {1, 2}) {
      Config c = mapped(tp, pp, 1);
      c.optimizer.init_method_std = 1e25;
      const std::string error = nan_error(c);
      EXPECT_NE(error.find("step 0: loss "), std::string::npos) << error;
      EXPECT_NE(error.find("the first such value is written by op layers.0.attn.core.fwd (layers.0.attn.core.out.1, "
                           "rank 0, micro-batch 0)"),
                std::string::npos)
          << error;
      c.debug.nan_trace = false;
      EXPECT_EQ(nan_error(c).find("first such value"), std::string::npos);
    }
}

}  // namespace
}  // namespace mbb::trainer
