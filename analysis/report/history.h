// A series over nights for people and machines: its points, epochs, baselines, verdicts and changes; as tables, as a
// plot in text and as a plot in SVG.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "analysis/changepoint/changes.h"
#include "analysis/report/table.h"
#include "baselines/pins/pins.h"
#include "baselines/store/store.h"

namespace mbb::analysis {

// A stretch of points on one fingerprint class and in one epoch, in the order of first appearance.
struct HistoryEpoch {
  std::string class_hash;
  std::string epoch;
  std::vector<size_t> points;  // indices, ascending
};

// The level a baseline stands for, from the time it was accepted on.
struct HistoryBaseline {
  std::string id;
  std::int64_t from_unix_ns = 0;
  std::int64_t until_unix_ns = 0;  // expiry; 0: none
  double value = 0;
  bool stands = false;
  // Of the points that it stands beside: its epoch's, accepted or run since; none when its epoch has no such point.
  std::vector<size_t> points;
};

// A change with the commits it lies between: it came with one of the builds after `good`, at the latest with `bad`.
struct HistoryChange {
  Change change;  // indices of History::points
  std::string good;
  std::string bad;
  std::string likely;  // build of the point where it most likely came
};

struct History {
  std::string identity_hash;
  std::string cell;
  std::string metric;
  std::string model;
  std::string class_label;
  std::string unit;
  std::vector<baselines::HistoryPoint> points;  // oldest first
  std::vector<HistoryEpoch> epochs;
  std::vector<HistoryBaseline> baselines;
  std::vector<HistoryChange> changes;
};

// Which of a series' points are its nights: those of gates; of a series that no gate has run, those of suites,
// single runs and imports. Bridges, confirmations, A/B and noise experiments are none.
std::vector<baselines::HistoryPoint> nights_of(std::vector<baselines::HistoryPoint> points);

// Changes are looked for inside each epoch. `of` names the series; its points come from Store::history.
History make_history(const baselines::SeriesSummary& of, std::vector<baselines::HistoryPoint> points,
                     const std::vector<baselines::Pin>& pins, std::int64_t now_unix_ns);

// A line a series: points, last value, last verdict, last change.
Table histories_table(const std::vector<History>& histories);
// The changes of one series, newest first.
Table changes_table(const History& history);
// The newest `limit` points.
Table points_table(const History& history, size_t limit = 20);

// Marks: o a night, - a baseline's level, : the beginning of an epoch, ^ a change. Nights that share a column show as
// their middle.
std::string plot_text(const History& history, size_t width = 72, size_t height = 10);
// One <svg> element that needs nothing beside it; `id` makes its inner names unique in a document.
std::string plot_svg(const History& history, const std::string& id);
std::string to_json(const History& history);

}  // namespace mbb::analysis
