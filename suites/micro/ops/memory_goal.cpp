// Says which memory-bound ops miss their goal.
#include "suites/micro/ops/memory_goal.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace mbb::suites {

std::string memory_goal_text(std::vector<MovingOp> ops) {
  std::erase_if(ops, [](const MovingOp& op) { return op.largest_bytes < kLargeTensorBytes; });
  if (ops.empty()) return "";
  const size_t all = ops.size();
  std::erase_if(ops, [](const MovingOp& op) { return op.share_of_copy >= kGoalOfCopy; });
  std::stable_sort(ops.begin(), ops.end(),
                   [](const MovingOp& a, const MovingOp& b) { return a.share_of_copy < b.share_of_copy; });
  const auto unknown = std::count_if(ops.begin(), ops.end(), [](const MovingOp& op) { return op.share_of_copy <= 0; });
  std::string text =
      fmt::format("memory-bound ops with a tensor of 64 MiB or more: {}; below {:.0f} % of a copy of as many bytes: {}",
                  all, kGoalOfCopy * 100, ops.size() - static_cast<size_t>(unknown));
  if (unknown > 0) text += fmt::format("; without such a copy: {}", unknown);
  for (const MovingOp& op : ops)
    text += op.share_of_copy > 0 ? fmt::format("\n  {:>4.1f} %  {}", std::floor(op.share_of_copy * 1e3) / 10, op.name)
                                 : fmt::format("\n       -  {}", op.name);
  return text + "\n";
}

}  // namespace mbb::suites
