// The memory plan against what a step does to its arena, refusal before anything runs, and the culprit of a NaN.
#include "trainer/comm/local/run_ranks.h"
#include "trainer/execute/cpu/cpu_rank.h"
#include "trainer/models/small_families.h"
#include "trainer/passes/one_step_test.h"
#include "trainer/program/packed_rows.h"
#include "trainer/program/sample_programs_test.h"
#include "trainer/run/train.h"
#include "trainer/run/training_data.h"

namespace mbb::trainer {
namespace {

using Arenas = std::map<Space, std::vector<std::byte>>;
constexpr Space kSpaces[] = {Space::kDevice, Space::kHost};

// Packs of forty short documents.
SequenceDataset short_packs(const Layout& layout) {
  std::vector<std::vector<int32_t>> documents;
  for (int d = 0; d < 40; ++d) {
    documents.emplace_back();
    for (int i = 0; i < 3 + (d * 5) % 20; ++i) documents.back().push_back((d * 7 + i * i * 3 + i) % 64);
  }
  auto source = make_in_memory("forty documents", documents, 64);
  EXPECT_TRUE(source.has_value());
  SequenceCuts cuts{.lengths = SequenceLengths::kDocuments, .longest = layout.config.train.seq_length};
  if (layout.model.is_encoder_decoder()) cuts.longest_encoder = cuts.longest;
  auto data = SequenceDataset::open(std::move(*source), cuts, row_options(layout));
  EXPECT_TRUE(data.has_value()) << (data ? "" : format(data.error()));
  return std::move(*data);
}

// One step of packs: micro-batch m of a data-parallel rank is a row of `rows`.
StepInput packs_input(const Layout& l, const SequenceDataset& rows, const MeshCoordinates& at) {
  StepInput in = one_step_input(l, at.dp);
  const auto row_of = [&l, dp = at.dp](int m) { return int64_t{m} * l.dp + dp; };
  in.batch = [=, &l, &rows, cp = at.cp](int m, std::span<int32_t> tokens, std::span<int32_t> labels) -> Status {
    std::vector<int32_t> row_tokens(static_cast<size_t>(l.sequence)), row_labels(row_tokens.size());
    std::vector<int32_t> first(static_cast<size_t>(l.sequences_of_row()) + 1);
    MB_TRY(rows.row(row_of(m), row_tokens, row_labels, first));
    const std::vector<PackedRow> mine = packed_rows(l.positions(cp), first, l.local_sequence());
    for (size_t s = 0; s < mine.size(); ++s) {
      if (!tokens.empty()) tokens[s] = row_tokens[static_cast<size_t>(mine[s].at)];
      if (!labels.empty()) labels[s] = row_labels[static_cast<size_t>(mine[s].at)];
    }
    return {};
  };
  in.sequences = [=, &l, &rows, cp = at.cp](int m, std::span<int32_t> of) -> Status {
    std::vector<int32_t> first(static_cast<size_t>(l.sequences_of_row()) + 1);
    MB_TRY(rows.row(row_of(m), {}, {}, first));
    const std::vector<PackedRow> mine = packed_rows(l.positions(cp), first, l.local_sequence());
    for (size_t s = 0; s < mine.size(); ++s)
      of[s] = mine[s].at < first.back() ? static_cast<int32_t>(mine[s].sequence) : -1;
    return {};
  };
  in.starts = [=, &rows](int m, std::span<int32_t> first) { return rows.row(row_of(m), {}, {}, first); };
  in.encoder_starts = [=, &rows](int m, std::span<int32_t> first) { return rows.encoder_row(row_of(m), {}, first); };
  in.extra = [=, &rows](int m, std::span<int32_t> samples, std::span<int32_t> encoder) -> Status {
    for (int32_t& sample : samples) sample = static_cast<int32_t>(row_of(m));
    return encoder.empty() ? Status{} : rows.encoder_row(row_of(m), encoder, {});
  };
  return in;
}

// Every rank's arenas after one step that began with `poison` everywhere.
std::vector<Arenas> arenas_after_a_step(const Layout& layout, const StepPrograms& programs, uint8_t poison) {
  std::optional<SequenceDataset> rows;
  if (layout.packed()) rows.emplace(short_packs(layout));
  const int ranks = layout.mesh.world_size();
  std::vector<Arenas> arenas(static_cast<size_t>(ranks));
  const Status ran = run_ranks(ranks, [&](World& world) -> Status {
    const auto c = static_cast<size_t>(layout.mesh.rank_class_index(world.rank()));
    MB_ASSIGN(auto rank, CpuRank::create(programs.programs[c], programs.plans[c], layout.mesh, world, 1234, poison));
    const MeshCoordinates at = layout.mesh.coordinates(world.rank());
    MB_TRY(rank->step(rows ? packs_input(layout, *rows, at) : one_step_input(layout, at.dp)));
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
  ASSERT_EQ(static_cast<int>(a.size()), built.layout.mesh.world_size());
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

TEST(MemoryPlanRun, HoldsForPacksOfEveryMapping) {
  struct Mapped {
    int tp, cp, pp, dp;
  };
  for (const Small& family : kFamilies) {
    const std::string name = family.name;
    if (name != "llama31" && name != "t5" && name != "deepseek_v3_mtp" && name != "gpt_oss") continue;
    for (const auto& [tp, cp, pp, dp] : {Mapped{1, 1, 1, 1}, {2, 1, 1, 2}, {1, 1, 2, 1}, {1, 2, 1, 1}, {2, 2, 2, 1}}) {
      if (name == "t5" && cp > 1) continue;  // refused
      SCOPED_TRACE(name);
      Config c = config_of(family);
      c.packing.sequences = SequenceLengths::kDocuments;
      c.packing.packed_sequence_size = 32;
      c.packing.max_sequences = 6;
      c.train.seq_length = 12;
      c.train.micro_batch_size = 1;
      c.train.global_batch_size = 4;
      c.parallel.tensor_model_parallel_size = tp;
      c.parallel.context_parallel_size = cp;
      c.parallel.pipeline_model_parallel_size = pp;
      c.parallel.gpus = tp * cp * pp * dp;
      if (pp > 1) c.memory.recompute_granularity = RecomputeGranularity::kFull;
      expect_touched_bytes_are_the_plan(c);
    }
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

// Rank threads of one process share what the host has left, each by its own plan.
TEST(MemoryLimit, RanksOfAHostShareItsMemory) {
  const Built built = build(mapped(1, 2, 2));
  int64_t together = 0;
  for (int rank = 0; rank < 4; ++rank) {
    const MemoryPlan& plan = built.programs.plans[static_cast<size_t>(built.layout.mesh.rank_class_index(rank))];
    together += plan.arena_bytes + plan.host_bytes;
  }
  EXPECT_TRUE(check_host_memory(built.layout, built.programs, 0, 4).has_value()) << "not known";
  EXPECT_TRUE(check_host_memory(built.layout, built.programs, together, 4).has_value());
  EXPECT_TRUE(check_host_memory(built.layout, built.programs, together - 1, 2).has_value())
      << "the others are elsewhere";
  const Status refused = check_host_memory(built.layout, built.programs, together - 1, 4);
  EXPECT_NE(refused.error().what.find("host.device = cuda asks for GPUs"), std::string::npos) << refused.error().what;
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfMemory);
  EXPECT_NE(refused.error().what.find("of 4 ranks that need "), std::string::npos) << refused.error().what;
  EXPECT_NE(refused.error().what.find("largest at the peak: "), std::string::npos) << refused.error().what;
  EXPECT_NE(refused.error().hint.find("memory.recompute_granularity"), std::string::npos) << refused.error().hint;
}

TEST(MemoryLimit, ThisHostsMemoryIsTheLimitOnTheCpuUnlessOneIsGiven) {
  Config c = mapped(1, 1, 1);
  c.train.seq_length = 1 << 16;
  c.train.micro_batch_size = c.train.global_batch_size = 1 << 14;
  const Built built = build(c);
  const Status refused = check_memory(built.layout, built.programs);
  ASSERT_FALSE(refused.has_value()) << built.programs.plans[0].arena_bytes;
  EXPECT_TRUE(refused.error().what.starts_with("stage 0 (on CPU ranks: ")) << refused.error().what;
  c.memory.limit_gib = 1e9;
  EXPECT_TRUE(check_memory(resolve(c).value(), built.programs).has_value());
}

Error nan_failure(const Config& config) {
  const Built built = build(config);
  const auto result = train(built.layout, built.programs, [&](int64_t index, std::span<int32_t> tokens) -> Status {
    for (size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = static_cast<int32_t>((static_cast<size_t>(index) * 7 + i * 3) % 64);
    return {};
  });
  return result ? Error{.what = "trained"} : result.error();
}
std::string nan_error(const Config& config) {
  return nan_failure(config).what;
}

// Weights so large that the first product of two of them leaves fp32: attention's scores, kept as log-sum-exp.
TEST(NanTrace, NamesTheFirstOpItsRankAndItsMicroBatch) {
  for (const int tp : {1, 2})
    for (const int pp : {1, 2}) {
      Config c = mapped(tp, pp, 1);
      c.optimizer.init_method_std = 1e25;
      const std::string error = nan_error(c);
      EXPECT_NE(error.find("step 0: loss "), std::string::npos) << error;
      EXPECT_EQ(error.find("-nan"), std::string::npos) << error;
      EXPECT_NE(error.find("the first such value is written by op layers.0.attn.core.fwd (layers.0.attn.core.out.1, "
                           "rank 0, micro-batch 0)"),
                std::string::npos)
          << error;
      c.debug.nan_trace = false;
      EXPECT_EQ(nan_error(c).find("first such value"), std::string::npos);
    }
}

// The learning rate is not to blame before an update.
TEST(NanTrace, BlamesTheFirstWeightsAtStepZeroAndTheLearningRateLater) {
  for (const bool traced : {true, false}) {
    SCOPED_TRACE(traced);
    Config c = mapped(1, 1, 1);
    c.debug.nan_trace = traced;
    c.optimizer.init_method_std = 1e25;
    const Error first = nan_failure(c);
    EXPECT_NE(first.what.find("step 0: "), std::string::npos) << first.what;
    EXPECT_TRUE(first.hint.starts_with("lower optimizer.init_method_std")) << first.hint;
    EXPECT_EQ(first.hint.find("optimizer.lr"), std::string::npos) << first.hint;
    c.optimizer.init_method_std = 0.02;
    c.optimizer.lr_warmup_iters = 0;
    c.optimizer.lr = 1e25;
    const Error later = nan_failure(c);
    EXPECT_EQ(later.what.find("step 0: "), std::string::npos) << later.what;
    EXPECT_TRUE(later.hint.starts_with("lower optimizer.lr")) << later.what << later.hint;
  }
}

// Weights that an optimizer made infinite are the optimizer's, wherever they are read first.
TEST(NanTrace, NamesTheOptimizerWhoseWeightsTheStepBeganWith) {
  for (const auto& [recipe, tp, pp, dp] : {std::tuple{Recipe::kBf16, 1, 1, 1},
                                           {Recipe::kFp32, 2, 1, 1},
                                           {Recipe::kFp32, 1, 2, 1},
                                           {Recipe::kFp32, 1, 1, 2}}) {
    SCOPED_TRACE(testing::Message() << "tp " << tp << " pp " << pp << " dp " << dp);
    Config c = mapped(tp, pp, dp);
    c.precision.recipe = recipe;
    c.optimizer.lr_warmup_iters = 0;
    c.optimizer.lr = 1e20;
    c.optimizer.weight_decay = 1e30;
    const std::string error = nan_error(c);
    EXPECT_NE(error.find("step 1: loss nan"), std::string::npos) << error;
    EXPECT_NE(error.find("the first such value was written by op optimizer.bucket0.adamw in step 0 ("),
              std::string::npos)
        << error;
  }
  // What no optimizer made is not blamed on one.
  Config c = mapped(1, 1, 1);
  c.optimizer.init_method_std = 1e39;
  EXPECT_NE(nan_error(c).find("bucket0.weights of rank 0 began with such values"), std::string::npos) << nan_error(c);
}

}  // namespace
}  // namespace mbb::trainer
