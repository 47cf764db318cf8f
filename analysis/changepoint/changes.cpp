// Windowed generalized likelihood ratio over clipped logarithms.
#include "analysis/changepoint/changes.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "analysis/stats/autocorrelation_time.h"
#include "analysis/stats/distributions.h"
#include "analysis/stats/stats.h"

namespace mbb::analysis {
namespace {

constexpr double kHuber = 2.5;            // robust sigmas that a point counts at most in a centre
constexpr double kMost = 4.0;             // and in the test
constexpr double kNightsOfAYear = 365;    // looks that share the level
constexpr double kLikelihoodDrop = 7.35;  // of 2·log-likelihood: 95 % set of a change's place, for a change well seen
constexpr size_t kMemory = 200;           // points before a split that tell its left side
constexpr double kClear = 4.5;            // sigmas that each night of a clear step is off by
constexpr double kAlike = 4.0 / 3.0;      // the furthest of them to the nearest; what sinks back is no step
constexpr double kSeldom = 0.05;          // share of the nights before that may be off by half as much
constexpr double kBack = 0.75;      // share of the nights after a change that follows soon that are nearer to its level
constexpr double kWandering = 0.3;  // of the level, where nights hang together: how much is an estimate itself

// Mean of values drawn in to `reach` about their median.
double clipped_mean(std::span<const double> values, double reach) {
  const double centre = median(values);
  double sum = 0.0;
  for (const double v : values) sum += std::clamp(v, centre - reach, centre + reach);
  return sum / static_cast<double>(values.size());
}

// Of one point, from differences of neighbours: a step in the series is one odd difference.
double neighbour_sigma(std::span<const double> logs, double least) {
  std::vector<double> moves;
  for (size_t i = 0; i + 1 < logs.size(); ++i) moves.push_back(std::abs(logs[i + 1] - logs[i]));
  return std::max(least, 1.4826 * median(moves) / std::sqrt(2.0));
}

struct Split {
  size_t at = 0;  // first point of the right side
  double difference = 0;
  double sigma = std::numeric_limits<double>::infinity();
  double degrees = 1;
  double z() const { return std::abs(difference) / sigma; }
  double p() const { return 2.0 * (1.0 - student_t_cdf(z(), degrees)); }
};

class Search {
 public:
  Search(std::span<const double> logs, const ChangeOptions& options) : logs_(logs), options_(options) {}

  std::vector<Change> run() {
    std::vector<Change> changes;
    for (size_t end = 1; end <= logs_.size(); ++end) {
      std::optional<Split> split = soon_after(changes, end);
      if (!split) split = step(changes.empty() ? 0 : changes.back().at, end);
      if (!split) continue;
      Change change;
      change.at = split->at;
      change.seen = end - 1;
      change.p = split->p();
      changes.push_back(change);
    }
    for (size_t i = 0; i < changes.size(); ++i) place(changes, i);
    return changes;
  }

 private:
  std::optional<Split> step(size_t begin, size_t end) const {
    if (end - begin < options_.fewest_before + options_.fewest_after) return std::nullopt;
    const double level = options_.false_alarm / (kNightsOfAYear * static_cast<double>(options_.window));
    if (is_clear_step(begin, end - options_.fewest_after, end))
      return confirmed(begin, end, end - options_.fewest_after);
    const Split split = best_split(begin, end);
    return split.p() <= level && holds(begin, end, split.at, level) ? std::optional(split) : std::nullopt;
  }

  double left_median(size_t begin, size_t at) const {
    const size_t from = std::max(begin, at > kMemory ? at - kMemory : 0);
    return median(logs_.subspan(from, at - from));
  }

  // Whether a split that stands out is material and does so by the noise of its sides, too.
  bool holds(size_t begin, size_t end, size_t at, double level) const {
    const double moved = median(logs_.subspan(at, end - at)) - left_median(begin, at);
    return std::abs(std::expm1(moved)) >= options_.material && confirmed(begin, end, at).p() <= kWandering * level;
  }

  // Which split of [begin, end) stands out most, by the noise that neighbours show.
  Split best_split(size_t begin, size_t end) const {
    const auto known = logs_.subspan(end > kMemory ? end - kMemory : 0, std::min(end, kMemory));
    const double sigma = neighbour_sigma(known, options_.noise);
    const size_t last = end - options_.fewest_after;
    const size_t first = std::max(begin + options_.fewest_before, last > options_.window ? last - options_.window : 0);
    return best_of(begin, first, last, end, sigma, sigma, std::max(1.0, 0.6 * static_cast<double>(known.size() - 1)));
  }

