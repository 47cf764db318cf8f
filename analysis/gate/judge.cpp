// Night centres, two variances, one-sided tests over windows of nights, Holm over cells.
#include "analysis/gate/judge.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
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
constexpr size_t kSteps = 2;          // moves since the baseline that a product's change and its mending may be
constexpr double kRefuse = 0.02;      // chance that nights as quiet as is assumed seem to differ by too much for it
constexpr double kPower = 0.9;        // of what one night can tell
constexpr double kStray = 1.3;        // sigmas: one night in ten strays further, to a side

// One night in logarithms, so that changes are relative.
struct Night {
  double centre = 0;
  std::vector<double> residuals;
  size_t launches = 0;
  std::string product = "";
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

// Of a mean of so many squares of normal numbers (Wilson and Hilferty).
double mean_square_quantile(double p, double degrees) {
  const double spread = 2.0 / (9.0 * degrees);
  return std::pow(1.0 - spread + normal_quantile(p) * std::sqrt(spread), 3);
}

// From one night to the next.
struct Move {
  double square;
  double explained;  // variance that launches alone give it
};

double of_launches(const Night& night, const Variances& v) {
  return v.launch / kPseudoMedianEfficiency / static_cast<double>(night.launches);
}

// Of neighbouring nights, so that a step in the series is one odd move and not a variance. From night `red` on a move
// to another product may be what mends it, or makes it worse, and is none of the nights' own.
std::vector<Move> moves_of(const std::vector<Night>& nights, const Variances& v,
                           std::optional<size_t> red = std::nullopt) {
  std::vector<Move> moves;
  for (size_t i = 1; i < nights.size(); ++i) {
    if (red && i > *red && nights[i].product != nights[i - 1].product) continue;
    const double move = nights[i].centre - nights[i - 1].centre;
    moves.push_back({move * move, of_launches(nights[i - 1], v) + of_launches(nights[i], v)});
  }
  return moves;
}

struct Assumed {
  double night = 0;  // variance
  double usual = 0;  // that launches add to a night's centre
};

// The night variance under which moves are as large as they should be (Paule and Mandel), where what is assumed counts
// as so many of them.
double fitting_variance(const std::vector<Move>& moves, const Assumed& assumed, double counts_as) {
  const auto too_small = [&](double night) {
    double sum = counts_as * (assumed.night + assumed.usual) / (night + assumed.usual);
    for (const Move& move : moves)
      sum += std::min(move.square / (2.0 * night + move.explained), kHuberMove * kHuberMove) / kHuberMoveMean;
    return sum > counts_as + static_cast<double>(moves.size());
  };
  double low = assumed.night, high = 1.0;
  for (int i = 0; i < 60 && too_small(low); ++i) (too_small(0.5 * (low + high)) ? low : high) = 0.5 * (low + high);
  return low;
}

// Few nights shrink towards what is assumed, many speak for themselves. Where moves are larger than it lets one series
// in fifty have, it counts for nothing: moves of the baseline, which is of one product, and of the nights since, but
// for kSteps of these.
void night_variance(const std::vector<Night>& baseline, const std::vector<Night>& since, std::optional<size_t> red,
                    double least, Variances& v) {
  std::vector<Move> steady = moves_of(baseline, v), later = moves_of(since, v, red), all = steady;
  all.insert(all.end(), later.begin(), later.end());
  std::sort(later.begin(), later.end(), [](const Move& a, const Move& b) { return a.square < b.square; });
  later.resize(later.size() - std::min(later.size(), kSteps));
  steady.insert(steady.end(), later.begin(), later.end());
  Assumed assumed{least * least};
  for (const auto* nights : {&baseline, &since})
    for (const Night& night : *nights)
      assumed.usual += of_launches(night, v) / static_cast<double>(baseline.size() + since.size());
  v.night = fitting_variance(all, assumed, kAssumedMoves);
  double counted = kAssumedMoves + static_cast<double>(all.size());
  const double own = fitting_variance(steady, assumed, 0.0);
  const double degrees = kMoveDegrees * static_cast<double>(steady.size());
  if (own > v.night &&
      (own + assumed.usual) / (assumed.night + assumed.usual) > mean_square_quantile(1.0 - kRefuse, degrees))
    v.night = own, counted = static_cast<double>(steady.size());
  v.centre = v.night + assumed.usual;
  // Nights that are as quiet as is assumed are known; what the series had to teach is an estimate.
  v.centre_degrees = v.night > assumed.night ? kMoveDegrees * counted : std::numeric_limits<double>::infinity();
}

// All nights of a series and what they tell of its noise.
struct Fit {
  std::vector<Night> baseline, since;
  Variances v;
  std::optional<size_t> red;  // among `since`
  std::string untestable;     // why not; else empty
};

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
  for (const Night& night : window) t.launches += night.launches;
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

Fit fit(const SeriesEvidence& evidence, const GateOptions& options) {
  Fit f;
  f.untestable = untestable_reason(evidence);
  if (!f.untestable.empty()) return f;
  f.baseline = nights_of(evidence.baseline);
  for (size_t i = 0; i < evidence.nights.size(); ++i) {
    NightLaunches launches = evidence.nights[i];
    // Of a cell that is red, both are of that night.
    if (evidence.red && i >= *evidence.red && i < evidence.confirmations.size())
      launches.insert(launches.end(), evidence.confirmations[i].begin(), evidence.confirmations[i].end());
    if (launches.empty()) continue;
    if (evidence.red && i <= *evidence.red) f.red = f.since.size();
    f.since.push_back(night_of(launches));
    if (i < evidence.products.size()) f.since.back().product = evidence.products[i];
  }
  std::vector<Night> all = f.baseline;
  all.insert(all.end(), f.since.begin(), f.since.end());
  launch_variance(all, f.v);
  if (f.v.launch_degrees < 3)
    f.untestable = "nights of one launch each do not tell the launch-to-launch spread";
  else
    night_variance(f.baseline, f.since, f.red, options.night_sigma, f.v);
  return f;
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

std::string signed_percent(double fraction) {
  return fmt::format("{:+.2f} %", 100.0 * fraction);
}

std::string nights_text(size_t nights) {
  return fmt::format("{} night{}", nights, nights == 1 ? "" : "s");
}

std::string change_text(const SeriesVerdict& v) {
  return fmt::format("{} (95 % {}..{}) over {}, {} launch{}", signed_percent(v.change), signed_percent(v.low),
                     signed_percent(v.high), nights_text(v.nights), v.launches, v.launches == 1 ? "" : "es");
}

// What the interval takes nights to differ by, and whether anything but an assumption says so.
std::string noise_text(double night_sigma, double assumed) {
  if (night_sigma <= assumed * 1.0001) return fmt::format("night sigma {:.2f} % (assumed)", 100.0 * assumed);
  return fmt::format("night sigma {:.2f} % ({:.2f} % was assumed)", 100.0 * night_sigma, 100.0 * assumed);
}

void describe(SeriesVerdict& v, double assumed) {
  v.text = fmt::format("{}; {}; one night can tell {}", change_text(v), noise_text(v.night_sigma, assumed),
                       signed_percent(v.detectable));
}

// Of what is called the same or nothing: the bound it rests on, and where tonight alone stands.
void describe_bound(SeriesVerdict& v, const WindowTest& tonight, double assumed) {
  describe(v, assumed);
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

// Whether tonight alone shows at least half of what a window does: one night that was far off moves a window too.
bool agrees(const WindowTest& tonight, const WindowTest& window) {
  return tonight.change / window.change >= 0.5;
}

void take(SeriesVerdict& v, const WindowTest& t) {
  const double half = student_t_two_sided(kLevel, t.degrees) * t.sigma;
  v.change = std::expm1(t.change);
  v.low = std::expm1(t.change - half);
  v.high = std::expm1(t.change + half);
  v.at_most = std::expm1(at_most(t));
  v.nights = t.nights;
  v.launches = t.launches;
}

// The smallest change that a night's launches make suspected at `screen_alpha` and fresh launches then confirm, nine
// times in ten. Both are held against one baseline, whose own error they share; what is left of each is its own.
double detectable(const SeriesTest& test, double screen_alpha, const GateOptions& options) {
  const WindowTest& tonight = test.windows.front();
  const double shared = test.baseline_sigma;
  const auto own_of = [&](const WindowTest& t) { return std::sqrt(t.sigma * t.sigma - shared * shared); };
  const double own = own_of(tonight);
  const double own_fresh = own_of(test.confirmation);
  const double suspected = student_t_quantile(1.0 - screen_alpha, tonight.degrees) * tonight.sigma;
  const double confirmed =
      student_t_quantile(1.0 - options.confirm_alpha, test.confirmation.degrees) * test.confirmation.sigma;
  static const std::array<double, 16> kOfBaseline = [] {  // its error in sigmas, in parts of equal chance
    std::array<double, 16> parts{};
    for (size_t i = 0; i < parts.size(); ++i)
      parts[i] = normal_quantile((static_cast<double>(i) + 0.5) / static_cast<double>(parts.size()));
    return parts;
  }();
  const auto power = [&](double change) {
    double sum = 0.0;
    for (const double error : kOfBaseline) {
      const double seen = change + shared * error;
      sum += normal_cdf((seen - suspected) / own) * normal_cdf((seen - confirmed) / own_fresh);
    }
    return sum / static_cast<double>(kOfBaseline.size());
  };
  double low = 0.0, high = suspected + confirmed;
  while (power(high) < kPower) high *= 2.0;
  for (int i = 0; i < 15; ++i) (power(0.5 * (low + high)) < kPower ? low : high) = 0.5 * (low + high);
  return high;
}

SeriesVerdict verdict_of(const SeriesTest& test, bool slower, bool faster, double cell_alpha,
                         const GateOptions& options) {
  SeriesVerdict v;
  if (!test.untestable.empty()) {
    v.verdict = test.untestable == "no baseline" ? Verdict::kNew : Verdict::kInconclusive;
    v.text = test.untestable;
    return v;
  }
  const WindowTest& tonight = test.windows.front();
  v.night_sigma = test.night_sigma;
  v.detectable = std::expm1(detectable(test, cell_alpha / static_cast<double>(test.windows.size()), options));
  if (slower) {
    take(v, test.slowest());
    v.verdict = Verdict::kSlower;
    v.suspected = true;
    describe(v, options.night_sigma);
  } else if (faster && agrees(tonight, test.fastest()) && std::expm1(test.fastest().change) <= -options.material) {
    take(v, test.fastest());
    v.verdict = Verdict::kFaster;
    describe(v, options.night_sigma);
  } else {
    // Where only nights before were faster, tonight is judged alone.
    const bool were_faster = std::expm1(test.steadiest().change) <= -options.material;
    const WindowTest& t = were_faster && !agrees(tonight, test.steadiest()) ? tonight : test.steadiest();
    take(v, t);
    v.verdict = same(t, tonight, options.material) ? Verdict::kSame : Verdict::kInconclusive;
    describe_bound(v, tonight, options.night_sigma);
  }
  return v;
}

// The launches that were to confirm the last `nights` nights.
std::vector<NightLaunches> confirmations_in(const SeriesEvidence& evidence, size_t nights) {
  const size_t first = evidence.nights.size() - std::min(nights, evidence.nights.size());
  std::vector<NightLaunches> found;
  for (size_t i = first; i < evidence.confirmations.size(); ++i)
    if (!evidence.confirmations[i].empty()) found.push_back(evidence.confirmations[i]);
  return found;
}

std::string fresh_text(const std::vector<NightLaunches>& nights) {
  size_t launches = 0;
  for (const NightLaunches& night : nights) launches += night.size();
  return fmt::format("{} fresh launches{}", launches,
                     nights.size() > 1 ? fmt::format(" of {} nights", nights.size()) : "");
}

std::string bound_text(const WindowTest& t) {
  return fmt::format("{}, at most {} with 95 %, one-sided", signed_percent(std::expm1(t.change)),
                     signed_percent(std::expm1(at_most(t))));
}

// The night that a change most likely came with, which was called on night `red`: where nights until then fall apart
// most clearly into those like the baseline and those that are not.
size_t came_with(const std::vector<Night>& since, const Group& reference, size_t red) {
  size_t best = red;
  double most = 0.0;
  for (size_t first = 0; first <= red; ++first) {
    const auto after = static_cast<double>(red + 1 - first), before = reference.nights + static_cast<double>(first);
    double below = reference.centre * reference.nights, above = 0.0;
    for (size_t i = 0; i <= red; ++i) (i < first ? below : above) += since[i].centre;
    const double apart = above / after - below / before;
    const double clear = apart * apart / (1.0 / after + 1.0 / before);
    if (apart > 0 && clear > most) most = clear, best = first;
  }
  return best;
}

// How many of the newest nights are below those before them since the change came; 0: nothing says that it became less.
size_t nights_below(std::span<const Night> changed, const Variances& v, const GateOptions& options) {
  double least = 1.0;
  size_t tests = 0, below = 0;
  for (const size_t nights : options.windows) {
    if (nights >= changed.size()) break;
    const Group before = group_of(changed.first(changed.size() - nights));
    const double p = test_window(changed.last(nights), before, v).p_faster;
    ++tests;
    if (p < least) least = p, below = nights;
  }
  return corrected(least, tests) <= options.gone_alpha ? below : 0;
}

// Of a cell that is red: tonight's confirming launches, if any, are among those of its last night.
SeriesVerdict standing_verdict(const Fit& f, const GateOptions& options) {
  const Group reference = group_of(f.baseline);
  const size_t first = came_with(f.since, reference, *f.red);
  const auto changed = std::span(f.since).subspan(first);
  const size_t below = nights_below(changed, f.v, options);
  const WindowTest t = test_window(below > 0 ? changed.last(below) : changed, reference, f.v);
  const WindowTest tonight = test_window(changed.last(1), reference, f.v);
  SeriesVerdict v;
  take(v, t);
  if (t.p_slower <= (below > 0 ? options.confirm_alpha : options.stand_alpha))
    v.verdict = Verdict::kSlower;
  else if (same(t, tonight, options.material) && (below > 0 || same(tonight, tonight, options.material)))
    v.verdict = Verdict::kSame;
  else if (below > 0 && t.p_faster <= options.confirm_alpha && v.change <= -options.material && agrees(tonight, t))
    v.verdict = Verdict::kFaster;
  v.night_sigma = std::sqrt(f.v.night);
  v.text = fmt::format("{}; {}; tonight {}", change_text(v), noise_text(v.night_sigma, options.night_sigma),
                       signed_percent(std::expm1(tonight.change)));
  if (v.verdict == Verdict::kSame) v.text += fmt::format("; at most {} (95 %, one-sided)", signed_percent(v.at_most));
  if (below > 0) {
    const Group before = group_of(changed.first(changed.size() - below));
    v.text +=
        fmt::format("; below the {} of the {} before", signed_percent(std::expm1(before.centre - reference.centre)),
                    nights_text(changed.size() - below));
  }
  return v;
}

// All launches of a suspected window and of its confirmations. It was chosen as the slowest: what they bound a change
// by, it is under all the more.
WindowTest with_confirmations(SeriesEvidence evidence, size_t nights, const NightLaunches& fresh,
                              const GateOptions& options) {
  evidence.red = evidence.nights.size() - nights;  // each night's confirmation counts to it from there on
  evidence.confirmations.resize(evidence.nights.size());
  evidence.confirmations.back() = fresh;
  const Fit f = fit(evidence, options);
  return test_window(std::span(f.since).last(nights), group_of(f.baseline), f.v);
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
  const Fit f = fit(evidence, options);
  test.untestable = f.untestable;
  if (!test.untestable.empty()) return test;
  test.launch_sigma = std::sqrt(f.v.launch);
  test.night_sigma = std::sqrt(f.v.night);
  const Group reference = group_of(f.baseline);
  test.baseline_sigma =
      std::sqrt(f.v.launch / kPseudoMedianEfficiency / reference.launches + f.v.night / reference.nights);
  test.confirmation =
      test_window(std::vector{Night{0.0, {}, std::max<size_t>(1, options.confirm_launches)}}, reference, f.v);
  for (const size_t nights : options.windows)
    if (nights <= f.since.size()) test.windows.push_back(test_window(std::span(f.since).last(nights), reference, f.v));
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
  for (size_t i = 0; i < cells.size(); ++i) {
    if (cells[i].red && tests[i].untestable.empty()) {
      verdicts.push_back(standing_verdict(fit(cells[i], options), options));
      verdicts.back().verdict = Verdict::kSlower;
      verdicts.back().suspected = true;
      continue;
    }
    verdicts.push_back(verdict_of(tests[i], is_slower[i], is_faster[i],
                                  options.false_red / static_cast<double>(cells.size()), options));
  }
  return verdicts;
}

SeriesVerdict confirm(const SeriesEvidence& evidence, const SeriesVerdict& suspected, const NightLaunches& fresh,
                      const GateOptions& options) {
  SeriesEvidence again = evidence;
  if (evidence.red && !evidence.nights.empty()) {
    again.confirmations.resize(again.nights.size());
    again.confirmations.back() = fresh;
    if (const Fit f = fit(again, options); f.untestable.empty()) return standing_verdict(f, options);
  }
  std::vector<NightLaunches> all = confirmations_in(evidence, suspected.nights);
  all.push_back(fresh);
  again.nights.insert(again.nights.end(), all.begin(), all.end());
  const Fit f = fit(again, options);
  SeriesVerdict v = suspected;
  if (!f.untestable.empty()) {
    v.verdict = Verdict::kInconclusive;
    v.text += "; suspected, not confirmed: " + (fresh.empty() ? "no fresh launches" : f.untestable);
    return v;
  }
  const Group reference = group_of(f.baseline);
  const WindowTest pooled = test_window(std::span(f.since).last(all.size()), reference, f.v);
  const WindowTest tonight = test_window(std::span(f.since).last(1), reference, f.v);
  if (pooled.p_slower <= options.confirm_alpha) {
    v.text += fmt::format("; confirmed by {} ({})", fresh_text(all), signed_percent(std::expm1(pooled.change)));
    return v;
  }
  // Earlier nights may have been slower where tonight's product is not: a regression that was mended.
  if (same(tonight, tonight, options.material)) {
    v.verdict = Verdict::kSame;
    take(v, tonight);
    v.text = fmt::format("{} are as the baseline ({}), where there had been {}", fresh_text({fresh}),
                         bound_text(tonight), suspected.text);
    return v;
  }
  v.text += fmt::format("; {} do not confirm it ({})", fresh_text(all), bound_text(pooled));
  v.verdict = Verdict::kInconclusive;
  if (suspected.nights == 0) return v;
  const WindowTest together = with_confirmations(evidence, suspected.nights, fresh, options);
  if (same(together, tonight, options.material)) {
    v.verdict = Verdict::kSame;
    take(v, together);
    v.text += "; together " + bound_text(together);
  }
  return v;
}

bool settles(const SeriesEvidence& evidence, const NightLaunches& fresh, const GateOptions& options) {
  return confirm(evidence, {}, fresh, options).verdict == Verdict::kSame;
}

}  // namespace mbb::analysis
