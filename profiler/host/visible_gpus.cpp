// One name after another.
#include "profiler/host/visible_gpus.h"

#include <algorithm>
#include <charconv>
#include <system_error>

#include "profiler/base/text.h"

namespace mbb::profiler {
namespace {

// -1: none, or a UUID that begins like several.
int place_of(std::string_view name, std::span<const std::string> uuids) {
  if (name.starts_with("GPU-")) {
    const auto begins = [&](const std::string& uuid) { return uuid.starts_with(name); };
    if (std::count_if(uuids.begin(), uuids.end(), begins) != 1) return -1;
    return static_cast<int>(std::find_if(uuids.begin(), uuids.end(), begins) - uuids.begin());
  }
  int number = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  const bool whole = error == std::errc() && end == name.data() + name.size();
  return whole && number >= 0 && static_cast<size_t>(number) < uuids.size() ? number : -1;
}

}  // namespace

std::optional<std::vector<int>> visible_gpus(const std::optional<std::string>& variable,
                                             std::span<const std::string> uuids) {
  std::vector<int> places;
  if (!variable) {
    for (size_t i = 0; i < uuids.size(); ++i) places.push_back(static_cast<int>(i));
    return places;
  }
  for (const auto& part : split(*variable, ',')) {
    const std::string_view name = trim(part);
    if (name.starts_with("MIG-")) return std::nullopt;
    const int place = place_of(name, uuids);
    if (place < 0) break;
    if (std::find(places.begin(), places.end(), place) != places.end()) return std::vector<int>{};  // CUDA shows none
    places.push_back(place);
  }
  return places;
}

}  // namespace mbb::profiler
