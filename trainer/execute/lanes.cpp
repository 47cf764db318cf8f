// Waits between streams from the bytes that ops touch.
#include "trainer/execute/lanes.h"

#include <algorithm>
#include <array>

namespace mbb::trainer {
namespace {

bool conflict(const LaneOp& a, const LaneOp& b) {
  for (const Access& x : a.accesses)
    for (const Access& y : b.accesses)
      if ((x.write || y.write) && x.begin < y.end && y.begin < x.end) return true;
  return false;
}

}  // namespace

LanePlan plan_lanes(std::span<const LaneOp> ops) {
  LanePlan plan;
  plan.waits.resize(ops.size());
  plan.signals.assign(ops.size(), false);
  plan.beside.assign(ops.size(), false);
  std::array<std::vector<int>, kStreams> of_stream;
  // done[s][t]: ops of stream t before this place in of_stream[t] are over when the next op of stream s begins.
  std::array<std::array<size_t, kStreams>, kStreams> done{};
  std::vector<std::array<size_t, kStreams>> done_after(ops.size());
  for (size_t i = 0; i < ops.size(); ++i) {
    const auto mine = static_cast<size_t>(ops[i].stream);
    for (size_t other = 0; other < kStreams; ++other) {
      if (other == mine) continue;
      const std::vector<int>& list = of_stream[other];
      for (size_t at = list.size(); at > done[mine][other]; --at) {
        const int earlier = list[at - 1];
        if (!conflict(ops[i], ops[static_cast<size_t>(earlier)])) continue;
        plan.waits[i].push_back(earlier);
        plan.signals[static_cast<size_t>(earlier)] = true;
        // What the earlier op had waited for is over too.
        for (size_t t = 0; t < kStreams; ++t)
          done[mine][t] = std::max(done[mine][t], done_after[static_cast<size_t>(earlier)][t]);
        break;
      }
      if (done[mine][other] < list.size()) plan.beside[i] = true;
    }
    of_stream[mine].push_back(static_cast<int>(i));
    done[mine][mine] = of_stream[mine].size();
    done_after[i] = done[mine];
  }
  plan.parallel = std::count_if(of_stream.begin(), of_stream.end(), [](const auto& l) { return !l.empty(); }) > 1;
  return plan;
}

}  // namespace mbb::trainer
