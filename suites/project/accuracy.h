// How far projections are from published steps, and which factors of a cost table bring them nearest.
#pragma once

#include <string>
#include <vector>

#include "baselines/published/published.h"
#include "profiler/base/error.h"
#include "suites/project/projector.h"

namespace mbb::suites {

// A step that somebody measured, with the programs of its configuration: what projections are judged by.
struct PublishedCase {
  baselines::PublishedRow row;  // of our own steps: release "ours"
  trainer::Layout layout;
  trainer::StepPrograms programs;  // without memory plans
  double published_ns = 0;         // step
  bool experts = false;            // judged, but no factor is fitted to it
  bool ours() const { return row.release == "ours"; }
};

struct PublishedCases {
  std::vector<PublishedCase> cases;
  std::vector<std::pair<baselines::PublishedRow, std::string>> left_out;  // with the reason
};

// Which rows: of those that can be built, series that differ in the number of GPUs alone count with their smallest and
// their largest; of each model with experts the newest release alone, for their kernels changed most between releases.
// `hardware` as the table of cards has it: "h100-sxm".
PublishedCases published_cases(const std::string& hardware = kDefaultHardware);

// The card's own steps of the table, one H100 each.
Result<std::vector<PublishedCase>> measured_cases(const trainer::CostTable& costs);

// Projected over published step, less one.
struct Accuracy {
  size_t rows = 0;
  double median = 0;    // of the absolute errors
  double p90 = 0;       // nearest rank
  double bias = 0;      // median of the signed errors
  double coverage = 0;  // share of rows whose published step lies in the 80 % interval
};

struct CaseError {
  const PublishedCase* of = nullptr;
  double error = 0;
  bool covered = false;
  double projected_ns = 0, low_ns = 0, high_ns = 0;
};

// What of a case is projected: with kOtherTrainer what is assumed of the trainer that took it (its overlap of tensor
// parallelism, FP8 gathers, its software's age; never of our own steps), with kNothing this trainer's program as it is.
enum class Assume { kOtherTrainer, kNothing };

Result<std::vector<CaseError>> errors_of(const std::vector<PublishedCase>& cases, const trainer::CostTable& costs,
                                         Assume assume = Assume::kOtherTrainer);
Accuracy accuracy(const std::vector<CaseError>& errors);

// How well two projections tell two steps apart. Of all pairs of steps of one model and release: how far the projected
// ratio is from the measured one, absolute logarithm, nearest rank of 80 %. Errors that both steps of a pair share
// cancel, as they do between two cells of a suite. 0 without a pair.
double ratio_error(const std::vector<CaseError>& errors);

// The factors that are fitted, in the order of their terms, then tp_hidden, older_loss and scale_loss.
std::vector<double> fitted_values(const trainer::CostTable& costs);
void set_fitted_values(trainer::CostTable& costs, const std::vector<double>& values);
std::vector<std::string> fitted_names(const trainer::CostTable& costs);

// Moves the fitted values to the least sum of absolute log errors, each model with the same weight (our own steps with
// twice a model's), near the measured values.
trainer::CostTable calibrate(const std::vector<PublishedCase>& cases, trainer::CostTable costs);

// Every model's errors under factors fitted without any row of that model (the steps linear in the factors around
// those of `costs`).
Result<std::vector<CaseError>> errors_left_out(const std::vector<PublishedCase>& cases,
                                               const trainer::CostTable& costs);

}  // namespace mbb::suites
