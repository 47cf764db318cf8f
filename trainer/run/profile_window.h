// Which steps and ranks a run profiles ([profiling] of the configuration). A profiled step is never a timed one.
#pragma once

#include <cstdint>
#include <vector>

#include "profiler/base/error.h"
#include "trainer/run/config.h"

namespace mbb::trainer {

struct ProfileWindow {
  int64_t first = 0;  // steps [first, end); empty: nothing is profiled
  int64_t end = 0;
  std::vector<int64_t> ranks;  // ascending; empty: all

  bool empty() const { return first >= end; }
  bool has_step(int64_t step) const { return step >= first && step < end; }
  bool has_rank(int rank) const;
};

// Steps a window has when only one end of it, or none, is given.
inline constexpr int64_t kProfiledSteps = 5;

// By default the last kProfiledSteps steps, at most half the run. Errors (kBadArgument) name the knob: a window past
// the last step or upside down, a rank that is not in a world of `ranks`.
Result<ProfileWindow> profile_window(const Config& config, int ranks);

}  // namespace mbb::trainer
