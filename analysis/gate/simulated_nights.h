// Simulated nights for tests of the gate: launches made of steps with autocorrelation, heavy tails, outliers, warm-up
// and clock drift, each a function of the seed.
#pragma once

#include <cstdint>
#include <vector>

#include "analysis/gate/judge.h"

namespace mbb::analysis {

struct NightModel {
  double step_ms = 100;
  double launch_sigma = 0.005;  // relative, launch to launch
  double night_sigma = 0.001;   // relative, shared by a night's launches
  double wild_launches = 0.03;  // share of launches that are 1 to 4 % slow
  // Inside a launch:
  size_t steps = 60;
  double step_sigma = 0.02;       // of one step
  double autocorrelation = 0.4;   // AR(1)
  double stalls = 0.01;           // share of steps that take half again as long
  double clock_drift = 0.003;     // relative, from the first step to the last
  double heavy_tail_degrees = 4;  // Student's t of steps and launches; 0: normal
};

// Uniform and normal numbers from a 64-bit counter: equal on every machine.
class SimulatedNoise {
 public:
  explicit SimulatedNoise(std::uint64_t seed);  // neighbouring seeds are independent
  double uniform();                             // in (0, 1)
  double normal();                              // mean 0, sigma 1
  double heavy(double degrees);                 // Student's t scaled to sigma 1; normal for degrees 0
  size_t below(size_t end);                     // 0 .. end-1

 private:
  std::uint64_t state_;
};

// Step times of one launch, in ms.
std::vector<double> simulated_steps(const NightModel& model, double launch_ms, SimulatedNoise& noise);

// The median of the steady steps, as the gate sees a launch; the median of all where no steady state is found.
double launch_median(const std::vector<double>& steps);

// Launch medians of one night; `change` is the product's, relative. With `whole_steps` each launch is made of steps;
// otherwise its median is drawn directly, which is faster.
NightLaunches simulated_night(const NightModel& model, double change, size_t launches, bool whole_steps,
                              SimulatedNoise& noise);

// Values about 100 whose relative noise lasts: `lasting` of it goes on to the next, and heavy tails of `sigma` come
// anew.
std::vector<double> wandering_series(size_t count, double lasting, double sigma, SimulatedNoise& noise);

}  // namespace mbb::analysis