  // Whether all nights from `at` on are far off to one side, by much the same, where hardly a night before was off by
  // half as much. A mean says less of few nights, as it has to draw each in.
  bool is_clear_step(size_t begin, size_t at, size_t end) const {
    const size_t from = std::max(begin, at > kMemory ? at - kMemory : 0);
    const auto left = logs_.subspan(from, at - from), right = logs_.subspan(at, end - at);
    const double centre = median(left);
    double off = std::numeric_limits<double>::infinity();
    for (const double v : right) off = std::min(off, std::abs(v - centre));
    if (off < options_.material || !stands_alone(left, right, centre)) return false;
    std::vector<double> rest(left.begin(), left.end());
    for (double& v : rest) v -= centre;
    const Noise noise = noise_of(std::move(rest));
    return off >= kClear * noise.sigma * std::sqrt(noise.tau);
  }

  // Over the splits [first, last]. Points are drawn in to the centre of what lies before the first split, so that a
  // night counts for kMost `reach` at most whatever it was: two wild nights in a row are no change.
  Split best_of(size_t begin, size_t first, size_t last, size_t end, double reach, double sigma, double degrees) const {
    const size_t from = std::max(begin, first > kMemory ? first - kMemory : 0);
    const double centre = median(logs_.subspan(from, first - from));
    std::vector<double> sums{0.0};
    for (size_t i = from; i < end; ++i)
      sums.push_back(sums.back() + std::clamp(logs_[i] - centre, -kMost * reach, kMost * reach));
    Split best;
    for (size_t at = first; at <= last; ++at) {
      const auto left = static_cast<double>(at - from), right = static_cast<double>(end - at);
      Split split;
      split.at = at;
      split.difference = (sums.back() - sums[at - from]) / right - sums[at - from] / left;
      split.sigma = sigma * std::sqrt(1.0 / left + 1.0 / right);
      split.degrees = degrees;
      if (best.at == 0 || split.z() > best.z()) best = split;
    }
    return best;
  }

  // Of what is left about centres, with how many nights hang together.
  struct Noise {
    double sigma, tau, count;
  };
  Noise noise_of(std::vector<double> rest) const {
    const double sigma = std::max({options_.noise, mad_sigma(rest), neighbour_sigma(rest, options_.noise)});
    for (double& v : rest) v = std::clamp(v, -kHuber * sigma, kHuber * sigma);
    const auto count = static_cast<double>(rest.size());
    const double seen = autocorrelation(rest, 1);
    const double phi = std::clamp(seen + (1.0 + 3.0 * seen) / count, 0.0, 0.9);  // less its small-sample bias
    return {sigma, std::max(autocorrelation_time(rest), (1.0 + phi) / (1.0 - phi)), count};
  }

  // The same split with the noise that is left about its two sides, which slow wandering does not hide from.
  Split confirmed(size_t begin, size_t end, size_t at) const {
    const size_t from = std::max(begin, at > kMemory ? at - kMemory : 0);
    std::vector<double> rest;
    for (const auto side : {logs_.subspan(from, at - from), logs_.subspan(at, end - at)}) {
      const double centre = median(side);
      for (const double v : side) rest.push_back(v - centre);
    }
    const Noise n = noise_of(std::move(rest));
    return best_of(begin, at, at, end, n.sigma, n.sigma * std::sqrt(n.tau), std::max(1.0, (n.count - 2.0) / n.tau));
  }

  // Whether the newest change is followed by another so soon that its few nights are no left side by themselves: the
  // stretches before it tell the noise, and the last of them the level to return to.
  std::optional<Split> soon_after(const std::vector<Change>& changes, size_t end) const {
    const size_t few = options_.fewest_after, begin = changes.empty() ? end : changes.back().at;
    if (end < begin + 2 * few || end > begin + options_.window) return std::nullopt;
    std::vector<double> rest;
    double earlier = 0.0;
    for (size_t i = changes.size(); i-- > 0 && rest.size() < kMemory;) {
      const size_t from = i > 0 ? changes[i - 1].at : 0;
      const auto stretch = logs_.subspan(from, changes[i].at - from);
      const double level = median(stretch);
      if (rest.empty()) earlier = level;
      for (const double v : stretch) rest.push_back(v - level);
    }
    if (rest.size() < options_.fewest_before) return std::nullopt;
    std::reverse(rest.begin(), rest.end());
    const Noise noise = noise_of(std::move(rest));
    std::optional<Split> best;
    for (size_t at = begin + few; at <= end - few; ++at) {
      std::optional<Split> split = to_level(begin, at, end, earlier, noise, false);
      if (!split) split = to_level(begin, at, end, median(logs_.subspan(end - few, few)), noise, true);
      if (split && (!best || split->z() > best->z())) best = split;
    }
    return best;
  }

