// A class stands for its ranks: the same step as with every rank replayed, and the same walk when it is cut short.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "trainer/execute/simulate/replay.h"
#include "trainer/ops/op_kind.h"
#include "trainer/program/walk.h"
#include "trainer/run/step_programs.h"

namespace mbb::trainer {
namespace {

struct Built {
  Layout layout;
  StepPrograms programs;
};

Built build(const Config& config) {
  auto layout = resolve(config);
  EXPECT_TRUE(layout.has_value()) << (layout ? "" : layout.error().what);
  if (!layout) return {};
  auto programs = build_programs(*layout);
  EXPECT_TRUE(programs.has_value()) << (programs ? "" : programs.error().what);
  if (!programs) return {};
  return {std::move(*layout), std::move(*programs)};
}

// A time of its own for each op, in no relation to its work.
int64_t cost(int rank_class, int segment, int op) {
  return 100 + (rank_class * 7919 + segment * 104729 + op * 1299709) % 9973;
}

struct Mapping {
  const char* name;
  int tp, cp, pp, vpp, dp;
  int micro_batches;
};

std::ostream& operator<<(std::ostream& out, const Mapping& m) {
  return out << m.name;
}

class ReplayOfClasses : public testing::TestWithParam<Mapping> {};

Config config_of(const Mapping& m) {
  Config config;
  config.model.num_layers = 4;
  config.parallel.tensor_model_parallel_size = m.tp;
  config.parallel.context_parallel_size = m.cp;
  config.parallel.pipeline_model_parallel_size = m.pp;
  config.parallel.virtual_pipeline_model_parallel_size = m.vpp;
  config.parallel.gpus = m.tp * m.cp * m.pp * m.dp;
  config.train.global_batch_size = m.micro_batches * m.dp;
  config.data_parallel.overlap_grad_reduce = config.data_parallel.overlap_param_gather = true;
  return config;
}

TEST_P(ReplayOfClasses, WithoutPathsHasTheSameSpansWithoutNames) {
  const Built b = build(config_of(GetParam()));
  const auto named = replay_classes(b.layout.mesh, b.programs.programs, cost);
  const auto bare = replay_classes(b.layout.mesh, b.programs.programs, cost, {.paths = false});
  ASSERT_TRUE(named.has_value() && bare.has_value());
  EXPECT_EQ(named->step_ns, bare->step_ns);
  ASSERT_FALSE(named->trace.spans.empty());
  std::vector<profiler::Span> spans = named->trace.spans;
  for (profiler::Span& span : spans) {
    EXPECT_NE(span.op, 0u);
    span.name = span.op = 0;
  }
  EXPECT_EQ(spans, bare->trace.spans);
}

TEST_P(ReplayOfClasses, EqualsThatOfAllRanks) {
  const Built b = build(config_of(GetParam()));
  ASSERT_FALSE(b.programs.programs.empty());
  std::vector<std::vector<int64_t>> by_class;
  for (size_t c = 0; c < b.programs.programs.size(); ++c) {
    by_class.emplace_back();
    const Program& program = b.programs.programs[c];
    walk(program, [&](int, const Call& call, int op, const Op&) {
      by_class.back().push_back(cost(static_cast<int>(c), call.segment, op));
    });
  }
  const auto all = replay(b.layout.mesh, b.programs.by_rank(b.layout.mesh), [&](int rank, size_t i) {
    return by_class[static_cast<size_t>(b.layout.mesh.rank_class_index(rank))][i];
  });
  const auto classes = replay_classes(b.layout.mesh, b.programs.programs, cost);
  ASSERT_TRUE(all.has_value()) << all.error().what;
  ASSERT_TRUE(classes.has_value()) << classes.error().what;
  EXPECT_EQ(classes->step_ns, all->step_ns);
  EXPECT_GT(all->step_ns, 0);
  EXPECT_EQ(classes->trace.steps.size(), b.programs.programs.size());
  // The spans of a class are those of its lowest rank.
  const int last = b.layout.mesh.representative(b.layout.mesh.rank_class_count() - 1);
  const auto times = [&](const Replay& r) {
    std::vector<std::pair<int64_t, int64_t>> spans;
    for (const profiler::Span& span : r.trace.spans)
      if (r.trace.rank_of(span) == last) spans.emplace_back(span.start_ns, span.end_ns);
    return spans;
  };
  EXPECT_EQ(times(*classes), times(*all));
}

TEST_P(ReplayOfClasses, CutShortIsAStepOfFewerMicroBatches) {
  Mapping few = GetParam();
  const Built whole = build(config_of(few));
  few.micro_batches = 2 * few.pp * few.vpp;
  if (few.micro_batches >= GetParam().micro_batches) GTEST_SKIP() << "no fewer";
  const Built small = build(config_of(few));
  ASSERT_FALSE(whole.programs.programs.empty() || small.programs.programs.empty());
  ClassReplayOptions options;
  options.micro_batches = few.micro_batches;
  options.spans = false;
  const auto cut = replay_classes(whole.layout.mesh, whole.programs.programs, cost, options);
  const auto own = replay_classes(small.layout.mesh, small.programs.programs, cost);
  ASSERT_TRUE(cut.has_value() && own.has_value());
  EXPECT_TRUE(cut->trace.spans.empty());
  EXPECT_EQ(cut->step_ns, own->step_ns);
}

INSTANTIATE_TEST_SUITE_P(Mappings, ReplayOfClasses,
                         testing::Values(Mapping{"one", 1, 1, 1, 1, 1, 4}, Mapping{"dp", 1, 1, 1, 1, 4, 4},
                                         Mapping{"tp_pp_dp", 2, 1, 2, 1, 2, 16},
                                         Mapping{"interleaved", 1, 1, 2, 2, 2, 16},
                                         Mapping{"context", 1, 2, 2, 1, 2, 16}),
                         [](const auto& mapping) { return std::string(mapping.param.name); });

TEST(ReplayOfClasses, ProductsTakeLongerForAsLongAsACollectiveRunsBesideThem) {
  Config config = config_of({"fsdp", 1, 1, 1, 1, 4, 4});
  config.data_parallel.data_parallel_sharding_strategy = ShardingStrategy::kOptimGradsParams;
  const Built b = build(config);
  ASSERT_EQ(b.programs.programs.size(), 1u);
  const Program& program = b.programs.programs[0];
  const auto op_at = [&](int segment, int op) -> const Op& {
    return program.segments[static_cast<size_t>(segment)].ops[static_cast<size_t>(op)];
  };
  ClassReplayOptions options;
  options.contention = [&](int, int segment, int op) {
    const OpKind& kind = *op_at(segment, op).kind;
    return Contention{kind.communicates ? 2.0 : 1.0, kind.model_flops};
  };
  const auto slowed = replay_classes(b.layout.mesh, b.programs.programs, cost, options);
  const auto free = replay_classes(b.layout.mesh, b.programs.programs, cost);
  ASSERT_TRUE(slowed.has_value() && free.has_value());
  EXPECT_GT(slowed->step_ns, free->step_ns);
  const std::vector<profiler::Span>& spans = slowed->trace.spans;
  size_t at = 0, beside = 0;
  std::vector<const profiler::Span*> collectives;
  walk(program, [&](int, const Call& call, int op, const Op& it) {
    const profiler::Span& span = spans[at++];
    if (it.kind->communicates) collectives.push_back(&span);
    int64_t shared = 0;
    for (const profiler::Span* c : collectives)
      shared += std::max<int64_t>(0, std::min(c->end_ns, span.end_ns) - std::max(c->start_ns, span.start_ns));
    if (it.kind->communicates) return;
    const int64_t longer = it.kind->model_flops ? shared / 2 : 0;
    EXPECT_LE(std::abs(span.end_ns - span.start_ns - cost(0, call.segment, op) - longer), 2) << it.path;
    beside += longer > 0 ? 1 : 0;
  });
  EXPECT_EQ(at, spans.size());
  EXPECT_GT(beside, 0u);
}

TEST(ReplayOfClasses, HostIssuesOneOpAfterAnother) {
  const Built b = build(config_of({"one", 1, 1, 1, 1, 1, 1}));
  ASSERT_FALSE(b.programs.programs.empty());
  size_t ops = 0;
  walk(b.programs.programs[0], [&](int, const Call&, int, const Op&) { ++ops; });
  ClassReplayOptions options;
  options.issue_ns = 1000;
  const auto late = replay_classes(
      b.layout.mesh, b.programs.programs, [](int, int, int) { return 10; }, options);
  ASSERT_TRUE(late.has_value());
  EXPECT_EQ(late->step_ns, static_cast<int64_t>(ops) * 1000 + 10);
}

}  // namespace
}  // namespace mbb::trainer
