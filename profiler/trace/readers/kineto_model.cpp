// From Kineto's events to the trace model.
#include <algorithm>
#include <limits>
#include <map>
#include <tuple>
#include <unordered_map>

#include <fmt/core.h>

#include "profiler/trace/readers/kernel_class.h"
#include "profiler/trace/readers/kineto.h"

namespace mbb::profiler {

namespace {

bool is_launch(const KinetoTrace& trace, const KinetoEvent& event) {
  const std::string& category = trace.text(event.category);
  return category == "cuda_runtime" || category == "cuda_driver" || category == "Runtime";
}

// A fill occupies the device and moves nothing between memories: compute, as the strict mode counts it.
SpanKind kind_of(const KinetoTrace& trace, const KinetoEvent& event) {
  const std::string& category = trace.text(event.category);
  if (category == "gpu_memset" || category == "Memset") return SpanKind::kCompute;
  return kind_of_kernel(trace.text(event.name));
}

// Numbers correlations densely: the model's are 32 bits, Kineto's may be any.
class Correlations {
 public:
  void add_launch(int64_t correlation) {
    if (correlation >= 0) ids_.try_emplace(correlation, static_cast<uint32_t>(ids_.size() + 1));
  }
  uint32_t find(int64_t correlation) const {
    const auto found = ids_.find(correlation);
    return found != ids_.end() ? found->second : 0;
  }

 private:
  std::unordered_map<int64_t, uint32_t> ids_;
};

class TrackTable {
 public:
  TrackTable(Trace& out, int32_t rank) : out_(out), rank_(rank) {}
  uint32_t get(bool gpu, int32_t device, int64_t id) {
    const auto [entry, added] = ids_.try_emplace({gpu, device, id}, static_cast<uint32_t>(out_.tracks.size()));
    if (added) {
      out_.strings.push_back(gpu ? fmt::format("device {} stream {}", device, id) : fmt::format("thread {}", id));
      out_.tracks.push_back(
          {rank_, gpu ? StreamKind::kOther : StreamKind::kHost, static_cast<StringId>(out_.strings.size() - 1)});
    }
    return entry->second;
  }

 private:
  Trace& out_;
  int32_t rank_;
  std::map<std::tuple<bool, int32_t, int64_t>, uint32_t> ids_;
};

}  // namespace

bool is_gpu_work(const KinetoTrace& trace, const KinetoEvent& event) {
  const std::string& category = trace.text(event.category);
  return category == "kernel" || category == "Kernel" || category == "gpu_memcpy" || category == "Memcpy" ||
         category == "gpu_memset" || category == "Memset";
}

Result<Trace> to_trace(const KinetoTrace& kineto, const KinetoOptions& options) {
  Trace out;
  out.strings = kineto.strings;
  const int32_t rank = std::max(0, kineto.rank);
  Correlations correlations;
  int64_t zero = std::numeric_limits<int64_t>::max();
  for (const KinetoEvent& event : kineto.events) {
    if (event.duration_ns >= 0) zero = std::min(zero, event.start_ns);
    if (is_launch(kineto, event)) correlations.add_launch(event.correlation);
  }
  TrackTable tracks(out, rank);
  int64_t first = std::numeric_limits<int64_t>::max();
  int64_t last = std::numeric_limits<int64_t>::min();
  int64_t orphans = 0;
  for (const KinetoEvent& event : kineto.events) {
    if (event.duration_ns < 0) continue;
    const bool gpu = is_gpu_work(kineto, event);
    if (!gpu && event.stream >= 0) continue;  // annotations laid over a stream are no work of it
    const uint32_t correlation = correlations.find(event.correlation);
    if (gpu && correlation == 0 && !options.orphans) {
      ++orphans;
      continue;
    }
    Span span;
    span.start_ns = event.start_ns - zero;
    span.end_ns = event.end_ns() - zero;
    span.name = event.name;
    span.correlation = gpu || is_launch(kineto, event) ? correlation : 0;
    span.track = gpu ? tracks.get(true, event.device, event.stream) : tracks.get(false, 0, event.thread);
    span.kind = gpu ? kind_of(kineto, event) : SpanKind::kHost;
    out.spans.push_back(span);
    if (!gpu) continue;
    first = std::min(first, span.start_ns);
    last = std::max(last, span.end_ns);
  }
  if (first > last) {
    const std::string why = orphans > 0 ? fmt::format("no GPU activity linked to a launch ({} orphans)", orphans)
                                        : std::string("no GPU activity in the trace");
    return fail(ErrorCode::kBadFile, why, "record with CUDA activities, or on a machine with a GPU");
  }
  out.dropped_spans = static_cast<uint64_t>(orphans);
  out.steps.push_back({rank, 0, first, last});
  sort_spans(out);
  return out;
}

}  // namespace mbb::profiler
