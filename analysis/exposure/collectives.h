// What each collective of a trace over several ranks took: the wait for its last member apart from the transfer behind
// it, and how much of that a member's own compute hid.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "profiler/trace/trace.h"

namespace mbb::analysis {

// The collectives and messages of one site, over layers, micro-batches, steps and ranks: numbers in a path are '*'
// ("layers.*.mlp.fc2.reduce_scatter"). A collective without an id stands alone: nobody knows whom it waits for.
struct CollectiveRow {
  std::string site;
  profiler::SpanKind kind = profiler::SpanKind::kCommOther;
  int64_t calls = 0;            // collectives; a message counts once at either end
  int64_t members = 0;          // ranks of this trace that take part in one, at most
  int64_t parts = 0;            // (collective, rank) pairs, which the means are over
  double wait_ns = 0;           // mean: from the rank's own start until the last member's
  int64_t largest_wait_ns = 0;  // of one rank
  double transfer_ns = 0;       // mean: from the last member's start until the rank's end
  double hidden_ns = 0;         // mean: part of the transfer under compute of the same rank
};

// Collectives that lie in steps, those first that took most time in all. Clocks of the ranks must be one.
std::vector<CollectiveRow> collectives(const profiler::Trace& trace);

}  // namespace mbb::analysis
