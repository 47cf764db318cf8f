// Records of two devices become a trace: ops, steps, streams, ranks of host calls, and what nobody claimed.
#include "profiler/capture/device_trace.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace mbb::profiler {
namespace {

CaptureRecord device(RecordKind kind, uint32_t name, int64_t start, int64_t end, uint32_t correlation, uint32_t op,
                     uint32_t of_device, uint32_t stream) {
  CaptureRecord r;
  r.kind = kind, r.name = name, r.start_ns = start, r.end_ns = end, r.correlation = correlation, r.op = op;
  r.device = of_device, r.lane = stream;
  return r;
}

CaptureRecord api(uint32_t name, int64_t start, int64_t end, uint32_t correlation, uint32_t thread) {
  CaptureRecord r;
  r.kind = RecordKind::kApi, r.name = name, r.start_ns = start, r.end_ns = end, r.correlation = correlation;
  r.lane = thread;
  return r;
}

CapturedRank rank_on(int32_t rank, int32_t of_device) {
  CapturedRank r;
  r.rank = rank, r.device = of_device;
  r.sites = {{"fc1.fwd", SpanKind::kCompute, StreamKind::kCompute, Phase::kForward, 2, 0},
             {"tp.reduce", SpanKind::kCommTp, StreamKind::kTp, Phase::kForward, 2, 77}};
  r.steps = {{rank, 5, 1000, 2000}, {rank, 6, 2000, 3000}};
  return r;
}

CaptureRecords sample() {
  CaptureRecords c;
  c.names = {"",      "gemm_kernel", "Memcpy DtoH (Device -> Pinned)", "Memset (Device)", "cudaLaunchKernel",
             "stray", "wait"};
  c.dropped = 3;
  c.records = {
      api(4, 1000, 1010, 41, 900),
      device(RecordKind::kKernel, 1, 1100, 1200, 41, 1, 0, 7),
      device(RecordKind::kCopy, 2, 1150, 1190, 42, 2, 0, 13),  // the op communicates: so does its copy
      device(RecordKind::kCopy, 2, 1210, 1230, 43, 1, 0, 7),   // a copy inside a compute op is a copy
      device(RecordKind::kFill, 3, 2100, 2110, 44, 1, 0, 7),
      device(RecordKind::kKernel, 5, 2200, 2260, 45, 0, 0, 7),
      device(RecordKind::kKernel, 5, 3500, 3600, 46, 0, 0, 7),  // outside every step
      device(RecordKind::kKernel, 1, 2500, 2600, 60, 1, 1, 7),
      device(RecordKind::kKernel, 1, 2500, 2600, 61, 1, 9, 7),  // nobody's device
      api(4, 2480, 2490, 60, 901),
      api(4, 2491, 2495, 99, 901),  // launched nothing: goes with its thread
  };
  return c;
}

const Span* find(const DeviceTrace& t, int64_t start, SpanKind kind) {
  for (const Span& span : t.trace.spans)
    if (span.start_ns == start && span.kind == kind) return &span;
  return nullptr;
}

TEST(DeviceTrace, RecordsGetOpStepAndKind) {
  const CapturedRank ranks[] = {rank_on(2, 0), rank_on(3, 1)};
  const DeviceTrace t = device_trace(sample(), ranks);
  const Span* gemm = find(t, 1100, SpanKind::kCompute);
  ASSERT_NE(gemm, nullptr);
  EXPECT_EQ(t.trace.text(gemm->op), "fc1.fwd");
  EXPECT_EQ(t.trace.text(gemm->name), "gemm_kernel");
  EXPECT_EQ(gemm->step, 5);
  EXPECT_EQ(gemm->micro_batch, 2);
  EXPECT_EQ(gemm->phase, Phase::kForward);
  EXPECT_EQ(t.trace.rank_of(*gemm), 2);
  EXPECT_EQ(t.trace.tracks[gemm->track].stream, StreamKind::kCompute);
  const Span* reduce = find(t, 1150, SpanKind::kCommTp);
  ASSERT_NE(reduce, nullptr);
  EXPECT_EQ(reduce->collective, 77U + (uint64_t{6} << 40U));
  EXPECT_EQ(t.trace.tracks[reduce->track].stream, StreamKind::kTp);
  EXPECT_NE(find(t, 1210, SpanKind::kCopy), nullptr);
  const Span* fill = find(t, 2100, SpanKind::kCompute);
  ASSERT_NE(fill, nullptr);
  EXPECT_EQ(fill->step, 6);
  ASSERT_NE(find(t, 3500, SpanKind::kCompute), nullptr);
  EXPECT_EQ(find(t, 3500, SpanKind::kCompute)->step, kNoStep);
  EXPECT_EQ(t.trace.dropped_spans, 3U);
  EXPECT_EQ(t.trace.steps.size(), 4U);
}

TEST(DeviceTrace, HostCallsFollowTheirDevice) {
  const CapturedRank ranks[] = {rank_on(2, 0), rank_on(3, 1)};
  const DeviceTrace t = device_trace(sample(), ranks);
  EXPECT_EQ(t.trace.rank_of(*find(t, 1000, SpanKind::kHost)), 2);
  EXPECT_EQ(t.trace.rank_of(*find(t, 2480, SpanKind::kHost)), 3);
  EXPECT_EQ(t.trace.rank_of(*find(t, 2491, SpanKind::kHost)), 3);
  EXPECT_EQ(find(t, 1000, SpanKind::kHost)->correlation, find(t, 1100, SpanKind::kCompute)->correlation);
}

TEST(DeviceTrace, UnattributedTimeIsNamedAndOnlyInsideSteps) {
  const CapturedRank ranks[] = {rank_on(2, 0), rank_on(3, 1)};
  const Attribution a = device_trace(sample(), ranks).attribution;
  EXPECT_EQ(a.device_events, 6);
  EXPECT_EQ(a.device_ns, 100 + 40 + 20 + 10 + 60 + 100);
  EXPECT_EQ(a.unattributed_events, 1);
  EXPECT_EQ(a.unattributed_ns, 60);
  ASSERT_EQ(a.unattributed_by_name.size(), 1U);
  EXPECT_EQ(a.unattributed_by_name[0].first, "stray");
  EXPECT_NEAR(a.unattributed_pct(), 100.0 * 60 / 330, 1e-9);
}

TEST(DeviceTrace, NothingCapturedIsAnEmptyTrace) {
  const CapturedRank ranks[] = {rank_on(0, 0)};
  const DeviceTrace t = device_trace({}, ranks);
  EXPECT_TRUE(t.trace.spans.empty());
  EXPECT_EQ(t.attribution.unattributed_pct(), 0.0);
}

}  // namespace
}  // namespace mbb::profiler
