// Lines from the end, and the error above them.
#include "suites/runner/log_tail.h"

#include <algorithm>
#include <vector>

#include "profiler/base/text.h"

namespace mbb::suites {
namespace {

constexpr std::string_view kBetween = " | ";

// A launcher's own report of a failed child says less than the child did.
bool names_error(std::string_view line) {
  if (line.find("ChildFailedError") != std::string_view::npos) return false;
  for (const char* word : {"rror:", "rror in", "xception:", "FATAL", "Aborted", "out of memory"})
    if (line.find(word) != std::string_view::npos) return true;
  return false;
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  for (const std::string_view line : split(text, '\n'))
    if (!trim(line).empty()) lines.push_back(trim(line));
  return lines;
}

// Whole lines from `first` on while they fit, at least one.
std::string joined(const std::vector<std::string_view>& lines, size_t first, size_t limit) {
  std::string said = printable(lines[first], limit);
  for (size_t i = first + 1; i < lines.size(); ++i) {
    const std::string more = std::string(kBetween) + printable(lines[i], limit);
    if (said.size() + more.size() > limit) return said + " | ...";
    said += more;
  }
  return said;
}

}  // namespace

std::string last_lines(std::string_view text, size_t limit) {
  const std::vector<std::string_view> lines = lines_of(text);
  if (lines.empty()) return {};
  const auto error = std::find_if(lines.rbegin(), lines.rend(), names_error);
  if (error != lines.rend()) return joined(lines, static_cast<size_t>(lines.rend() - error) - 1, limit);
  size_t first = lines.size() - 1, bytes = lines.back().size();
  while (first > 0 && bytes + kBetween.size() + lines[first - 1].size() <= limit)
    bytes += kBetween.size() + lines[--first].size();
  return joined(lines, first, limit);
}

std::optional<Error> error_said(std::string_view text) {
  constexpr std::string_view kError = "error: ", kHint = "  hint: ";
  constexpr size_t kMost = 2'000;
  const auto lines = split(text, '\n');
  for (size_t i = lines.size(); i-- > 0;) {
    if (!lines[i].starts_with(kError)) continue;
    Error error{ErrorCode::kRankFailed, printable(lines[i].substr(kError.size()), kMost), {}};
    if (i + 1 < lines.size() && lines[i + 1].starts_with(kHint))
      error.hint = printable(lines[i + 1].substr(kHint.size()), kMost);
    return error;
  }
  return std::nullopt;
}

}  // namespace mbb::suites
