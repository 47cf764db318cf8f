// The driver's video boost slider (vboost): set for as long as a guard lives, and put back whatever ends the process.
//
// The only place that changes a setting of a card; callers ask the user first (--allow-clock-changes). nvidia-smi does
// the work, found on PATH.
#pragma once

#include <memory>
#include <string>

#include "profiler/base/error.h"

namespace mbb::profiler {

struct BoostSlider {
  int value = 0;  // in force
  int most = 0;   // largest the driver takes
};

// As `nvidia-smi boost-slider -l -i GPU` says. kUnavailable without nvidia-smi or on a card without a slider.
Result<BoostSlider> read_boost_slider(int gpu);

// From nvidia-smi's text: the line that names vboost, whose last two numbers are the largest value and the one in
// force.
Result<BoostSlider> parse_boost_slider(const std::string& text);

class BoostGuard {
 public:
  // Sets the slider and reads it back. A shell of its own waits for this process's end, so that the old value returns
  // also after a crash or a kill. kBadArgument above the card's largest value; kUnavailable when the driver refuses or
  // does not keep the value.
  static Result<std::unique_ptr<BoostGuard>> set(int gpu, int value);
  BoostGuard(const BoostGuard&) = delete;
  BoostGuard& operator=(const BoostGuard&) = delete;
  ~BoostGuard();  // puts the old value back and waits until it is

  int before() const { return before_; }

 private:
  BoostGuard(int before, int pipe, int restorer) : before_(before), pipe_(pipe), restorer_(restorer) {}
  int before_;
  int pipe_;
  int restorer_;
};

}  // namespace mbb::profiler
