// UTF-8 cleaning and number formatting.
#include "viewer/widgets/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>

#include "profiler/base/text.h"

namespace mbb::viewer {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
constexpr std::string_view kDot = "\xC2\xB7";
constexpr std::string_view kEllipsis = "\xE2\x80\xA6";
constexpr std::string_view kNone = "-";

// Length of the valid UTF-8 sequence at `at`, 0 where there is none.
std::size_t sequence_length(std::string_view raw, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(raw[i]); };
  const unsigned char lead = byte(at);
  std::size_t length = 0;
  std::uint32_t code = 0;
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
    code = lead & 0x1FU;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    code = lead & 0x0FU;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    code = lead & 0x07U;
  } else {
    return 0;
  }
  if (at + length > raw.size()) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xC0U) != 0x80U) return 0;
    code = (code << 6U) | (byte(at + i) & 0x3FU);
  }
  const bool overlong = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
  const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
  return overlong || surrogate || code > 0x10FFFF ? 0 : length;
}

// Direction marks and overrides would let a name lie about its own order; C1 controls and line separators draw nothing.
bool is_format_control(std::string_view raw, std::size_t at, std::size_t length) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(raw[at + i]); };
  if (length == 2) return byte(0) == 0xC2 && byte(1) < 0xA0;
  if (length != 3 || byte(0) != 0xE2) return false;
  return (byte(1) == 0x80 && ((byte(2) >= 0x8B && byte(2) <= 0x8F) || (byte(2) >= 0xA8 && byte(2) <= 0xAE))) ||
         (byte(1) == 0x81 && byte(2) >= 0xA0 && byte(2) <= 0xAF);
}

// Three significant digits, never in exponent form.
std::string significant(double value) {
  const double size = std::fabs(value);
  if (size >= 99.95) return fmt::format("{:.0f}", value);
  if (size >= 9.995) return fmt::format("{:.1f}", value);
  return fmt::format("{:.2f}", value);
}

std::string grouped(double value) {
  std::string digits = fmt::format("{:.0f}", std::fabs(value));
  for (auto at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > 0; at -= 3) {
    digits.insert(static_cast<std::size_t>(at), ",");
  }
  return value < 0 ? "-" + digits : digits;
}

}  // namespace

std::string clean(std::string_view raw, std::size_t limit) {
  std::string out;
  out.reserve(std::min(raw.size(), limit));
  for (std::size_t at = 0; at < raw.size();) {
    const std::size_t length = sequence_length(raw, at);
    std::string_view piece = length == 0 ? kReplacement : raw.substr(at, length);
    if (length == 1) {
      const auto byte = static_cast<unsigned char>(raw[at]);
      if (byte == '\n' || byte == '\t' || byte == '\r')
        piece = " ";
      else if (byte < 0x20 || byte == 0x7F)
        piece = kDot;
    } else if (length > 1 && is_format_control(raw, at, length)) {
      piece = kDot;
    }
    if (out.size() + piece.size() + kEllipsis.size() > limit) {
      out += kEllipsis;
      return out;
    }
    out += piece;
    at += std::max<std::size_t>(length, 1);
  }
  return out;
}

std::string count_text(double value) {
  if (!std::isfinite(value)) return std::string(kNone);
  const double size = std::fabs(value);
  if (size < 100000) {
    if (size == std::floor(size) || size >= 999.5) return grouped(value);
    return size >= 0.01 ? significant(value) : fmt::format("{:.3g}", value);
  }
  static constexpr std::array kSteps = {" k", " M", " G", " T", " P", " E"};
  std::size_t step = 0;
  value /= 1000;
  while (std::fabs(value) >= 999.5 && step + 1 < kSteps.size()) {
    value /= 1000;
    ++step;
  }
  return significant(value) + kSteps[step];
}

std::string percent_text(double fraction, bool sign) {
  if (!std::isfinite(fraction)) return std::string(kNone);
  const double percent = fraction * 100;
  const int places = std::fabs(percent) >= 99.95 ? 0 : (std::fabs(percent) >= 9.995 ? 1 : 2);
  return sign ? fmt::format("{:+.{}f} %", percent, places) : fmt::format("{:.{}f} %", percent, places);
}

std::string quantity_text(double value, std::string_view unit) {
  if (!std::isfinite(value)) return std::string(kNone);
  if (unit == "ns") return format_ns(value);
  if (unit == "us" || unit == "\xC2\xB5s") return format_ns(value * 1e3);
  if (unit == "ms") return format_ns(value * 1e6);
  if (unit == "s") return format_ns(value * 1e9);
  if (unit == "bytes" || unit == "B") return format_bytes(value);
  if (unit == "ratio" || unit == "fraction") return percent_text(value);
  if (unit == "%" || unit == "percent") return percent_text(value / 100);
  if (unit.empty() || unit == "1" || unit == "count") return count_text(value);
  return count_text(value) + " " + clean(unit, 32);
}

std::string utc_text(std::int64_t unix_ns) {
  std::int64_t seconds = unix_ns / 1000000000;
  if (unix_ns % 1000000000 < 0) --seconds;
  const auto when = static_cast<std::time_t>(seconds);
  std::tm parts{};
  if (unix_ns == 0 || gmtime_r(&when, &parts) == nullptr) return std::string(kNone);
  return fmt::format("{:04}-{:02}-{:02} {:02}:{:02}", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday,
                     parts.tm_hour, parts.tm_min);
}

}  // namespace mbb::viewer
