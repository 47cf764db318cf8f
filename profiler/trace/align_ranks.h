// Ranks that were captured each by its own process, on clocks that may differ, as one trace: what all members of a
// collective share is its end, since nobody has the result before the last one gave its part. How well the ends meet
// after that is the residual, told for every communicator.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "profiler/base/error.h"
#include "profiler/trace/trace.h"

namespace mbb::profiler {

// Of a communicator's collectives, after alignment: how far apart their first and last end lie.
struct EndSpread {
  SpanKind kind = SpanKind::kCommOther;
  std::vector<int32_t> members;  // ranks that captured them, ascending, two or more
  int64_t collectives = 0;
  int64_t median_ns = 0;
  int64_t largest_ns = 0;
};

struct Alignment {
  std::vector<std::pair<int32_t, int64_t>> shift_ns;  // by part: its first rank, and what was added to its times
  std::vector<EndSpread> spreads;                     // by kind and members
  std::vector<int32_t> unaligned;                     // first ranks of parts without a collective with any other
};

struct AlignedRanks {
  Trace trace;  // on the clock of the first part
  Alignment alignment;
};

// `parts` hold different ranks; equal ids of collectives are one call. A part is shifted by the median difference of
// the ends of the collectives it shares with parts that are aligned already, of the kind of communicator that it shares
// most with (messages between pipeline stages only where there is nothing else: a send may end before its receive).
Result<AlignedRanks> align_ranks(std::vector<Trace> parts);

// A trace as bytes and back, for the way from process to process of one program.
std::string bytes_of_trace(const Trace& trace);
Result<Trace> trace_of_bytes(std::string_view bytes);

}  // namespace mbb::profiler
