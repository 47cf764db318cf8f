// The order in time of the segments that one micro-batch runs through: with several chunks a stage it is not the order
// in which they were built.
#pragma once

#include <vector>

#include "trainer/program/program.h"

namespace mbb::trainer {

struct SegmentOrder {
  std::vector<int> place;    // of each segment
  std::vector<int> segment;  // at each place
};

// By the first call of each segment that has the earliest micro-batch; segments that are never called come last, in the
// order they were built.
SegmentOrder segment_order(const Program& program);

}  // namespace mbb::trainer