  // The nights [begin, at) against those since, which must be nearer to `level`. Where each of the newest is clearly
  // off, as in a clear step, that is enough; of a level that nights before did not have, nothing else is.
  std::optional<Split> to_level(size_t begin, size_t at, size_t end, double level, const Noise& noise,
                                bool is_new) const {
    const auto left = logs_.subspan(begin, at - begin), right = logs_.subspan(at, end - at);
    const auto newest = right.last(options_.fewest_after);
    const double later = clipped_mean(left, kHuber * noise.sigma), wide = noise.sigma * std::sqrt(noise.tau);
    const double side = level < later ? -1.0 : 1.0;
    const auto is_there = [&](double v) { return std::abs(v - level) < std::abs(v - later); };
    Split split;
    split.at = at;
    split.difference = clipped_mean(right, kHuber * noise.sigma) - later;
    const auto there = static_cast<double>(std::count_if(right.begin(), right.end(), is_there));
    if (!std::all_of(newest.begin(), newest.end(), is_there) || there < kBack * static_cast<double>(right.size()) ||
        std::abs(split.difference) < options_.material)
      return std::nullopt;
    split.sigma = wide * std::sqrt(1.0 / static_cast<double>(left.size()) + 1.0 / static_cast<double>(right.size()));
    split.degrees = std::max(1.0, (noise.count - 1.0) / noise.tau);
    const double looks = 0.5 * static_cast<double>(options_.window * options_.window);  // and places after one change
    const bool is_clear =
        std::all_of(newest.begin(), newest.end(), [&](double v) { return side * (v - later) >= kClear * wide; });
    const bool called =
        is_new ? is_clear && stands_alone(left, newest, later) : is_clear || split.p() <= options_.false_alarm / looks;
    return called ? std::optional(split) : std::nullopt;
  }

  // Whether nights are off a centre by much the same, as what sinks back is no step, where hardly one of those before
  // was off to their side by half as much.
  static bool stands_alone(std::span<const double> before, std::span<const double> nights, double centre) {
    const double side = nights.front() < centre ? -1.0 : 1.0;
    double off = std::numeric_limits<double>::infinity(), most = 0.0;
    for (const double v : nights) off = std::min(off, side * (v - centre)), most = std::max(most, side * (v - centre));
    const auto far =
        std::count_if(before.begin(), before.end(), [&](double v) { return side * (v - centre) > 0.5 * off; });
    return most <= kAlike * off && static_cast<double>(far) <= kSeldom * static_cast<double>(before.size());
  }

  // The change's place once all that follows it is known, up to the next change.
  void place(std::vector<Change>& changes, size_t i) const {
    Change& change = changes[i];
    const size_t begin = i == 0 ? 0 : changes[i - 1].at;
    const size_t end = i + 1 < changes.size() ? changes[i + 1].at : logs_.size();
    const auto stretch = logs_.subspan(begin, end - begin);
    const double sigma = neighbour_sigma(stretch, options_.noise);
    const double left = clipped_mean(logs_.subspan(begin, change.at - begin), kHuber * sigma);
    const double right = clipped_mean(logs_.subspan(change.at, end - change.at), kHuber * sigma);
    // Nights that hang together tell less of the place than as many that do not.
    std::vector<double> rest;
    for (size_t k = begin; k < end; ++k) rest.push_back(logs_[k] - (k < change.at ? left : right));
    const Noise noise = noise_of(std::move(rest));
    const double wide = std::max(sigma, noise.sigma * std::sqrt(noise.tau));
    // 2·log-likelihood of each place, less that of the first: a point that moves from right to left changes one term.
    const auto cost = [&](double value, double centre) {
      const double off = std::clamp((value - centre) / wide, -2.0 * kHuber, 2.0 * kHuber);
      return off * off;
    };
    std::vector<double> likelihood{0.0};
    for (const double v : stretch.first(stretch.size() - 1))
      likelihood.push_back(likelihood.back() + cost(v, right) - cost(v, left));
    likelihood.resize(std::min(likelihood.size(), change.seen - begin + 1));  // no later than it was seen
    const size_t best =
        1 + static_cast<size_t>(std::max_element(likelihood.begin() + 1, likelihood.end()) - likelihood.begin() - 1);
    change.at = begin + best;
    change.earliest = change.latest = change.at;
    for (size_t k = 1; k < likelihood.size(); ++k) {
      if (likelihood[best] - likelihood[k] > kLikelihoodDrop) continue;
      change.earliest = std::min(change.earliest, begin + k);
      change.latest = std::max(change.latest, begin + k);
    }
    change.before = std::exp(left);
    change.after = std::exp(right);
  }

  std::span<const double> logs_;
  ChangeOptions options_;
};

}  // namespace

double stretch_centre(std::span<const double> values) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  const double sigma = mad_sigma(values);
  return sigma > 0 ? clipped_mean(values, kHuber * sigma) : median(values);
}

std::vector<Change> find_changes(std::span<const double> values, const ChangeOptions& options) {
  std::vector<double> logs;
  std::vector<size_t> index;
  for (size_t i = 0; i < values.size(); ++i) {
    if (!(values[i] > 0.0) || !std::isfinite(values[i])) continue;
    logs.push_back(std::log(values[i]));
    index.push_back(i);
  }
  std::vector<Change> changes = Search(logs, options).run();
  for (Change& change : changes)
    for (size_t* place : {&change.at, &change.earliest, &change.latest, &change.seen}) *place = index[*place];
  return changes;
}

}  // namespace mbb::analysis
