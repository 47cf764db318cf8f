// Where to cut.
#include "viewer/widgets/fit.h"

#include <algorithm>
#include <cfloat>

namespace mbb::viewer {
namespace {

constexpr std::string_view kEllipsis = "\xE2\x80\xA6";

float width_of(const ImFont& font, float size, std::string_view text) {
  return font.CalcTextSizeA(size, FLT_MAX, 0, text.data(), text.data() + text.size()).x;
}

bool continues(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U;
}

// Bytes of the longest beginning of `text` that fits.
std::size_t head(const ImFont& font, float size, std::string_view text, float width) {
  const char* rest = text.data();
  (void)font.CalcTextSizeA(size, width, 0, text.data(), text.data() + text.size(), &rest);
  auto end = static_cast<std::size_t>(rest - text.data());
  while (end > 0 && end < text.size() && continues(text[end])) --end;
  return end;
}

// Where the longest end of `text` that fits begins.
std::size_t tail(const ImFont& font, float size, std::string_view text, float width) {
  std::size_t low = 0;
  std::size_t high = text.size();
  while (low < high) {
    const std::size_t middle = (low + high) / 2;
    if (width_of(font, size, text.substr(middle)) <= width)
      high = middle;
    else
      low = middle + 1;
  }
  while (low < text.size() && continues(text[low])) ++low;
  return low;
}

}  // namespace

std::string fit_text(const ImFont& font, float size, std::string_view text, float width, Cut cut) {
  if (width_of(font, size, text) <= width) return std::string(text);
  const float room = width - width_of(font, size, kEllipsis);
  if (room <= 0) return "";
  if (cut == Cut::kEnd) {
    std::string out(text.substr(0, head(font, size, text, room)));
    while (!out.empty() && (out.back() == ' ' || out.back() == '.')) out.pop_back();
    return out.empty() ? out : out + std::string(kEllipsis);
  }
  const std::size_t end = head(font, size, text, room / 2);
  const std::string_view begin = text.substr(0, end);
  const std::size_t from = tail(font, size, text, room - width_of(font, size, begin));
  return std::string(begin) + std::string(kEllipsis) + std::string(text.substr(std::max(from, end)));
}

}  // namespace mbb::viewer
