// Sweeps over samples and lifetimes.
#include "viewer/memory/shape.h"

#include <algorithm>
#include <map>

namespace mbb::viewer {
namespace {

using baselines::MemoryMap;
using baselines::MemorySample;
using baselines::TensorBytes;

// Category -> (time, bytes) in time order.
using Steps = std::map<std::string, std::vector<std::pair<std::int64_t, double>>>;

Steps steps_of_samples(const MemoryMap& map) {
  Steps steps;
  for (const MemorySample& sample : map.curve)
    steps[sample.category].emplace_back(sample.at, static_cast<double>(sample.bytes));
  for (auto& [category, list] : steps) {
    std::stable_sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  }
  return steps;
}

Steps steps_of_tensors(const MemoryMap& map) {
  std::map<std::string, std::map<std::int64_t, double>> changes;
  for (const TensorBytes& tensor : tensors_of(map)) {
    if (tensor.to <= tensor.from || tensor.bytes <= 0) continue;
    changes[tensor.category][tensor.from] += static_cast<double>(tensor.bytes);
    changes[tensor.category][tensor.to] -= static_cast<double>(tensor.bytes);
  }
  Steps steps;
  for (const auto& [category, list] : changes) {
    double bytes = 0;
    for (const auto& [at, change] : list) steps[category].emplace_back(at, bytes += change);
  }
  return steps;
}

}  // namespace

const std::vector<TensorBytes>& tensors_of(const MemoryMap& map) {
  return map.tensors.empty() ? map.live_at_peak : map.tensors;
}

MemoryCurve memory_curve(const MemoryMap& map) {
  const Steps steps = map.curve.empty() ? steps_of_tensors(map) : steps_of_samples(map);
  MemoryCurve curve;
  std::vector<std::int64_t> times;
  for (const auto& [category, list] : steps) {
    for (const auto& [at, bytes] : list) times.push_back(at);
  }
  std::sort(times.begin(), times.end());
  times.erase(std::unique(times.begin(), times.end()), times.end());
  curve.at.assign(times.begin(), times.end());
  curve.total.assign(times.size(), 0);
  std::vector<std::pair<std::string, std::vector<double>>> rows;
  for (const auto& [category, list] : steps) {
    std::vector<double> row(times.size(), 0);
    std::size_t next = 0;
    double bytes = 0;
    for (std::size_t i = 0; i < times.size(); ++i) {
      while (next < list.size() && list[next].first <= times[i]) bytes = list[next++].second;
      row[i] = bytes;
      curve.total[i] += bytes;
    }
    rows.emplace_back(category, std::move(row));
  }
  curve.peak = static_cast<std::size_t>(std::max_element(curve.total.begin(), curve.total.end()) - curve.total.begin());
  std::stable_sort(rows.begin(), rows.end(), [&](const auto& a, const auto& b) {
    return !curve.total.empty() && a.second[curve.peak] > b.second[curve.peak];
  });
  for (auto& [category, row] : rows) {
    curve.categories.push_back(category);
    curve.bytes.push_back(std::move(row));
  }
  return curve;
}

std::size_t curve_index(const MemoryCurve& curve, double at) {
  const auto after = std::upper_bound(curve.at.begin(), curve.at.end(), at);
  return after == curve.at.begin() ? 0 : static_cast<std::size_t>(after - curve.at.begin()) - 1;
}

std::vector<std::uint32_t> live_at(const MemoryMap& map, double at) {
  const std::vector<TensorBytes>& tensors = tensors_of(map);
  std::vector<std::uint32_t> live;
  for (std::uint32_t i = 0; i < tensors.size(); ++i) {
    if (static_cast<double>(tensors[i].from) <= at && at < static_cast<double>(tensors[i].to)) live.push_back(i);
  }
  std::stable_sort(live.begin(), live.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return tensors[a].bytes > tensors[b].bytes; });
  return live;
}

const MemoryMap* pick_map(const std::vector<MemoryMap>& maps, const std::string& rank_class) {
  const MemoryMap* best = nullptr;
  for (const MemoryMap& map : maps) {
    if (map.rank_class == rank_class) return &map;
    if (best == nullptr || map.peak_bytes > best->peak_bytes) best = &map;
  }
  return best;
}

const std::vector<MemoryMap>& maps_of(const baselines::Cell& cell, const baselines::Launch* launch) {
  if (launch == nullptr || launch->memory.empty()) return cell.memory;
  const auto whole = [](const std::vector<MemoryMap>& maps) {
    return std::any_of(maps.begin(), maps.end(), [](const MemoryMap& map) { return !map.tensors.empty(); });
  };
  return !whole(launch->memory) && whole(cell.memory) ? cell.memory : launch->memory;
}

}  // namespace mbb::viewer
