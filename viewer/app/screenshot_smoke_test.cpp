// The command as a person without a screen runs it: pictures under Xvfb, exit statuses, messages.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "baselines/store/store.h"
#include "viewer/app/demo_runs.h"
#include "viewer/app/image.h"
#include "viewer/panels/panel.h"

namespace mbb::viewer {
namespace {

namespace fs = std::filesystem;

struct Answer {
  int status = -1;
  std::string output;
};

Answer run(const std::string& command) {
  Answer answer;
  FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return answer;
  std::array<char, 4096> buffer{};
  while (std::size_t got = std::fread(buffer.data(), 1, buffer.size(), pipe)) answer.output.append(buffer.data(), got);
  const int status = ::pclose(pipe);
  answer.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return answer;
}

class ScreenshotTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        fs::temp_directory_path() /
        fmt::format("mbb-shot-{}-{}", ::testing::UnitTest::GetInstance()->current_test_info()->name(), ::getpid());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    if (run("command -v xvfb-run").status != 0) GTEST_SKIP() << "xvfb-run is not installed: apt-get install xvfb";
    const auto bundles = write_demo_bundles(folder_, {.runs = 2, .cells = 3, .trace_spans = 10'000});
    ASSERT_TRUE(bundles.has_value()) << bundles.error().what;
    auto store = baselines::Store::open(folder_ / "store.sqlite");
    ASSERT_TRUE(store.has_value()) << store.error().what;
    ASSERT_TRUE(store->index(folder_).has_value());
    runs_ = fmt::format("--store {} @2 @latest", (folder_ / "store.sqlite").string());
  }
  void TearDown() override { fs::remove_all(folder_); }

  Answer view(const std::string& words) const {
    return run(fmt::format("xvfb-run -a -s '-screen 0 1920x1200x24' {}/bin/mbbench-view {}", MBB_BINARY_DIR, words));
  }

  fs::path file_of(const PanelEntry& entry) const { return folder_ / fmt::format("{}.png", entry.name); }

  Result<Image> picture(const PanelEntry& entry) const {
    const Answer answer =
        view(fmt::format("{} --panel {} --size 1200x800 --screenshot {}", runs_, entry.name, file_of(entry).string()));
    if (answer.status != 0) return fail(ErrorCode::kUnavailable, fmt::format("{}: {}", entry.name, answer.output));
    return read_png(file_of(entry));
  }

  // Share of pixels in a region that differ from the region's first pixel.
  static double busy(const Image& image, int left, int top, int right, int bottom) {
    int different = 0;
    for (int y = top; y < bottom; ++y) {
      for (int x = left; x < right; ++x) {
        for (int c = 0; c < 3; ++c) {
          if (std::abs(image.at(x, y)[c] - image.at(left, top)[c]) > 12) {
            ++different;
            break;
          }
        }
      }
    }
    return static_cast<double>(different) / ((right - left) * (bottom - top));
  }

  fs::path folder_;
  std::string runs_;
};

TEST_F(ScreenshotTest, EveryPanelGivesAPictureThatIsNotBlank) {
  for (const PanelEntry& entry : panels()) {
    const Result<Image> image = picture(entry);
    ASSERT_TRUE(image.has_value()) << image.error().what;
    EXPECT_EQ(image->width, 1200);
    EXPECT_EQ(image->height, 800);
    EXPECT_GT(count_colors(*image, 64), 16) << entry.name;
    EXPECT_GT(busy(*image, 0, 40, 160, 330), 0.01) << entry.name << ": the navigator is empty";
    EXPECT_GT(busy(*image, 180, 50, 1190, 760), 0.005) << entry.name << ": the panel is empty";
    EXPECT_LT(fs::file_size(file_of(entry)), 150U * 1024) << entry.name;
  }
}

TEST_F(ScreenshotTest, PicturesAreReproducible) {
  const std::string words = fmt::format("{} --panel run --size 900x600 --screenshot ", runs_);
  ASSERT_EQ(view(words + (folder_ / "a.png").string()).status, 0);
  ASSERT_EQ(view(words + (folder_ / "b.png").string()).status, 0);
  ASSERT_EQ(view(words + (folder_ / "c.png").string() + " --theme light").status, 0);
  const auto a = read_png(folder_ / "a.png");
  const auto b = read_png(folder_ / "b.png");
  const auto light = read_png(folder_ / "c.png");
  ASSERT_TRUE(a.has_value() && b.has_value() && light.has_value());
  EXPECT_LT(compare(*a, *b).mean, 0.5);
  EXPECT_LT(compare(*a, *b).far_fraction, 0.002);
  EXPECT_GT(compare(*a, *light).mean, 60) << "the light theme is another picture";
}

TEST_F(ScreenshotTest, ScaleDoublesEverything) {
  const Answer answer = view(
      fmt::format("{} --panel run --size 1600x1000 --scale 2 --screenshot {}", runs_, (folder_ / "2x.png").string()));
  ASSERT_EQ(answer.status, 0) << answer.output;
  const auto image = read_png(folder_ / "2x.png");
  ASSERT_TRUE(image.has_value());
  // The navigator is 168 design pixels wide: at scale 2 its last entry's ground still is there at 300.
  EXPECT_GT(busy(*image, 0, 80, 330, 300), 0.01);
}

TEST_F(ScreenshotTest, ScriptsPlayInTheWindow) {
  std::ofstream(folder_ / "good.txt") << "wait\nclick nav.run\nexpect panel run\nprint run.cells\n";
  const Answer good = view(fmt::format("{} --script {}", runs_, (folder_ / "good.txt").string()));
  EXPECT_EQ(good.status, 0) << good.output;
  EXPECT_NE(good.output.find("run.cells = 5"), std::string::npos) << good.output;
  std::ofstream(folder_ / "bad.txt") << "wait\nexpect panel run\n";
  const Answer bad = view(fmt::format("{} --script {}", runs_, (folder_ / "bad.txt").string()));
  EXPECT_EQ(bad.status, 4);
  EXPECT_NE(bad.output.find("script line 2"), std::string::npos) << bad.output;
}

TEST_F(ScreenshotTest, TroubleIsSaidWithItsExitStatus) {
  const std::string binary = fmt::format("{}/bin/mbbench-view", MBB_BINARY_DIR);
  const Answer no_display = run(fmt::format("env -u DISPLAY -u WAYLAND_DISPLAY {} {} --screenshot {}", binary, runs_,
                                            (folder_ / "x.png").string()));
  EXPECT_EQ(no_display.status, 4) << no_display.output;
  EXPECT_NE(no_display.output.find("no display"), std::string::npos) << no_display.output;
  EXPECT_EQ(run(binary + " --panel nonsense").status, 64);
  EXPECT_EQ(run(binary + " --help").status, 0);
  const Answer unwritable = view(fmt::format("{} --screenshot /nonexistent-folder/x.png", runs_));
  EXPECT_EQ(unwritable.status, 4);
  EXPECT_NE(unwritable.output.find("/nonexistent-folder/x.png"), std::string::npos) << unwritable.output;
}

}  // namespace
}  // namespace mbb::viewer
