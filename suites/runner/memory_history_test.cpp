// Traced lifetimes of a small training step: the plan's peak found again, times from a trace, and a snapshot that
// replays to the same peak.
#include "suites/runner/memory_history.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "profiler/memory/snapshot_writer.h"
#include "suites/export/export.h"
#include "suites/runner/memory_rows.h"
#include "trainer/execute/graph_memory.h"
#include "trainer/execute/simulate/replay.h"
#include "trainer/program/walk.h"

namespace mbb::suites {
namespace {

struct Built {
  trainer::Layout layout;
  trainer::StepPrograms programs;
};

Built build(int tp, int pp, int micro_batches = 4) {
  trainer::Config c;
  c.train.seq_length = 32;
  c.train.micro_batch_size = 1;
  c.train.global_batch_size = micro_batches;
  c.parallel.tensor_model_parallel_size = tp;
  c.parallel.pipeline_model_parallel_size = pp;
  Built b;
  b.layout = trainer::resolve(c).value();
  b.programs = trainer::build_programs(b.layout).value();
  return b;
}

profiler::Trace replayed(const Built& b) {
  auto replay = trainer::replay(b.layout.mesh, b.programs.by_rank(b.layout.mesh),
                                [](int, size_t i) { return static_cast<int64_t>(1000 + i % 7); });
  return std::move(replay.value().trace);
}

TEST(MemoryHistory, WalkPositionsGiveThePlansPeak) {
  for (const auto& [tp, pp] : {std::pair{1, 1}, std::pair{2, 1}, std::pair{1, 2}}) {
    const Built b = build(tp, pp);
    const auto maps = memory_history(b.layout, b.programs, nullptr, {});
    ASSERT_EQ(maps.size(), b.programs.programs.size());
    for (size_t i = 0; i < maps.size(); ++i) {
      const trainer::MemoryPlan& plan = b.programs.plans[i];
      EXPECT_EQ(maps[i].unit, "op");
      // The plan rounds buffers up to its alignment and keeps a slot for as long as any micro-batch needs it.
      EXPECT_LE(maps[i].peak_bytes, plan.arena_bytes);
      EXPECT_GE(static_cast<double>(maps[i].peak_bytes), 0.9 * static_cast<double>(plan.peak_live_bytes));
      int64_t live = 0;
      for (const auto& t : maps[i].live_at_peak) live += t.bytes;
      EXPECT_EQ(live, maps[i].peak_bytes);
      int64_t by_category = 0;
      for (const auto& c : maps[i].categories) by_category += c.measured_bytes;
      EXPECT_EQ(by_category, maps[i].peak_bytes);
      for (const auto& c : maps[i].categories)
        EXPECT_EQ(c.measured_bytes, c.planned_bytes) << c.category << ", tp " << tp << " pp " << pp;
    }
  }
}

TEST(MemoryHistory, NoTwoLivingTensorsShareBytes) {
  const Built b = build(1, 2);
  for (const auto& map : memory_history(b.layout, b.programs, nullptr, {}))
    for (size_t i = 0; i < map.tensors.size(); ++i)
      for (size_t j = i + 1; j < map.tensors.size(); ++j) {
        const auto &x = map.tensors[i], &y = map.tensors[j];
        const bool time = x.from < y.to && y.from < x.to;
        const bool bytes = x.offset < y.offset + y.bytes && y.offset < x.offset + x.bytes;
        EXPECT_FALSE(time && bytes) << x.path << " and " << y.path;
      }
}

TEST(MemoryHistory, TimesComeFromTheTrace) {
  const Built b = build(1, 2);
  const profiler::Trace trace = replayed(b);
  const auto maps = memory_history(b.layout, b.programs, &trace, {{"GEMM workspace", 4096}});
  ASSERT_EQ(maps.size(), 2U);
  for (const auto& map : maps) {
    EXPECT_EQ(map.unit, "ns");
    const auto workspace =
        std::find_if(map.tensors.begin(), map.tensors.end(), [](const auto& t) { return t.path == "GEMM workspace"; });
    ASSERT_NE(workspace, map.tensors.end());
    EXPECT_EQ(workspace->offset, -1);
    EXPECT_EQ(workspace->from, 0);
    EXPECT_EQ(workspace->to, trace.steps[0].end_ns - trace.steps[0].start_ns);
    for (const auto& t : map.tensors) EXPECT_LE(t.from, t.to) << t.path;
    // An activation begins when its writer does.
    const auto activation =
        std::find_if(map.tensors.begin(), map.tensors.end(), [](const auto& t) { return t.category == "activations"; });
    ASSERT_NE(activation, map.tensors.end());
    EXPECT_TRUE(std::any_of(trace.spans.begin(), trace.spans.end(), [&](const profiler::Span& s) {
      return trace.text(s.op) == activation->first_writer && s.start_ns == activation->from;
    })) << activation->path;
  }
}

// Nodes of a graph follow each other so closely that a device's clock shows the next one started before this one ended.
TEST(MemoryHistory, SpansThatOverlapALittleKeepThePlansPeak) {
  for (const auto& [tp, pp] : {std::pair{1, 1}, std::pair{2, 1}, std::pair{1, 2}})
    for (const int64_t early : {200, 5000}) {  // an op takes 1000
      const Built b = build(tp, pp);
      profiler::Trace trace = replayed(b);
      for (size_t i = 0; i < trace.spans.size(); ++i)
        if (i % 3 != 0)
          trace.spans[i].start_ns = std::max(trace.steps[0].start_ns, trace.spans[i].start_ns - early);
        else
          trace.spans[i].end_ns += early / 2;
      const auto maps = memory_history(b.layout, b.programs, &trace, {{"tables", 1000}});
      for (size_t i = 0; i < maps.size(); ++i) {
        EXPECT_LE(maps[i].peak_bytes, b.programs.plans[i].arena_bytes + 1000) << "tp " << tp << " pp " << pp;
        int64_t planned = 0, live = 0;
        for (const auto& t : maps[i].live_at_peak) live += t.bytes;
        for (const auto& c : maps[i].categories) planned += c.measured_bytes;
        EXPECT_EQ(live, maps[i].peak_bytes);
        EXPECT_EQ(planned, maps[i].peak_bytes);
        const auto snapshot = memory_snapshot(maps[i]);
        ASSERT_TRUE(snapshot);
        std::map<int64_t, int64_t> taken;  // address, end
        for (const auto& event : snapshot->events[0]) {
          if (event.action == profiler::MemoryAction::kFreeCompleted) taken.erase(event.address);
          if (event.action != profiler::MemoryAction::kAlloc) continue;
          const auto next = taken.lower_bound(event.address);
          EXPECT_TRUE(next == taken.end() || next->first >= event.address + event.bytes) << "bytes given out twice";
          EXPECT_TRUE(next == taken.begin() || std::prev(next)->second <= event.address) << "bytes given out twice";
          taken[event.address] = event.address + event.bytes;
        }
      }
    }
}

TEST(MemoryHistory, TheSnapshotReplaysToTheSamePeak) {
  const Built b = build(1, 1);
  const profiler::Trace trace = replayed(b);
  for (const profiler::Trace* with : {static_cast<const profiler::Trace*>(nullptr), &trace})
    for (const auto& map : memory_history(b.layout, b.programs, with, {{"tables", 1000}})) {
      const auto snapshot = memory_snapshot(map);
      ASSERT_TRUE(snapshot);
      const auto back = profiler::parse_snapshot(profiler::snapshot_text(*snapshot));
      ASSERT_TRUE(back) << back.error().what;
      ASSERT_EQ(back->events.size(), 1U);
      const profiler::MemoryReplay found = profiler::replay(back->events[0]);
      EXPECT_EQ(found.unknown_frees, 0);
      // Events are in microseconds: what ends and begins inside one may be counted together.
      EXPECT_NEAR(static_cast<double>(found.peak_bytes), static_cast<double>(map.peak_bytes),
                  with == nullptr ? 0 : 0.02 * static_cast<double>(map.peak_bytes));
      std::set<std::string> functions;
      for (const auto& stack : back->stacks)
        for (const auto& frame : stack) functions.insert(frame.file);
      EXPECT_TRUE(functions.contains("layers.0.attn")) << "frames follow the op's path";
    }
}

TEST(MemoryHistory, AMapWithoutHistoryIsRefused) {
  const auto snapshot = memory_snapshot({});
  ASSERT_FALSE(snapshot);
  EXPECT_NE(snapshot.error().hint.find("record_memory_history"), std::string::npos);
}

TEST(MemoryHistory, SnapshotFilesOfSeveralClasses) {
  EXPECT_EQ(snapshot_file("/a/s.pickle", "/launch", "stage1", true), "/a/s.stage1.pickle");
  EXPECT_EQ(snapshot_file("s.pickle", "/launch", "stage1", false), "/launch/s.pickle");
}

TEST(MemoryHistory, GraphsAreACategoryBesideTheArena) {
  Built b = build(1, 1);
  trainer::MemoryPlan& plan = b.programs.plans[0];
  plan.graph_bytes = 5000;
  const auto bytes_of = [](const baselines::MemoryMap& map, const std::string& category) {
    for (const auto& row : map.categories)
      if (row.category == category) return std::pair{row.planned_bytes, row.measured_bytes};
    return std::pair{int64_t{-2}, int64_t{-2}};
  };
  using Bytes = std::pair<int64_t, int64_t>;
  const auto run = memory_history(b.layout, b.programs, nullptr, {{trainer::kCapturedGraphs, 7000}, {"a table", 64}});
  EXPECT_EQ(bytes_of(run[0], "graphs"), (Bytes{5000, 7000}));
  EXPECT_EQ(bytes_of(run[0], "outside the arena"), (Bytes{-1, 64}));
  const auto planned = memory_maps(b.layout, b.programs);
  EXPECT_EQ(bytes_of(planned[0], "graphs"), (Bytes{5000, -1}));
  EXPECT_EQ(planned[0].peak_bytes, plan.arena_bytes + 5000);
  plan.graph_bytes = 0;
  EXPECT_EQ(bytes_of(memory_maps(b.layout, b.programs)[0], "graphs"), (Bytes{-2, -2})) << "a category that is there";
}

TEST(MemoryRows, ThePlanHoldsEveryValueNotOnlyThoseAliveAtItsPeak) {
  for (const auto& [tp, pp] : {std::pair{1, 1}, std::pair{2, 1}, std::pair{1, 2}}) {
    const Built b = build(tp, pp);
    const auto maps = memory_maps(b.layout, b.programs);
    ASSERT_EQ(maps.size(), b.programs.programs.size());
    for (size_t i = 0; i < maps.size(); ++i) {
      const trainer::MemoryPlan& plan = b.programs.plans[i];
      EXPECT_GT(maps[i].tensors.size(), maps[i].live_at_peak.size());
      EXPECT_EQ(maps[i].peak_bytes, plan.arena_bytes);
      int64_t live = 0, planned = 0, most = 0;
      for (const auto& t : maps[i].live_at_peak) live += t.bytes;
      for (const auto& c : maps[i].categories) planned += c.planned_bytes;
      EXPECT_EQ(live, plan.peak_live_bytes);
      EXPECT_EQ(planned, plan.arena_bytes) << "the categories and the slack are the arena";
      // The curve climbs to the plan's peak, but for alignment and for slots that wait for their next micro-batch.
      std::map<std::string, int64_t> alive;
      for (const auto& sample : maps[i].curve) {
        alive[sample.category] = sample.bytes;
        int64_t sum = 0;
        for (const auto& [category, bytes] : alive) sum += bytes;
        most = std::max(most, sum);
      }
      EXPECT_LE(most, plan.peak_live_bytes);
      EXPECT_GE(static_cast<double>(most), 0.9 * static_cast<double>(plan.peak_live_bytes));
    }
  }
}

// Largest sum over time.
int64_t top_of(const baselines::MemoryMap& map) {
  std::map<std::string, int64_t> alive;
  int64_t top = 0, at = -1, sum = 0;
  for (const auto& sample : map.curve) {
    EXPECT_GE(sample.at, at);
    if (sample.at != at) top = std::max(top, sum);
    at = sample.at;
    sum += sample.bytes - alive[sample.category];
    alive[sample.category] = sample.bytes;
  }
  return std::max(top, sum);
}

TEST(MemoryHistory, ACoarseOneHasTheSamePeakInFewerMoments) {
  const Built b = build(1, 2);
  const auto whole = memory_history(b.layout, b.programs, nullptr, {});
  for (size_t i = 0; i < whole.size(); ++i) {
    const trainer::Program& program = b.programs.programs[i];
    EXPECT_EQ(count_values(program), static_cast<int64_t>(whole[i].tensors.size()));
    const auto coarse = coarse_history(program, b.programs.plans[i], 100);
    EXPECT_EQ(coarse.peak_bytes, whole[i].peak_bytes);
    EXPECT_EQ(top_of(coarse), whole[i].peak_bytes);
    EXPECT_LT(coarse.curve.size(), whole[i].curve.size());
    std::set<std::string> paths;
    for (const auto& value : coarse.tensors) EXPECT_TRUE(paths.insert(value.path).second) << value.path;
    for (const auto& value : whole[i].tensors) EXPECT_TRUE(paths.contains(value.path)) << value.path;
  }
}

TEST(MemoryRows, ALongStepListsItsLiveSetAndNotEveryMicroBatch) {
  const Built few = build(1, 2), many = build(1, 2, 400);
  const auto of_few = memory_maps(few.layout, few.programs), of_many = memory_maps(many.layout, many.programs);
  // Without the tokens, of which every micro-batch has its own from the step's start.
  const auto made = [](const baselines::MemoryMap& map) {
    std::map<std::string, std::pair<std::string, std::string>> live;
    for (const auto& t : map.live_at_peak)
      if (t.category != trainer::name(trainer::Category::kInput)) live[t.path] = {t.first_writer, t.last_reader};
    return live;
  };
  for (size_t i = 0; i < of_many.size(); ++i) {
    EXPECT_TRUE(of_many[i].tensors.empty());
    EXPECT_FALSE(of_few[i].tensors.empty());
    EXPECT_EQ(made(of_many[i]), made(of_few[i])) << "the same buffers, in more micro-batches";
    EXPECT_LE(top_of(of_many[i]), many.programs.plans[i].peak_live_bytes);
    EXPECT_GE(static_cast<double>(top_of(of_many[i])), 0.9 * static_cast<double>(of_many[i].peak_bytes));
  }
}

}  // namespace
}  // namespace mbb::suites
