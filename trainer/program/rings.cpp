// Windows of micro-batches, and what slots of one period can share.
#include "trainer/program/rings.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "trainer/program/walk.h"

namespace mbb::trainer {
namespace {

// Calls of a segment by micro-batch; -1 where the schedule has none.
std::vector<int> calls_of(const Program& program, int segment) {
  std::vector<int> at(static_cast<size_t>(program.micro_batches), -1);
  for (size_t c = 0; c < program.schedule.size(); ++c)
    if (program.schedule[c].segment == segment)
      at[static_cast<size_t>(program.schedule[c].micro_batch)] = static_cast<int>(c);
  return at;
}

// Slots of a value that is written in call begin[m] and last read in call end[m] of each micro-batch m: slot m is free
// again when m ends, so a later micro-batch may take it only if it begins after that. Smallest where micro-batches
// begin in order, enough in any.
int ring_of(const std::vector<int>& begin, const std::vector<int>& end) {
  // earliest[i]: first call of all micro-batches from i on; it ascends, so the last one to begin before a call is found
  // by bisection.
  std::vector<int> earliest = begin;
  for (size_t i = earliest.size() - 1; i-- > 0;) earliest[i] = std::min(earliest[i], earliest[i + 1]);
  int ring = 1;
  for (size_t m = 0; m < begin.size(); ++m) {
    const auto later = std::lower_bound(earliest.begin(), earliest.end(), end[m]) - earliest.begin() - 1;
    ring = std::max(ring, static_cast<int>(later) - static_cast<int>(m) + 1);
  }
  return ring;
}

// Micro-batches that the first chunk takes before another has its turn.
int group_of(const Program& program) {
  int group = 0;
  int segment = -1;
  for (const Call& call : program.schedule) {
    if (!is_micro_batched(program.segment(call).kind)) continue;
    if (segment >= 0 && call.segment != segment) break;
    segment = call.segment;
    ++group;
  }
  return group;
}

// Calls in which a slot is taken, a bit each.
using Calls = std::vector<uint64_t>;
bool meet(const Calls& a, const Calls& b) {
  for (size_t i = 0; i < a.size(); ++i)
    if (a[i] & b[i]) return true;
  return false;
}

// The calls of both ends of a span, by micro-batch.
struct SpanCalls {
  std::vector<int> begin, end;
};

// Places that slots of equal size need when all spans have `period` slots: each slot takes the first place that is free
// whenever it is taken. `enough` stands for as many and more.
int places_of(const Program& program, const std::vector<SpanCalls>& spans, int period, int enough) {
  std::vector<Calls> places;
  for (const auto& [begin, end] : spans) {
    for (int slot = 0; slot < std::min(period, program.micro_batches); ++slot) {
      Calls taken(program.schedule.size() / 64 + 1, 0);
      for (auto m = static_cast<size_t>(slot); m < begin.size(); m += static_cast<size_t>(period))
        for (auto c = static_cast<size_t>(begin[m]); c <= static_cast<size_t>(end[m]); ++c)
          taken[c / 64] |= uint64_t{1} << (c % 64);
      auto place = std::find_if(places.begin(), places.end(), [&](const Calls& other) { return !meet(taken, other); });
      if (place == places.end()) {
        places.push_back(std::move(taken));
        if (places.size() == static_cast<size_t>(enough)) return enough;
        continue;
      }
      for (size_t c = 0; c < taken.size(); ++c) (*place)[c] |= taken[c];
    }
  }
  return static_cast<int>(places.size());
}

}  // namespace

std::map<LifeSpan, int> ring_sizes(const Program& program, const std::set<LifeSpan>& spans) {
  std::map<LifeSpan, int> rings;
  std::vector<LifeSpan> crossing;  // spans of chunks that take turns
  std::vector<SpanCalls> calls_of_crossing;
  int widest = 0;
  int total = 0;
  for (const LifeSpan& span : spans) {
    SpanCalls calls{calls_of(program, span.first), calls_of(program, span.second)};
    const int ring = ring_of(calls.begin, calls.end);
    rings[span] = ring;
    if (span.first == span.second || program.segments[static_cast<size_t>(span.second)].kind == SegmentKind::kForward)
      continue;
    crossing.push_back(span);
    calls_of_crossing.push_back(std::move(calls));
    widest = std::max(widest, ring);
    total += ring;
  }
  if (crossing.size() < 2) return rings;
  const int group = group_of(program);
  if (group < 2) return rings;
  // A period of whole groups lets a slot follow one of another chunk only a group later; one of a few slots more lets
  // it follow at once, because micro-batches then change places from turn to turn.
  int fewest = total, period = 0;
  for (int tried = widest; tried <= (widest + group - 1) / group * group + group; ++tried) {
    const int places = places_of(program, calls_of_crossing, tried, fewest);
    if (places < fewest) fewest = places, period = tried;
  }
  if (period > 0)
    for (const LifeSpan& span : crossing) rings[span] = period;
  return rings;
}

}  // namespace mbb::trainer
