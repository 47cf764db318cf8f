// What context parallelism moves and computes, by the closed formulas (NUMERICS, section 7), in the program and as the
// communicators count it.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include "trainer/models/small_families.h"
#include "trainer/ops/op_kind.h"
#include "trainer/program/explain.h"
#include "trainer/run/equal_training_test.h"
#include "trainer/run/unit_times_test.h"

namespace mbb::trainer {
namespace {

struct Case {
  const char* comm;
  int cp, tp, inner;  // inner: ranks of an a2a
};

constexpr Case kCases[] = {{"p2p", 2, 1, 1},        {"p2p", 4, 1, 1},    {"p2p", 4, 2, 1}, {"all_gather", 2, 1, 1},
                           {"all_gather", 4, 2, 1}, {"a2a", 2, 1, 2},    {"a2a", 4, 1, 4}, {"a2a", 2, 2, 2},
                           {"a2a+p2p", 4, 1, 2},    {"a2a+p2p", 4, 2, 2}};

Config config_of_case(const Case& of) {
  Config c = config_of(family_of("llama31"));
  c.model.num_attention_heads = 8;
  c.model.num_query_groups = 4;
  c.precision.recipe = Recipe::kBf16;
  c.parallel.context_parallel_size = of.cp;
  c.parallel.tensor_model_parallel_size = of.tp;
  c.parallel.cp_comm_type = of.comm;
  if (std::string_view(of.comm) == "a2a+p2p")
    c.parallel.hierarchical_context_parallel_sizes = {of.inner, of.cp / of.inner};
  c.train.train_iters = 1;
  return c;
}

struct Moved {
  double calls = 0, bytes = 0;  // of a rank and step
};

// A layer and micro-batch: the ring and the gather move keys and values once forward and twice backward, the all-to-all
// queries, keys, values and outputs once each way.
Moved formula(const Layout& l, const Case& of) {
  const double c = of.cp, t = of.tp, a = of.inner, outer = c / a;
  const auto tokens = static_cast<double>(l.sequence * l.micro_batch);
  const auto q = static_cast<double>(l.model.query_size());
  const auto kv = static_cast<double>(l.model.kv_size());
  const bool gather = std::string_view(of.comm) == "all_gather";
  Moved m;
  if (a > 1) {
    m.calls += 4;
    m.bytes += 2 * (a - 1) / a * (tokens / c) * (2 * q + 2 * kv) / t * 2;
  }
  if (outer > 1) {
    m.calls += gather ? 3 : 3 * (outer - 1);
    m.bytes += 3 * (outer - 1) * (tokens / c) * 2 * kv / t * 2;
  }
  const auto times = static_cast<double>(l.model.num_layers * l.micro_batches);
  return {m.calls * times, m.bytes * times};
}

bool is_context(GroupKind kind) {
  return kind == GroupKind::kCp || kind == GroupKind::kCpA2a || kind == GroupKind::kCpP2p;
}

TEST(ContextCosts, BytesAndCallsEqualTheFormulas) {
  for (const Case& of : kCases) {
    SCOPED_TRACE(fmt::format("{} cp{} tp{} inner {}", of.comm, of.cp, of.tp, of.inner));
    const Config config = config_of_case(of);
    const auto layout = resolve(config);
    ASSERT_TRUE(layout.has_value()) << format(layout.error());
    const auto programs = build_programs(*layout);
    ASSERT_TRUE(programs.has_value()) << format(programs.error());
    const Moved want = formula(*layout, of);
    const Explain e = explain(*layout, *programs);
    EXPECT_DOUBLE_EQ(e.model_flops, e.closed_form_flops);
    ASSERT_EQ(e.classes.size(), static_cast<size_t>(of.cp));
    for (const ClassRow& row : e.classes) {
      Moved planned;
      for (const CommRow& comm : row.comm) {
        if (!is_context(comm.group)) continue;
        planned.calls += static_cast<double>(comm.calls);
        planned.bytes += comm.wire_bytes;
      }
      EXPECT_EQ(planned.calls, want.calls);
      EXPECT_EQ(planned.bytes, want.bytes);
      EXPECT_NEAR(row.model_flops, e.model_flops / static_cast<double>(e.gpus), 1.0) << "balanced chunks";
    }
    const auto trained = train_and_collect(config);
    ASSERT_TRUE(trained.has_value()) << format(trained.error());
    for (const auto& groups : trained->result.comm) {
      Moved counted;
      for (size_t kind = 0; kind < kGroupKinds.size(); ++kind) {
        if (!is_context(static_cast<GroupKind>(kind))) continue;
        for (size_t op = 0; op < kCommOpCount; ++op) {
          if (op == static_cast<size_t>(CommOp::kRecv)) continue;  // counted at its sender
          counted.calls += static_cast<double>(groups[kind].by_op[op].calls);
          counted.bytes += static_cast<double>(groups[kind].by_op[op].wire_bytes);
        }
      }
      EXPECT_EQ(counted.calls, want.calls);
      EXPECT_EQ(counted.bytes, want.bytes);
    }
  }
}

// Kind, path, queries and keys of each attention op.
std::vector<std::string> attention_ops(const Program& program) {
  std::vector<std::string> ops;
  for (const Segment& segment : program.segments)
    for (const Op& op : segment.ops) {
      const auto* attrs = std::get_if<AttentionAttrs>(&op.attrs);
      if (attrs == nullptr) continue;
      const size_t first = std::string_view(op.kind->name) == "cross_attention_grad" ? 1 : 0;
      ops.push_back(fmt::format("{} {}: {} at {}, {} at {}", op.kind->name, op.path,
                                program.tensor(op.in[first]).shape.str(), fmt::join(attrs->queries.starts, " "),
                                program.tensor(op.in[first + 1]).shape.str(), fmt::join(attrs->keys.starts, " ")));
    }
  return ops;
}

// A query sees neither all gathered keys nor those up to its own place, which no fused kernel computes; of a ring's
// step it sees the one or the other.
TEST(ContextCosts, GatheredKeysAreAttendedToInTheRingsSteps) {
  const auto programs_of = [](const char* comm, int cp) {
    const auto layout = resolve(config_of_case({comm, cp, 1, 1}));
    EXPECT_TRUE(layout.has_value());
    return std::move(build_programs(*layout)->programs);
  };
  for (const int cp : {2, 4}) {
    const std::vector<Program> ring = programs_of("p2p", cp), gathered = programs_of("all_gather", cp);
    ASSERT_EQ(ring.size(), gathered.size());
    for (size_t rank = 0; rank < ring.size(); ++rank) {
      const std::vector<std::string> steps = attention_ops(gathered[rank]);
      EXPECT_EQ(steps.size(), 2U * 2 * static_cast<size_t>(cp)) << "two layers, both ways";
      EXPECT_EQ(steps, attention_ops(ring[rank]));
    }
  }
}

// In the ring a step's keys arrive while the last step's are attended to; gathered keys come first.
TEST(ContextCosts, TheRingHidesUnderAttention) {
  const auto exposed = [](const Case& of) {
    Config c = config_of_case(of);
    c.train.seq_length = 128;
    const auto layout = resolve(c);
    EXPECT_TRUE(layout.has_value());
    const auto programs = build_programs(*layout);
    EXPECT_TRUE(programs.has_value());
    return unit_times(*layout, *programs, profiler::SpanKind::kCommCp, 16);
  };
  const UnitTimes ring = exposed({"p2p", 4, 1, 1});
  const UnitTimes gathered = exposed({"all_gather", 4, 1, 1});
  EXPECT_GT(gathered.exposed, 0);
  EXPECT_LT(ring.exposed, gathered.exposed / 2);
  EXPECT_LT(ring.step, gathered.step);
}

}  // namespace
}  // namespace mbb::trainer
