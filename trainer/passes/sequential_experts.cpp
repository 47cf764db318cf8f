// Grouped products taken apart.
#include "trainer/passes/sequential_experts.h"

#include <fmt/core.h>

#include <algorithm>

#include "trainer/ops/table.h"

namespace mbb::trainer {
namespace {

// One op for each expert; a weight gradient that overwrites does so expert by expert.
void take_apart(const Op& op, const GroupedGemmAttrs& attrs, std::vector<Op>& into) {
  for (int64_t e = 0; e < attrs.experts; ++e) {
    Op one = op;
    GroupedGemmAttrs mine = attrs;
    mine.only = e;
    mine.useful_rows = attrs.useful_rows / attrs.experts + (e < attrs.useful_rows % attrs.experts ? 1 : 0);
    one.attrs = mine;
    one.path += fmt::format(".expert{}", e);
    const bool updates = std::find(one.in.begin(), one.in.end(), one.out[0]) != one.in.end();
    if (e > 0 && !updates) one.in.push_back(one.out[0]);
    into.push_back(std::move(one));
  }
}

}  // namespace

void run_experts_in_turn(Program& program, int segment) {
  std::vector<Op> ops;
  for (Op& op : program.segments[static_cast<size_t>(segment)].ops) {
    const auto* attrs = std::get_if<GroupedGemmAttrs>(&op.attrs);
    if (attrs != nullptr && attrs->experts > 1)
      take_apart(op, *attrs, ops);
    else
      ops.push_back(std::move(op));
  }
  program.segments[static_cast<size_t>(segment)].ops = std::move(ops);
}

}  // namespace mbb::trainer
