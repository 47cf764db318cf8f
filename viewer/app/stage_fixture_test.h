// A viewer without a display over made-up bundles, driven by scripts: for tests.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "baselines/store/store.h"
#include "viewer/app/app.h"
#include "viewer/app/demo_runs.h"
#include "viewer/app/script.h"
#include "viewer/app/stage.h"

namespace mbb::viewer {

class StageTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::temp_directory_path() / (std::string("mbb-view-") + info->test_suite_name() + "-" +
                                                        info->name() + "-" + std::to_string(::getpid()));
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override {
    runner_.reset();
    app_.reset();
    stage_.reset();
    std::filesystem::remove_all(folder_);
  }

  void open(SourceSpec source) {
    runner_.reset();
    app_.reset();
    stage_.reset();  // ImGui has one current context: the old one goes first
    stage_ = open_headless({});
    app_ = std::make_unique<App>(std::move(source), [stage = stage_.get()] { stage->wake(); });
    runner_.emplace(*stage_, *app_, 1.0F);
  }

  void open_demo(const DemoOptions& options = {}) {
    const auto folders = write_demo_bundles(folder_, options);
    ASSERT_TRUE(folders.has_value()) << folders.error().what;
    bundles_ = *folders;
    SourceSpec source;
    source.bundles = bundles_;
    open(source);
  }

  // The same runs, read from a store that was indexed from their bundles.
  void open_store(const DemoOptions& options = {}) {
    const auto folders = write_demo_bundles(folder_, options);
    ASSERT_TRUE(folders.has_value()) << folders.error().what;
    bundles_ = *folders;
    SourceSpec source;
    source.store = folder_ / "store.sqlite";
    {
      auto store = baselines::Store::open(source.store);
      ASSERT_TRUE(store.has_value()) << store.error().what;
      const auto report = store->index(folder_);
      ASSERT_TRUE(report.has_value()) << report.error().what;
      ASSERT_EQ(report->runs, options.runs);
    }
    open(source);
  }

  void play(const std::string& text) {
    const auto script = parse_script(text);
    ASSERT_TRUE(script.has_value()) << script.error().what;
    const Status status = runner_->run(*script);
    EXPECT_TRUE(status.has_value()) << status.error().what << "\n  " << status.error().hint;
  }

  std::filesystem::path folder_;
  std::vector<std::filesystem::path> bundles_;
  std::unique_ptr<Stage> stage_;
  std::unique_ptr<App> app_;
  std::optional<ScriptRunner> runner_;
};

}  // namespace mbb::viewer
