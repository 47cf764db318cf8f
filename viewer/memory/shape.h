// A memory map arranged for drawing: bytes by category over time, what is alive at an instant, where the peak lies.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "baselines/store/records.h"

namespace mbb::viewer {

// Bytes by category over time; every category has one value at each time.
struct MemoryCurve {
  std::vector<double> at;
  std::vector<std::string> categories;     // largest at the peak first
  std::vector<std::vector<double>> bytes;  // [category][time]
  std::vector<double> total;               // [time]
  std::size_t peak = 0;                    // index of the greatest total
  double low() const { return at.empty() ? 0 : at.front(); }
  double high() const { return at.empty() ? 1 : at.back(); }
};

// From the samples of the map, or, where there are none, from its tensors' lifetimes. A category holds its last value
// until its next sample.
MemoryCurve memory_curve(const baselines::MemoryMap& map);

// The last time of the curve that is not after `at`; 0 before its first. The curve must not be empty.
std::size_t curve_index(const MemoryCurve& curve, double at);

// Every tensor, or only those alive at the peak where the history was not recorded.
const std::vector<baselines::TensorBytes>& tensors_of(const baselines::MemoryMap& map);

// Numbers (in tensors_of) of the tensors alive at `at` (from <= at < to), largest first.
std::vector<std::uint32_t> live_at(const baselines::MemoryMap& map, double at);

// The map of a rank class, or the one with the highest peak; null when there is none.
const baselines::MemoryMap* pick_map(const std::vector<baselines::MemoryMap>& maps, const std::string& rank_class);

// What was seen, else the plan; the plan too where only it has every tensor.
const std::vector<baselines::MemoryMap>& maps_of(const baselines::Cell& cell, const baselines::Launch* launch);

}  // namespace mbb::viewer
