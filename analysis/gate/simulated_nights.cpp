// Draws for simulated nights.
#include "analysis/gate/simulated_nights.h"

#include <cmath>
#include <numbers>
#include <span>

#include "analysis/stats/stats.h"

namespace mbb::analysis {

namespace {

// SplitMix64's output function.
std::uint64_t scrambled(std::uint64_t z) {
  z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27U)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31U);
}

}  // namespace

// The counter starts at a scrambled place: streams of seeds that follow each other would be one another's, shifted.
SimulatedNoise::SimulatedNoise(std::uint64_t seed) : state_(scrambled(scrambled(seed + 1) ^ 0x6A09E667F3BCC909ULL)) {}

double SimulatedNoise::uniform() {
  return (static_cast<double>(scrambled(state_ += 0x9E3779B97F4A7C15ULL) >> 11U) + 0.5) * 0x1p-53;
}

double SimulatedNoise::normal() {
  const double radius = std::sqrt(-2.0 * std::log(uniform()));
  return radius * std::cos(2.0 * std::numbers::pi * uniform());
}

double SimulatedNoise::heavy(double degrees) {
  const double z = normal();
  if (degrees <= 2.0) return z;
  double chi_square = 0.0;
  for (int i = 0; i < static_cast<int>(degrees); ++i) {
    const double x = normal();
    chi_square += x * x;
  }
  return z / std::sqrt(chi_square / degrees) * std::sqrt((degrees - 2.0) / degrees);
}

size_t SimulatedNoise::below(size_t end) {
  return static_cast<size_t>(uniform() * static_cast<double>(end));
}

std::vector<double> simulated_steps(const NightModel& model, double launch_ms, SimulatedNoise& noise) {
  std::vector<double> steps;
  const double kick = std::sqrt(1.0 - model.autocorrelation * model.autocorrelation);
  double state = noise.normal();
  for (size_t i = 0; i < model.steps; ++i) {
    state = model.autocorrelation * state + kick * noise.heavy(model.heavy_tail_degrees);
    const double drift = model.clock_drift * static_cast<double>(i) / static_cast<double>(model.steps);
    double ms = launch_ms * (1.0 + model.step_sigma * state + drift);
    if (i < 3) ms *= i == 0 ? 4.0 : 1.3;
    if (noise.uniform() < model.stalls) ms *= 1.5;
    steps.push_back(ms);
  }
  return steps;
}

double launch_median(const std::vector<double>& steps) {
  const SteadyState steady = find_steady_state(steps);
  return median(std::span(steps).subspan(steady.found ? steady.first : 0));
}

NightLaunches simulated_night(const NightModel& model, double change, size_t launches, bool whole_steps,
                              SimulatedNoise& noise) {
  const double night_ms = model.step_ms * (1.0 + change) * (1.0 + model.night_sigma * noise.normal());
  NightLaunches night;
  for (size_t i = 0; i < launches; ++i) {
    double ms = night_ms * (1.0 + model.launch_sigma * noise.heavy(model.heavy_tail_degrees));
    if (noise.uniform() < model.wild_launches) ms *= 1.01 + 0.03 * noise.uniform();
    night.push_back(whole_steps ? launch_median(simulated_steps(model, ms, noise)) : ms);
  }
  return night;
}

std::vector<double> wandering_series(size_t count, double lasting, double sigma, SimulatedNoise& noise) {
  std::vector<double> series;
  double off = 0.0;
  for (size_t i = 0; i < count; ++i) {
    off = lasting * off + sigma * noise.heavy(4);
    series.push_back(100.0 * (1.0 + off));
  }
  return series;
}

}  // namespace mbb::analysis
