// Names with typos, numbers with units: see text.h.
#include "profiler/base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <span>

namespace mbb {
namespace {

bool is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v';
}

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

char fold(char c) {
  return c == '-' ? '_' : lower(c);
}

// Length of the well-formed UTF-8 sequence at the start of `text`, or 0.
size_t utf8_length(std::string_view text) {
  auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  if (text.empty()) return 0;
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xC2 && first <= 0xDF   ? 2
                        : (first & 0xF0) == 0xE0         ? 3
                        : first >= 0xF0 && first <= 0xF4 ? 4
                                                         : 0;
  if (length == 0 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xC0) != 0x80) return 0;
  if (first == 0xE0 && byte(1) < 0xA0) return 0;  // overlong
  if (first == 0xED && byte(1) > 0x9F) return 0;  // surrogate
  if (first == 0xF0 && byte(1) < 0x90) return 0;  // overlong
  if (first == 0xF4 && byte(1) > 0x8F) return 0;  // beyond U+10FFFF
  return length;
}

struct Unit {
  std::string_view name;
  double factor;
};

constexpr Unit kDurations[] = {{"ns", 1},   {"us", 1e3},   {"ms", 1e6},   {"s", 1e9},
                               {"m", 60e9}, {"min", 60e9}, {"h", 3600e9}, {"d", 86400e9}};
constexpr Unit kSizes[] = {
    {"b", 1},    {"kib", 1024.0}, {"mib", 1048576.0}, {"gib", 1073741824.0}, {"tib", 1099511627776.0},
    {"kb", 1e3}, {"mb", 1e6},     {"gb", 1e9},        {"tb", 1e12}};

// "<number> <unit>" scaled and rounded; nothing when the unit is unknown or the result leaves int64.
std::optional<int64_t> parse_scaled(std::string_view text, std::span<const Unit> units) {
  size_t cut = text.size();
  while (cut > 0 && ((text[cut - 1] >= 'a' && text[cut - 1] <= 'z') || (text[cut - 1] >= 'A' && text[cut - 1] <= 'Z')))
    --cut;
  const std::string unit = to_lower(text.substr(cut));
  std::string_view number = text.substr(0, cut);
  while (!number.empty() && number.back() == ' ') number.remove_suffix(1);
  const auto value = parse_double(number);
  if (!value) return std::nullopt;
  for (const Unit& known : units) {
    if (known.name != unit) continue;
    const double scaled = std::round(*value * known.factor);
    if (!(std::abs(scaled) < 9.2e18)) return std::nullopt;
    return static_cast<int64_t>(scaled);
  }
  return std::nullopt;
}

// Scales `value` by `step` until its printed form, at `decimals(value)` places, stays below `step`.
template <typename Decimals>
std::string scaled_text(double value, double step, std::span<const std::string_view> prefixes, Decimals decimals) {
  double magnitude = std::abs(value);
  size_t i = 0;
  auto rounds_up = [&] {
    const double unit = std::pow(10.0, decimals(magnitude, i));
    return std::round(magnitude * unit) / unit >= step;
  };
  while (i + 1 < prefixes.size() && rounds_up()) {
    magnitude /= step;
    ++i;
  }
  return fmt::format("{}{:.{}f} {}", value < 0 ? "-" : "", magnitude, decimals(magnitude, i), prefixes[i]);
}

}  // namespace

std::string_view trim(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  std::string joined;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) joined += separator;
    joined += parts[i];
  }
  return joined;
}

std::string to_lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), lower);
  return out;
}

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  if (from.empty()) return std::string(text);
  std::string out;
  for (size_t at = text.find(from); at != std::string_view::npos; at = text.find(from)) {
    out += text.substr(0, at);
    out += to;
    text.remove_prefix(at + from.size());
  }
  out += text;
  return out;
}

