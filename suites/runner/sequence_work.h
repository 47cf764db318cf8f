// What the rows of a configuration cost whose sequences have many lengths: known before it runs, since rows follow from
// data and seed.
#pragma once

#include "baselines/store/records.h"
#include "profiler/base/error.h"
#include "trainer/run/layout.h"

namespace mbb::suites {

// Means over the steps of the run, 256 at most.
struct SequenceWork {
  double tokens_per_step = 0;  // with a label
  double flops_per_token_causal = 0;
  double flops_per_token_full = 0;
  double efficiency = 0;  // tokens with a label over all tokens of the rows
  double imbalance = 1;   // squared lengths of the data-parallel rank with most, over the mean
};

// Of a layout that has_sequences(). Errors as trainer::open_sequences.
Result<SequenceWork> sequence_work(const trainer::Layout& layout);

void add_sequence_metrics(baselines::Cell& cell, const SequenceWork& work);

}  // namespace mbb::suites
