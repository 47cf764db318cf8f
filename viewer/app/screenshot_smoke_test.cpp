// The command as a person without a screen runs it: pictures under Xvfb, exit statuses, messages.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "viewer/app/image.h"
#include "viewer/app/shell_fixture_test.h"
#include "viewer/panels/panel.h"

namespace mbb::viewer {
namespace {

namespace fs = std::filesystem;

class ScreenshotTest : public ShellTest {
 protected:
  fs::path file_of(const PanelEntry& entry) const { return folder_ / fmt::format("{}.png", entry.name); }

  Result<Image> picture(const PanelEntry& entry) const {
    const Answer answer =
        view(fmt::format("--panel {} --size 1200x800 --screenshot {}", entry.name, file_of(entry).string()));
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
  const std::string words = std::string("--panel run --size 900x600 --screenshot ");
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
  const Answer answer =
      view(fmt::format("--panel run --size 1600x1000 --scale 2 --screenshot {}", (folder_ / "2x.png").string()));
  ASSERT_EQ(answer.status, 0) << answer.output;
  const auto image = read_png(folder_ / "2x.png");
  ASSERT_TRUE(image.has_value());
  // The navigator is 168 design pixels wide: at scale 2 its last entry's ground still is there at 300.
  EXPECT_GT(busy(*image, 0, 80, 330, 300), 0.01);
}

TEST_F(ScreenshotTest, ScriptsPlayInTheWindow) {
  std::ofstream(folder_ / "good.txt") << "wait\nclick nav.run\nexpect panel run\nprint run.cells\n";
  const Answer good = view(fmt::format("--script {}", (folder_ / "good.txt").string()));
  EXPECT_EQ(good.status, 0) << good.output;
  EXPECT_NE(good.output.find("run.cells = 5"), std::string::npos) << good.output;
  std::ofstream(folder_ / "bad.txt") << "wait\nexpect panel run\n";
  const Answer bad = view(fmt::format("--script {}", (folder_ / "bad.txt").string()));
  EXPECT_EQ(bad.status, 4);
  EXPECT_NE(bad.output.find("script line 2"), std::string::npos) << bad.output;
}

TEST_F(ScreenshotTest, TroubleIsSaidWithItsExitStatus) {
  const std::string binary = fmt::format("{}/bin/mbbench-view", MBB_BINARY_DIR);
  const Answer no_display =
      run_shell(fmt::format("env -u DISPLAY -u WAYLAND_DISPLAY {} --store {} @2 @latest --screenshot {}", binary,
                            (folder_ / "store.sqlite").string(), (folder_ / "x.png").string()));
  EXPECT_EQ(no_display.status, 4) << no_display.output;
  EXPECT_NE(no_display.output.find("no display"), std::string::npos) << no_display.output;
  EXPECT_EQ(run_shell(binary + " --panel nonsense").status, 64);
  EXPECT_EQ(run_shell(binary + " --help").status, 0);
  const Answer unwritable = view("--screenshot /nonexistent-folder/x.png");
  EXPECT_EQ(unwritable.status, 4);
  EXPECT_NE(unwritable.output.find("/nonexistent-folder/x.png"), std::string::npos) << unwritable.output;
}

}  // namespace
}  // namespace mbb::viewer
