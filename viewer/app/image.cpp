// PNG by the specification: chunks, filters, zlib.
#include "viewer/app/image.h"

#include <fmt/core.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>
#include <unordered_map>

namespace mbb::viewer {
namespace {

constexpr std::string_view kSignature = "\x89PNG\r\n\x1A\n";
constexpr std::size_t kMaxPalette = 256;
constexpr int kMaxSide = 16384;

void put_u32(std::string& out, std::uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>((value >> shift) & 0xFFU);
}

std::uint32_t get_u32(const std::string& in, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) value = (value << 8U) | static_cast<unsigned char>(in[at + i]);
  return value;
}

std::uint32_t crc_of(std::string_view bytes) {
  return static_cast<std::uint32_t>(
      crc32(0, reinterpret_cast<const Bytef*>(bytes.data()), static_cast<uInt>(bytes.size())));
}

void put_chunk(std::string& out, std::string_view kind, std::string_view body) {
  put_u32(out, static_cast<std::uint32_t>(body.size()));
  std::string checked(kind);
  checked += body;
  out += checked;
  put_u32(out, crc_of(checked));
}

int paeth(int a, int b, int c) {
  const int p = a + b - c;
  const int pa = std::abs(p - a);
  const int pb = std::abs(p - b);
  const int pc = std::abs(p - c);
  if (pa <= pb && pa <= pc) return a;
  return pb <= pc ? b : c;
}

// The predictor of filter `kind` for a byte with left `a`, above `b`, above-left `c`.
int predict(int kind, int a, int b, int c) {
  switch (kind) {
    case 1: return a;
    case 2: return b;
    case 3: return (a + b) / 2;
    case 4: return paeth(a, b, c);
    default: return 0;
  }
}

struct Rows {
  std::size_t stride;  // bytes a row
  std::size_t rows;
  std::size_t pixel;  // bytes a pixel
};

int neighbour(const std::string& data, const Rows& shape, std::size_t row, std::size_t column, bool above, bool left) {
  if ((above && row == 0) || (left && column < shape.pixel)) return 0;
  const std::size_t r = above ? row - 1 : row;
  const std::size_t c = left ? column - shape.pixel : column;
  return static_cast<unsigned char>(data[r * shape.stride + c]);
}

// Per row the filter whose residues are smallest in sum, the usual heuristic for true colour.
std::string filter_rows(const std::string& data, const Rows& shape) {
  std::string out;
  out.reserve((shape.stride + 1) * shape.rows);
  for (std::size_t row = 0; row < shape.rows; ++row) {
    std::string best;
    long best_sum = -1;
    for (int kind = 0; kind <= 4; ++kind) {
      std::string line(1, static_cast<char>(kind));
      long sum = 0;
      for (std::size_t column = 0; column < shape.stride; ++column) {
        const int value = static_cast<unsigned char>(data[row * shape.stride + column]);
        const int guess =
            predict(kind, neighbour(data, shape, row, column, false, true),
                    neighbour(data, shape, row, column, true, false), neighbour(data, shape, row, column, true, true));
        const auto residue = static_cast<std::int8_t>(value - guess);
        sum += std::abs(static_cast<int>(residue));
        line += static_cast<char>(residue);
      }
      if (best_sum < 0 || sum < best_sum) {
        best_sum = sum;
        best = std::move(line);
      }
    }
    out += best;
  }
  return out;
}

std::string deflate_all(const std::string& raw) {
  uLongf size = compressBound(static_cast<uLong>(raw.size()));
  std::string out(size, '\0');
  const int status = compress2(reinterpret_cast<Bytef*>(out.data()), &size, reinterpret_cast<const Bytef*>(raw.data()),
                               static_cast<uLong>(raw.size()), 9);
  out.resize(status == Z_OK ? size : 0);
  return out;
}

// The palette of an image, most frequent first; empty when it has more than 256 colours.
std::unordered_map<std::uint32_t, std::uint8_t> palette_of(const Image& image, std::string& colors) {
  std::unordered_map<std::uint32_t, std::uint8_t> index;
  for (std::size_t i = 0; i + 2 < image.rgb.size(); i += 3) {
    const std::uint32_t rgb = (static_cast<std::uint32_t>(image.rgb[i]) << 16U) |
                              (static_cast<std::uint32_t>(image.rgb[i + 1]) << 8U) | image.rgb[i + 2];
    if (index.contains(rgb)) continue;
    if (index.size() == kMaxPalette) return {};
    index.emplace(rgb, static_cast<std::uint8_t>(index.size()));
    colors.append(reinterpret_cast<const char*>(image.rgb.data()) + i, 3);
  }
  return index;
}

Result<std::string> inflate_exact(const std::string& packed, std::size_t expected) {
  std::string out(expected, '\0');
  uLongf size = static_cast<uLongf>(expected);
  const int status = uncompress(reinterpret_cast<Bytef*>(out.data()), &size,
                                reinterpret_cast<const Bytef*>(packed.data()), static_cast<uLong>(packed.size()));
  if (status != Z_OK || size != expected)
    return fail(ErrorCode::kBadFile, "PNG pixels do not unpack to the size of the picture");
  return out;
}

struct Chunks {
  std::uint32_t width = 0, height = 0;
  int depth = 0, type = -1, interlace = 0;
  std::string palette, packed;
};

Result<Chunks> split_chunks(const std::string& bytes) {
  if (!bytes.starts_with(kSignature)) return fail(ErrorCode::kBadFile, "not a PNG file");
  Chunks out;
  for (std::size_t at = kSignature.size(); at + 12 <= bytes.size();) {
    const std::uint32_t size = get_u32(bytes, at);
    if (size > bytes.size() - at - 12) return fail(ErrorCode::kBadFile, "PNG file is cut short");
    const std::string kind = bytes.substr(at + 4, 4);
    const std::string body = bytes.substr(at + 8, size);
    if (crc_of(kind + body) != get_u32(bytes, at + 8 + size))
      return fail(ErrorCode::kBadFile, fmt::format("PNG chunk {} is damaged", kind));
    if (kind == "IHDR" && size == 13) {
      out.width = get_u32(body, 0);
      out.height = get_u32(body, 4);
      out.depth = body[8];
      out.type = body[9];
      out.interlace = body[12];
    }
    if (kind == "PLTE") out.palette = body;
    if (kind == "IDAT") out.packed += body;
    at += size + 12;
  }
  return out;
}

}  // namespace

