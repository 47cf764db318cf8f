// A night's verdicts as people and machines read them: text, Markdown for a comment, JUnit XML, JSON; and the exit
// status.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "analysis/gate/judge.h"
#include "analysis/report/table.h"
#include "baselines/store/records.h"

namespace mbb::analysis {

// The metric of a row on a cell that gave no number.
inline constexpr const char* kRunRow = "run";

struct GateRow {
  std::string cell;
  std::string metric;       // "step_time"; "run" for a cell that gave no number
  std::string class_label;  // "measured/NVIDIA H100 80GB HBM3×1"
  std::string against;      // id of the baseline; empty when there is none
  SeriesVerdict verdict;
  std::string red_since = "";  // the run that was called slower first, where that was not tonight
};

struct GateReport {
  std::string suite;
  std::string run;
  std::string build;     // commit of the product under test
  std::string host;      // device and driver, for the headline
  std::string epoch;     // of the environment
  std::string canaries;  // "canaries steady (+0.0 %)"; empty: nothing to compare them with
  std::vector<GateRow> rows;
  std::vector<std::string> warnings;  // baselines that end soon, silent cells, an unknown clock
};

// What a metric is gated by. Times: wall for GPUs; thread CPU time for one CPU rank, the one time of such a run that
// means something. Memory and the last step's loss for every cell that has them.
std::vector<std::string> gated_metrics(const baselines::Cell& cell);
// One value a good launch; empty when the cell has none. The loss is that of the last step, or of step `steps` where a
// launch went further: losses of other steps are not comparable.
NightLaunches launch_values(const baselines::Cell& cell, const std::string& metric, std::int64_t steps = 0);

// Whether any cell ran: some metric of it was judged, or it never settled.
bool was_measured(const GateReport& report);

// Verdicts that end a gate with an error: by default slower, broken, incomparable, inconclusive and unstable each have
// their exit status (DESIGN.md, Trouble); the worst one counts: 4 broken, 1 slower, 3 incomparable, 2 inconclusive or
// unstable, 0. With `fail_on`, only the named verdicts and broken ones count: what is broken says nothing, and is never
// green. Where nothing was measured it is 4.
int gate_exit_status(const GateReport& report, const std::vector<baselines::Verdict>& fail_on = {});

// "1 slower, 41 same, 2 new"
std::string gate_headline(const GateReport& report);

Table gate_table(const GateReport& report);
// At most `limit` bytes, verdicts before warnings, cut with a note; begins with a marker line by which a bot finds its
// earlier comment.
inline constexpr const char* kGateMarker = "<!-- mbbench gate -->";
std::string gate_markdown(const GateReport& report, size_t limit = 60'000);
std::string gate_junit(const GateReport& report);
std::string gate_json(const GateReport& report);
// A page of its own, where there is no run to show beside.
std::string gate_html(const GateReport& report);

}  // namespace mbb::analysis
