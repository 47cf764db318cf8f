// When a launch has timed enough: so many steady steps, or an interval that is narrow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace mbb::suites {

class StoppingRule {
 public:
  // Fewer steady steps than these end nothing, however narrow the interval.
  static constexpr size_t kFewest = 20;

  // `steady_steps` 0 and `interval_pct` 0: never. Profiled steps [window_first, window_end) are not timed, and a window
  // that is not over yet holds the end back.
  StoppingRule(int64_t steady_steps, double interval_pct, int64_t window_first, int64_t window_end);

  bool is_active() const { return steady_steps_ > 0 || interval_pct_ > 0; }

  // After each step, in order. True: this was enough.
  bool enough_after(int64_t step, double seconds);

 private:
  int64_t steady_steps_;
  double interval_pct_;
  int64_t window_first_, window_end_;
  std::vector<double> timed_;
};

}  // namespace mbb::suites
