// A step in unit costs: matrix products and attention by their FLOPs, transfers by their wire bytes, the rest free.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "trainer/execute/simulate/replay.h"
#include "trainer/ops/op_kind.h"
#include "trainer/program/op_volume.h"
#include "trainer/program/walk.h"
#include "trainer/run/step_programs.h"

namespace mbb::trainer {

struct UnitTimes {
  int64_t step = 0;
  int64_t exposed = 0;  // of rank 0: transfers of the kind that no product covers
};

inline UnitTimes unit_times(const Layout& layout, const StepPrograms& programs, profiler::SpanKind kind,
                            double flops_a_unit) {
  std::vector<std::vector<int64_t>> by_class;
  for (const Program& program : programs.programs) {
    by_class.emplace_back();
    walk(program, [&](int, const Call&, int, const Op& op) {
      const OpView view{program, op};
      int64_t units = 0;
      if (op.kind->model_flops) units = static_cast<int64_t>(op_flops(view) / flops_a_unit);
      if (op.kind->communicates) units = static_cast<int64_t>(comm_volume(view).wire_bytes);
      by_class.back().push_back(units);
    });
  }
  const auto replayed = replay(layout.mesh, programs.by_rank(layout.mesh), [&](int rank, size_t index) {
    return by_class[static_cast<size_t>(layout.mesh.rank_class_index(rank))][index];
  });
  EXPECT_TRUE(replayed.has_value()) << (replayed ? "" : replayed.error().what);
  if (!replayed) return {};
  // Edges of busy intervals: transfers of the kind weigh a thousand, computation one.
  std::vector<std::pair<int64_t, int>> edges;
  for (const profiler::Span& span : replayed->trace.spans) {
    if (replayed->trace.tracks[span.track].rank != 0 || span.end_ns == span.start_ns) continue;
    if (span.kind != kind && span.kind != profiler::SpanKind::kCompute) continue;
    const int weight = span.kind == kind ? 1000 : 1;
    edges.emplace_back(span.start_ns, weight);
    edges.emplace_back(span.end_ns, -weight);
  }
  std::sort(edges.begin(), edges.end());
  UnitTimes out{replayed->step_ns, 0};
  int busy = 0;
  for (size_t i = 0; i < edges.size(); ++i) {
    if (i > 0 && busy >= 1000 && busy % 1000 == 0) out.exposed += edges[i].first - edges[i - 1].first;
    busy += edges[i].second;
  }
  return out;
}

}  // namespace mbb::trainer
