// Capture on a real device: every kernel of a step has its op, with graphs and without; detaching leaves nothing.
#include "profiler/capture/capture.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "profiler/base/clock.h"
#include "profiler/capture/cupti/cupti_api.h"
#include "profiler/trace/trace.h"
#include "trainer/data/rng.h"
#include "trainer/execute/op_sites.h"
#include "trainer/run/layout.h"
#include "trainer/run/train.h"

namespace mbb::trainer::cuda {
namespace {

bool has_device() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

Config small(Recipe recipe) {
  Config c;
  c.host.device = mbb::trainer::Device::kCuda;
  c.precision.recipe = recipe;
  c.model.hidden_size = 256;
  c.model.num_attention_heads = 4;
  c.model.num_query_groups = 2;
  c.model.kv_channels = 64;
  c.model.ffn_hidden_size = 512;
  c.train.seq_length = 128;
  c.train.global_batch_size = 2;
  c.train.train_iters = 8;
  return c;
}

struct Trained {
  Layout layout;
  StepPrograms programs;
  TrainResult result;
};

Trained train_captured(Recipe recipe, int64_t first, int64_t end) {
  Trained t;
  t.layout = resolve(small(recipe)).value();
  t.programs = build_programs(t.layout).value();
  const auto vocab = static_cast<uint64_t>(t.layout.model.vocab_size);
  const SampleSource data = [&](int64_t sample, std::span<int32_t> tokens) -> Status {
    const RandomStream random(7, "capture.tokens", 0);
    for (size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = static_cast<int32_t>(random.below(vocab, static_cast<uint64_t>(sample), i));
    return {};
  };
  TrainOptions options;
  options.trace_first = first;
  options.trace_end = end;
  auto result = train(t.layout, t.programs, data, options);
  EXPECT_TRUE(result) << result.error().what;
  if (result) t.result = std::move(*result);
  return t;
}

// Every op of the program has device work in every step, and nothing on the device is without an op.
void expect_complete(const Trained& t, int64_t first, int64_t end) {
  ASSERT_TRUE(t.result.captured) << t.result.capture_note;
  const profiler::Trace& trace = t.result.captured->trace;
  const profiler::Attribution& a = t.result.captured->attribution;
  EXPECT_EQ(trace.dropped_spans, 0U);
  EXPECT_GT(a.device_events, 0);
  EXPECT_EQ(a.unattributed_events, 0) << (a.unattributed_by_name.empty() ? "" : a.unattributed_by_name[0].first);
  std::map<int32_t, std::set<std::string>> seen;
  for (const profiler::Span& span : trace.spans)
    if (span.kind != profiler::SpanKind::kHost && span.step >= 0) seen[span.step].insert(trace.text(span.op));
  ASSERT_EQ(seen.size(), static_cast<size_t>(end - first));
  for (const auto& site : op_sites(t.programs.programs[0], t.layout.mesh, 0))
    for (const auto& [step, ops] : seen) EXPECT_TRUE(ops.contains(site.path)) << site.path << " in step " << step;
}

TEST(Capture, GraphStepsAreAttributed) {
  if (!has_device()) GTEST_SKIP() << "no CUDA device";
  for (const Recipe recipe : {Recipe::kBf16, Recipe::kFp8Current}) expect_complete(train_captured(recipe, 4, 7), 4, 7);
}

TEST(Capture, StepsWithoutGraphsAreAttributed) {
  if (!has_device()) GTEST_SKIP() << "no CUDA device";
  for (const Recipe recipe : {Recipe::kBf16, Recipe::kFp8Current}) expect_complete(train_captured(recipe, 0, 1), 0, 1);
}

TEST(Capture, TimesLieInTheirStep) {
  if (!has_device()) GTEST_SKIP() << "no CUDA device";
  const Trained t = train_captured(Recipe::kBf16, 4, 7);
  ASSERT_TRUE(t.result.captured) << t.result.capture_note;
  int64_t outside = 0, device = 0;
  for (const profiler::Span& span : t.result.captured->trace.spans) {
    if (span.kind == profiler::SpanKind::kHost || span.step < 0) continue;
    const auto& window = t.result.captured->trace.steps[static_cast<size_t>(span.step - 4)];
    ++device;
    if (span.end_ns > window.end_ns) ++outside;
  }
  EXPECT_GT(device, 100);
  EXPECT_EQ(outside, 0) << "one clock for host and device";
}

// Mean host time of a launch, ns, over a few thousand.
double launch_ns() {
  void* bytes = nullptr;
  EXPECT_EQ(cudaMalloc(&bytes, 256), cudaSuccess);
  double best = 1e9;
  for (int round = 0; round < 7; ++round) {
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const Stopwatch watch;
    for (int i = 0; i < 500; ++i) EXPECT_EQ(cudaMemsetAsync(bytes, i, 256, nullptr), cudaSuccess);
    best = std::min(best, static_cast<double>(watch.elapsed_ns()) / 500);
  }
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  cudaFree(bytes);
  return best;
}

TEST(Capture, DetachedMeansNothingIsRecordedAndNothingIsPaid) {
  if (!has_device()) GTEST_SKIP() << "no CUDA device";
  launch_ns();
  const double before = launch_ns();
  if (const Status begun = profiler::begin_capture(); !begun) GTEST_SKIP() << begun.error().what;
  const double during = launch_ns();
  auto first = profiler::end_capture();
  ASSERT_TRUE(first) << first.error().what;
  EXPECT_GE(first->records.size(), 3500U);
  const double after = launch_ns();
  ASSERT_TRUE(profiler::begin_capture());
  auto second = profiler::end_capture();
  ASSERT_TRUE(second) << second.error().what;
  EXPECT_LT(second->records.size(), 100U) << "work between two captures was recorded";
  EXPECT_LT(after, 1.25 * before + 300) << "ns a launch: before " << before << ", during " << during;
  RecordProperty("launch_ns_before", static_cast<int>(before));
  printf("launch ns: before %.0f, attached %.0f, after %.0f\n", before, during, after);
}

void CUPTIAPI nothing(void*, CUpti_CallbackDomain, CUpti_CallbackId, const void*) {}

TEST(Capture, AnotherToolThatHoldsCuptiIsNamedAndTheWindowIsTracedWithoutIt) {
  if (!has_device()) GTEST_SKIP() << "no CUDA device";
  const auto cupti = profiler::cupti::api();
  if (!cupti) GTEST_SKIP() << cupti.error().what;
  CUpti_SubscriberHandle other = nullptr;
  CUpti_SubscriberParams params{};
  params.structSize = CUpti_SubscriberParams_STRUCT_SIZE;
  params.subscriberName = "night watch";
  ASSERT_EQ((*cupti)->subscribe(&other, nothing, nullptr, &params), CUPTI_SUCCESS);
  const Status begun = profiler::begin_capture();
  EXPECT_FALSE(begun);
  if (!begun) {
    EXPECT_NE(begun.error().what.find("night watch"), std::string::npos) << begun.error().what;
  }
  const Trained t = train_captured(Recipe::kBf16, 4, 7);
  EXPECT_FALSE(t.result.captured);
  EXPECT_NE(t.result.capture_note.find("night watch"), std::string::npos) << t.result.capture_note;
  EXPECT_EQ(t.result.traces.size(), 3U) << "timed op by op instead";
  ASSERT_EQ((*cupti)->unsubscribe(other), CUPTI_SUCCESS);
  (*cupti)->finalize();
}

TEST(Capture, OneCaptureAtATime) {
  if (!has_device()) GTEST_SKIP() << "no CUDA device";
  if (const Status begun = profiler::begin_capture(); !begun) GTEST_SKIP() << begun.error().what;
  const Status again = profiler::begin_capture();
  ASSERT_FALSE(again);
  EXPECT_NE(again.error().what.find("captured already"), std::string::npos);
  EXPECT_TRUE(profiler::end_capture());
  EXPECT_FALSE(profiler::end_capture());
}

}  // namespace
}  // namespace mbb::trainer::cuda
