// The verdict on a cell's numerics: its losses against those of the one-rank cell of the same work.
#pragma once

#include <string>
#include <vector>

#include "baselines/store/records.h"

namespace mbb::suites {

// fp32: relative difference of the loss at step 0 to kRoundingSteps. What sums round otherwise, training carries along
// and adds to: beyond, the limit grows with the steps (a wrong mapping is off from its first steps on).
inline constexpr double kLossTolerance = 1e-5;
inline constexpr int64_t kRoundingSteps = 50;
double loss_tolerance(int64_t step);

// What two cells must share for their losses to be comparable: every knob but how the work is mapped and run
// (trainer/run/knob_effect.h), and with experts the micro-batch, in which they are balanced and drop tokens. Without
// `precision`, cells of different recipes share it too; without `seed`, cells of different train.seed.
std::string work_key(const baselines::Cell& cell, bool precision = true, bool seed = true);

bool trains_in_fp32(const baselines::Cell& cell);
// The finished one-rank fp32 cell of `cell`'s work; null where there is none.
const baselines::Cell* exact_reference_of(const baselines::Cell& cell, const std::vector<baselines::Cell>& finished);

// The finished one-rank cells that `cell` is compared with: in fp32, and, when the cell's recipe is another, in that.
struct References {
  const baselines::Cell* exact = nullptr;
  const baselines::Cell* rounded = nullptr;
  // The same two trained from other seeds, where the run has them: how far one rank's rounding goes.
  struct Pair {
    const baselines::Cell* exact = nullptr;
    const baselines::Cell* rounded = nullptr;
  };
  std::vector<Pair> other_seeds = {};
};
References references_of(const baselines::Cell& cell, const std::vector<baselines::Cell>& finished);

// Adds a "loss" verdict to `cell`; on a difference the cell becomes broken and loses its numbers. `finished` are cells
// to compare with. In fp32 losses are equal; in lower precision they are off by at most twice what one rank's are in
// that precision, over all steps and over the seeds that one rank ran (one of them may end near fp32 by chance), or
// what one cell in ten thousand is off by chance, as the spread of those seeds says, or what rounding every token's
// loss leaves. Without the one-rank cells of the same work among them nothing is added.
void judge_losses(baselines::Cell& cell, const std::vector<baselines::Cell>& finished);

// Adds a "learning" verdict: whether the loss at the end (mean of the last five steps) is below `unigram_entropy`
// (nats), which a model reaches that knows the frequencies of tokens and nothing else. "inconclusive" where it is not:
// a short run. Nothing where the entropy is not known (NaN).
void judge_learning(baselines::Cell& cell, double unigram_entropy);

}  // namespace mbb::suites
