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
constexpr double kBack = 0.75;            // share of the nights after a way back that are nearer to the level before
constexpr double kWandering = 0.3;        // of the level, where nights hang together: how much is an estimate itself

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
      std::optional<Split> split = way_back(changes, end);
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
    const double side = right.front() < centre ? -1.0 : 1.0;
    double off = std::numeric_limits<double>::infinity(), most = 0.0;
    for (const double v : right) off = std::min(off, side * (v - centre)), most = std::max(most, side * (v - centre));
    if (off < options_.material || most > kAlike * off) return false;
    std::vector<double> rest(left.begin(), left.end());
    for (double& v : rest) v -= centre;
    const Noise noise = noise_of(std::move(rest));
    const auto far = std::count_if(left.begin(), left.end(), [&](double v) { return side * (v - centre) > 0.5 * off; });
    return off >= kClear * noise.sigma * std::sqrt(noise.tau) &&
           static_cast<double>(far) <= kSeldom * static_cast<double>(left.size());
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

  // Whether the newest change is undone so soon that its few nights are no left side by themselves: the nights before
  // it tell the noise and the level to return to. Each of the newest has to be back there.
  std::optional<Split> way_back(const std::vector<Change>& changes, size_t end) const {
    const size_t few = options_.fewest_after, begin = changes.empty() ? end : changes.back().at;
    const size_t start = changes.size() > 1 ? changes[changes.size() - 2].at : 0;
    const size_t from = std::max(start, begin > kMemory ? begin - kMemory : 0);
    if (end < begin + 2 * few || begin - from < options_.fewest_before) return std::nullopt;
    const auto known = logs_.subspan(from, begin - from);
    const double earlier = median(known);
    std::vector<double> rest(known.begin(), known.end());
    for (double& v : rest) v -= earlier;
    const Noise noise = noise_of(std::move(rest));
    const size_t last = std::min(end - few, begin + options_.fewest_before - 1);  // later ones are plain steps
    std::optional<Split> best;
    for (size_t at = begin + few; at <= last; ++at) {
      const std::optional<Split> split = back_at(begin, at, end, earlier, noise);
      if (split && (!best || split->z() > best->z())) best = split;
    }
    return best;
  }

  // The nights [begin, at) against those since, which must be nearer to the level before. Where each of the newest is
  // clearly off, as in a clear step, that is enough.
  std::optional<Split> back_at(size_t begin, size_t at, size_t end, double earlier, const Noise& noise) const {
    const auto left = logs_.subspan(begin, at - begin), right = logs_.subspan(at, end - at);
    const auto newest = right.last(options_.fewest_after);
    const double later = clipped_mean(left, kHuber * noise.sigma), wide = noise.sigma * std::sqrt(noise.tau);
    const auto is_back = [&](double v) { return std::abs(v - earlier) < std::abs(v - later); };
    const auto is_clear = [&](double v) { return std::abs(v - later) >= kClear * wide; };
    Split split;
    split.at = at;
    split.difference = clipped_mean(right, kHuber * noise.sigma) - later;
    const auto back = static_cast<double>(std::count_if(right.begin(), right.end(), is_back));
    if (!std::all_of(newest.begin(), newest.end(), is_back) || back < kBack * static_cast<double>(right.size()) ||
        std::abs(split.difference) < options_.material)
      return std::nullopt;
    split.sigma = wide * std::sqrt(1.0 / static_cast<double>(left.size()) + 1.0 / static_cast<double>(right.size()));
    split.degrees = std::max(1.0, (noise.count - 1.0) / noise.tau);
    // The level is spread over the places and looks after one change.
    const auto looks = static_cast<double>((options_.fewest_before - options_.fewest_after) * options_.window);
    const bool called =
        std::all_of(newest.begin(), newest.end(), is_clear) || split.p() <= options_.false_alarm / looks;
    return called ? std::optional(split) : std::nullopt;
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
    // 2·log-likelihood of each place, less that of the first: a point that moves from right to left changes one term.
    const auto cost = [&](double value, double centre) {
      const double off = std::clamp((value - centre) / sigma, -2.0 * kHuber, 2.0 * kHuber);
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
