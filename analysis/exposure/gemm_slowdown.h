// What hiding costs: how much longer a GEMM takes while a collective runs beside it than alone, by site.
#pragma once

#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "baselines/store/records.h"
#include "profiler/trace/trace.h"

namespace mbb::analysis {

// "layers.3.attn" becomes "layers.*.attn", "bucket12" stays: numbers that are a part of the path by themselves.
std::string site_of(std::string_view path);

// Op paths of a launch's GEMMs, plain, fused, scaled and grouped.
std::set<std::string> gemm_paths(const baselines::Launch& launch);

// Calls of a site's GEMM over layers, micro-batches, steps and ranks. A call is beside a collective where one runs on
// another stream of its rank for more than half of its time, and alone where that is less than a tenth.
struct GemmSlowdown {
  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

  std::string site;
  int64_t alone = 0, partly = 0, beside = 0;  // calls of this trace
  // Means; the one that this trace lacks is that of the other trace, else kUnknown.
  double alone_ns = kUnknown, beside_ns = kUnknown;
  bool elsewhere = false;      // one of the means is of the other trace
  double slowdown = kUnknown;  // beside_ns / alone_ns - 1
  double cost_ns = 0;          // a rank's step: what calls partly and wholly beside took longer than alone; kUnknown
};

// Of steps that the trace has windows of; sites by cost, unknown ones last. `other` is a trace of the same GEMMs with
// collectives elsewhere in the step, which is asked where all calls here are beside one or none is.
std::vector<GemmSlowdown> gemm_slowdowns(const profiler::Trace& trace, const std::set<std::string>& gemms,
                                         const profiler::Trace* other = nullptr);

}  // namespace mbb::analysis
