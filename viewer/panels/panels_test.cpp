// Panels as a person uses them, without a display: keys, clicks and drags, and what must be on the screen after them.
#include "viewer/panels/panel.h"

#include <fmt/format.h>

#include <fstream>
#include <set>

#include "viewer/app/stage_fixture_test.h"
#include "viewer/widgets/probe.h"

namespace mbb::viewer {
namespace {

using PanelsTest = StageTest;

TEST_F(PanelsTest, NamesAreUniqueAndSayWhatTheyShow) {
  std::set<std::string_view> names;
  for (const PanelEntry& entry : panels()) {
    EXPECT_TRUE(names.insert(entry.name).second) << entry.name;
    EXPECT_TRUE(entry.purpose.ends_with(".")) << entry.name;
    EXPECT_EQ(find_panel(entry.name), &entry);
  }
}

TEST_F(PanelsTest, EveryPanelDrawsEveryState) {
  // No store: each panel says so; nothing is left blank.
  SourceSpec nothing;
  nothing.store = folder_ / "none.sqlite";
  open(nothing);
  for (const PanelEntry& entry : panels()) {
    play(fmt::format("panel {}\nwait\n", entry.name));
    const std::string state = probe_find_value("state").value_or("");
    EXPECT_TRUE(state == "error" || state == "empty") << entry.name << ": " << state;
  }
  open_store();
  for (const PanelEntry& entry : panels()) {
    play(fmt::format("panel {}\nwait\nexpect panel {}\ntheme light\nwait\ntheme dark\n", entry.name, entry.name));
    EXPECT_NE(probe_find_value("state").value_or(""), "error")
        << entry.name << ": " << probe_find_value("state.error").value_or("");
  }
}

TEST_F(PanelsTest, EveryPanelDrawsAtEverySize) {
  open_demo();
  play(fmt::format("select other={}\nwait\n", bundles_[0].filename().string()));
  for (const PanelEntry& entry : panels()) {
    for (const char* size : {"320x240", "700x400", "2560x1440"})
      play(fmt::format("panel {}\nresize {}\nwait\n", entry.name, size));
  }
}

TEST_F(PanelsTest, RunsAreSearchedSelectedAndCompared) {
  open_demo({.runs = 3, .trace_spans = 0});
  play(R"(
wait
expect runs.shown 3
click runs.row.1
expect selection.run r-20260529-2026-0002
click runs.row.2 ctrl
expect selection.other r-20260528-2026-0001
key X
expect selection.run r-20260528-2026-0001
expect selection.other r-20260529-2026-0002
key Ctrl+F
type 0003
wait
expect runs.shown 1
key Escape
)");
}

TEST_F(PanelsTest, RunsAreFilteredByKnob) {
  open_demo({.runs = 2, .trace_spans = 0});
  play("wait\n");
  const auto& knobs = app_->session().run_a.value()->cells.at(0).knobs;
  ASSERT_FALSE(knobs.empty());
  play(fmt::format("click runs.search\ntype \"{}={}\"\nwait\nexpect runs.shown 2\n", knobs[0].key, knobs[0].value));
  play(fmt::format("click runs.search\nkey Ctrl+A\ntype \"{}={}x\"\nwait\nexpect state empty\n", knobs[0].key,
                   knobs[0].value));
  // The names people say stand for the long ones.
  play("click runs.search\nkey Ctrl+A\ntype \"tp=2\"\nwait\nexpect runs.shown 2\n");
  play("click runs.search\nkey Ctrl+A\ntype \"tp=3\"\nwait\nexpect state empty\n");
}

TEST_F(PanelsTest, KeysChangePanelThemeAndHelp) {
  open_demo({.trace_spans = 0});
  play(R"(
wait
key 2
expect panel run
key 1
expect panel runs
key T
expect theme light
key T
expect theme dark
key ?
expect help open
key Escape
expect help closed
click nav.run
expect panel run
)");
}

TEST_F(PanelsTest, ArrowKeysMoveAndEnterOpens) {
  open_demo({.runs = 3, .trace_spans = 0});
  play(R"(
wait
expect selection.run r-20260530-2026-0003
key Down
expect selection.run r-20260529-2026-0002
key Up
expect selection.run r-20260530-2026-0003
key Enter
expect panel run
)");
}

TEST_F(PanelsTest, TablesCopyAsMarkdownAndCsv) {
  open_demo({.trace_spans = 0});
  play(R"(
panel run
wait
hover cells.row.0
key Ctrl+C
clipboard ~ "| cell | status |"
click cells.row.1 right
click cells.copy.csv
clipboard ~ "cell,status,class"
)");
}

TEST_F(PanelsTest, ACellIsChosenOnceForAllPanels) {
  open_demo();
  play(R"(
panel run
wait
click cells.row.1
expect selection.cell tp2-pp1
panel timeline
wait
expect selection.cell tp2-pp1
expect timeline.spans > 1000
)");
}

TEST_F(PanelsTest, TimelineZoomsMovesFindsAndSelects) {
  open_demo();
  play("panel timeline\nwait\nexpect timeline.step 0\n");
  const auto number = [](const char* probe) { return std::stoll(probe_find_value(probe).value_or("0")); };
  const long long span = number("timeline.span_us");
  play("wheel timeline.a 4\n");
  EXPECT_LT(number("timeline.span_us"), span / 2);
  const long long start = number("timeline.start_us");
  play("drag timeline.a -200 0\n");
  EXPECT_GT(number("timeline.start_us"), start);
  play("hover timeline.a\nhold W 10\n");
  EXPECT_LT(number("timeline.span_us"), span / 2);
  play("key F\n");
  EXPECT_EQ(number("timeline.span_us"), span) << "F shows the whole step again";
  play(R"(
key Ctrl+F
type "fc1.gemm"
wait
expect timeline.found > 10
key Enter
wait
expect selection.op ~ fc1.gemm
click timeline.later
wait
expect selection.step 1
click timeline.color.micro-batch
wait
)");
}

TEST_F(PanelsTest, TwoTimelinesAreAlignedAndTheirDifferencesNamed) {
  open_demo();
  play(fmt::format("select other={}\npanel timeline\nwait\n", bundles_[0].filename().string()));
  play(R"(
expect timeline.differences > 2
expect-item timeline.a
expect-item timeline.b
click timeline.difference.0
expect selection.op ~ gemm
click timeline.align
wait
expect timeline.align op
)");
}

TEST_F(PanelsTest, AStoreDeletedUnderItIsSaid) {
  open_demo({.trace_spans = 0});
  play("panel run\nwait\nexpect state ready\n");
  for (const auto& bundle : bundles_) std::filesystem::remove_all(bundle);
  ++app_->session().generation;
  for (const PanelEntry& entry : panels()) {
    play(fmt::format("panel {}\nwait\n", entry.name));
    const std::string state = probe_find_value("state").value_or("");
    EXPECT_TRUE(state == "error" || state == "empty") << entry.name << ": " << state;
  }
}

TEST_F(PanelsTest, ChangesOnDiskAreFollowed) {
  open_demo({.runs = 1, .trace_spans = 0});
  play("panel run\nwait\n");
  const std::uint64_t before = app_->session().generation;
  double now = 1;
  const auto look = [&] {
    for (int i = 0; i < 200; ++i) {
      app_->follow(now += 1.1);
      runner_->frame();
      while (app_->session().worker.pending() > 0) runner_->frame();
    }
  };
  look();
  EXPECT_EQ(app_->session().generation, before) << "nothing changed, nothing reloads";
  std::filesystem::last_write_time(bundles_[0] / "run.json",
                                   std::filesystem::file_time_type::clock::now() + std::chrono::seconds(5));
  look();
  EXPECT_EQ(app_->session().generation, before + 1);
}

TEST_F(PanelsTest, DamagedBundlesAreSaidAndTheirOtherCellsShown) {
  open_demo({.runs = 1});
  const auto trace = bundles_[0] / "cells" / "tp1" / "launches" / "0" / "trace.mbtrace";
  ASSERT_TRUE(std::filesystem::exists(trace));
  const auto size = std::filesystem::file_size(trace);
  for (const double share : {0.0, 0.1, 0.5, 0.99}) {
    std::filesystem::resize_file(trace, static_cast<std::uintmax_t>(static_cast<double>(size) * share));
    SourceSpec source;
    source.bundles = bundles_;
    open(source);
    play("select cell=tp1\nselect launch=0\npanel timeline\nwait\nexpect state empty\n");
    play("panel run\nwait\nexpect run.cells 6\n");
    const baselines::Cell* cell = app_->session().cell_a();
    ASSERT_NE(cell, nullptr);
    EXPECT_NE(cell->reason.find("damaged"), std::string::npos) << "the bundle's checksums say which file";
  }
}

}  // namespace
}  // namespace mbb::viewer
