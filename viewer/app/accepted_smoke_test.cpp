// Every panel beside the picture that a person accepted of it. Where the new look is meant, one command takes its
// place:
//   MBBENCH_UPDATE_GOLDENS=1 ctest --preset release -R AcceptedPictures
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "viewer/app/image.h"
#include "viewer/app/shell_fixture_test.h"
#include "viewer/panels/panel.h"

namespace mbb::viewer {
namespace {

namespace fs = std::filesystem;

constexpr const char* kAccepted = MBB_SOURCE_DIR "/viewer/app/accepted";
// Two or three letters at scale 1. Of the panel compare, softpipe in place of llvmpipe changed no block.
constexpr int kMostBlocks = 12;

constexpr const char* kRenew = "Where it is meant: MBBENCH_UPDATE_GOLDENS=1 ctest --preset release -R AcceptedPictures";

struct Shot {
  std::string name;
  std::string panel;
  const char* theme = "dark";
  int scale = 1;
};

std::vector<Shot> shots() {
  std::vector<Shot> all;
  for (const PanelEntry& entry : panels()) all.push_back({std::string(entry.name), std::string(entry.name)});
  for (const char* panel : {"compare", "timeline", "memory"})
    all.push_back({fmt::format("{}-light", panel), panel, "light"});
  for (const char* panel : {"run", "history"}) all.push_back({fmt::format("{}-2x", panel), panel, "dark", 2});
  return all;
}

struct Box {
  int left, top, width, height;
};

std::uint8_t* pixel(Image& picture, int x, int y) {
  return picture.rgb.data() +
         (static_cast<std::size_t>(y) * static_cast<std::size_t>(picture.width) + static_cast<std::size_t>(x)) * 3;
}

// Paints `box` in the colour of its corner: as if what stood there were gone.
Image without(const Image& picture, Box box) {
  Image out = picture;
  for (int y = box.top; y < std::min(box.top + box.height, picture.height); ++y) {
    for (int x = box.left; x < std::min(box.left + box.width, picture.width); ++x)
      std::copy_n(picture.at(box.left, box.top), 3, pixel(out, x, y));
  }
  return out;
}

// What stood in `box` stands `by` pixels lower.
Image lowered(const Image& picture, Box box, int by) {
  Image out = picture;
  for (int y = box.top + by; y < box.top + box.height; ++y) {
    for (int x = box.left; x < box.left + box.width; ++x) std::copy_n(picture.at(x, y - by), 3, pixel(out, x, y));
  }
  return out;
}

// Every channel a little lighter or darker.
Image softened(const Image& picture) {
  Image out = picture;
  std::uint32_t state = 1;
  for (std::uint8_t& channel : out.rgb) {
    state = state * 1664525U + 1013904223U;
    const int shifted = static_cast<int>(channel) + static_cast<int>(state >> 27U) - 16;
    channel = static_cast<std::uint8_t>(std::clamp(shifted, 0, 255));
  }
  return out;
}

// Removals, shifts and overlays in this picture count; another softness of edges does not.
void expect_sharp_eyes(const Image& picture, const Shot& shot) {
  const int s = shot.scale;
  const int most = kMostBlocks * s;
  const Box word{10 * s, 44 * s, 60 * s, 18 * s};  // "Runs" in the navigator
  const Box column{171 * s, 45 * s, 130 * s, 300 * s};
  EXPECT_GT(seen_change(without(picture, word), picture).blocks, most) << shot.name << ": a word that is gone passes";
  EXPECT_GT(seen_change(without(picture, column), picture).blocks, most) << shot.name << ": a lost column passes";
  EXPECT_GT(seen_change(lowered(picture, word, 4 * s), picture).blocks, most) << shot.name << ": a moved word passes";
  EXPECT_LE(seen_change(softened(picture), picture).blocks, most) << shot.name << ": softer edges fail";
}

class AcceptedPictures : public ShellTest {
 protected:
  DemoOptions demo() const override { return {.runs = 5, .cells = 4, .trace_spans = 6'000}; }

  fs::path fresh(const Shot& shot) const { return folder_ / (shot.name + ".png"); }

  // All pictures of one scale in one window, as a script asks for them.
  void shoot(int scale) {
    std::string script = "select cell=tp2-pp1\nselect op=layers.0.mlp.fc1\n";
    for (const Shot& shot : shots()) {
      if (shot.scale == scale)
        script += fmt::format("theme {}\npanel {}\nwait\nscreenshot {}\n", shot.theme, shot.panel,
                              fresh(shot).filename().string());
    }
    std::ofstream(folder_ / "shots.txt") << script;
    const Answer answer = view(fmt::format("--size {}x{} --scale {} --script shots.txt", scale == 1 ? 960 : 1280,
                                           scale == 1 ? 620 : 800, scale));
    ASSERT_EQ(answer.status, 0) << answer.output;
    for (const Shot& shot : shots()) {
      if (shot.scale == scale) check(shot);
    }
  }

  void check(const Shot& shot) {
    const fs::path accepted = fs::path(kAccepted) / (shot.name + ".png");
    if (std::getenv("MBBENCH_UPDATE_GOLDENS") != nullptr) {
      fs::create_directories(kAccepted);
      fs::copy_file(fresh(shot), accepted, fs::copy_options::overwrite_existing);
    }
    const Result<Image> now = read_png(fresh(shot));
    const Result<Image> then = read_png(accepted);
    ASSERT_TRUE(now.has_value()) << now.error().what;
    ASSERT_TRUE(then.has_value()) << then.error().what << "\n" << kRenew;
    EXPECT_LE(fs::file_size(accepted), 40U * 1024) << shot.name;
    const PictureChange change = seen_change(*now, *then);
    const bool same_size = now->width == then->width && now->height == then->height;
    const int most = kMostBlocks * shot.scale;
    if (same_size && change.blocks <= most) return expect_sharp_eyes(*then, shot);
    // Kept: the folder of the test goes.
    const fs::path kept = fs::temp_directory_path() / fmt::format("mbb-picture-{}-{}.png", shot.name, ::getpid());
    fs::copy_file(fresh(shot), kept, fs::copy_options::overwrite_existing);
    const ImageDifference far = compare(*now, *then);
    ADD_FAILURE() << fmt::format(
        "panel {} ({}): {} blocks of {}x{} pixels look different, {} may; they lie in x {}..{}, y {}..{}; {:.2f} % of "
        "the pixels are far off{}\n  now       {}\n  accepted  {}\n  {}",
        shot.panel, shot.name, change.blocks, kBlock, kBlock, most, change.left, change.right, change.top,
        change.bottom, far.far_fraction * 100, same_size ? "" : "; the sizes are not equal", kept.string(),
        accepted.string(), kRenew);
  }
};

TEST_F(AcceptedPictures, EveryPanelLooksAsAccepted) {
  shoot(1);
}

TEST_F(AcceptedPictures, AtDoubleScaleToo) {
  shoot(2);
}

TEST(AcceptedPictureFiles, NoneIsLeftOver) {
  std::set<std::string> names;
  for (const Shot& shot : shots()) names.insert(shot.name + ".png");
  for (const auto& entry : fs::directory_iterator(kAccepted))
    EXPECT_TRUE(names.contains(entry.path().filename().string())) << entry.path() << " is of no picture";
}

}  // namespace
}  // namespace mbb::viewer
