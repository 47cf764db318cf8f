// The nightly gate: a night's launches of a suite, held against accepted baselines; suspects are run again.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "analysis/gate/gate_report.h"
#include "baselines/pins/pins.h"
#include "baselines/store/records.h"
#include "suites/matrix/suite.h"
#include "suites/runner/gate_evidence.h"
#include "suites/runner/runner.h"

namespace mbb::suites {

struct GateRequest {
  std::vector<baselines::Pin> pins;
  std::string store_file;
  int64_t now_unix_ns = 0;
  int max_silent_nights = 3;
  int confirm_launches = 5;
};

// Judges a finished run. Suspected cells of `suite` run again (`options.launches` is not read); with an empty suite
// they stay inconclusive, said to be unconfirmed.
Result<analysis::GateReport> gate_run(const baselines::Run& run, const Suite& suite, const GateRequest& request,
                                      const RunOptions& options);

// Writes the verdicts into the night's bundle and store: `mbbench show`, `history` and the viewer have them from there.
Status keep_verdicts(const analysis::GateReport& report, int exit_status, const std::filesystem::path& runs_dir,
                     RunOutcome& outcome);

}  // namespace mbb::suites
