// Steps on telemetry's clock, judged by their trends.
#include "suites/runner/drift.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "analysis/stats/trend.h"
#include "profiler/base/csv.h"
#include "profiler/base/file.h"
#include "suites/runner/child.h"

namespace mbb::suites {
namespace {

double between(const profiler::ClockSample& a, const profiler::ClockSample& b, int64_t at_ns) {
  const auto length = static_cast<double>(b.at_ns - a.at_ns);
  return length > 0 ? a.mhz + (b.mhz - a.mhz) * static_cast<double>(at_ns - a.at_ns) / length : a.mhz;
}

// Of samples in time order; there is one.
double clock_during(std::span<const profiler::ClockSample> samples, int64_t start_ns, int64_t end_ns) {
  const auto before = [](const profiler::ClockSample& sample, int64_t at) { return sample.at_ns < at; };
  const auto first = std::lower_bound(samples.begin(), samples.end(), start_ns, before);
  double sum = 0;
  int count = 0;
  for (auto sample = first; sample != samples.end() && sample->at_ns <= end_ns; ++sample, ++count) sum += sample->mhz;
  if (count > 0) return sum / count;
  if (first == samples.end()) return samples.back().mhz;
  if (first == samples.begin()) return first->mhz;
  return between(*(first - 1), *first, start_ns + (end_ns - start_ns) / 2);
}

}  // namespace

ClockedSteps clock_steps(const baselines::Launch& launch, std::span<const StepEnd> ends,
                         std::span<const profiler::ClockSample> samples) {
  std::map<int64_t, int64_t> end_of;
  for (const StepEnd& end : ends) end_of[end.index] = end.end_ns;
  ClockedSteps out;
  for (const baselines::Step& step : launch.steps) {
    const auto end = end_of.find(step.index);
    if ((step.flags & (baselines::kStepProfiled | baselines::kStepWarmUp)) != 0U || samples.empty() ||
        end == end_of.end())
      continue;
    out.ns.push_back(static_cast<double>(step.wall_ns));
    out.mhz.push_back(clock_during(samples, end->second - step.wall_ns, end->second));
  }
  return out;
}

Result<ClockedSteps> read_clocked_steps(const baselines::Launch& launch, const std::filesystem::path& folder) {
  MB_ASSIGN(const std::string telemetry, read_file(folder / kTelemetryFile));
  MB_ASSIGN(const auto samples, profiler::sm_clocks(telemetry));
  MB_ASSIGN(const std::string text, read_file(folder / kStepEndsFile));
  MB_ASSIGN(const CsvTable table, CsvTable::parse(text));
  std::vector<StepEnd> ends(table.rows());
  for (size_t row = 0; row < table.rows(); ++row) {
    MB_TRY(table.read(row, table.column("index"), ends[row].index));
    MB_TRY(table.read(row, table.column("end_ns"), ends[row].end_ns));
  }
  return clock_steps(launch, ends, samples);
}

void judge_drift(baselines::Cell& cell, const baselines::Launch& launch, const ClockedSteps& steps) {
  const analysis::Drift drift = analysis::drift_of(steps.ns, steps.mhz);
  if (drift.cause == analysis::DriftCause::kNone) return;
  const bool clock = drift.cause == analysis::DriftCause::kClock;
  const std::string text = fmt::format(
      "the steps of launch {} drift by {:+.1f} % in time and {:+.1f} % in cycles while the SM clock moves by "
      "{:+.1f} %: {}",
      launch.index, 100 * drift.time, 100 * drift.cycles, 100 * drift.clock,
      clock ? "power or heat, not the program" : "the work itself changes");
  baselines::VerdictRow row;
  row.subject = "drift";
  row.verdict = baselines::Verdict::kInconclusive;
  row.change = drift.time;
  row.text = text;
  cell.verdicts.push_back(std::move(row));
  if (cell.status == baselines::CellStatus::kUnstable) cell.reason += "; " + text;
}

}  // namespace mbb::suites
