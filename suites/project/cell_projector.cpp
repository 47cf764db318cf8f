// One projection a cell; with the time of the blocks, from the spans of the whole step.
#include "suites/project/cell_projector.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "analysis/exposure/breakdown.h"
#include "analysis/metrics/block_time.h"
#include "analysis/metrics/metrics.h"
#include "suites/project/projected_cell.h"
#include "suites/project/projection_text.h"
#include "suites/project/projector.h"
#include "trainer/run/precision_rules.h"

namespace mbb::suites {
namespace {

// Exclusive compute of the blocks' ops, of the rank with most.
double block_ns(const profiler::Trace& trace) {
  std::map<int32_t, double> by_rank;
  for (const analysis::StepTimes& step : analysis::break_down(trace))
    for (const analysis::OpTime& op : step.ops)
      if (op.kind == profiler::SpanKind::kCompute && analysis::is_block_path(trace.text(op.op)))
        by_rank[step.breakdown.rank] += static_cast<double>(op.exclusive_ns);
  double most = 0;
  for (const auto& [rank, ns] : by_rank) most = std::max(most, ns);
  return most;
}

}  // namespace

CellProjector cell_projector() {
  return [](const ProjectionRequest& request, baselines::Cell& cell, std::string& basis) -> Status {
    MB_ASSIGN(const trainer::CostTable costs, find_costs(request.hardware));
    ProjectOptions options;
    options.trace = request.blocks;
    MB_ASSIGN(const Projection projection, project(request.layout, request.programs, costs, options));
    const bool quantized = trainer::is_quantized(request.layout.config.precision.recipe);
    fill_projected(cell, projection, quantized);
    if (request.blocks) {
      const analysis::MetricInfo* info = analysis::find_metric("block_time");
      const double none = baselines::kNotMeasured;
      cell.metrics.push_back({info->id, block_ns(projection.trace), none, none, info->unit, 0, ""});
    }
    basis = fmt::format("Projection: {}; {}.", projection.costs, accuracy_line(costs));
    return {};
  };
}

}  // namespace mbb::suites
