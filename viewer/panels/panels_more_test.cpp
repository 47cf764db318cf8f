// The panels of comparison, memory, history, sweeps, ops and programs, used as a person does; and hostile input.
#include <fmt/format.h>
#include <imgui.h>

#include <fstream>
#include <set>

#include "baselines/pins/pins.h"
#include "baselines/store/bundle.h"
#include "profiler/base/text.h"
#include "viewer/app/stage_fixture_test.h"
#include "viewer/load/program.h"
#include "viewer/memory/shape.h"
#include "viewer/panels/panel.h"
#include "viewer/widgets/probe.h"

namespace mbb::viewer {
namespace {

using MorePanelsTest = StageTest;

TEST_F(MorePanelsTest, CompareAccountsForTheDifference) {
  open_demo();
  play("panel compare\nwait\nexpect state empty\n");
  play(fmt::format("select other={}\nwait\nexpect state ready\n", bundles_[0].filename().string()));
  play(R"(
expect pairs.shown 6
expect compare.ops > 5
click compare.op.0
expect selection.op ~ layers
click pairs.row.1
expect selection.cell tp2-pp1
hover pairs.row.0
key Ctrl+C
clipboard ~ "| cell | A (step) |"
)");
}

TEST_F(MorePanelsTest, MemoryShowsWhatIsAliveWhereOneLooks) {
  open_demo({.runs = 1, .trace_spans = 0});
  play(R"(
panel memory
wait
expect memory.live 5
expect memory.shows seen
click memory.curve
wait
expect memory.live < 5
click memory.peak.button
wait
expect memory.live 5
click memory.plan
wait
expect memory.shows plan
click memory.class.stage1
click live.row.1
expect selection.op ~ layers
)");
}

TEST_F(MorePanelsTest, HistoryNeedsAStoreAndSaysSo) {
  open_demo({.runs = 1, .trace_spans = 0});
  play("panel history\nwait\nexpect state error\n");
  EXPECT_NE(probe_find_value("state.error").value_or("").find("store"), std::string::npos);
}

TEST_F(MorePanelsTest, HistoryShowsTheRunsOfASeries) {
  open_store({.runs = 3, .trace_spans = 0});
  play(R"(
panel history
wait
expect history.points 3
click history.plot
wait
expect selection.run r-20260529-2026-0002
click series.row.1
wait
expect history.points 3
)");
}

TEST_F(MorePanelsTest, HistoryGroupsByCellAndLeadsWithWhatIsLookedAtFirst) {
  open_store({.runs = 2, .trace_spans = 0});
  play("panel history\nwait\nhover series.row.0\nkey Ctrl+C\n");
  const std::string copied = ImGui::GetClipboardText();
  std::vector<std::string> cells;
  std::size_t rows = 0;
  for (const std::string_view line : split(copied, '\n')) {
    const auto parts = split(line, '|');
    if (parts.size() < 4 || ++rows <= 2) continue;
    const std::string cell(trim(parts[1]));
    if (cells.empty() || cells.back() != cell) {
      cells.push_back(cell);
      EXPECT_EQ(trim(parts[2]), "step") << "the first metric of " << cell;
    }
  }
  EXPECT_EQ(cells.size(), std::set<std::string>(cells.begin(), cells.end()).size()) << "a cell's series stand together";
  EXPECT_EQ(cells.size(), 4U);
}

TEST_F(MorePanelsTest, HistoryShowsEpochsBaselinesAndVerdicts) {
  open_store({.runs = 4, .trace_spans = 0});
  SourceSpec source;
  source.store = folder_ / "store.sqlite";
  source.baselines = folder_ / "baselines.jsonl";
  {
    auto store = baselines::Store::open(source.store);
    ASSERT_TRUE(store.has_value());
    for (std::size_t i = 2; i < 4; ++i) {
      baselines::Run run = store->load_run(bundles_[i].filename().string()).value();
      run.epoch = "another driver";
      run.fingerprint.facts.push_back({"image", "nemo:25.09"});
      run.fingerprint.facts.push_back({"rack", "two"});
      ASSERT_TRUE(store->put_run(run, bundles_[i]).has_value());
      if (i < 3) continue;
      baselines::Cell cell = run.cells[0];
      cell.verdicts.push_back({"step_time", baselines::Verdict::kSlower, "b-1", 0.02, 0.01, 0.03, "confirmed"});
      ASSERT_TRUE(store->put_cell(cell).has_value());
    }
    const baselines::Run first = store->load_run(bundles_[0].filename().string()).value();
    baselines::Pin pin;
    pin.id = "b-1";
    pin.identity_hash = first.cells[0].identity_hash;
    pin.class_hash = first.fingerprint.class_hash;
    pin.metric = "step_time";
    pin.nights = {{19.9e6, 20.0e6, 20.1e6}};
    pin.runs = {first.id};
    pin.author = "test";
    pin.reason = "test";
    pin.accepted_unix_ns = first.created_unix_ns;
    ASSERT_TRUE(baselines::append_pin(source.baselines, pin).has_value());
  }
  source.roles = {{"build.*"}, {"rack"}};
  open(source);
  play(R"(
panel history
wait
expect history.points 4
expect history.epochs 2
expect history.baselines 1
hover points.row.0
key Ctrl+C
clipboard ~ slower
clipboard ~ "another driver"
clipboard ~ "image nemo:25.09 |"
click points.row.1 ctrl
wait
expect selection.other r-20260530-2026-0003
)");
  std::ofstream(source.baselines) << "no baseline";
  ++app_->session().generation;
  play("panel history\nwait\nexpect state error\nexpect state.error ~ baselines\n");
}

TEST_F(MorePanelsTest, EveryListIsCopied) {
  open_demo();
  play(fmt::format("select other={}\nselect cell=tp1\n", bundles_[0].filename().string()));
  play(R"(
panel compare
wait
hover compare.op.0
key Ctrl+C
clipboard ~ "| op | A (a step) | B (a step) | B - A |"
hover pair.row.0
key Ctrl+C
clipboard ~ "| metric | A | B | B / A |"
panel program
wait
hover program.line.0
key Ctrl+C
clipboard ~ "| op | what | stream | runs |"
panel sweep
wait
hover sweep.cell.0.0
key Ctrl+C
clipboard ~ "parallel.pipeline_model_parallel_size"
panel timeline
wait
hover timeline.difference.0
key Ctrl+C
clipboard ~ "| op | A (a step) | B"
panel counts
wait
hover counts.row.0
key Ctrl+C
clipboard ~ "| count | launch 0 |"
panel memory
wait
hover categories.row.0
key Ctrl+C
clipboard ~ "| category | planned |"
panel run
wait
hover metrics.row.0
key Ctrl+C
clipboard ~ "| metric | value |"
)");
}

TEST_F(MorePanelsTest, WhatOnePanelSelectsTheTimelineShows) {
  open_demo({.runs = 1});
  play("panel timeline\nwait\n");
  const std::string span = probe_find_value("timeline.span_us").value_or("");
  play("select op=layers.0.mlp\nwait\nexpect timeline.selected > -1\nkey F\n");
  EXPECT_LT(std::stoll(probe_find_value("timeline.span_us").value_or("0")), std::stoll(span))
      << "F focuses what another panel selected";
  play("select op=no.such.op\nwait\nexpect timeline.selected -1\n");
}

TEST_F(MorePanelsTest, KernelsOfTheTraceAreListed) {
  open_demo();
  play(fmt::format("select other={}\npanel ops\nwait\nclick ops.kernels\nwait\n", bundles_[0].filename().string()));
  play(R"(
expect kernels.shown > 5
click kernels.row.0
wait
expect ops.spans > 10
hover kernels.row.0
key Ctrl+C
clipboard ~ "| kernel | op | kind |"
click ops.ops
wait
expect ops.shown > 10
)");
}

TEST_F(MorePanelsTest, SweepMarksTheBestCellWhicheverWayIsBetter) {
  open_demo({.runs = 1, .trace_spans = 0});
  play(R"(
panel sweep
wait
expect sweep.best tp1
expect selection.metric step_time
click sweep.metric
click sweep.metric.tokens_per_second
wait
expect selection.metric tokens_per_second
expect sweep.best tp1
)");
}

TEST_F(MorePanelsTest, OpsAreSortedFoundAndCompared) {
  open_demo();
  play(fmt::format("select other={}\npanel ops\nwait\n", bundles_[0].filename().string()));
  play(R"(
expect ops.shown > 10
click ops.search
type fc1
wait
expect ops.shown 3
click ops.row.0
expect selection.op ~ fc1
click ops.grouped
wait
expect ops.shown > 3
)");
}

TEST_F(MorePanelsTest, ProgramOpensWhereTheSelectionIs) {
  open_demo({.runs = 1, .trace_spans = 0});
  play("panel program\nwait\nexpect program.ops > 20\n");
  const auto lines = std::stoll(probe_find_value("program.lines").value_or("0"));
  play("select op=layers.3.mlp.fc1.fwd\nwait\n");
  EXPECT_GT(std::stoll(probe_find_value("program.lines").value_or("0")), lines);
  play("click program.search\ntype qkv\nwait\nexpect program.lines > 3\n");
}

TEST_F(MorePanelsTest, StoreAndBundlesShowTheSame) {
  open_store({.runs = 2});
  play(R"(
wait
expect runs.shown 2
panel run
wait
expect run.cells 6
panel timeline
wait
expect timeline.spans > 1000
panel program
wait
expect program.ops > 20
)");
}

TEST_F(MorePanelsTest, HostileTextIsDrawnSafely) {
  baselines::Run run = baselines::make_synthetic_run({.launches = 1});
  const std::string nasty =
      std::string("\x1B[31m\n\t\x00\xFF\xC0\xAF %s%n ## ###x|,\"", 24) + std::string(100'000, 'W') + "\xE2\x80\xAE";
  run.suite = run.tag = run.epoch = nasty;
  for (baselines::Cell& cell : run.cells) {
    cell.reason = cell.model = cell.published = nasty;
    for (baselines::KnobValue& knob : cell.knobs) knob.value = nasty;
    for (baselines::Metric& metric : cell.metrics) metric.unit = metric.interval = nasty;
    for (baselines::MemoryMap& map : cell.memory) {
      map.rank_class = map.unit = nasty;
      for (baselines::TensorBytes& tensor : map.tensors) tensor.path = tensor.category = nasty;
    }
    for (baselines::Launch& launch : cell.launches) {
      launch.memory.clear();
      launch.trace_files = {"../../../../../../etc/passwd"};
      for (baselines::OpRow& op : launch.ops) op.kind = op.stream = op.path = nasty;
      for (baselines::Step& step : launch.steps)
        step.wall_ns = step.index % 2 == 0 ? -5 : std::numeric_limits<std::int64_t>::max();
    }
  }
  auto writer = baselines::BundleWriter::create(folder_, run);
  ASSERT_TRUE(writer.has_value()) << writer.error().what;
  for (const baselines::Cell& cell : run.cells) {
    // What the writer refuses cannot be read either; what it takes must be drawn.
    if (writer->begin_cell(cell).has_value()) (void)writer->finish_cell(cell);
  }
  SourceSpec source;
  source.bundles = {writer->folder()};
  open(source);
  for (const PanelEntry& entry : panels()) {
    play(fmt::format("panel {}\nwait\nresize 500x400\nwait\nresize 1600x1000\nwait\n", entry.name));
  }
}

TEST_F(MorePanelsTest, DamagedStoresAreSaid) {
  open_store({.runs = 1, .trace_spans = 0});
  const auto file = folder_ / "store.sqlite";
  const auto say = [&] {
    SourceSpec source;
    source.store = file;
    open(source);
    play("panel runs\nwait\nexpect state error\n");
  };
  std::filesystem::resize_file(file, std::filesystem::file_size(file) / 2);
  say();
  std::ofstream(file, std::ios::trunc) << std::string(5000, '\x7F');
  say();
  std::filesystem::remove(file);
  std::filesystem::create_directory(file);
  say();
}

// One panel, one file: every file of the array's names is there, and none beside them makes a panel.
TEST(PanelFiles, EveryPanelIsOneFile) {
  std::set<std::string> makers;
  for (const auto& entry : std::filesystem::directory_iterator(MBB_SOURCE_DIR "/viewer/panels")) {
    const std::string name = entry.path().filename().string();
    if (!name.ends_with(".cpp") || name.ends_with("_test.cpp") || name == "panels.cpp") continue;
    std::ifstream in(entry.path());
    const std::string text((std::istreambuf_iterator<char>(in)), {});
    if (text.find("std::unique_ptr<Panel> make_") != std::string::npos) makers.insert(entry.path().stem().string());
  }
  std::set<std::string> names;
  for (const PanelEntry& entry : panels()) names.emplace(entry.name);
  EXPECT_EQ(makers, names);
}

TEST(ProgramReader, AnyTextIsATreeOrAnError) {
  for (const char* text : {"", "{", "[]", "3", "null", "{\"rank_classes\": 3}", "{\"rank_classes\": {}}"}) {
    EXPECT_FALSE(read_program(text).has_value()) << text;
  }
  const auto odd = read_program(
      R"({"rank_classes":[1,null,{"segments":[7,{"ops":[{"path":3},{"path":"a..b"},{"path":"a.b","runs":2,"flops":5}]}]}]})");
  ASSERT_TRUE(odd.has_value());
  ASSERT_EQ(odd->classes.size(), 1U);
  EXPECT_EQ(odd->classes[0].nodes[0].flops, 10);
  std::string deep = "a";
  for (int i = 0; i < 10'000; ++i) deep += ".a";
  EXPECT_TRUE(read_program(fmt::format(R"({{"rank_classes":[{{"segments":[{{"ops":[{{"path":"{}"}}]}}]}}]}})", deep))
                  .has_value());
}

TEST(MemoryShape, CurveFromLifetimesEqualsTheirSum) {
  baselines::MemoryMap map;
  map.tensors = {{"a", "weights", 0, 100, "", "", 0, 10},
                 {"b", "activations", 100, 50, "", "", 2, 5},
                 {"c", "activations", 150, 70, "", "", 4, 7},
                 {"bad", "x", 0, 9, "", "", 5, 1}};
  const MemoryCurve curve = memory_curve(map);
  ASSERT_FALSE(curve.at.empty());
  EXPECT_EQ(curve.total[curve.peak], 220);
  EXPECT_EQ(curve.at[curve.peak], 4);
  EXPECT_EQ(curve.categories.front(), "activations");
  EXPECT_EQ(live_at(map, 4), (std::vector<std::uint32_t>{0, 2, 1}));
  EXPECT_EQ(live_at(map, 7), (std::vector<std::uint32_t>{0}));
  EXPECT_TRUE(memory_curve({}).at.empty());
}

}  // namespace
}  // namespace mbb::viewer
