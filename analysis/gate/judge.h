// Is the product slower than its baseline? From launches of nights to a verdict that a team can be woken for.
//
// A launch, not a step, is the unit of evidence. Launches of one night share that night's machine state, so two
// variances are told apart: of launches inside a night and of nights; of the latter few nights say little, and what is
// assumed of them counts as some more. Means of the last 1, 2, 3, 5, 7, 10 and 14 nights are each held against the
// baseline: a large change shows the first night, a small one as nights add up. A cell that fails this screen is only
// suspected; fresh launches must confirm it before it is red. Both steps are one-sided, and the screen is corrected
// over the cells of the suite (Holm) and the windows (Bonferroni). Nobody launches afresh to confirm that a cell is
// faster: its screen is as strict as a confirmation, the change must be material, and tonight alone must show half of
// it; where it does not, earlier nights were, and tonight alone is judged. Same is a claim about the nights of the best
// window, of which tonight's product is one: tonight alone must not stand out of it either. What was confirmed once
// stands: all nights since it came are its evidence, until the newest ones show that it went. Pure functions of
// numbers: nothing here reads a clock or draws a random number.
#pragma once

#include <cstddef>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "baselines/store/records.h"

namespace mbb::analysis {

// Medians of the steady steps of each launch of one night: time, memory or another positive quantity, in any unit.
using NightLaunches = std::vector<double>;

// One cell's series on one fingerprint class and in one epoch, for a metric where less is better.
struct SeriesEvidence {
  std::vector<NightLaunches> baseline;  // nights that were accepted as the baseline
  std::vector<NightLaunches> nights;    // since then, oldest first; the last one is tonight
  // By night, as far as there are any: the launches that were to confirm it.
  std::vector<NightLaunches> confirmations = {};
  // The earlier night that was called slower first, where nothing has ended that.
  std::optional<size_t> red = std::nullopt;
  std::vector<std::string> products = {};  // by night, a hash; empty: not known
};

struct GateOptions {
  double false_red = 0.05;       // chance that a night's screen suspects any cell of a suite without cause
  double confirm_alpha = 0.002;  // of the confirmation, one-sided; of a suite's screen for faster cells
  size_t confirm_launches = 5;   // that a suspected cell is confirmed by
  double stand_alpha = 0.025;    // of all nights since a confirmed change, one-sided: their 95 % interval is above 0
  double gone_alpha = 0.005;     // chance that a night takes a regression that stands for smaller than it was
  double material = 0.01;        // called same: slower by less than this, one-sided at 95 %, and not faster by as much
  double night_sigma = 0.001;    // of nights, relative: assumed of few nights that do not contradict it, and never less
  std::vector<size_t> windows = {1, 2, 3, 5, 7, 10, 14};
};

// Where the change over `nights` nights stands.
struct WindowTest {
  size_t nights = 0;
  size_t launches = 0;
  double change = std::numeric_limits<double>::quiet_NaN();  // relative, positive is slower
  double sigma = std::numeric_limits<double>::quiet_NaN();   // of the change
  double degrees = 0;
  double p_slower = 1;  // one-sided
  double p_faster = 1;
};

struct SeriesTest {
  std::vector<WindowTest> windows;
  double launch_sigma = std::numeric_limits<double>::quiet_NaN();    // relative, inside a night
  double night_sigma = std::numeric_limits<double>::quiet_NaN();     // relative, of nights
  double baseline_sigma = std::numeric_limits<double>::quiet_NaN();  // relative, of the baseline's centre
  WindowTest confirmation;  // what it can tell: sigma and degrees of options.confirm_launches
  std::string untestable;   // why no window could be tested; else empty

  const WindowTest& slowest() const;    // smallest p_slower; there must be a window
  const WindowTest& fastest() const;    // smallest p_faster
  const WindowTest& steadiest() const;  // smallest sigma: the best estimate of the change
  double p_slower() const;              // corrected over windows, 1 when untestable
  double p_faster() const;
};

// Needs at least kFewestBaselineLaunches in the baseline and one launch tonight; values must be positive and finite.
inline constexpr size_t kFewestBaselineLaunches = 5;
// Baseline nights from which the contract test's promises hold (1 % within 14 nights); with fewer, less is found.
inline constexpr size_t kNightsOfThePromise = 4;
SeriesTest test_series(const SeriesEvidence& evidence, const GateOptions& options = {});

struct SeriesVerdict {
  baselines::Verdict verdict = baselines::Verdict::kInconclusive;
  bool suspected = false;  // slower by the screen: fresh launches decide
  double change = std::numeric_limits<double>::quiet_NaN();
  double low = std::numeric_limits<double>::quiet_NaN();  // 95 %
  double high = std::numeric_limits<double>::quiet_NaN();
  double at_most = std::numeric_limits<double>::quiet_NaN();      // the change, 95 % one-sided: what `same` rests on
  double detectable = std::numeric_limits<double>::quiet_NaN();   // suspected and confirmed tonight with power 0.9
  double night_sigma = std::numeric_limits<double>::quiet_NaN();  // relative, that the interval rests on
  size_t nights = 0;                                              // of the window that decided
  size_t launches = 0;                                            // in that window
  std::string text;                                               // one sentence for a person
};

// Verdicts of a suite's cells, before confirmation: same, faster, inconclusive, new (no baseline), and slower with
// `suspected` set.
std::vector<SeriesVerdict> judge_suite(std::span<const SeriesEvidence> cells, const GateOptions& options = {});

// What a suspected cell comes to when `fresh` launches of tonight's product were added: slower, by them and those of
// the suspected window's earlier nights, which no screen has chosen either; same where they exclude a material change
// by themselves (the change is then theirs, not the suspicion's), or where these and the suspected window's together
// do, which was chosen as the slowest; else inconclusive. A cell that is red needs no second proof: it stays slower,
// with fresh launches or without, while the interval of all nights since the change is above 0, unless the newest are
// below those before them; these alone then say whether it is the same, faster or still slower.
SeriesVerdict confirm(const SeriesEvidence& evidence, const SeriesVerdict& suspected, const NightLaunches& fresh,
                      const GateOptions& options = {});

// Whether a confirmation's `fresh` launches, after the nights of `evidence`, exclude a material change: what those
// nights showed was mended or never there, and windows that reach back over them would suspect it again every night.
bool settles(const SeriesEvidence& evidence, const NightLaunches& fresh, const GateOptions& options = {});

// Median of all pairwise means (Hodges-Lehmann): as sharp as a mean for well-behaved samples, and one wild launch in
// five does not move it. NaN when empty.
double pseudo_median(std::span<const double> values);

}  // namespace mbb::analysis
