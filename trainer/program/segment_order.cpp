// Places of segments from the schedule.
#include "trainer/program/segment_order.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace mbb::trainer {

SegmentOrder segment_order(const Program& program) {
  constexpr size_t kNever = std::numeric_limits<size_t>::max();
  std::vector<size_t> first(program.segments.size(), kNever);
  std::vector<int> micro_batch(program.segments.size(), std::numeric_limits<int>::max());
  for (size_t c = 0; c < program.schedule.size(); ++c) {
    const Call& call = program.schedule[c];
    const auto s = static_cast<size_t>(call.segment);
    if (call.micro_batch >= micro_batch[s]) continue;
    micro_batch[s] = call.micro_batch;
    first[s] = c;
  }
  SegmentOrder order;
  order.segment.resize(program.segments.size());
  std::iota(order.segment.begin(), order.segment.end(), 0);
  std::stable_sort(order.segment.begin(), order.segment.end(),
                   [&](int a, int b) { return first[static_cast<size_t>(a)] < first[static_cast<size_t>(b)]; });
  order.place.resize(order.segment.size());
  for (size_t place = 0; place < order.segment.size(); ++place)
    order.place[static_cast<size_t>(order.segment[place])] = static_cast<int>(place);
  return order;
}

}  // namespace mbb::trainer
