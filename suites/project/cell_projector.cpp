// One projection a cell, and its op rows from the spans of the whole step.
#include "suites/project/cell_projector.h"

#include <fmt/core.h>

#include "analysis/exposure/breakdown.h"
#include "analysis/exposure/op_rows.h"
#include "analysis/metrics/block_time.h"
#include "profiler/base/clock.h"
#include "suites/project/projected_cell.h"
#include "suites/project/projection_text.h"
#include "suites/project/projector.h"
#include "trainer/run/precision_rules.h"

namespace mbb::suites {
namespace {

// Spans of a whole step that are kept for its op rows; a larger step is projected from short walks, without rows.
constexpr size_t kMostSpans = 4'000'000;

size_t spans_of(const trainer::StepPrograms& programs) {
  size_t spans = 0;
  for (const trainer::Program& program : programs.programs)
    for (const trainer::Call& call : program.schedule)
      spans += program.segments[static_cast<size_t>(call.segment)].ops.size();
  return spans;
}

// The step by op, as a launch without steps: what `compare` and the store read.
baselines::Launch op_rows(const trainer::Layout& layout, const profiler::Trace& trace) {
  baselines::Launch launch;
  launch.started_unix_ns = launch.ended_unix_ns = wall_ns();
  analysis::fill_op_rows(launch, trace, analysis::break_down(trace),
                         [&](int32_t rank) { return fmt::format("stage{}", layout.mesh.rank_class(rank).pp); });
  return launch;
}

}  // namespace

CellProjector cell_projector() {
  return [](const ProjectionRequest& request, baselines::Cell& cell, ProjectionBasis& basis) -> Status {
    MB_ASSIGN(const trainer::CostTable costs, find_costs(request.hardware));
    ProjectOptions options;
    options.trace = request.blocks || spans_of(request.programs) <= kMostSpans;
    MB_ASSIGN(const Projection projection, project(request.layout, request.programs, costs, options));
    fill_projected(cell, projection, trainer::is_quantized(request.layout.config.precision.recipe));
    if (!projection.trace.spans.empty()) {
      cell.launches = {op_rows(request.layout, projection.trace)};
      analysis::add_block_time(cell);
    }
    basis.lines = accuracy_lines(costs);
    basis.lines.front() = fmt::format("Projection: {}. {}", projection.costs, basis.lines.front());
    basis.ratio_error = costs.published.ratio_error;
    return {};
  };
}

}  // namespace mbb::suites
