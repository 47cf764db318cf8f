// Joining op rows with the program by path.
#include "suites/runner/op_records.h"

#include <fmt/core.h>

#include <map>

#include "analysis/exposure/op_rows.h"
#include "trainer/ops/op_kind.h"
#include "trainer/program/walk.h"

namespace mbb::suites {

std::string rank_class_name(const trainer::Layout& layout, int rank) {
  return fmt::format("stage{}", layout.mesh.rank_class(rank).pp);
}

void complete_op_rows(baselines::Launch& launch, const trainer::Layout& layout, const trainer::StepPrograms& programs,
                      const trainer::RowLengths* lengths) {
  trainer::AttentionShares shares(lengths);
  struct Known {
    const trainer::Op* op;
    double flops, bytes;
    int64_t calls;  // a step
  };
  std::map<std::pair<std::string, std::string>, Known> known;
  for (int i = 0; i < layout.mesh.rank_class_count(); ++i) {
    const trainer::Program& program = programs.programs[static_cast<size_t>(i)];
    const std::string stage = rank_class_name(layout, layout.mesh.representative(i));
    trainer::walk(program, [&](int, const trainer::Call&, int, const trainer::Op& op) {
      const trainer::OpView view{program, op};
      const auto [entry, added] = known.try_emplace({stage, op.path}, Known{&op, 0, 0, 0});
      if (added) entry->second.flops = trainer::op_flops(view, shares), entry->second.bytes = trainer::op_bytes(view);
      ++entry->second.calls;
    });
  }
  const int64_t steps = analysis::op_steps(launch);
  for (baselines::OpRow& row : launch.ops) {
    const auto found = known.find({row.rank_class, row.path});
    if (found == known.end()) continue;
    row.kind = std::string(found->second.op->kind->name);
    row.role = trainer::name(found->second.op->role);
    row.calls = found->second.calls * steps;
    row.flops = found->second.flops * static_cast<double>(row.calls);
    row.bytes = static_cast<int64_t>(found->second.bytes) * row.calls;
  }
}

}  // namespace mbb::suites