std::string encode_png(const Image& image) {
  const auto width = static_cast<std::size_t>(image.width);
  const auto height = static_cast<std::size_t>(image.height);
  std::string colors;
  const auto palette = palette_of(image, colors);
  const bool indexed = !palette.empty();
  std::string out(kSignature);
  std::string header;
  put_u32(header, static_cast<std::uint32_t>(image.width));
  put_u32(header, static_cast<std::uint32_t>(image.height));
  header += '\x08';
  header += indexed ? '\x03' : '\x02';
  header.append(3, '\0');
  put_chunk(out, "IHDR", header);
  std::string raw;
  if (indexed) {
    put_chunk(out, "PLTE", colors);
    raw.reserve((width + 1) * height);
    for (std::size_t i = 0; i < width * height; ++i) {
      if (i % width == 0) raw += '\0';
      const std::uint8_t* p = image.rgb.data() + i * 3;
      raw += static_cast<char>(
          palette.at((static_cast<std::uint32_t>(p[0]) << 16U) | (static_cast<std::uint32_t>(p[1]) << 8U) | p[2]));
    }
  } else {
    const std::string data(reinterpret_cast<const char*>(image.rgb.data()), image.rgb.size());
    raw = filter_rows(data, {width * 3, height, 3});
    // Text on flat ground often packs better unfiltered; take the smaller.
    std::string plain;
    for (std::size_t row = 0; row < height; ++row) {
      plain += '\0';
      plain.append(data, row * width * 3, width * 3);
    }
    const std::string filtered_packed = deflate_all(raw);
    const std::string plain_packed = deflate_all(plain);
    put_chunk(out, "IDAT", plain_packed.size() < filtered_packed.size() ? plain_packed : filtered_packed);
    put_chunk(out, "IEND", "");
    return out;
  }
  put_chunk(out, "IDAT", deflate_all(raw));
  put_chunk(out, "IEND", "");
  return out;
}

