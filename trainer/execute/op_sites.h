// What each position of a rank's walk looks like in a trace: op path, kind of time, phase, micro-batch, collective.
#pragma once

#include <vector>

#include "profiler/capture/device_trace.h"
#include "trainer/program/program.h"

namespace mbb::trainer {

profiler::StreamKind stream_kind(Stream stream);
profiler::SpanKind span_kind(const Op& op);
profiler::Phase phase_of(SegmentKind kind, const Op& op);

// Work of a step that belongs to no op, behind the walk's positions: op ids walk length + 1 and + 2.
inline constexpr const char* kUploadPath = "step.upload";
inline constexpr const char* kResultPath = "step.result";

// One site a walk position, in order, then the two above. Ids of collectives are equal on all members.
std::vector<profiler::OpSite> op_sites(const Program& program, const Mesh& mesh, int rank);

}  // namespace mbb::trainer
