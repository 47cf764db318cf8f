// What the writer promises: exact times, launches linked and flowing, groups on collectives, one tid where spans nest
// or follow, and a file that our own strict reader takes.
#include "profiler/trace/writers/kineto_writer.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

namespace mbb::profiler {
namespace {

Trace captured() {
  StringTable strings;
  Trace t;
  t.tracks = {{1, StreamKind::kCompute, strings.intern("stream 7")},
              {1, StreamKind::kTp, strings.intern("stream 13")},
              {1, StreamKind::kHost, strings.intern("thread 4242")},
              {0, StreamKind::kCompute, strings.intern("stream 7")}};
  const StringId gemm = strings.intern("gemm \"tall\""), reduce = strings.intern("ncclDevKernel_AllReduce"),
                 call = strings.intern("cudaLaunchKernelExC"), op = strings.intern("layers.0.fc1.fwd"),
                 tp = strings.intern("layers.0.fc2.reduce");
  const auto add = [&](int64_t from, int64_t to, uint32_t track, StringId name, StringId of, SpanKind kind,
                       uint32_t correlation, int32_t step) {
    Span s;
    s.start_ns = from, s.end_ns = to, s.track = track, s.name = name, s.op = of, s.kind = kind;
    s.correlation = correlation, s.step = step;
    if (is_comm(kind)) s.collective = 9;
    t.spans.push_back(s);
  };
  t.steps = {{1, 4, 1'000'000'000'001, 1'000'000'900'000}, {1, 5, 1'000'000'900'000, 1'000'001'800'000}};
  add(1'000'000'000'100, 1'000'000'001'100, 2, call, 0, SpanKind::kHost, 41, 4);
  add(1'000'000'010'123, 1'000'000'110'456, 0, gemm, op, SpanKind::kCompute, 41, 4);
  add(1'000'000'110'400, 1'000'000'120'000, 0, gemm, op, SpanKind::kCompute, 41, 4);  // starts inside, ends behind
  add(1'000'000'090'000, 1'000'000'200'000, 1, reduce, tp, SpanKind::kCommTp, 42, 4);
  add(1'000'000'901'000, 1'000'000'902'000, 2, call, 0, SpanKind::kHost, 43, 5);
  add(1'000'000'910'000, 1'000'000'920'000, 0, gemm, op, SpanKind::kCompute, 43, 5);
  add(1'000'000'010'000, 1'000'000'020'000, 3, gemm, op, SpanKind::kCompute, 7, 4);  // another rank's
  t.strings = strings.strings();
  return t;
}

KinetoWriteOptions options() {
  KinetoWriteOptions o;
  o.rank = 1;
  o.world_size = 2;
  o.trace_name = "cell";
  o.groups = {{"tp", {0, 1}}};
  o.collective = [](const std::string& op) -> std::optional<KinetoCollective> {
    if (op != "layers.0.fc2.reduce") return std::nullopt;
    KinetoCollective c;
    c.name = "allreduce", c.group = "tp", c.description = "tp", c.ranks = "[0, 1]", c.dtype = "BFloat16";
    c.in_elements = 4096, c.group_size = 2;
    return c;
  };
  return o;
}

KinetoTrace round_trip(const Trace& trace, const KinetoWriteOptions& with, const char* ending = ".json") {
  const auto path = std::filesystem::temp_directory_path() / ("mbb_kineto_writer_" + std::to_string(getpid()) + ending);
  const Status written = write_kineto(path, trace, with);
  EXPECT_TRUE(written);
  auto read = read_kineto(path);
  EXPECT_TRUE(read) << read.error().what;
  std::filesystem::remove(path);
  return read ? std::move(*read) : KinetoTrace{};
}

TEST(KinetoWriter, OurReaderGetsBackWhatWasThere) {
  for (const char* ending : {".json", ".json.gz"}) {
    const KinetoTrace k = round_trip(captured(), options(), ending);
    EXPECT_EQ(k.rank, 1);
    EXPECT_EQ(k.world_size, 2);
    EXPECT_EQ(k.malformed_events, 0);
    int gpu = 0, steps = 0;
    for (const KinetoEvent& event : k.events) {
      gpu += is_gpu_work(k, event) ? 1 : 0;
      steps += k.text(event.name).starts_with("ProfilerStep#") ? 1 : 0;
    }
    EXPECT_EQ(gpu, 4);
    EXPECT_EQ(steps, 2);
    ASSERT_EQ(k.collectives.size(), 1U);
    EXPECT_EQ(k.collectives[0].ranks, "[0, 1]");
    EXPECT_EQ(k.collectives[0].in_elements, 4096);
    const auto gemm = std::find_if(k.events.begin(), k.events.end(),
                                   [&](const KinetoEvent& e) { return k.text(e.name) == "gemm \"tall\""; });
    ASSERT_NE(gemm, k.events.end());
    EXPECT_EQ(gemm->start_ns, 1'000'000'010'123);
    EXPECT_EQ(gemm->duration_ns, 100'333);
    EXPECT_EQ(gemm->stream, 7);
  }
}

// Spans of one (pid, tid) nest or follow; every flow that ends has begun once.
void expect_well_formed(const std::string& text) {
  const auto json = nlohmann::json::parse(text);
  std::map<std::pair<int64_t, int64_t>, std::vector<std::pair<double, double>>> spans;
  std::map<int64_t, int> starts, ends;
  for (const auto& e : json["traceEvents"]) {
    if (e["ph"] == "X")
      spans[{e["pid"], e["tid"]}].emplace_back(e["ts"], e["ts"].get<double>() + e["dur"].get<double>());
    if (e["ph"] == "s") ++starts[e["id"]];
    if (e["ph"] == "f") ++ends[e["id"]];
  }
  for (auto& [place, list] : spans) {
    std::sort(list.begin(), list.end(), [](const auto& a, const auto& b) {
      return a.first != b.first ? a.first < b.first : a.second > b.second;
    });
    std::vector<double> open;
    for (const auto& [start, end] : list) {
      while (!open.empty() && open.back() <= start + 1e-6) open.pop_back();
      EXPECT_TRUE(open.empty() || open.back() >= end - 1e-6) << "tid " << place.second << " at " << start;
      open.push_back(end);
    }
  }
  for (const auto& [id, count] : ends) EXPECT_EQ(count, 1) << "flow " << id;
}

TEST(KinetoWriter, SpansNestAndFlowsPair) {
  const std::string text = kineto_text(captured(), options());
  expect_well_formed(text);
  const auto json = nlohmann::json::parse(text);
  EXPECT_EQ(json["distributedInfo"]["pg_config"][0]["ranks"], (std::vector<int>{0, 1}));
  int flows = 0;
  for (const auto& e : json["traceEvents"]) flows += e["ph"] == "s" ? 1 : 0;
  EXPECT_EQ(flows, 2) << "launches 41 and 43 have device work";
}

TEST(KinetoWriter, AReplayedTraceIsLinkedToo) {
  Trace t = captured();
  std::erase_if(t.spans, [](const Span& s) { return s.kind == SpanKind::kHost; });
  for (Span& s : t.spans) s.correlation = 0;
  t.spans[2].name = t.spans[2].op;  // no NCCL kernel did it
  expect_well_formed(kineto_text(t, options()));
  const KinetoTrace k = round_trip(t, options());
  std::set<int64_t> launched;
  for (const KinetoEvent& e : k.events)
    if (k.text(e.category) == "cuda_runtime") launched.insert(e.correlation);
  for (const KinetoEvent& e : k.events) {
    if (!is_gpu_work(k, e)) continue;
    EXPECT_TRUE(launched.contains(e.correlation));
  }
  EXPECT_TRUE(std::any_of(k.events.begin(), k.events.end(),
                          [&](const KinetoEvent& e) { return k.text(e.name) == "ncclDevKernel:layers.0.fc2.reduce"; }));
}

TEST(KinetoWriter, AnySpansStayWellFormed) {
  std::mt19937 random(11);
  for (int round = 0; round < 50; ++round) {
    Trace t = captured();
    t.spans.clear();
    for (int i = 0; i < 60; ++i) {
      Span s;
      s.start_ns = static_cast<int64_t>(random() % 3000);
      s.end_ns = s.start_ns + static_cast<int64_t>(random() % 500);
      s.track = static_cast<uint32_t>(random() % 3);
      s.name = static_cast<StringId>(random() % t.strings.size());
      s.kind = s.track == 2 ? SpanKind::kHost : s.track == 1 ? SpanKind::kCommTp : SpanKind::kCompute;
      s.correlation = static_cast<uint32_t>(random() % 20);
      t.spans.push_back(s);
    }
    expect_well_formed(kineto_text(t, options()));
  }
}

TEST(KinetoWriter, AnUnwritablePathIsAnErrorThatNamesIt) {
  const Status status = write_kineto("/no/such/folder/trace.json", captured(), options());
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().what.find("/no/such/folder"), std::string::npos);
}

}  // namespace
}  // namespace mbb::profiler