std::string json_quote(std::string_view text) {
  std::string out = "\"";
  while (!text.empty()) {
    const size_t length = utf8_length(text);
    const char c = text.front();
    if (length == 0) {
      out += "\xEF\xBF\xBD";
    } else if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return out + '"';
}

std::string printable(std::string_view text, size_t limit) {
  std::string out;
  while (!text.empty()) {
    if (out.size() >= limit) return out + "...";
    const size_t length = utf8_length(text);
    const auto byte = static_cast<unsigned char>(text.front());
    if (length == 0 || byte < 0x20 || byte == 0x7F) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return out;
}

size_t display_width(std::string_view text) {
  size_t width = 0;
  while (!text.empty()) {
    ++width;
    text.remove_prefix(std::max<size_t>(utf8_length(text), 1));
  }
  return width;
}

bool glob_match(std::string_view pattern, std::string_view text) {
  size_t p = 0, t = 0, star = std::string_view::npos, resume = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

size_t edit_distance(std::string_view a, std::string_view b) {
  // Three rolling rows: a swap of neighbours looks two rows back.
  const size_t columns = b.size() + 1;
  std::vector<size_t> before(columns), above(columns), row(columns);
  for (size_t j = 0; j < columns; ++j) above[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j < columns; ++j) {
      const bool same = fold(a[i - 1]) == fold(b[j - 1]);
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (same ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && fold(a[i - 1]) == fold(b[j - 2]) && fold(a[i - 2]) == fold(b[j - 1]);
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, above);
    std::swap(above, row);
  }
  return above[columns - 1];
}

std::optional<std::string> nearest(std::string_view name, const std::vector<std::string>& names) {
  if (name.empty() || name.size() > 200) return std::nullopt;
  // The only one that begins so: "h200" for "h200-sxm".
  const auto begins = [&](const std::string& candidate) { return name.size() > 2 && candidate.starts_with(name); };
  if (std::count_if(names.begin(), names.end(), begins) == 1) return *std::find_if(names.begin(), names.end(), begins);
  const size_t limit = std::clamp<size_t>(name.size() / 3, 1, 4);
  std::optional<std::string> best;
  size_t best_distance = limit + 1;
  for (const std::string& candidate : names) {
    const size_t gap = candidate.size() > name.size() ? candidate.size() - name.size() : name.size() - candidate.size();
    if (gap >= best_distance) continue;
    const size_t distance = edit_distance(name, candidate);
    // A one-letter name is "near" every other one-letter name; a whole replacement is no typo.
    if (distance >= best_distance || distance >= candidate.size()) continue;
    best = candidate;
    best_distance = distance;
  }
  return best;
}

std::optional<int64_t> parse_int(std::string_view text) {
  std::string digits;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool separator = text[i] == '_';
    const bool between = i > 0 && i + 1 < text.size() && text[i - 1] >= '0' && text[i - 1] <= '9' &&
                         text[i + 1] >= '0' && text[i + 1] <= '9';
    if (separator && !between) return std::nullopt;
    if (!separator && !(i == 0 && text[i] == '+')) digits += text[i];
  }
  if (text.size() > 1 && text[0] == '+' && digits[0] == '-') return std::nullopt;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc{} || end != digits.data() + digits.size()) return std::nullopt;
  return value;
}

std::optional<double> parse_double(std::string_view text) {
  if (!text.empty() && text[0] == '+') text.remove_prefix(1);
  if (text.empty() || text[0] == '+') return std::nullopt;
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::optional<bool> parse_bool(std::string_view text) {
  const std::string word = to_lower(text);
  if (word == "true" || word == "on" || word == "yes" || word == "1") return true;
  if (word == "false" || word == "off" || word == "no" || word == "0") return false;
  return std::nullopt;
}

std::optional<int64_t> parse_duration_ns(std::string_view text) {
  return parse_scaled(text, kDurations);
}

std::optional<int64_t> parse_size_bytes(std::string_view text) {
  if (const auto plain = parse_int(text)) return plain;
  return parse_scaled(text, kSizes);
}

std::string format_ns(double ns) {
  if (!std::isfinite(ns)) return "-";
  static constexpr std::array<std::string_view, 4> kUnits = {"ns", "us", "ms", "s"};
  const double seconds = std::round(std::abs(ns) / 1e9);
  const char* sign = ns < 0 ? "-" : "";
  const auto whole = static_cast<int64_t>(std::min(seconds, 9e17));
  if (seconds >= 86400) return fmt::format("{}{}d{:02}h", sign, whole / 86400, whole % 86400 / 3600);
  if (seconds >= 3600) return fmt::format("{}{}h{:02}m", sign, whole / 3600, whole % 3600 / 60);
  if (seconds >= 120) return fmt::format("{}{}m{:02}s", sign, whole / 60, whole % 60);
  return scaled_text(ns, 1000.0, kUnits, [](double value, size_t unit) {
    return unit == 0 ? 0 : value < 9.995 ? 2 : 1;
  });
}

std::string format_bytes(double bytes) {
  if (!std::isfinite(bytes)) return "-";
  static constexpr std::array<std::string_view, 6> kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  return scaled_text(bytes, 1024.0, kUnits, [](double, size_t unit) { return unit == 0 ? 0 : 1; });
}

std::string format_bytes_decimal(double bytes) {
  if (!std::isfinite(bytes)) return "-";
  static constexpr std::array<std::string_view, 6> kUnits = {"B", "kB", "MB", "GB", "TB", "PB"};
  return scaled_text(bytes, 1000.0, kUnits, [](double, size_t unit) { return unit == 0 ? 0 : 1; });
}

std::string format_count(double count, std::string_view unit) {
  if (!std::isfinite(count)) return "-";
  static constexpr std::array<std::string_view, 7> kPrefixes = {"", "k", "M", "G", "T", "P", "E"};
  const bool whole = count == std::floor(count);
  std::string text = scaled_text(count, 1000.0, kPrefixes, [&](double value, size_t prefix) {
    if (prefix == 0 && whole) return 0;
    return value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  });
  text += unit;
  return std::string(trim(text));
}

std::string format_percent(double fraction, int decimals) {
  if (!std::isfinite(fraction)) return "-";
  return fmt::format("{:.{}f} %", fraction * 100, decimals);
}

std::string format_exact(double value) {
  return fmt::format("{}", value);
}

}  // namespace mbb
