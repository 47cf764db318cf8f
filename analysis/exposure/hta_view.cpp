// HolisticTraceAnalysis' definitions over our Kineto reader.
#include "analysis/exposure/hta_view.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "analysis/exposure/intervals.h"
#include "profiler/trace/readers/kernel_class.h"

namespace mbb::analysis {

namespace {

using profiler::KinetoEvent;
using profiler::KinetoTrace;

constexpr int64_t kKernelWaitLimitUs = 30;
constexpr std::string_view kStepPrefix = "ProfilerStep#";

bool is_gpu(const KinetoTrace& trace, const KinetoEvent& event) {
  const std::string& name = trace.text(event.name);
  return (event.stream >= 0 && event.correlation >= 0) || name == "Event Sync" || name == "Context Sync";
}

int64_t floor_us(int64_t ns) {
  return ns >= 0 ? ns / 1000 : -((-ns + 999) / 1000);
}
int64_t ceil_us(int64_t ns) {
  return -floor_us(-ns);
}

bool is_launch_call(const std::string& name) {
  return name == "cudaLaunchKernel" || name == "cudaLaunchKernelExC" || name == "cudaMemcpyAsync" ||
         name == "cudaMemsetAsync" || name == "hipLaunchKernel" || name == "hipExtModuleLaunchKernel" ||
         name == "hipMemcpyAsync" || name == "hipMemsetAsync";
}

template <typename Keep>
Intervals union_of(const HtaEvents& events, Keep keep) {
  std::vector<TimeInterval> list;
  for (const HtaEvent& one : events.gpu)
    if (keep(events.trace->text(one.event->name))) list.push_back({one.start_us, one.end_us});
  return unite_all(std::move(list));
}

// Length and end of the merged intervals as HTA merges them: by start, a new one where the start lies behind every end
// so far. Rounding inward turns an event shorter than a microsecond round, and alone it then counts −1, as in HTA.
struct HtaMerged {
  int64_t length_us = 0;
  int64_t end_us = 0;  // of the last one
};

template <typename Keep>
HtaMerged merge_as_hta(const HtaEvents& events, Keep keep) {
  std::vector<TimeInterval> list;
  for (const HtaEvent& one : events.gpu)
    if (keep(events.trace->text(one.event->name))) list.push_back({one.start_us, one.end_us});
  std::stable_sort(list.begin(), list.end(),
                   [](const TimeInterval& a, const TimeInterval& b) { return a.start_ns < b.start_ns; });
  HtaMerged merged;
  int64_t furthest = std::numeric_limits<int64_t>::min();
  for (size_t i = 0; i < list.size(); ++i) {
    if (i == 0 || list[i].start_ns > furthest) {
      merged.length_us += list[i].end_ns - list[i].start_ns;
      merged.end_us = list[i].end_ns;
    } else if (list[i].end_ns > merged.end_us) {
      merged.length_us += list[i].end_ns - merged.end_us;
      merged.end_us = list[i].end_ns;
    }
    furthest = std::max(furthest, list[i].end_ns);
  }
  return merged;
}

// GPU work of a stream in order of start.
std::vector<HtaEvent> work_of(const HtaEvents& events, int32_t stream) {
  std::vector<HtaEvent> work;
  for (const HtaEvent& one : events.gpu)
    if (one.event->stream == stream && is_gpu_work(*events.trace, *one.event)) work.push_back(one);
  std::stable_sort(work.begin(), work.end(),
                   [](const HtaEvent& a, const HtaEvent& b) { return a.start_us < b.start_us; });
  return work;
}

// Start of the launch call by correlation.
std::unordered_map<int64_t, int64_t> launches_of(const HtaEvents& events) {
  std::unordered_map<int64_t, int64_t> starts;
  for (const HtaEvent& one : events.cpu)
    if (one.event->correlation >= 0) starts.try_emplace(one.event->correlation, one.start_us);
  return starts;
}

// Every event HTA counts, split by where it ran.
HtaEvents counted_events(const KinetoTrace& trace) {
  HtaEvents out;
  out.trace = &trace;
  const auto kept = [&](const KinetoEvent& event) {
    return event.duration_ns >= 0 && event.category != 0 && trace.text(event.category) != "Trace";
  };
  bool fractional = false;
  for (const KinetoEvent& event : trace.events) fractional |= kept(event) && event.fractional;
  for (const KinetoEvent& event : trace.events) {
    if (!kept(event)) continue;
    HtaEvent one{floor_us(event.start_ns), floor_us(event.end_ns()), &event};
    if (fractional) one.start_us = ceil_us(event.start_ns);
    (is_gpu(trace, event) ? out.gpu : out.cpu).push_back(one);
  }
  return out;
}

// Drops GPU events that no kept CPU event launched.
void keep_launched(HtaEvents& events) {
  std::unordered_set<int64_t> correlations;
  for (const HtaEvent& one : events.cpu)
    if (one.event->correlation >= 0) correlations.insert(one.event->correlation);
  std::erase_if(events.gpu, [&](const HtaEvent& one) { return !correlations.contains(one.event->correlation); });
}

}  // namespace

HtaEvents hta_events(const KinetoTrace& trace) {
  HtaEvents out = counted_events(trace);
  int steps = 0;
  int64_t last_step_us = std::numeric_limits<int64_t>::min();
  for (const HtaEvent& one : out.cpu) {
    if (!trace.text(one.event->name).starts_with(kStepPrefix)) continue;
    ++steps;
    last_step_us = std::max(last_step_us, one.start_us);
  }
  if (steps < 2) return out;
  std::erase_if(out.cpu, [&](const HtaEvent& one) { return one.start_us >= last_step_us; });
  keep_launched(out);
  return out;
}

Result<HtaEvents> hta_step(const KinetoTrace& trace, int64_t step) {
  HtaEvents out = counted_events(trace);
  const std::string name = std::string(kStepPrefix) + std::to_string(step);
  const auto annotation = std::find_if(out.cpu.begin(), out.cpu.end(),
                                       [&](const HtaEvent& one) { return trace.text(one.event->name) == name; });
  if (annotation == out.cpu.end()) return fail(ErrorCode::kNotFound, "the trace has no " + name);
  const HtaEvent window = *annotation;
  std::erase_if(out.cpu,
                [&](const HtaEvent& one) { return one.start_us < window.start_us || one.start_us >= window.end_us; });
  keep_launched(out);
  return out;
}

Result<HtaBreakdown> hta_breakdown(const HtaEvents& events) {
  if (events.gpu.empty())
    return fail(ErrorCode::kBadFile, "no GPU activity in the trace",
                "record with CUDA activities, or on a machine with a GPU");
  HtaBreakdown out;
  int64_t first = std::numeric_limits<int64_t>::max();
  for (const HtaEvent& one : events.gpu) first = std::min(first, one.start_us);
  const HtaMerged all = merge_as_hta(events, [](const std::string&) { return true; });
  const Intervals compute = union_of(events, profiler::is_compute_kernel);
  const Intervals comm = union_of(events, profiler::is_comm_kernel);
  out.span_us = all.end_us - first;
  out.idle_us = out.span_us - all.length_us;
  out.compute_us = merge_as_hta(events, profiler::is_compute_kernel).length_us;
  out.non_compute_us = out.span_us - out.compute_us - out.idle_us;
  out.comm_us = length_ns(comm);
  out.overlap_us = length_ns(intersect(comm, compute));
  return out;
}

HtaIdle hta_idle(const HtaEvents& events, int32_t stream) {
  HtaIdle out;
  const auto launches = launches_of(events);
  const std::vector<HtaEvent> work = work_of(events, stream);
  for (size_t i = 1; i < work.size(); ++i) {
    const int64_t gap = work[i].start_us - work[i - 1].end_us;
    if (gap <= 0) continue;
    const auto launch = launches.find(work[i].event->correlation);
    if (launch != launches.end() && launch->second > work[i - 1].end_us) {
      out.host_wait_us += gap;
    } else if (gap < kKernelWaitLimitUs) {
      out.kernel_wait_us += gap;
    } else {
      out.other_us += gap;
    }
  }
  return out;
}

HtaQueue hta_queue(const HtaEvents& events, int32_t stream) {
  std::unordered_map<int64_t, const HtaEvent*> calls;
  for (const HtaEvent& one : events.cpu)
    if (one.event->correlation >= 0 && is_launch_call(events.trace->text(one.event->name)))
      calls.try_emplace(one.event->correlation, &one);
  struct Change {
    int64_t at_us;
    int by;
  };
  std::vector<Change> changes;
  for (const HtaEvent& one : work_of(events, stream)) {
    const auto call = calls.find(one.event->correlation);
    if (call == calls.end()) continue;
    changes.push_back({call->second->start_us, 1});
    changes.push_back({one.start_us, -1});
  }
  std::stable_sort(changes.begin(), changes.end(), [](const Change& a, const Change& b) {
    return a.at_us != b.at_us ? a.at_us < b.at_us : a.by > b.by;
  });
  HtaQueue out;
  int64_t length = 0;
  int64_t sum = 0;
  for (const Change& change : changes) {
    length += change.by;
    sum += length;
    out.max = std::max(out.max, length);
  }
  out.samples = static_cast<int64_t>(changes.size());
  out.mean = out.samples > 0 ? static_cast<double>(sum) / static_cast<double>(out.samples) : 0.0;
  return out;
}

}  // namespace mbb::analysis
