// A program whose ops point at another copy of the op table is the same program once it is taken over.
#include "trainer/ops/own_records.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <vector>

#include "trainer/models/small_families.h"
#include "trainer/ops/op_kind.h"
#include "trainer/run/initial_state.h"
#include "trainer/run/step_programs.h"

namespace mbb::trainer {
namespace {

using State = std::map<TensorId, std::vector<float>>;

State state_of(const Program& program, const Mesh& mesh) {
  State state;
  initial_state(program, mesh, 0, 7,
                [&](TensorId id, std::span<const float> values) { state[id].assign(values.begin(), values.end()); });
  return state;
}

TEST(OwnRecords, AForeignProgramStartsFromTheSameState) {
  Config c;
  sizes(c, "llama3-8b", 2);
  c.parallel.gpus = 2;
  c.data_parallel.use_torch_fsdp2 = true;
  const auto layout = resolve(c);
  ASSERT_TRUE(layout.has_value()) << format(layout.error());
  const auto programs = build_programs(*layout);
  ASSERT_TRUE(programs.has_value()) << format(programs.error());
  const Program& mine = programs->programs[0];

  std::deque<OpKind> copies;
  Program foreign = mine;
  for (Segment& segment : foreign.segments)
    for (Op& op : segment.ops) op.kind = &copies.emplace_back(*op.kind);
  const State expected = state_of(mine, layout->mesh);
  EXPECT_NE(state_of(foreign, layout->mesh), expected);  // what must not reach an executor

  const Program own = with_own_records(foreign);
  EXPECT_EQ(state_of(own, layout->mesh), expected);
  for (size_t s = 0; s < mine.segments.size(); ++s)
    for (size_t i = 0; i < mine.segments[s].ops.size(); ++i)
      EXPECT_EQ(own.segments[s].ops[i].kind, mine.segments[s].ops[i].kind) << mine.segments[s].ops[i].path;
}

}  // namespace
}  // namespace mbb::trainer
