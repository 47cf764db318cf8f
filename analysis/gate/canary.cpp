// Medians of canaries, and what they explain.
#include "analysis/gate/canary.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "analysis/stats/stats.h"

namespace mbb::analysis {
namespace {

constexpr double kSmallest = 0.01;  // a canary that moved less says nothing
constexpr double kPart = 0.5;       // of the cell's change that the canary must show too
constexpr double kContended = 0.1;  // a queue on a GPU alone takes as long as its pieces
constexpr std::string_view kShare = "_share", kArithmetic = "_arithmetic";
constexpr std::string_view kCanary = "canary_", kGpuCanary = "canary_gpu", kBefore = "_before_ns", kAfter = "_after_ns";

bool is_of_cpu(const baselines::Cell& cell) {
  return cell.result_class == baselines::ResultClass::kFunctionalCpu;
}

double median_of(const baselines::Cell& cell, const std::string& canary) {
  std::vector<double> times;
  for (const baselines::Launch& launch : cell.launches)
    for (const baselines::NamedCount& count : launch.counts)
      if ((count.name == canary + std::string(kBefore) || count.name == canary + std::string(kAfter)) &&
          count.count > 0)
        times.push_back(static_cast<double>(count.count));
  return median(times);
}

double count_of(const baselines::Launch& launch, const std::string& name) {
  double last = 0;
  for (const baselines::NamedCount& count : launch.counts)
    if (count.name == name) last = static_cast<double>(count.count);
  return last;
}

// Of a share, before and after the launch: how many times what the arithmetic takes alone; of those that were timed.
std::vector<double> times_alone(const baselines::Launch& launch, const std::string& share) {
  const std::string alone = share.substr(0, share.size() - kShare.size()) + std::string(kArithmetic);
  std::vector<double> times;
  for (const std::string_view when : {kBefore, kAfter}) {
    const double queued = count_of(launch, share + std::string(when)),
                 piece = count_of(launch, alone + std::string(when));
    if (queued > 0 && piece > 0) times.push_back(queued / piece);
  }
  return times;
}

double median_times_alone(const baselines::Cell& cell, const std::string& share) {
  std::vector<double> all;
  for (const baselines::Launch& launch : cell.launches)
    for (const double times : times_alone(launch, share)) all.push_back(times);
  return median(all);
}

}  // namespace

std::vector<std::string> canaries_of(const baselines::Launch& launch) {
  std::set<std::string> found;
  for (const baselines::NamedCount& count : launch.counts)
    for (const std::string_view end : {kBefore, kAfter})
      if (count.name.starts_with(kCanary) && count.name.ends_with(end))
        found.insert(count.name.substr(0, count.name.size() - end.size()));
  return {found.begin(), found.end()};
}

bool is_of_gpu(std::string_view canary) {
  return canary.starts_with(kGpuCanary);
}

bool is_of_share(std::string_view canary) {
  return canary.ends_with(kShare);
}

std::string processor_of(std::string_view canary) {
  if (!is_of_gpu(canary)) return "the CPU";
  const std::string_view rest = canary.substr(kGpuCanary.size());
  const std::string_view number = rest.substr(0, rest.find('_'));
  return "GPU " + std::string(number.empty() ? "0" : number);
}

CanaryTimes canary_times(const baselines::Cell& cell) {
  if (is_of_cpu(cell)) return {median_of(cell, "canary_arithmetic"), median_of(cell, "canary_memory")};
  return {median_of(cell, "canary_gpu_arithmetic"), median_of(cell, "canary_gpu_memory")};
}

Contention contention(const baselines::Cell& cell) {
  Contention most{.of_launches = cell.launches.size()};
  for (const baselines::Launch& launch : cell.launches) {
    bool contended = false;
    for (const std::string& canary : canaries_of(launch)) {
      if (!is_of_share(canary)) continue;
      for (const double times : times_alone(launch, canary)) {
        contended = contended || times >= 1 + kContended;
        if (times >= 1 + kContended && times - 1 > most.by) most.by = times - 1, most.of = processor_of(canary);
      }
    }
    most.beside += contended ? 1 : 0;
  }
  return most;
}

std::string text(const Contention& contention) {
  if (contention.by == 0) return "";
  return fmt::format(
      "another process uses {}: work queued there took up to {:.2f} times what it takes alone, beside {} of {} "
      "launches",
      contention.of, 1 + contention.by, contention.beside, contention.of_launches);
}

std::string_view cause(const Slowdown& slowdown) {
  return slowdown.shared ? "another process uses it" : "the machine is slower";
}

std::string_view metric_of_canaries(const baselines::Cell& cell) {
  return is_of_cpu(cell) ? "cpu_step_time" : "step_time";
}

Slowdown machine_slowdown(const baselines::Cell& then, const baselines::Cell& now) {
  if (is_of_cpu(then) != is_of_cpu(now)) return {};
  std::set<std::string> canaries;
  for (const baselines::Launch& launch : now.launches)
    for (std::string& canary : canaries_of(launch))
      if (is_of_gpu(canary) != is_of_cpu(now)) canaries.insert(std::move(canary));
  Slowdown most;
  for (const std::string_view kind : {kArithmetic, std::string_view("_memory"), kShare}) {
    const bool share = kind == kShare;
    double was = 0, is = 0;
    std::string slowest;
    for (const std::string& canary : canaries) {
      if (!canary.ends_with(kind)) continue;
      const double after = share ? median_times_alone(now, canary) : median_of(now, canary);
      double before = share ? median_times_alone(then, canary) : median_of(then, canary);
      if (share && after < 1 + kContended) continue;
      if (share && !std::isfinite(before)) before = 1;
      if (!std::isfinite(before) || !std::isfinite(after)) continue;
      was = std::max(was, before);
      if (after > is) is = after, slowest = canary;
    }
    if (was > 0 && is / was - 1.0 > most.by) most = {is / was - 1.0, processor_of(slowest), share};
  }
  return most;
}

bool explains(double slowdown, double change) {
  return slowdown >= kSmallest && slowdown >= kPart * change;
}

}  // namespace mbb::analysis
