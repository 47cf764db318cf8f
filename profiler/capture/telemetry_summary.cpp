// Reads the table back and reduces it.
#include "profiler/capture/telemetry_summary.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "profiler/base/csv.h"
#include "profiler/host/nvml.h"

namespace mbb::profiler {
namespace {

constexpr uint64_t kIdleReason = 0x1;
constexpr uint64_t kIllReasons = 0x8 | 0x20 | 0x40 | 0x80;  // slowdown by hardware, heat (software, hardware), brake
// A device that was ill for a moment gives times that are off by a moment.
constexpr double kToldShare = 0.02;

SampledRange range_of(std::vector<double> values) {
  if (values.empty()) {
    const double none = std::numeric_limits<double>::quiet_NaN();
    return {none, none, none};
  }
  std::sort(values.begin(), values.end());
  return {values.front(), values[values.size() / 2], values.back()};
}

// Samples of one GPU as they come.
struct Collected {
  GpuSummary summary;
  std::vector<double> sm_mhz, power_w, temperature_c;
  int64_t first_corrected = -1, last_corrected = -1;
  int64_t first_uncorrected = -1, last_uncorrected = -1;
};

void count_errors(int64_t value, int64_t& first, int64_t& last) {
  if (value < 0) return;
  if (first < 0) first = value;
  last = value;
}

// An empty field reads as -1.
struct Columns {
  explicit Columns(const CsvTable& table) : table_(table) {}
  Result<double> number(size_t row, const char* name) const {
    double value = -1;
    MB_TRY(table_.read(row, table_.column(name), value));
    return value;
  }
  Result<int64_t> integer(size_t row, const char* name) const {
    int64_t value = -1;
    MB_TRY(table_.read(row, table_.column(name), value));
    return value;
  }
  const CsvTable& table_;
};

Status add_gpu_row(const Columns& columns, size_t row, Collected& gpu) {
  ++gpu.summary.samples;
  MB_ASSIGN(const int64_t failed, columns.integer(row, "failed"));
  if (failed > 0) {
    ++gpu.summary.failed;
    return {};
  }
  const auto keep = [&](const char* name, std::vector<double>& to) -> Status {
    MB_ASSIGN(const double value, columns.number(row, name));
    if (value >= 0) to.push_back(value);
    return {};
  };
  MB_TRY(keep("sm_mhz", gpu.sm_mhz));
  MB_TRY(keep("power_w", gpu.power_w));
  MB_TRY(keep("temperature_c", gpu.temperature_c));
  MB_ASSIGN(const int64_t reasons, columns.integer(row, "throttle_reasons"));
  const uint64_t bits = reasons > 0 ? static_cast<uint64_t>(reasons) & ~kIdleReason : 0;
  if (bits != 0) ++gpu.summary.throttled;
  if ((bits & kIllReasons) != 0) ++gpu.summary.ill;
  gpu.summary.throttle_bits |= bits;
  MB_ASSIGN(const int64_t corrected, columns.integer(row, "ecc_corrected"));
  MB_ASSIGN(const int64_t uncorrected, columns.integer(row, "ecc_uncorrected"));
  count_errors(corrected, gpu.first_corrected, gpu.last_corrected);
  count_errors(uncorrected, gpu.first_uncorrected, gpu.last_uncorrected);
  return {};
}

}  // namespace

Result<TelemetrySummary> summarize_telemetry(std::string_view csv) {
  MB_ASSIGN(const CsvTable table, CsvTable::parse(csv));
  const Columns columns(table);
  TelemetrySummary summary;
  std::map<int, Collected> gpus;
  std::vector<double> busy, cpus;
  for (size_t row = 0; row < table.rows(); ++row) {
    MB_ASSIGN(const int64_t gpu, columns.integer(row, "gpu"));
    if (gpu >= 0) {
      MB_TRY(add_gpu_row(columns, row, gpus[static_cast<int>(gpu)]));
      continue;
    }
    ++summary.samples;
    MB_ASSIGN(const double host, columns.number(row, "host_busy"));
    MB_ASSIGN(const double process, columns.number(row, "process_cpus"));
    if (host >= 0) busy.push_back(host);
    if (process >= 0) cpus.push_back(process);
  }
  summary.host_busy = range_of(std::move(busy));
  summary.process_cpus = range_of(std::move(cpus));
  for (auto& [index, gpu] : gpus) {
    gpu.summary.gpu = index;
    gpu.summary.sm_mhz = range_of(std::move(gpu.sm_mhz));
    gpu.summary.power_w = range_of(std::move(gpu.power_w));
    gpu.summary.temperature_c = range_of(std::move(gpu.temperature_c));
    gpu.summary.ecc_corrected = gpu.last_corrected - gpu.first_corrected;
    gpu.summary.ecc_uncorrected = gpu.last_uncorrected - gpu.first_uncorrected;
    summary.gpus.push_back(gpu.summary);
  }
  return summary;
}

Result<std::vector<ClockSample>> sm_clocks(std::string_view csv) {
  MB_ASSIGN(const CsvTable table, CsvTable::parse(csv));
  const Columns columns(table);
  std::vector<ClockSample> samples;
  for (size_t row = 0; row < table.rows(); ++row) {
    MB_ASSIGN(const int64_t gpu, columns.integer(row, "gpu"));
    MB_ASSIGN(const int64_t at_ns, columns.integer(row, "at_ns"));
    MB_ASSIGN(const double mhz, columns.number(row, "sm_mhz"));
    if (gpu >= 0 && mhz > 0) samples.push_back({at_ns, mhz});
  }
  std::stable_sort(samples.begin(), samples.end(), [](const auto& a, const auto& b) { return a.at_ns < b.at_ns; });
  return samples;
}

std::vector<std::string> health_troubles(const TelemetrySummary& summary) {
  std::vector<std::string> troubles;
  for (const GpuSummary& gpu : summary.gpus) {
    if (gpu.ecc_uncorrected > 0)
      troubles.push_back(
          fmt::format("GPU {}: {} uncorrected memory errors during the launch", gpu.gpu, gpu.ecc_uncorrected));
    const double share = gpu.samples > 0 ? static_cast<double>(gpu.ill) / static_cast<double>(gpu.samples) : 0;
    if (share > kToldShare)
      troubles.push_back(fmt::format("GPU {}: slowed down ({}) in {} of {} samples", gpu.gpu,
                                     throttle_text(gpu.throttle_bits & kIllReasons), gpu.ill, gpu.samples));
    if (gpu.failed > 0 && gpu.failed == gpu.samples)
      troubles.push_back(fmt::format("GPU {}: could not be read at all", gpu.gpu));
  }
  return troubles;
}

}  // namespace mbb::profiler
