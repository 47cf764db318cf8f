// Night centres, two variances, one-sided tests over windows of nights, Holm over cells.
#include "analysis/gate/judge.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "analysis/stats/distributions.h"
#include "analysis/stats/stats.h"
#include "profiler/base/check.h"

namespace mbb::analysis {
namespace {

using baselines::Verdict;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kPseudoMedianEfficiency = 0.955;  // asymptotic, normal samples
constexpr double kHuber = 4.0;                     // residuals beyond this many robust sigmas are drawn in
constexpr double kHuberMove = 2.0;                 // the same of moves from night to night
constexpr double kHuberMoveMean = 0.9205;          // mean square of normal numbers that are drawn in so
constexpr double kMoveDegrees = 0.6;  // of one move: two thirds as neighbours share a night, less for the drawing in
constexpr double kAssumedMoves = 8;   // that options.night_sigma counts as
constexpr double kStray = 1.3;        // sigmas: one night in ten strays further, to a side

// One night in logarithms, so that changes are relative.
struct Night {
  double centre = 0;
  std::vector<double> residuals;
  size_t launches = 0;
};

Night night_of(const NightLaunches& launches) {
  std::vector<double> logs;
  for (const double value : launches) logs.push_back(std::log(value));
  Night night{pseudo_median(logs), {}, logs.size()};
  for (const double value : logs) night.residuals.push_back(value - night.centre);
  return night;
}

std::vector<Night> nights_of(const std::vector<NightLaunches>& all) {
  std::vector<Night> nights;
  for (const NightLaunches& launches : all)
    if (!launches.empty()) nights.push_back(night_of(launches));
  return nights;
}

struct Variances {
  double launch = 0;  // of one launch about its night
  double launch_degrees = 1;
  double night = 0;           // of a night's centre beyond what its launches explain
  double centre = 0;          // of a night's centre in all, with as many launches as is usual
  double centre_degrees = 1;  // infinite: assumed, not estimated
};

// Pooled over all nights; a wild launch counts as kHuber sigmas at most.
void launch_variance(const std::vector<Night>& nights, Variances& v) {
  std::vector<double> residuals;
  size_t used = 0;
  for (const Night& night : nights) {
    if (night.launches < 2) continue;
    residuals.insert(residuals.end(), night.residuals.begin(), night.residuals.end());
    ++used;
  }
  v.launch_degrees = static_cast<double>(residuals.size()) - static_cast<double>(used);
  if (v.launch_degrees < 1) return;
  // The median of |residual| is biased low where nights have few launches, as the centre follows them.
  const double robust = mad_sigma(residuals) * std::sqrt(static_cast<double>(residuals.size()) / v.launch_degrees);
  double sum = 0.0;
  for (const double r : residuals) {
    const double reach = robust > 0 ? std::clamp(r, -kHuber * robust, kHuber * robust) : r;
    sum += reach * reach;
  }
  v.launch = sum / v.launch_degrees;
}

// The night variance under which moves from night to night are as large as they should be (Paule and Mandel), where
// what is assumed of nights counts as kAssumedMoves moves: few nights shrink towards it, many speak for themselves. Of
// neighbouring nights, so that a step in the series is one odd move and not a variance.
void night_variance(const std::vector<Night>& baseline, const std::vector<Night>& since, double least, Variances& v) {
  struct Move {
    double square;
    double explained;  // variance that launches alone give it
  };
  std::vector<Move> moves;
  const auto of_launches = [&](const Night& night) {
    return v.launch / kPseudoMedianEfficiency / static_cast<double>(night.launches);
  };
  double usual = 0.0;
  for (const auto* nights : {&baseline, &since})
    for (size_t i = 0; i < nights->size(); ++i) {
      usual += of_launches((*nights)[i]) / static_cast<double>(baseline.size() + since.size());
      if (i == 0) continue;
      const double move = (*nights)[i].centre - (*nights)[i - 1].centre;
      moves.push_back({move * move, of_launches((*nights)[i - 1]) + of_launches((*nights)[i])});
    }
  const auto count = static_cast<double>(moves.size());
  const double assumed = least * least;
  const auto too_small = [&](double night) {
    double sum = kAssumedMoves * (assumed + usual) / (night + usual);
    for (const Move& move : moves)
      sum += std::min(move.square / (2.0 * night + move.explained), kHuberMove * kHuberMove) / kHuberMoveMean;
    return sum > kAssumedMoves + count;
  };
  double low = assumed, high = 1.0;
  for (int i = 0; i < 60 && too_small(low); ++i) (too_small(0.5 * (low + high)) ? low : high) = 0.5 * (low + high);
  v.night = low;
  v.centre = v.night + usual;
  // Nights that are as quiet as is assumed are known; what the series had to teach is an estimate.
  v.centre_degrees = low > assumed ? kMoveDegrees * (kAssumedMoves + count) : std::numeric_limits<double>::infinity();
}

struct Group {
  double centre = 0;
  double nights = 0;
  double launches = 0;
};

// Nights weigh alike: a night with more launches is no better known in its own night's part.
Group group_of(std::span<const Night> nights) {
  Group group;
  double inverse = 0.0;
  for (const Night& night : nights) {
    group.centre += night.centre;
    inverse += 1.0 / static_cast<double>(night.launches);
  }
  group.nights = static_cast<double>(nights.size());
  group.centre /= group.nights;
  group.launches = group.nights * group.nights / inverse;
  return group;
}

WindowTest test_window(std::span<const Night> window, const Group& baseline, const Variances& v) {
  const Group now = group_of(window);
  const double of_launches = v.launch / kPseudoMedianEfficiency * (1.0 / now.launches + 1.0 / baseline.launches);
  const double of_nights = v.night * (1.0 / now.nights + 1.0 / baseline.nights);
  WindowTest t;
  t.nights = window.size();
  t.change = now.centre - baseline.centre;
  t.sigma = std::sqrt(of_launches + of_nights);
  // Satterthwaite. What nights add is known as the spread of their centres is, of which it is only a part.
  const double of_centres = v.centre * (1.0 / now.nights + 1.0 / baseline.nights);
  const double launch_part = of_launches * of_launches / v.launch_degrees;
  const double night_part = of_centres * of_centres / v.centre_degrees;
  const double all = of_launches + of_nights;
  t.degrees = launch_part + night_part > 0 ? std::min(1e6, all * all / (launch_part + night_part)) : 1e6;
  t.p_slower = 1.0 - student_t_cdf(t.change / t.sigma, t.degrees);
  t.p_faster = student_t_cdf(t.change / t.sigma, t.degrees);
  return t;
}

std::string untestable_reason(const SeriesEvidence& evidence) {
  size_t launches = 0;
  for (const auto* nights : {&evidence.baseline, &evidence.nights})
    for (const NightLaunches& night : *nights)
      for (const double value : night)
        if (!(value > 0.0) || !std::isfinite(value)) return fmt::format("a launch has the value {}", value);
  for (const NightLaunches& night : evidence.baseline) launches += night.size();
  if (launches == 0) return "no baseline";
  if (launches < kFewestBaselineLaunches)
    return fmt::format("the baseline has {} launches and needs {}", launches, kFewestBaselineLaunches);
  if (evidence.nights.empty() || evidence.nights.back().empty()) return "no launch tonight";
  return "";
}

double corrected(double p, size_t tests) {
  return std::min(1.0, p * static_cast<double>(tests));
}

// Holm's step-down: which of the p-values are below their share of alpha.
std::vector<bool> holm(const std::vector<double>& p, double alpha) {
  std::vector<size_t> order(p.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return p[a] < p[b]; });
  std::vector<bool> rejected(p.size(), false);
  for (size_t i = 0; i < order.size(); ++i) {
    if (p[order[i]] > alpha / static_cast<double>(p.size() - i)) break;
    rejected[order[i]] = true;
  }
  return rejected;
}

size_t launches_in(const SeriesEvidence& evidence, size_t nights) {
  size_t count = 0;
  for (size_t i = 0; i < nights && i < evidence.nights.size(); ++i)
    count += evidence.nights[evidence.nights.size() - 1 - i].size();
  return count;
}

std::string signed_percent(double fraction) {
  return fmt::format("{:+.2f} %", 100.0 * fraction);
}

void describe(SeriesVerdict& v) {
  v.text = fmt::format("{} (95 % {}..{}) over {} night{}, {} launch{}; one night can tell {}", signed_percent(v.change),
                       signed_percent(v.low), signed_percent(v.high), v.nights, v.nights == 1 ? "" : "s", v.launches,
                       v.launches == 1 ? "" : "es", signed_percent(v.detectable));
}

// Of what is called the same or nothing: the bound it rests on, and where tonight alone stands.
void describe_bound(SeriesVerdict& v, const WindowTest& tonight) {
  describe(v);
  if (v.nights > 1) v.text += fmt::format("; tonight {}", signed_percent(std::expm1(tonight.change)));
  if (v.verdict == Verdict::kSame) v.text += fmt::format("; at most {} (95 %, one-sided)", signed_percent(v.at_most));
}

// What the change is under with kLevel: one-sided, as "not materially slower" is a claim about one side.
double at_most(const WindowTest& t) {
  return t.change + student_t_quantile(kLevel, t.degrees) * t.sigma;
}

// Neither materially slower, as far as the window tells, nor changed by tonight's product: the window is of earlier
// products too, so tonight must not stand out of it, by what is material and by what one night in ten strays.
bool same(const WindowTest& window, const WindowTest& tonight, double material) {
  const double stray = std::max(std::log1p(material), kStray * tonight.sigma);
  return std::expm1(at_most(window)) < material && std::expm1(window.change) > -material &&
         std::abs(tonight.change) < stray;
}

void take(SeriesVerdict& v, const SeriesEvidence& evidence, const WindowTest& t) {
  const double half = student_t_two_sided(kLevel, t.degrees) * t.sigma;
  v.change = std::expm1(t.change);
  v.low = std::expm1(t.change - half);
  v.high = std::expm1(t.change + half);
  v.at_most = std::expm1(at_most(t));
  v.nights = t.nights;
  v.launches = launches_in(evidence, t.nights);
}

SeriesVerdict verdict_of(const SeriesEvidence& evidence, const SeriesTest& test, bool slower, bool faster,
                         double cell_alpha, const GateOptions& options) {
  SeriesVerdict v;
  if (!test.untestable.empty()) {
    v.verdict = test.untestable == "no baseline" ? Verdict::kNew : Verdict::kInconclusive;
    v.text = test.untestable;
    return v;
  }
  const WindowTest& tonight = test.windows.front();
  v.detectable = (student_t_quantile(1.0 - cell_alpha / static_cast<double>(test.windows.size()), tonight.degrees) +
                  student_t_quantile(0.9, tonight.degrees)) *
                 tonight.sigma;
  if (slower) {
    take(v, evidence, test.slowest());
    v.verdict = Verdict::kSlower;
    v.suspected = true;
    describe(v);
  } else if (faster && std::expm1(test.fastest().change) <= -options.material) {
    take(v, evidence, test.fastest());
    v.verdict = Verdict::kFaster;
    describe(v);
  } else {
    take(v, evidence, test.steadiest());
    v.verdict = same(test.steadiest(), tonight, options.material) ? Verdict::kSame : Verdict::kInconclusive;
    describe_bound(v, tonight);
  }
  return v;
}

}  // namespace

