// Sums op rows of blocks.
#include "analysis/metrics/block_time.h"

#include <algorithm>
#include <map>
#include <string>

#include "analysis/exposure/op_rows.h"
#include "analysis/metrics/metrics.h"
#include "profiler/base/check.h"

namespace mbb::analysis {

bool is_block_path(std::string_view path) {
  return path.starts_with("layers.") || path.find(".layers.") != std::string_view::npos;
}

void add_block_time(baselines::Cell& cell) {
  double sum = 0;
  int launches = 0;
  for (const baselines::Launch& launch : cell.launches) {
    const auto steps = static_cast<double>(op_steps(launch));
    if (steps <= 0) continue;
    std::map<std::string, double> by_class;
    for (const baselines::OpRow& row : launch.ops)
      if (row.stream == "compute" && is_block_path(row.path))
        by_class[row.rank_class] += static_cast<double>(row.total_ns);
    double most = 0;
    for (const auto& [rank_class, ns] : by_class) most = std::max(most, ns);
    sum += most / steps;
    ++launches;
  }
  const MetricInfo* info = find_metric("block_time");
  MB_CHECK(info != nullptr, "metric not declared: block_time");
  if (launches > 0 && sum > 0)
    cell.metrics.push_back(
        {info->id, sum / launches, baselines::kNotMeasured, baselines::kNotMeasured, info->unit, launches, ""});
}

}  // namespace mbb::analysis
