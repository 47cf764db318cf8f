// Exact arithmetic on half-open intervals of integer nanoseconds.
//
// An `Intervals` is a set of instants: sorted by start, disjoint, no two touching, none empty. Every function takes and
// returns that form; `unite_all` makes it from any list. Lengths are exact: nothing here rounds.
#pragma once

#include <cstdint>
#include <vector>

namespace mbb::analysis {

struct TimeInterval {
  int64_t start_ns = 0;
  int64_t end_ns = 0;  // exclusive

  bool operator==(const TimeInterval&) const = default;
};

using Intervals = std::vector<TimeInterval>;

// The union of any intervals, in any order; empty and reversed ones count for nothing. Linear when the input is a few
// sorted runs one after another (as the tracks of a trace are).
Intervals unite_all(std::vector<TimeInterval> any);

int64_t length_ns(const Intervals& set);

Intervals unite(const Intervals& a, const Intervals& b);
Intervals intersect(const Intervals& a, const Intervals& b);
Intervals subtract(const Intervals& a, const Intervals& b);  // instants of a that are not in b
Intervals clip(const Intervals& set, TimeInterval window);
int64_t inside_ns(const Intervals& set, TimeInterval window);  // length of clip()

}  // namespace mbb::analysis
