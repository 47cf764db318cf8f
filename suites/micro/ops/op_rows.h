// The ops of a configuration that are timed: one of every kind, role and shape, at its place in the walk.
#pragma once

#include <string>
#include <vector>

#include "profiler/base/error.h"
#include "trainer/run/layout.h"
#include "trainer/run/step_programs.h"

namespace mbb::suites {

// Between the device's memory and the host's: what the link carries bounds it.
enum class Link { kNone, kToHost, kFromHost };

struct OpRow {
  std::string name;  // cost key: kind, role, operands
  std::string kind;
  size_t position = 0;  // in the walk
  double flops = 0;     // of products and attention; 0: the op moves bytes
  double bytes = 0;     // least traffic of device memory, every operand once
  double largest = 0;   // of the largest operand, or `bytes` where no more is touched
  double again = 0;     // read a second time where L2 does not hold it: inputs whose tensorwise scale is found first
  Link link = Link::kNone;
};

struct BuiltCase {
  trainer::Layout layout;
  trainer::StepPrograms programs;
  std::vector<OpRow> rows;
};

// Settings as mbbench takes them, "key=value".
Result<BuiltCase> build_case(const std::vector<std::string>& settings);

}  // namespace mbb::suites
