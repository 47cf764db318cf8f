// What the rows of a configuration cost whose sequences have many lengths: known before it runs, since rows follow from
// data and seed.
#pragma once

#include <optional>

#include "baselines/store/records.h"
#include "profiler/base/error.h"
#include "trainer/program/row_lengths.h"
#include "trainer/program/token_flops.h"
#include "trainer/run/layout.h"

namespace mbb::suites {

// Means over the steps of the run, 256 at most.
struct SequenceWork {
  double tokens_per_step = 0;     // with a label
  trainer::BatchLengths lengths;  // of all those steps
  double efficiency = 0;          // tokens with a label over all tokens of the rows
  double imbalance = 1;           // squared lengths of the data-parallel rank with most, over the mean
};

// Of a layout that has_sequences(). Errors as trainer::open_sequences.
Result<SequenceWork> sequence_work(const trainer::Layout& layout);

// The same lengths beside the rows that hold them.
trainer::RowLengths row_lengths(const trainer::Layout& layout, const SequenceWork& work);
// Of any layout: nothing where rows are whole sequences.
Result<std::optional<trainer::RowLengths>> row_lengths(const trainer::Layout& layout);

// What a step of a configuration computes: with sequences of many lengths, means over its steps. Errors as above.
Result<baselines::Work> step_work(const trainer::Layout& layout, const trainer::StepPrograms& programs);
baselines::Work step_work(const trainer::Layout& layout, const trainer::StepPrograms& programs,
                          const SequenceWork& rows);
baselines::Work work_of(int64_t tokens_per_step, const trainer::TokenFlops& flops);

void add_sequence_metrics(baselines::Cell& cell, const SequenceWork& work);

}  // namespace mbb::suites
