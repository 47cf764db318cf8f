// How panels word and colour the records they share: statuses, verdicts, runs, metrics, ops.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "baselines/store/records.h"
#include "baselines/store/store.h"
#include "viewer/theme/palette.h"
#include "viewer/widgets/table.h"

namespace mbb::viewer {

Ink status_ink(baselines::CellStatus status);
Ink verdict_ink(baselines::Verdict verdict);
// "✓ ok", "– skipped", "✗ broken", "~ unstable": a sign as well as a colour.
std::string status_text(baselines::CellStatus status);
std::string verdict_text(baselines::Verdict verdict);

// Whether a launch's count says that something was lost or went wrong.
bool is_loss(const baselines::NamedCount& count);

// Of a cell that has not ended: "▸ step 34 of 60, launch 2".
std::string running_text(const baselines::Cell& cell);

// "running", "cut off", "done", "exit 4", "stopped". `cut_off`: it has no end and nobody writes it.
std::string run_state(const baselines::RunSummary& run, bool cut_off);
Ink run_state_ink(const baselines::RunSummary& run, bool cut_off);
// "quickstart", or the command when there is no suite.
std::string run_title(const baselines::RunSummary& run);

// "81.6 ms ±0.4 %" with its interval on hover.
TableCell metric_cell(const baselines::Metric* metric);
// Definition, convention and direction, for headers.
std::string metric_meaning(std::string_view metric_name);
std::string metric_title(std::string_view metric_name);
// Every metric the run's cells have: declared ones in the order of their table, then others.
std::vector<std::string> metric_names(const baselines::Run& run);

// A number cell, right-aligned by its column, that sorts by value.
TableCell number_cell(std::string text, double order, Ink ink = Ink::kText);
TableCell text_cell(std::string_view raw, Ink ink = Ink::kText);

}  // namespace mbb::viewer
