// What memory-bound kernels are held to: 85 % of a copy of as many bytes, where a tensor of 64 MiB or more is moved.
#pragma once

#include <string>
#include <vector>

namespace mbb::suites {

constexpr double kLargeTensorBytes = 64.0 * (1 << 20);
constexpr double kGoalOfCopy = 0.85;

// A measured op that moves bytes of device memory.
struct MovingOp {
  std::string name;
  double largest_bytes = 0;  // of its operands
  double share_of_copy = 0;  // of a copy of as many bytes; 0: not measured
};

// How many of them the goal is about, and those that miss it, a line each, the worst first. Empty: it is about none.
std::string memory_goal_text(std::vector<MovingOp> ops);

}  // namespace mbb::suites
