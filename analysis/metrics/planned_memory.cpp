// The fullest rank class of a plan.
#include "analysis/metrics/planned_memory.h"

#include <algorithm>
#include <string>

#include "analysis/metrics/cell_metrics.h"
#include "analysis/metrics/metrics.h"
#include "profiler/base/check.h"

namespace mbb::analysis {
namespace {

void add(baselines::Cell& cell, const char* id, int64_t bytes) {
  const MetricInfo* info = find_metric(id);
  MB_CHECK(info != nullptr, std::string("metric not declared: ") + id);
  if (bytes > 0 && find(cell, id) == nullptr)
    cell.metrics.push_back(
        {.name = info->id, .value = static_cast<double>(bytes), .unit = info->unit, .launches = good_launches(cell)});
}

}  // namespace

void add_planned_memory(baselines::Cell& cell) {
  int64_t peak = 0, activations = 0;
  for (const baselines::MemoryMap& map : cell.memory) {
    peak = std::max(peak, map.peak_bytes);
    for (const baselines::CategoryBytes& category : map.categories)
      if (category.category == "activations") activations = std::max(activations, category.planned_bytes);
  }
  add(cell, "peak_memory", peak);
  add(cell, "activation_memory", activations);
}

}  // namespace mbb::analysis
