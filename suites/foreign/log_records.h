// From another trainer's log to the records that the store keeps and all judging reads.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "baselines/store/records.h"
#include "suites/foreign/training_log.h"

namespace mbb::suites {

// What the configuration knows and a log may lack. 0: not known.
struct LogContext {
  int64_t tokens_per_step = 0;
  int64_t gpus = 0;
  int64_t sequence_length = 0;
};

// The log's own word where it has one: global batch x sequence (its last batch), sequence, ranks; else `otherwise`'s.
LogContext context_of(const TrainingLog& log, const LogContext& otherwise);

// The record of a log's step, with the tokens of its own batch; nothing where it has no time.
std::optional<baselines::Step> step_of(const TrainingLog& log, size_t index, const LogContext& context);

// A launch with the log's steps and memory. A step's time is the printed one; else the step's tokens over the printed
// rate; else the difference of two time stamps. Steps without any are left out. Named counts say how many steps a
// printed line stands for, which clock was used, and what was printed twice, left out or unreadable.
baselines::Launch launch_of(const TrainingLog& log, const LogContext& context);

// Where the steps of a cell's launches are of unequal sizes (a batch that grows, rows that are filled unequally), what
// one step's rate is of: the tokens that most steps have, of equals the later; the others are not timed (see
// step_time()). Where no size is that of a quarter of the steps, the median of their tokens. Sets the cell's work and
// adds a verdict "batch" that says so. Nothing happens to equal steps.
void settle_batch(baselines::Cell& cell);

// Breaks a cell whose logs print a loss that is no number, or that skipped the updates of a quarter of their steps or
// more, as the built-in trainer ends there. Fewer skipped updates (a loss scale that is searched) are a verdict
// "updates". `logs` by launch.
void judge_numerics(baselines::Cell& cell, const std::vector<TrainingLog>& logs);

// Adds what the logs of a cell's launches print and no formula of ours gives: the rate by the log's own FLOP count, as
// the median over the steps that are not warm-up, mean over launches. `logs` by launch; after fill_metrics().
void add_logged_metrics(baselines::Cell& cell, const std::vector<TrainingLog>& logs);

// A verdict "TFLOP/s": whether the log's own rate is ours by one of the two conventions, within 2 %. Nothing where one
// of them is not known.
void judge_logged_rate(baselines::Cell& cell);

}  // namespace mbb::suites