namespace {

std::uint32_t rgb_at(const Image& image, std::size_t i) {
  return (static_cast<std::uint32_t>(image.rgb[i]) << 16U) | (static_cast<std::uint32_t>(image.rgb[i + 1]) << 8U) |
         image.rgb[i + 2];
}

int distance(std::uint32_t a, std::uint32_t b) {
  int sum = 0;
  for (unsigned shift = 0; shift < 24; shift += 8) {
    sum += std::abs(static_cast<int>((a >> shift) & 0xFFU) - static_cast<int>((b >> shift) & 0xFFU));
  }
  return sum;
}

std::uint32_t nearest_of(const std::vector<std::uint32_t>& colors, std::uint32_t rgb) {
  return *std::min_element(colors.begin(), colors.end(),
                           [&](std::uint32_t a, std::uint32_t b) { return distance(a, rgb) < distance(b, rgb); });
}

}  // namespace

Image with_few_colors(const Image& image) {
  constexpr int kSame = 14;  // summed over the channels: shades this near share one colour
  constexpr int kNear = 64;  // a shade farther from all chosen ones is kept exact, and with it the picture
  std::unordered_map<std::uint32_t, std::size_t> counts;
  for (std::size_t i = 0; i + 2 < image.rgb.size(); i += 3) ++counts[rgb_at(image, i)];
  if (counts.size() <= kMaxPalette) return image;
  std::vector<std::pair<std::size_t, std::uint32_t>> order;
  for (const auto& [rgb, count] : counts) order.emplace_back(count, rgb);
  std::sort(order.begin(), order.end(), std::greater<>());
  // Frequent colours first, none beside one that was chosen: the flat grounds stay exact, the edges of letters share.
  std::vector<std::uint32_t> chosen;
  for (const auto& [count, rgb] : order) {
    if (chosen.size() == kMaxPalette) break;
    if (chosen.empty() || distance(nearest_of(chosen, rgb), rgb) > kSame) chosen.push_back(rgb);
  }
  std::unordered_map<std::uint32_t, std::uint32_t> mapped;
  for (const auto& [count, rgb] : order) {
    mapped[rgb] = nearest_of(chosen, rgb);
    if (distance(mapped[rgb], rgb) > kNear) return image;
  }
  Image out = image;
  for (std::size_t i = 0; i + 2 < out.rgb.size(); i += 3) {
    const std::uint32_t rgb = mapped[rgb_at(image, i)];
    for (std::size_t c = 0; c < 3; ++c) out.rgb[i + c] = static_cast<std::uint8_t>(rgb >> (16 - 8 * c));
  }
  return out;
}

Result<Image> decode_png(const std::string& bytes) {
  MB_ASSIGN(const Chunks chunks, split_chunks(bytes));
  if (chunks.depth != 8 || (chunks.type != 2 && chunks.type != 3) || chunks.interlace != 0) {
    return fail(ErrorCode::kBadFile, "a PNG form this program does not write",
                "use 8-bit RGB or palette, not interlaced");
  }
  if (chunks.width == 0 || chunks.height == 0 || chunks.width > kMaxSide || chunks.height > kMaxSide) {
    return fail(ErrorCode::kBadFile, "PNG size out of range");
  }
  const std::size_t pixel = chunks.type == 2 ? 3 : 1;
  const Rows shape{chunks.width * pixel, chunks.height, pixel};
  MB_ASSIGN(const std::string raw, inflate_exact(chunks.packed, (shape.stride + 1) * shape.rows));
  std::string data(shape.stride * shape.rows, '\0');
  for (std::size_t row = 0; row < shape.rows; ++row) {
    const int kind = static_cast<unsigned char>(raw[row * (shape.stride + 1)]);
    if (kind > 4) return fail(ErrorCode::kBadFile, "PNG filter out of range");
    for (std::size_t column = 0; column < shape.stride; ++column) {
      const int guess =
          predict(kind, neighbour(data, shape, row, column, false, true),
                  neighbour(data, shape, row, column, true, false), neighbour(data, shape, row, column, true, true));
      const int value = static_cast<unsigned char>(raw[row * (shape.stride + 1) + 1 + column]) + guess;
      data[row * shape.stride + column] = static_cast<char>(value & 0xFF);
    }
  }
  Image image{static_cast<int>(chunks.width), static_cast<int>(chunks.height), {}};
  if (pixel == 3) {
    image.rgb.assign(data.begin(), data.end());
    return image;
  }
  for (const char index : data) {
    const std::size_t at = static_cast<std::size_t>(static_cast<unsigned char>(index)) * 3;
    if (at + 3 > chunks.palette.size()) return fail(ErrorCode::kBadFile, "PNG colour outside its palette");
    for (std::size_t i = 0; i < 3; ++i) image.rgb.push_back(static_cast<std::uint8_t>(chunks.palette[at + i]));
  }
  return image;
}

