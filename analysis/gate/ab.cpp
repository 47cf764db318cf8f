// Welch on logarithms at each look's share of alpha.
#include "analysis/gate/ab.h"

#include <fmt/core.h>

#include <algorithm>

namespace mbb::analysis {

using baselines::Verdict;

std::vector<size_t> ab_looks(size_t budget) {
  std::vector<size_t> looks;
  for (size_t at = 3; at < budget; at = std::max(at + 2, at + at / 2)) looks.push_back(at);
  looks.push_back(std::max<size_t>(budget, 3));
  return looks;
}

AbDecision ab_look(std::span<const double> a, std::span<const double> b, size_t looks, const AbOptions& options) {
  const double level = 1.0 - options.alpha / static_cast<double>(looks);
  AbDecision d;
  d.difference = difference(a, b, level);
  if (options.shared) d.difference.relative = relative_difference(a, b, level, *options.shared);
  const Estimate& e = d.difference.relative;
  if (!e.has_interval()) {
    d.text = "too few launches for an interval";
    return d;
  }
  if (e.low > 0)
    d.verdict = e.high < options.material ? Verdict::kSame : Verdict::kSlower;
  else if (e.high < 0)
    d.verdict = e.low > -options.material ? Verdict::kSame : Verdict::kFaster;
  else if (e.low > -options.material && e.high < options.material)
    d.verdict = Verdict::kSame;
  d.text = fmt::format("{:+.2f} % ({:.1f} % interval {:+.2f}..{:+.2f}), {} and {} launches", 100 * e.value, 100 * level,
                       100 * e.low, 100 * e.high, a.size(), b.size());
  return d;
}

}  // namespace mbb::analysis
