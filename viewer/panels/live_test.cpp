// A run is followed while it is written: launches and steps appear, cells end, and a writer that is gone is said.
#include <fmt/format.h>

#include <fstream>

#include "analysis/metrics/cell_metrics.h"
#include "baselines/store/bundle.h"
#include "viewer/app/stage_fixture_test.h"
#include "viewer/panels/panel.h"
#include "viewer/widgets/probe.h"

namespace mbb::viewer {
namespace {

class LiveTest : public StageTest {
 protected:
  void SetUp() override {
    StageTest::SetUp();
    run_ = baselines::make_synthetic_run({.cells = 3, .launches = 2, .steps = 20});
    run_.ended_unix_ns = 0;
    for (baselines::Cell& cell : run_.cells) {
      cell.knobs.push_back({"train.train_iters", "20", "suite", "", 0, true});
      if (cell.status == baselines::CellStatus::kOk) {
        ASSERT_TRUE(analysis::fill_metrics(cell, {}).has_value());
      }
    }
    writer_.emplace(baselines::BundleWriter::create(folder_, run_).value());
  }

  // Looks at the disk until the panel says what is expected, as the frame loop does.
  void follow_until(const std::string& probe, const std::string& value) {
    for (int i = 0; i < 4000; ++i) {
      app_->follow(now_ += 1.1);
      runner_->frame();
      if (app_->settled() && probe_find_value(probe) == value) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    FAIL() << probe << " is " << probe_find_value(probe).value_or("(none)") << ", expected " << value;
  }

  void watch(bool from_store) {
    SourceSpec source;
    if (from_store) {
      source.store = folder_ / "store.sqlite";
      auto store = baselines::Store::open(source.store);
      ASSERT_TRUE(store.has_value() && store->put_run(run_, writer_->folder()).has_value());
    } else {
      source.bundles = {writer_->folder()};
    }
    open(source);
    play("panel run\nwait\nexpect state empty\n");
    look(20);  // what lies there now is no change
  }

  void look(int times) {
    for (int i = 0; i < times; ++i) {
      app_->follow(now_ += 1.1);
      runner_->frame();
      while (app_->session().worker.pending() > 0) std::this_thread::yield();
    }
  }

  void go_on() {
    const baselines::Cell& cell = run_.cells[0];
    ASSERT_TRUE(writer_->begin_cell(cell).has_value());
    follow_until("run.unfinished", "1");
    auto live = baselines::LiveSteps::create(writer_->launch_folder(cell.name, 0).value());
    ASSERT_TRUE(live.has_value());
    for (std::size_t i = 0; i < 7; ++i) ASSERT_TRUE(live->add(cell.launches[0].steps[i]).has_value());
    follow_until("run.steps", "7");
    EXPECT_EQ(probe_find_value("run.state").value_or(""), "running");
    EXPECT_EQ(probe_find_value("cells.shown").value_or(""), "5") << "cells that wait are listed";
    for (std::size_t i = 7; i < 9; ++i) ASSERT_TRUE(live->add(cell.launches[0].steps[i]).has_value());
    follow_until("run.steps", "9");
  }

  baselines::Run run_;
  std::optional<baselines::BundleWriter> writer_;
  double now_ = 1;
};

TEST_F(LiveTest, StepsAppearAsTheyEnd) {
  watch(false);
  go_on();
  ASSERT_TRUE(writer_->finish_cell(run_.cells[0]).has_value());
  follow_until("run.unfinished", "0");
  EXPECT_EQ(probe_find_value("run.steps").value_or(""), "20");
  for (const PanelEntry& entry : panels()) play(fmt::format("panel {}\nwait\n", entry.name));
}

TEST_F(LiveTest, TheStoreIsFollowedIntoTheBundle) {
  watch(true);
  go_on();
  for (const PanelEntry& entry : panels()) play(fmt::format("panel {}\nwait\n", entry.name));
  play("panel run\nwait\n");
  ASSERT_TRUE(writer_->finish_cell(run_.cells[0]).has_value());
  {
    auto store = baselines::Store::open(folder_ / "store.sqlite");
    baselines::Cell done = run_.cells[0];
    ASSERT_TRUE(store.has_value() && store->put_cell(done).has_value());
  }
  follow_until("run.unfinished", "0");
  EXPECT_EQ(app_->session().cell_a()->metrics.empty(), false);
}

TEST_F(LiveTest, AWriterThatIsGoneIsSaid) {
  watch(false);
  go_on();
  writer_.reset();  // killed: the lock goes with it
  follow_until("run.state", "cut off");
  EXPECT_NE(app_->session().cell_a()->reason.find("cut off"), std::string::npos);
  play("panel runs\nwait\nexpect runs.shown 1\n");
  EXPECT_EQ(app_->session().runs.value()->cut_off.size(), 1U);
}

TEST_F(LiveTest, NothingIsReadAgainWhileNothingHappens) {
  watch(false);
  go_on();
  const std::uint64_t before = app_->session().live + app_->session().generation;
  look(100);
  EXPECT_EQ(app_->session().live + app_->session().generation, before);
}

}  // namespace
}  // namespace mbb::viewer
