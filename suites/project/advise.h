// Ranks the mappings of a model onto a number of GPUs by their projections.
#pragma once

#include <atomic>
#include <set>
#include <string>
#include <vector>

#include "suites/project/projector.h"

namespace mbb::suites {

// One mapping that is legal, fits, and was projected.
struct Advice {
  trainer::Config config;
  Projection projection;
  std::string label;   // "tp4 pp8 vpp5 mbs1"
  std::string reason;  // what its step is spent on, beside the best's
};

struct Advised {
  std::vector<Advice> ranked;  // fastest first
  int tried = 0;
  int illegal = 0;      // refused by a rule of the trainer
  int too_large = 0;    // not even with everything recomputed
  std::string example;  // a rule that refused, to say why nothing was left
};

struct AdviseOptions {
  std::string hardware = kDefaultHardware;
  int threads = 2;
  // Keys of knobs the user has set: they are not varied.
  std::set<std::string> fixed;
};

// Varies tensor, context, pipeline, expert parallelism and interleaving, micro-batch size, full sharding, and, only
// where a mapping does not fit, recompute; layers that do not divide are cut by a pipeline_layout that the label has.
// Everything else is as in `base`, which says the model, GPUs and batch.
// kNotFound when no mapping fits, naming the nearest miss.
Result<Advised> advise(const trainer::Config& base, const AdviseOptions& options);

}  // namespace mbb::suites
