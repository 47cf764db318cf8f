// Prints the speed of interval arithmetic and of the step breakdown in million events per second of CPU time.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <random>

#include "analysis/exposure/breakdown.h"
#include "analysis/exposure/intervals.h"

namespace {

using mbb::profiler::Span;
using mbb::profiler::SpanKind;
using mbb::profiler::StreamKind;
using mbb::profiler::Trace;

// One rank, a compute, a TP, a DP and a copy stream, 100 steps; compute is three quarters of the events.
Trace synthetic(size_t events) {
  Trace trace;
  trace.strings.resize(2000);
  constexpr StreamKind kStreams[] = {StreamKind::kCompute, StreamKind::kTp, StreamKind::kDp, StreamKind::kCopy};
  constexpr SpanKind kKinds[] = {SpanKind::kCompute, SpanKind::kCommTp, SpanKind::kCommDp, SpanKind::kCopy};
  constexpr size_t kParts[] = {12, 2, 1, 1};
  std::mt19937_64 random(1);
  int64_t end = 0;
  for (uint32_t track = 0; track < 4; ++track) {
    trace.tracks.push_back({0, kStreams[track], 0});
    int64_t now = 0;
    const size_t count = events * kParts[track] / 16;
    const auto mean = static_cast<int64_t>(12000 / kParts[track]);
    for (size_t i = 0; i < count; ++i) {
      now += static_cast<int64_t>(random() % static_cast<uint64_t>(mean / 2));
      const int64_t start = now;
      now += mean / 4 + static_cast<int64_t>(random() % static_cast<uint64_t>(mean));
      const auto op = static_cast<uint32_t>(1 + i % 1999);
      trace.spans.push_back({.start_ns = start, .end_ns = now, .track = track, .op = op, .kind = kKinds[track]});
    }
    end = std::max(end, now);
  }
  for (int step = 0; step < 100; ++step) trace.steps.push_back({0, step, end / 100 * step, end / 100 * (step + 1)});
  return trace;
}

// CPU time, so that a busy machine does not slow the figure.
double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

template <typename Work>
void report(const char* what, size_t events, Work work) {
  double best = 1e30;
  int64_t check = 0;
  for (int round = 0; round < 3; ++round) {
    const double start = cpu_seconds();
    check = work();
    best = std::min(best, cpu_seconds() - start);
  }
  std::printf("%-28s %8.1f M events/s   (%zu events, check %lld)\n", what, static_cast<double>(events) / best / 1e6,
              events, static_cast<long long>(check));
}

}  // namespace

int main() {
  using namespace mbb::analysis;
  constexpr size_t kEvents = 4'000'000;
  const Trace trace = synthetic(kEvents);
  report("breakdown", trace.spans.size(), [&] {
    int64_t exposed = 0;
    for (const StepTimes& step : break_down(trace, {.per_op = false})) exposed += step.breakdown.exposed_comm_ns();
    return exposed;
  });
  report("breakdown with ops", trace.spans.size(), [&] {
    int64_t exclusive = 0;
    for (const StepTimes& step : break_down(trace))
      for (const OpTime& op : step.ops) exclusive += op.exclusive_ns;
    return exclusive;
  });
  report("exposed comm by intervals", trace.spans.size(), [&] {
    std::vector<TimeInterval> compute;
    std::vector<TimeInterval> comm;
    for (const Span& span : trace.spans) {
      if (span.kind == SpanKind::kCompute) compute.push_back({span.start_ns, span.end_ns});
      if (is_comm(span.kind)) comm.push_back({span.start_ns, span.end_ns});
    }
    return length_ns(subtract(unite_all(std::move(comm)), unite_all(std::move(compute))));
  });
  return 0;
}
