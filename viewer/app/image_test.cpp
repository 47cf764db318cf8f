// PNG files: what is written reads back exactly; damaged ones are errors.
#include "viewer/app/image.h"

#include <gtest/gtest.h>

namespace mbb::viewer {
namespace {

Image picture(int width, int height, int colors) {
  Image image{width, height, {}};
  std::uint32_t state = 7;
  for (int i = 0; i < width * height; ++i) {
    state = state * 1664525U + 1013904223U;
    const std::uint32_t pick = (state >> 8U) % static_cast<std::uint32_t>(colors);
    for (const std::uint32_t factor : {37U, 91U, 13U})
      image.rgb.push_back(static_cast<std::uint8_t>(pick * factor / 3));
  }
  return image;
}

TEST(Png, RoundTripsWithAndWithoutPalette) {
  for (const int colors : {1, 2, 200, 5000}) {
    const Image image = picture(67, 41, colors);
    const std::string bytes = encode_png(image);
    const Result<Image> back = decode_png(bytes);
    ASSERT_TRUE(back.has_value()) << back.error().what;
    EXPECT_EQ(back->width, 67);
    EXPECT_EQ(back->rgb, image.rgb) << colors;
  }
}

TEST(Png, DamageIsAnErrorAtEveryByte) {
  const std::string bytes = encode_png(picture(9, 5, 1000));
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::string bad = bytes;
    bad[i] = static_cast<char>(bad[i] ^ 0x20);
    EXPECT_FALSE(decode_png(bad).has_value()) << i;
    const Result<Image> cut = decode_png(bytes.substr(0, i));
    if (!cut.has_value()) continue;
    EXPECT_GE(i + 12, bytes.size()) << "only the end chunk may be missing";
  }
}

TEST(Png, FewColorsStayNearAndFarOnesStayExact) {
  Image shades{300, 2, {}};
  for (int i = 0; i < 600; ++i) {
    for (int c = 0; c < 3; ++c) shades.rgb.push_back(static_cast<std::uint8_t>(i % 300 * (c + 1) / 4));
  }
  const Image few = with_few_colors(shades);
  EXPECT_LE(count_colors(few, 1000), 256);
  EXPECT_LT(compare(shades, few).mean, 8);
  Image far{100, 100, {}};
  std::uint64_t state = 1;
  for (int i = 0; i < 30000; ++i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    far.rgb.push_back(static_cast<std::uint8_t>(state >> 56U));
  }
  EXPECT_EQ(with_few_colors(far).rgb, far.rgb);
}

TEST(Png, Comparison) {
  Image a = picture(20, 20, 50);
  Image b = a;
  EXPECT_EQ(compare(a, b).mean, 0);
  b.rgb[0] = static_cast<std::uint8_t>(b.rgb[0] ^ 0xFF);
  EXPECT_GT(compare(a, b).far_fraction, 0);
  b.width = 10;
  EXPECT_FALSE(compare(a, b).same_size);
  EXPECT_EQ(count_colors(Image{1, 1, {1, 2, 3}}, 5), 1);
}

TEST(Png, SeenChangesAreCountedInBlocksAndPlaced) {
  const Image flat{64, 48, std::vector<std::uint8_t>(64 * 48 * 3, 30)};
  EXPECT_EQ(seen_change(flat, flat).blocks, 0);
  // A stroke one pixel wide and eight high, in two blocks.
  Image stroke = flat;
  for (int y = 8; y < 16; ++y) stroke.rgb[static_cast<std::size_t>(y * 64 + 21) * 3] = 220;
  const PictureChange change = seen_change(flat, stroke);
  EXPECT_EQ(change.blocks, 2);
  EXPECT_EQ(change.left, 20);
  EXPECT_EQ(change.right, 24);
  EXPECT_EQ(change.top, 8);
  EXPECT_EQ(change.bottom, 16);
  // The same stroke spread over two pixels, as another driver softens it.
  Image soft = flat;
  for (int y = 8; y < 16; ++y) {
    for (int x = 21; x < 23; ++x) soft.rgb[static_cast<std::size_t>(y * 64 + x) * 3] = 125;
  }
  EXPECT_EQ(seen_change(soft, stroke).blocks, 0);
}

}  // namespace
}  // namespace mbb::viewer
