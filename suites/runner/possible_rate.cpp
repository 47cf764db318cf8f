// The rate against the peak.
#include "suites/runner/possible_rate.h"

#include <fmt/core.h>

#include <algorithm>

#include "analysis/metrics/cell_metrics.h"
#include "analysis/metrics/peaks.h"

namespace mbb::suites {
namespace {

constexpr double kFullOverCausal = 2;

struct Peak {
  double tflops = 0;
  const char* format = "";
};

// Formats of fewer bits are at least as fast, where the device has them.
Peak fastest(const analysis::DevicePeaks& peaks, const std::optional<trainer::Recipe>& recipe) {
  Peak peak{peaks.bf16_tflops, "bf16"};
  const bool half = recipe == trainer::Recipe::kFp32 || recipe == trainer::Recipe::kBf16;
  if (half) return peak;
  if (peaks.fp8_tflops > peak.tflops) peak = {peaks.fp8_tflops, "fp8"};
  const bool four_bits = !recipe || *recipe == trainer::Recipe::kNvfp4;
  if (four_bits && peaks.fp4_tflops > peak.tflops) peak = {peaks.fp4_tflops, "fp4"};
  return peak;
}

}  // namespace

void judge_rate(const std::optional<trainer::Recipe>& recipe, baselines::Cell& cell) {
  const auto peaks = analysis::peaks_of(cell.device);
  if (cell.status != baselines::CellStatus::kOk || !peaks) return;
  const Peak peak = fastest(*peaks, recipe);
  const baselines::Metric* ours = analysis::find(cell, "tflops_per_gpu_causal");
  const baselines::Metric* logged = ours ? nullptr : analysis::find(cell, "logged_tflops_per_gpu");
  const double least = ours ? ours->value : logged ? logged->value / kFullOverCausal : 0;
  if (!(least > peak.tflops)) return;
  cell.status = baselines::CellStatus::kBroken;
  cell.reason = fmt::format(
      "{:.1f} TFLOP/s/GPU{} are {:.1f} % of the {:.1f} that a {} does in {}{}: the batch, the sequence, the GPUs, the "
      "model, the device or the time of a step is not what it says",
      ours ? ours->value : logged->value, ours ? "" : " by the log's own count", 100 * least / peak.tflops, peak.tflops,
      cell.device, peak.format, ours ? "" : ", attention counted full at most twice");
}

}  // namespace mbb::suites
