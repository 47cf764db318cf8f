// Union, intersection and difference of sorted nanosecond intervals.
#include "analysis/exposure/intervals.h"

#include <algorithm>

#include "analysis/exposure/runs_sort.h"

namespace mbb::analysis {

namespace {

// Appends an interval whose start is not before the last one's; merges when they overlap or touch.
void append(Intervals& set, TimeInterval next) {
  if (next.end_ns <= next.start_ns) return;
  if (!set.empty() && next.start_ns <= set.back().end_ns) {
    set.back().end_ns = std::max(set.back().end_ns, next.end_ns);
  } else {
    set.push_back(next);
  }
}

}  // namespace

Intervals unite_all(std::vector<TimeInterval> any) {
  sort_runs(any, [](const TimeInterval& a, const TimeInterval& b) { return a.start_ns < b.start_ns; });
  size_t kept = 0;  // in place: the merged prefix never overtakes what is still to be read
  for (const TimeInterval next : any) {
    if (next.end_ns <= next.start_ns) continue;
    if (kept > 0 && next.start_ns <= any[kept - 1].end_ns) {
      any[kept - 1].end_ns = std::max(any[kept - 1].end_ns, next.end_ns);
    } else {
      any[kept++] = next;
    }
  }
  any.resize(kept);
  return any;
}

int64_t length_ns(const Intervals& set) {
  int64_t sum = 0;
  for (const TimeInterval& one : set) sum += one.end_ns - one.start_ns;
  return sum;
}

Intervals unite(const Intervals& a, const Intervals& b) {
  Intervals out;
  size_t i = 0;
  size_t j = 0;
  while (i < a.size() || j < b.size()) {
    const bool from_a = j == b.size() || (i < a.size() && a[i].start_ns <= b[j].start_ns);
    append(out, from_a ? a[i++] : b[j++]);
  }
  return out;
}

Intervals intersect(const Intervals& a, const Intervals& b) {
  Intervals out;
  size_t i = 0;
  size_t j = 0;
  while (i < a.size() && j < b.size()) {
    append(out, {std::max(a[i].start_ns, b[j].start_ns), std::min(a[i].end_ns, b[j].end_ns)});
    if (a[i].end_ns < b[j].end_ns) {
      ++i;
    } else {
      ++j;
    }
  }
  return out;
}

Intervals subtract(const Intervals& a, const Intervals& b) {
  Intervals out;
  size_t j = 0;
  for (const TimeInterval& one : a) {
    int64_t from = one.start_ns;
    while (j < b.size() && b[j].end_ns <= from) ++j;
    size_t k = j;
    for (; k < b.size() && b[k].start_ns < one.end_ns; ++k) {
      append(out, {from, b[k].start_ns});
      from = std::max(from, b[k].end_ns);
    }
    append(out, {from, one.end_ns});
    j = k > j ? k - 1 : j;  // the last hole may reach into the next interval
  }
  return out;
}

Intervals clip(const Intervals& set, TimeInterval window) {
  Intervals out;
  auto first = std::partition_point(set.begin(), set.end(),
                                    [&](const TimeInterval& one) { return one.end_ns <= window.start_ns; });
  for (; first != set.end() && first->start_ns < window.end_ns; ++first)
    append(out, {std::max(first->start_ns, window.start_ns), std::min(first->end_ns, window.end_ns)});
  return out;
}

int64_t inside_ns(const Intervals& set, TimeInterval window) {
  int64_t length = 0;
  auto at =
      std::partition_point(set.begin(), set.end(), [&](const TimeInterval& i) { return i.end_ns <= window.start_ns; });
  for (; at != set.end() && at->start_ns < window.end_ns; ++at)
    length += std::min(at->end_ns, window.end_ns) - std::max(at->start_ns, window.start_ns);
  return length;
}

}  // namespace mbb::analysis
