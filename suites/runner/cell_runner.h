// A cell's launches, one after another, and what becomes of its record when they are over.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "analysis/exposure/breakdown.h"
#include "baselines/store/bundle.h"
#include "suites/foreign/training_log.h"
#include "suites/matrix/suite.h"
#include "suites/runner/canary.h"
#include "suites/runner/process.h"
#include "suites/runner/progress.h"
#include "suites/runner/runner.h"

namespace mbb::suites {

class CellRunner {
 public:
  // All must outlive it.
  CellRunner(baselines::BundleWriter& writer, const RunOptions& options, Progress& progress)
      : writer_(writer), options_(options), progress_(progress) {}

  // By the user: what was running is lost.
  bool stopped() const { return stopped_; }

  // What launches leave beside their records, until the cell is settled.
  struct Left {
    std::vector<analysis::StepBreakdown> breakdowns;
    std::vector<TrainingLog> logs;  // of a command
  };

  // One launch, where the cell is still ok and nobody stopped us.
  Status launch(const Cell& planned, baselines::Cell& cell, int index, Left& left);
  // Metrics and verdicts on the machine, after the last launch.
  Status settle(const Cell& planned, baselines::Cell& cell, const Left& left);
  // "step DONE OF LOSS", as children print it.
  void on_line(std::string_view line);

 private:
  Status judge_drifts(baselines::Cell& cell);
  Status launch_command_of(const Cell& planned, baselines::Cell& cell, int index, Left& left);
  Status launch_trainer(const Cell& planned, baselines::Cell& cell, int index, Left& left);
  Status write_stopping_rule(const trainer::Config& config, const std::filesystem::path& folder) const;
  // The canary after one launch is the one before the next, when that follows at once.
  Canary canary_now();
  Canary canary_after();

  baselines::BundleWriter& writer_;
  const RunOptions& options_;
  Progress& progress_;
  bool stopped_ = false;
  Canary canary_;
  int64_t canary_ns_ = 0;             // when it ran; 0: never
  std::vector<Canary> gpu_canaries_;  // of the GPUs of a user's command
  int64_t gpu_canaries_ns_ = 0;
};

}  // namespace mbb::suites