Status write_png(const std::filesystem::path& file, const Image& image) {
  const std::string bytes = encode_png(image);
  std::ofstream out(file, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  out.close();
  if (!out)
    return fail(ErrorCode::kIo, fmt::format("cannot write {}", file.string()),
                "check that its folder is there and writable");
  return {};
}

Result<Image> read_png(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) return fail(ErrorCode::kNotFound, fmt::format("cannot read {}", file.string()));
  std::ostringstream bytes;
  bytes << in.rdbuf();
  return decode_png(bytes.str());
}

ImageDifference compare(const Image& a, const Image& b) {
  ImageDifference out;
  out.same_size = a.width == b.width && a.height == b.height;
  if (!out.same_size || a.rgb.empty()) return out;
  double sum = 0;
  std::size_t far = 0;
  for (std::size_t i = 0; i + 2 < a.rgb.size(); i += 3) {
    int most = 0;
    for (std::size_t c = 0; c < 3; ++c) {
      const int distance = std::abs(static_cast<int>(a.rgb[i + c]) - static_cast<int>(b.rgb[i + c]));
      sum += distance;
      most = std::max(most, distance);
    }
    if (most > 32) ++far;
  }
  out.mean = sum / static_cast<double>(a.rgb.size());
  out.far_fraction = static_cast<double>(far) * 3 / static_cast<double>(a.rgb.size());
  return out;
}

PictureChange seen_change(const Image& a, const Image& b) {
  PictureChange out;
  const auto off = [&](int left, int top, int right, int bottom) {
    std::array<int, 3> sum{};
    for (int y = top; y < bottom; ++y) {
      for (int x = left; x < right; ++x) {
        for (std::size_t c = 0; c < 3; ++c) sum[c] += static_cast<int>(a.at(x, y)[c]) - static_cast<int>(b.at(x, y)[c]);
      }
    }
    const int pixels = (right - left) * (bottom - top);
    return std::any_of(sum.begin(), sum.end(), [&](int one) { return std::abs(one) > kBlockStep * pixels; });
  };
  for (int top = 0; top < std::min(a.height, b.height); top += kBlock) {
    for (int left = 0; left < std::min(a.width, b.width); left += kBlock) {
      const int right = std::min({left + kBlock, a.width, b.width});
      const int bottom = std::min({top + kBlock, a.height, b.height});
      if (!off(left, top, right, bottom)) continue;
      out.left = out.blocks == 0 ? left : std::min(out.left, left);
      out.top = out.blocks == 0 ? top : out.top;
      out.right = std::max(out.right, right);
      out.bottom = bottom;
      ++out.blocks;
    }
  }
  return out;
}

int count_colors(const Image& image, int limit) {
  std::set<std::array<std::uint8_t, 3>> seen;
  for (std::size_t i = 0; i + 2 < image.rgb.size() && static_cast<int>(seen.size()) < limit; i += 3) {
    seen.insert({image.rgb[i], image.rgb[i + 1], image.rgb[i + 2]});
  }
  return static_cast<int>(seen.size());
}

}  // namespace mbb::viewer
