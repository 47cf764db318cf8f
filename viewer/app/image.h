// A picture in memory and its PNG form.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "profiler/base/error.h"

namespace mbb::viewer {

// 8-bit RGB, row by row from the top, no padding.
struct Image {
  int width = 0;
  int height = 0;
  std::vector<std::uint8_t> rgb;

  const std::uint8_t* at(int x, int y) const {
    return rgb.data() +
           (static_cast<std::size_t>(y) * static_cast<std::size_t>(width) + static_cast<std::size_t>(x)) * 3;
  }
};

// Pictures of few colours (most screens) are written with a palette, which makes them several times smaller; the pixels
// are exact in both forms.
std::string encode_png(const Image& image);
// With at most 256 colours: rare shades (the edges of letters) become the nearest frequent ones where all of them are
// near, which makes a screenshot a third as large; else as it is.
Image with_few_colors(const Image& image);

// What encode_png writes (8-bit RGB or palette, not interlaced); other PNG forms are kBadFile.
Result<Image> decode_png(const std::string& bytes);

Status write_png(const std::filesystem::path& file, const Image& image);
Result<Image> read_png(const std::filesystem::path& file);

struct ImageDifference {
  bool same_size = false;
  double mean = 0;          // mean absolute difference of a channel, 0..255
  double far_fraction = 0;  // share of pixels that differ by more than 32 in a channel
};
ImageDifference compare(const Image& a, const Image& b);

// How two pictures of one size differ as a person sees it. Both are averaged over blocks of kBlock x kBlock pixels, so
// that a driver that softens edges otherwise changes nothing; a block counts where a channel's mean is off by more than
// kBlockStep: a letter that is gone, moved or overlaid changes about six.
struct PictureChange {
  int blocks = 0;
  int left = 0, top = 0, right = 0, bottom = 0;  // pixels: the rectangle that holds all of them
};
inline constexpr int kBlock = 4;
inline constexpr int kBlockStep = 24;
PictureChange seen_change(const Image& a, const Image& b);

// Number of different colours, counted up to `limit`: a blank picture has one.
int count_colors(const Image& image, int limit);

}  // namespace mbb::viewer
