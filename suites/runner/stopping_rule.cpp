// Looks for the steady state now and then, and at the interval of its median.
#include "suites/runner/stopping_rule.h"

#include <span>

#include "analysis/stats/stats.h"

namespace mbb::suites {
namespace {
constexpr size_t kLookEvery = 10;  // steps: finding a steady state reads all of them
}

StoppingRule::StoppingRule(int64_t steady_steps, double interval_pct, int64_t window_first, int64_t window_end)
    : steady_steps_(steady_steps), interval_pct_(interval_pct), window_first_(window_first), window_end_(window_end) {}

bool StoppingRule::enough_after(int64_t step, double seconds) {
  if (!is_active()) return false;
  if (step >= window_first_ && step < window_end_) return false;
  timed_.push_back(seconds);
  if (step + 1 < window_end_ && window_first_ < window_end_) return false;
  if (timed_.size() % kLookEvery != 0) return false;
  const analysis::SteadyState state = analysis::find_steady_state(timed_);
  if (!state.found) return false;
  const auto steady = std::span<const double>(timed_).subspan(state.first);
  if (steady_steps_ > 0 && steady.size() >= static_cast<size_t>(steady_steps_)) return true;
  if (!(interval_pct_ > 0) || steady.size() < kFewest) return false;
  const analysis::Estimate median = analysis::median_of_steps(steady);
  if (!median.has_interval() || !(median.value > 0)) return false;
  return 50.0 * (median.high - median.low) / median.value <= interval_pct_;
}

}  // namespace mbb::suites
