// Scanning of log lines.
#include "suites/foreign/log_text.h"

#include <charconv>
#include <cmath>
#include <cstdio>

#include "profiler/base/text.h"

namespace mbb::suites {
namespace {

bool digit(char c) {
  return c >= '0' && c <= '9';
}

// A number at the start of `text`, without its thousands separators.
std::optional<double> leading_number(std::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool exponent = (c == 'e' || c == 'E') && !plain.empty() && digit(plain.back());
    const bool sign = (c == '-' || c == '+') && (plain.empty() || plain.back() == 'e' || plain.back() == 'E');
    if (c == ',' && !plain.empty() && i + 3 < text.size() && digit(text[i + 1]) && digit(text[i + 2]) &&
        digit(text[i + 3]))
      continue;
    if (!digit(c) && c != '.' && !exponent && !sign) break;
    plain += c;
  }
  while (!plain.empty() && (plain.back() == 'e' || plain.back() == 'E' || plain.back() == '.')) plain.pop_back();
  if (plain.empty()) {
    const std::string word = to_lower(text.substr(0, 4));
    if (word.starts_with("nan")) return std::nan("");
    if (word.starts_with("inf")) return HUGE_VAL;
    if (word.starts_with("-inf")) return -HUGE_VAL;
    return std::nullopt;
  }
  const size_t skip = plain[0] == '+' ? 1 : 0;
  double value = 0;
  const auto [end, error] = std::from_chars(plain.data() + skip, plain.data() + plain.size(), value);
  if (error != std::errc() || end == plain.data() + skip) return std::nullopt;
  return value;
}

// Days from 1970-01-01 of a date of the Gregorian calendar.
int64_t days_of(int64_t year, int64_t month, int64_t day) {
  year -= month <= 2 ? 1 : 0;
  const int64_t era = year / 400, of_era = year % 400;
  const int64_t of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
  return era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
}

}  // namespace

std::string plain_line(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r') continue;
    if (text[i] == '\x1b' && i + 1 < text.size() && text[i + 1] == '[') {
      i += 2;
      while (i < text.size() && (text[i] < '@' || text[i] > '~')) ++i;
      continue;
    }
    out += text[i];
  }
  return out;
}

std::optional<double> number_after(std::string_view text, std::string_view key, TrainingLog& log) {
  const size_t at = text.find(key);
  if (at == std::string_view::npos) return std::nullopt;
  text.remove_prefix(at + key.size());
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  auto number = leading_number(text);
  if (!number) ++log.unreadable[std::string(trim(key))];
  return number;
}

std::optional<int64_t> integer_after(std::string_view text, std::string_view key, TrainingLog& log) {
  const auto number = number_after(text, key, log);
  if (!number || !(std::abs(*number) < 9e15)) return std::nullopt;
  return std::llround(*number);
}

double time_stamp(std::string_view text) {
  for (size_t i = 0; i + 19 <= text.size(); ++i) {
    if (!digit(text[i]) || text[i + 4] != '-' || text[i + 7] != '-' || text[i + 13] != ':' || text[i + 16] != ':')
      continue;
    int y = 0, mo = 0, d = 0, h = 0, mi = 0, s = 0;
    char between = 0;
    const std::string part(text.substr(i, 19));
    if (std::sscanf(part.c_str(), "%4d-%2d-%2d%c%2d:%2d:%2d", &y, &mo, &d, &between, &h, &mi, &s) != 7) continue;
    if (mo < 1 || mo > 12 || d < 1 || d > 31) continue;
    double seconds = static_cast<double>(days_of(y, mo, d) * 86400 + h * 3600 + mi * 60 + s);
    double scale = 0.1;
    if (i + 19 < text.size() && (text[i + 19] == ',' || text[i + 19] == '.'))
      for (size_t j = i + 20; j < text.size() && digit(text[j]) && scale > 1e-10; ++j, scale *= 0.1)
        seconds += scale * (text[j] - '0');
    return seconds;
  }
  return kNotLogged;
}

bool StepCollector::add(const LoggedStep& step) {
  if (!seen_.insert(step.index).second) {
    ++log_.repeated_steps;
    return false;
  }
  log_.steps.push_back(step);
  return true;
}

}  // namespace mbb::suites
