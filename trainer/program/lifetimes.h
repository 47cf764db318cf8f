// When each tensor of a program is first written and last read within a step.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "trainer/program/program.h"

namespace mbb::trainer {

// Over all calls of the step and all micro-batches. `first_use` orders tensors by the op that touches them first and is
// -1 for those no op touches. Uses of a view count for its storage.
struct Lifetime {
  const Op* first_writer = nullptr;  // nullptr: the host, or an earlier step
  const Op* last_reader = nullptr;   // nullptr: nobody in this step
  int64_t first_use = -1;

  bool used() const { return first_use >= 0; }
};

// By tensor. Points into `program`.
std::vector<Lifetime> lifetimes(const Program& program);

}  // namespace mbb::trainer
