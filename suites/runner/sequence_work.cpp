// Adding up the lengths of every row of every step.
#include "suites/runner/sequence_work.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "analysis/metrics/cell_metrics.h"
#include "analysis/metrics/metrics.h"
#include "profiler/base/check.h"
#include "trainer/run/training_data.h"

namespace mbb::suites {

Result<SequenceWork> sequence_work(const trainer::Layout& layout) {
  MB_ASSIGN(const trainer::SequenceDataset rows, trainer::open_sequences(layout));
  const int64_t steps = std::min<int64_t>(layout.config.train.train_iters, 256);
  trainer::BatchLengths batch;
  double imbalance = 0;
  for (int64_t step = 0; step < steps; ++step) {
    std::vector<int64_t> squares(static_cast<size_t>(layout.dp), 0);
    for (int64_t i = 0; i < layout.global_batch; ++i) {
      // Micro-batch m of rank d begins at row (m·dp + d)·b.
      int64_t& sum = squares[static_cast<size_t>(i / layout.micro_batch % layout.dp)];
      for (const trainer::SequenceRange& of : rows.sequences(step * layout.global_batch + i)) {
        sum += of.length * of.length;
        batch.groups.push_back({of.length, 1, of.encoder});
      }
    }
    int64_t all = 0;
    for (const int64_t sum : squares) all += sum;
    imbalance +=
        static_cast<double>(*std::max_element(squares.begin(), squares.end()) * layout.dp) / static_cast<double>(all);
  }
  SequenceWork work;
  work.tokens_per_step = batch.tokens() / static_cast<double>(steps);
  work.lengths = std::move(batch);
  work.efficiency = work.tokens_per_step / static_cast<double>(layout.tokens_per_step());
  work.imbalance = imbalance / static_cast<double>(steps);
  return work;
}

trainer::RowLengths row_lengths(const trainer::Layout& layout, const SequenceWork& work) {
  const double rows = work.lengths.tokens() / work.efficiency / static_cast<double>(layout.sequence);
  return {work.lengths, layout.sequence, rows, layout.encoder_sequence};
}

Result<std::optional<trainer::RowLengths>> row_lengths(const trainer::Layout& layout) {
  if (!layout.has_sequences()) return std::optional<trainer::RowLengths>();
  MB_ASSIGN(const SequenceWork work, sequence_work(layout));
  return std::optional(row_lengths(layout, work));
}

baselines::Work work_of(int64_t tokens_per_step, const trainer::TokenFlops& flops) {
  return {tokens_per_step, flops.causal, flops.full, flops.formula, flops.version};
}

Result<baselines::Work> step_work(const trainer::Layout& layout, const trainer::StepPrograms& programs) {
  if (!layout.has_sequences()) return work_of(layout.tokens_per_step(), trainer::token_flops(layout, programs));
  MB_ASSIGN(const SequenceWork rows, sequence_work(layout));
  return step_work(layout, programs, rows);
}

baselines::Work step_work(const trainer::Layout& layout, const trainer::StepPrograms& programs,
                          const SequenceWork& rows) {
  return work_of(std::llround(rows.tokens_per_step), trainer::token_flops(layout, programs, rows.lengths));
}

void add_sequence_metrics(baselines::Cell& cell, const SequenceWork& work) {
  const auto add = [&](const char* id, double value) {
    const analysis::MetricInfo* info = analysis::find_metric(id);
    MB_CHECK(info != nullptr, std::string("metric not declared: ") + id);
    cell.metrics.push_back({.name = std::string(info->id),
                            .value = value,
                            .unit = std::string(info->unit),
                            .launches = analysis::good_launches(cell)});
  };
  add("packing_efficiency", 100.0 * work.efficiency);
  add("dp_imbalance", 100.0 * (work.imbalance - 1.0));
}

}  // namespace mbb::suites
