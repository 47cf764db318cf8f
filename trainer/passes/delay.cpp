// One op at the head of the optimizer segment.
#include "trainer/passes/delay.h"

#include <algorithm>

#include "profiler/base/check.h"
#include "trainer/ops/table.h"

namespace mbb::trainer {

void plant_delay(Program& program, int64_t ns) {
  const auto optimizer = std::find_if(program.segments.begin(), program.segments.end(),
                                      [](const Segment& s) { return s.kind == SegmentKind::kOptimizer; });
  MB_CHECK(optimizer != program.segments.end(), "plant_delay: the program has no optimizer segment");
  Op op;
  op.kind = &kDelay;
  op.path = "debug.delay";
  op.in = {program.ports.step_record};
  op.attrs = DelayAttrs{ns};
  optimizer->ops.insert(optimizer->ops.begin(), std::move(op));
}

}  // namespace mbb::trainer
