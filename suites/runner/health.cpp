// Reads telemetry.csv and tells troubles.
#include "suites/runner/health.h"

#include "profiler/base/file.h"
#include "suites/runner/child.h"

namespace mbb::suites {

Result<profiler::TelemetrySummary> launch_telemetry(const std::filesystem::path& launch_folder) {
  MB_ASSIGN(const std::string text, read_file(launch_folder / kTelemetryFile));
  return profiler::summarize_telemetry(text);
}

void judge_health(baselines::Cell& cell, baselines::Launch& launch, const profiler::TelemetrySummary& summary) {
  for (const std::string& trouble : profiler::health_troubles(summary)) {
    launch.counts.push_back({"health: " + trouble, 1});
    if (cell.status != baselines::CellStatus::kOk) continue;
    cell.status = baselines::CellStatus::kUnstable;
    cell.reason = trouble;
  }
}

}  // namespace mbb::suites