double pseudo_median(std::span<const double> values) {
  std::vector<double> pairs;
  for (size_t i = 0; i < values.size(); ++i)
    for (size_t j = i; j < values.size(); ++j) pairs.push_back(0.5 * (values[i] + values[j]));
  return median(pairs);
}

const WindowTest& SeriesTest::slowest() const {
  return *std::min_element(windows.begin(), windows.end(),
                           [](const auto& a, const auto& b) { return a.p_slower < b.p_slower; });
}

const WindowTest& SeriesTest::fastest() const {
  return *std::min_element(windows.begin(), windows.end(),
                           [](const auto& a, const auto& b) { return a.p_faster < b.p_faster; });
}

const WindowTest& SeriesTest::steadiest() const {
  return *std::min_element(windows.begin(), windows.end(),
                           [](const auto& a, const auto& b) { return a.sigma < b.sigma; });
}

double SeriesTest::p_slower() const {
  return windows.empty() ? 1.0 : corrected(slowest().p_slower, windows.size());
}

double SeriesTest::p_faster() const {
  return windows.empty() ? 1.0 : corrected(fastest().p_faster, windows.size());
}

SeriesTest test_series(const SeriesEvidence& evidence, const GateOptions& options) {
  SeriesTest test;
  test.untestable = untestable_reason(evidence);
  if (!test.untestable.empty()) return test;
  const std::vector<Night> baseline = nights_of(evidence.baseline);
  const std::vector<Night> since = nights_of(evidence.nights);
  std::vector<Night> all = baseline;
  all.insert(all.end(), since.begin(), since.end());
  Variances v;
  launch_variance(all, v);
  if (v.launch_degrees < 3) {
    test.untestable = "nights of one launch each do not tell the launch-to-launch spread";
    return test;
  }
  night_variance(baseline, since, options.night_sigma, v);
  test.launch_sigma = std::sqrt(v.launch);
  test.night_sigma = std::sqrt(v.night);
  const Group reference = group_of(baseline);
  for (const size_t nights : options.windows)
    if (nights <= since.size()) test.windows.push_back(test_window(std::span(since).last(nights), reference, v));
  MB_CHECK(!test.windows.empty(), "gate: no window of one night among the options");
  return test;
}

