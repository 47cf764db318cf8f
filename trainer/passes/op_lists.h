// Editing op lists: ops built aside and put at places of a segment, and where a segment uses tensors.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "trainer/program/builder.h"

namespace mbb::trainer {

// What `emit` appends to segment `segment` through the builder, taken out again. The builder's current segment stays.
std::vector<Op> build_aside(Builder& builder, int segment, const std::function<void()>& emit);

// Ops to put into one segment, by position in its present list: before op `position`; those of equal position keep the
// order in which they were added.
class Insertions {
 public:
  void before(size_t position, std::vector<Op> ops);
  void apply(Segment& segment);

 private:
  std::map<size_t, std::vector<Op>> ops_;
};

// Nothing but the optimizer and gradient sync waits for such an op.
bool gives_weight_gradients_only(const Program& program, const Op& op);

// First and last op of a segment that touches something.
struct Span {
  size_t first = 0;
  size_t last = 0;
  bool used = false;
  void add(size_t position) {
    if (!used) first = position;
    last = position;
    used = true;
  }
};

}  // namespace mbb::trainer
