// Two products on one machine, launched in turn until it is clear which is faster, or that it does not matter.
//
// Looking again and again at growing arms finds differences that are not there; so the looks are few and fixed before
// the start, and each is held to its share of alpha (Bonferroni).
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "analysis/stats/stats.h"
#include "baselines/store/records.h"

namespace mbb::analysis {

struct AbOptions {
  double alpha = 0.05;                      // of calling equal products different, over all looks, two-sided
  double material = 0.01;                   // products whose difference is surely under this are the same
  std::optional<SharedSpread> shared = {};  // of launches of these arms and of others like them; else of these alone
};

// Launches an arm at which the arms are compared: 3, 5, 7, 10, 15, 22, ... and `budget` itself, which is at least 3.
std::vector<size_t> ab_looks(size_t budget);

struct AbDecision {
  baselines::Verdict verdict = baselines::Verdict::kInconclusive;  // slower, same, faster or inconclusive: of B
  Difference difference;                                           // at the look's level
  std::string text;
};

// One look; medians of launches, times or other positive values where less is better.
AbDecision ab_look(std::span<const double> a, std::span<const double> b, size_t looks, const AbOptions& options = {});

}  // namespace mbb::analysis
