// Where a series of nights changed, as one would have learnt it night by night, and which points the change may lie
// between.
//
// A sequential test: after each point, every split of the points since the last change (in a window) is tested, and a
// change is called at the first point at which one passes. Its level is spread over all the looks and splits of a year
// (Bonferroni), so that a series without a change shows none in a year with probability 1 - false_alarm. What stands
// out of the noise by far is drawn in before means are taken, so that one wild night is no change; a step that each of
// the newest nights shows, by much the same, where nights before never strayed so far, needs no more. A change that
// another follows after few nights is called, too: those nights are no left side by themselves, but the stretches
// before them tell the noise, and the last of them a level to return to. The noise is learnt from the series itself,
// with its autocorrelation. Pure functions of numbers.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace mbb::analysis {

struct ChangeOptions {
  double false_alarm = 0.05;  // chance that a year of nights without a change shows one
  size_t fewest_before = 6;   // points
  size_t fewest_after = 3;
  size_t window = 60;       // splits that are looked at, newest first
  double noise = 0.0005;    // relative, of a point: never less is assumed
  double material = 0.003;  // relative; a smaller change is not called
};

struct Change {
  size_t at = 0;        // the first point after the change, most likely; never later than `seen`
  size_t earliest = 0;  // the change came with one of the points [earliest, latest], with about 95 %
  size_t latest = 0;    //
  size_t seen = 0;      // the point after which the test called it
  double before = 0;    // centre of the points since the change before it, in the values' unit
  double after = 0;     // centre of the points up to the next change
  double p = 1;         // of the split when it was called, uncorrected
  double relative() const { return after / before - 1.0; }
};

// Oldest first. `values` must be positive and finite; others are skipped and indices are those of the whole series.
std::vector<Change> find_changes(std::span<const double> values, const ChangeOptions& options = {});

// Centre of a stretch of nights: the mean with what stands out drawn in.
double stretch_centre(std::span<const double> values);

}  // namespace mbb::analysis