std::vector<SeriesVerdict> judge_suite(std::span<const SeriesEvidence> cells, const GateOptions& options) {
  std::vector<SeriesTest> tests;
  std::vector<double> slower, faster;
  for (const SeriesEvidence& cell : cells) {
    tests.push_back(test_series(cell, options));
    slower.push_back(tests.back().p_slower());
    faster.push_back(tests.back().p_faster());
  }
  const std::vector<bool> is_slower = holm(slower, options.false_red);
  const std::vector<bool> is_faster = holm(faster, options.confirm_alpha);
  std::vector<SeriesVerdict> verdicts;
  for (size_t i = 0; i < cells.size(); ++i)
    verdicts.push_back(verdict_of(cells[i], tests[i], is_slower[i], is_faster[i],
                                  options.false_red / static_cast<double>(cells.size()), options));
  return verdicts;
}

SeriesVerdict confirm(const SeriesEvidence& evidence, const SeriesVerdict& suspected, const NightLaunches& fresh,
                      const GateOptions& options) {
  SeriesEvidence again = evidence;
  GateOptions one = options;
  one.windows = {1};
  again.nights.push_back(fresh);
  const SeriesTest test = test_series(again, one);
  SeriesVerdict v = suspected;
  if (!test.untestable.empty()) {
    v.verdict = Verdict::kInconclusive;
    v.text += "; suspected, not confirmed: " + (fresh.empty() ? "no fresh launches" : test.untestable);
    return v;
  }
  const WindowTest& t = test.windows.front();
  if (t.p_slower <= options.confirm_alpha) {
    v.text += fmt::format("; confirmed by {} fresh launches ({})", fresh.size(), signed_percent(std::expm1(t.change)));
    return v;
  }
  // Earlier nights may have been slower where tonight's product is not: a regression that was mended.
  const std::string theirs = fmt::format("{}, at most {} with 95 %, one-sided", signed_percent(std::expm1(t.change)),
                                         signed_percent(std::expm1(at_most(t))));
  if (same(t, t, options.material)) {
    v.verdict = Verdict::kSame;
    take(v, again, t);
    v.text = fmt::format("{} fresh launches are as the baseline ({}), where there had been {}", fresh.size(), theirs,
                         suspected.text);
    return v;
  }
  v.verdict = Verdict::kInconclusive;
  v.text += fmt::format("; {} fresh launches do not confirm it ({})", fresh.size(), theirs);
  return v;
}

bool settles(const SeriesEvidence& evidence, const NightLaunches& fresh, const GateOptions& options) {
  return confirm(evidence, {}, fresh, options).verdict == Verdict::kSame;
}

}  // namespace mbb::analysis
