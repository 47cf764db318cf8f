// Adds the metrics that need no run.
#include "suites/runner/planned_metrics.h"

#include "analysis/metrics/cell_metrics.h"
#include "suites/runner/sequence_work.h"
#include "trainer/program/explain.h"

namespace mbb::suites {

Status add_planned_metrics(const trainer::Layout& layout, const trainer::StepPrograms& programs,
                           baselines::Cell& cell) {
  MB_ASSIGN(const auto rows, row_lengths(layout));
  const trainer::Explain costs = trainer::explain(layout, programs, rows ? &*rows : nullptr);
  if (costs.model_flops > 0) {
    analysis::add_eligible_flops(cell, costs.eligible_flops / costs.model_flops);
    analysis::add_hardware_utilization(cell, costs.recompute_flops / costs.model_flops);
  }
  if (layout.has_sequences()) {
    MB_ASSIGN(const SequenceWork work, sequence_work(layout));
    add_sequence_metrics(cell, work);
  }
  return {};
}

}  // namespace mbb::suites
