// Few combinations that meet every pair: from several axes, a list in which every two values of two axes stand together
// in some allowed combination, and random ones beyond.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace mbb::suites {

using Combination = std::vector<size_t>;  // an index into each axis

struct Cover {
  std::vector<Combination> combinations;  // distinct, in a fixed order for a seed; those that pairs need come first
  size_t covering = 0;                    // how many pairs need
  // Pairs (axis, value, axis, value) that no allowed combination was found for.
  struct Pair {
    size_t axis_a, value_a, axis_b, value_b;
  };
  std::vector<Pair> uncovered;
};

// `sizes`: values of each axis. `allowed` is asked once a combination. `total`: combinations wanted, the covering ones
// counted; fewer when the axes have no more.
Cover cover_pairs(const std::vector<size_t>& sizes, const std::function<bool(const Combination&)>& allowed,
                  size_t total, uint64_t seed);

}  // namespace mbb::suites
