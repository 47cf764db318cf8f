// The rules of a profiled window.
#include "trainer/run/profile_window.h"

#include <fmt/core.h>

#include <algorithm>

namespace mbb::trainer {
namespace {

constexpr const char* kStart = "profiling.profile_step_start";
constexpr const char* kEnd = "profiling.profile_step_end";

Status check_past_end(int64_t value, const char* knob, int64_t iters) {
  if (value <= iters) return {};
  return fail(ErrorCode::kBadArgument,
              fmt::format("{} = {} is past the last of {} steps (train.train_iters)", knob, value, iters),
              fmt::format("choose a window inside [0, {}), or raise train.train_iters", iters));
}

}  // namespace

bool ProfileWindow::has_rank(int rank) const {
  return ranks.empty() || std::binary_search(ranks.begin(), ranks.end(), int64_t{rank});
}

Result<ProfileWindow> profile_window(const Config& config, int ranks) {
  const ProfilingConfig& p = config.profiling;
  const int64_t iters = config.train.train_iters;
  MB_TRY(check_past_end(p.profile_step_start, kStart, iters));
  MB_TRY(check_past_end(p.profile_step_end, kEnd, iters));
  ProfileWindow window;
  window.end = p.profile_step_end;
  if (window.end < 0)
    window.end = p.profile_step_start < 0 ? iters : std::min(iters, p.profile_step_start + kProfiledSteps);
  window.first = p.profile_step_start;
  if (window.first < 0) window.first = std::max(window.end / 2, window.end - kProfiledSteps);
  if (window.first > window.end)
    return fail(ErrorCode::kBadArgument,
                fmt::format("{} = {} comes after {} = {}", kStart, window.first, kEnd, window.end),
                "the window is [start, end): equal values profile nothing");
  window.ranks = p.profile_ranks;
  std::sort(window.ranks.begin(), window.ranks.end());
  window.ranks.erase(std::unique(window.ranks.begin(), window.ranks.end()), window.ranks.end());
  for (const int64_t rank : window.ranks)
    if (rank < 0 || rank >= ranks)
      return fail(ErrorCode::kBadArgument,
                  fmt::format("profiling.profile_ranks names rank {}; this run has ranks 0 to {}", rank, ranks - 1),
                  "leave it empty to profile all ranks");
  return window;
}

}  // namespace mbb::trainer
