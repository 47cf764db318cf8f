// Attaches and detaches the tracing library, the same way on all ranks.
#include "trainer/run/trace_window.h"

#include <fmt/core.h>

#include <string>
#include <utility>
#include <vector>

#include "profiler/capture/capture.h"
#include "trainer/execute/op_sites.h"
#include "trainer/run/join_captures.h"
#include "trainer/run/rank_reports.h"

namespace mbb::trainer {

bool TraceWindow::has(int64_t step) const {
  if (step < options_.trace_first || options_.trace_first >= options_.trace_end) return false;
  const int64_t since = step - options_.trace_first, length = options_.trace_end - options_.trace_first;
  return (options_.trace_period > 0 ? since % options_.trace_period : since) < length;
}

void TraceWindow::step_ran(int64_t step, int64_t start_ns, int64_t end_ns) {
  if (tracing_ != Tracing::kCapture) return;
  captures_.ranks[at()].steps.push_back({rank_, static_cast<int32_t>(step), start_ns, end_ns});
}

Status TraceWindow::begin(Executor& rank) {
  const HostWorks works(patience_, rank_ == 0);
  MB_TRY(everyone_.barrier());
  if (rank_ == 0 || options_.processes) MB_TRY(choose(rank));
  if (options_.processes) MB_TRY(all_capture());
  auto chosen = static_cast<int32_t>(tracing_);
  MB_TRY(from_first(everyone_, chosen));
  const auto mine = std::exchange(tracing_, static_cast<Tracing>(chosen));
  if (options_.processes && mine == Tracing::kCapture && tracing_ != Tracing::kCapture) {
    captures_.attached = false;
    MB_TRY(profiler::end_capture().map([](const auto&) {}));
  }
  if (tracing_ != Tracing::kCapture) return {};
  profiler::CapturedRank& captured = captures_.ranks[at()];
  captured.rank = rank_;
  captured.device = rank.device();
  captured.steps.clear();
  captured.sites = op_sites(programs_.of_rank(mesh_, rank_), mesh_, rank_);
  return rank.capture_changed();
}

Status TraceWindow::all_capture() {
  const std::string why = tracing_ == Tracing::kCapture ? "" : captures_.note;
  MB_ASSIGN(const std::vector<std::string> all, gather_at_first(everyone_, why));
  if (rank_ != 0 || tracing_ != Tracing::kCapture) return {};
  for (size_t r = 1; r < all.size(); ++r) {
    if (all[r].empty()) continue;
    tracing_ = Tracing::kOpByOp;
    captures_.note = fmt::format("{} (rank {})", all[r], r);
    // This process is attached; begin() detaches every one that is.
    captures_.attached = false;
    return profiler::end_capture().map([](const auto&) {});
  }
  return {};
}

Status TraceWindow::choose(const Executor& rank) {
  tracing_ = Tracing::kOpByOp;
  if (rank.device() < 0) return {};
  if (options_.external_profiler) {
    tracing_ = Tracing::kExternal;
    captures_.note = "the window was left to an external profiler";
    return profiler::profiler_range(true);
  }
  if (!options_.capture) return {};
  const Status begun = profiler::begin_capture();
  captures_.attached = begun.has_value();
  if (begun)
    tracing_ = Tracing::kCapture;
  else
    captures_.note = "timed op by op: " + begun.error().what;
  return {};
}

Status TraceWindow::end(Executor& rank) {
  const HostWorks works(patience_, rank_ == 0);
  MB_TRY(everyone_.barrier());
  const Tracing was = std::exchange(tracing_, Tracing::kOff);
  if (rank_ == 0 || options_.processes) MB_TRY(finish(was));
  MB_TRY(everyone_.barrier());
  return was == Tracing::kCapture ? rank.capture_changed() : Status{};
}

Status TraceWindow::finish(Tracing was) {
  if (was == Tracing::kExternal) return profiler::profiler_range(false);
  if (was != Tracing::kCapture) return {};
  captures_.attached = false;
  MB_ASSIGN(const profiler::CaptureRecords records, profiler::end_capture());
  if (!options_.processes) {
    captures_.device = profiler::device_trace(records, captures_.ranks);
    return {};
  }
  MB_ASSIGN(JoinedCapture joined,
            join_captures(everyone_, profiler::device_trace(records, {&captures_.ranks[at()], 1})));
  if (rank_ != 0) return {};
  captures_.device = std::move(joined.device);
  captures_.alignment = std::move(joined.alignment);
  return {};
}

}  // namespace mbb::trainer
