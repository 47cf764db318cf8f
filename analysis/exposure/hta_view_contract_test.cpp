// Our figures against those HolisticTraceAnalysis and TraceLens give for real Kineto traces.
#include "analysis/exposure/hta_view.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <set>

#include "analysis/exposure/breakdown.h"

namespace mbb::analysis {
namespace {

class Kineto : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* set = std::getenv("MBBENCH_TEST_DATA");
    folder_ = std::filesystem::path(set != nullptr ? set : MBB_SOURCE_DIR "/../shared/data") / "traces/kineto";
    if (!std::filesystem::exists(folder_))
      GTEST_SKIP() << "no traces at " << folder_ << " (set MBBENCH_TEST_DATA to the data folder)";
  }
  profiler::KinetoTrace read(const char* file) const {
    auto trace = profiler::read_kineto(folder_ / file);
    EXPECT_TRUE(trace) << (trace ? "" : trace.error().what);
    return trace ? *trace : profiler::KinetoTrace{};
  }
  StepBreakdown strict(const char* file, bool orphans = false) const {
    const auto model = profiler::to_trace(read(file), {.orphans = orphans});
    EXPECT_TRUE(model);
    if (!model) return {};
    const StepBreakdown b = break_down(*model)[0].breakdown;
    EXPECT_EQ(b.compute_ns + b.exposed_comm_ns() + b.exposed_copy_ns + b.idle_ns, b.total_ns);
    return b;
  }
  std::filesystem::path folder_;
};

TEST_F(Kineto, HtaFiguresOfTwoRanks) {
  const auto trace = read("a100_world2_nccl.json.gz");
  EXPECT_EQ(trace.world_size, 2);
  EXPECT_EQ(trace.malformed_events, 0);
  int nccl = 0;
  const profiler::KinetoEvent* longest = nullptr;
  for (const auto& event : trace.events) {
    if (!is_gpu_work(trace, event) || !trace.text(event.name).starts_with("nccl")) continue;
    ++nccl;
    if (longest == nullptr || event.duration_ns > longest->duration_ns) longest = &event;
  }
  EXPECT_EQ(nccl, 21);
  ASSERT_NE(longest, nullptr);
  ASSERT_GE(longest->collective, 0);
  const auto& collective = trace.collectives[static_cast<size_t>(longest->collective)];
  EXPECT_EQ(collective.name, "allreduce");
  EXPECT_EQ(collective.in_elements, 2049000);
  EXPECT_EQ(collective.group, "0");
  EXPECT_EQ(collective.description, "default_pg");
  EXPECT_EQ(collective.ranks, "[0, 1]");

  const HtaEvents events = hta_events(trace);
  const auto found = hta_breakdown(events);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->span_us, 435586);
  EXPECT_EQ(found->idle_us, 338781);
  EXPECT_EQ(found->compute_us, 75169);
  EXPECT_EQ(found->non_compute_us, 21636);
  EXPECT_EQ(found->comm_us, 24278);
  EXPECT_EQ(found->overlap_us, 3473);
  EXPECT_EQ(found->exposed_us(), 20805);
  const HtaIdle idle = hta_idle(events, 7);
  EXPECT_EQ(idle.host_wait_us, 357247);
  EXPECT_EQ(idle.kernel_wait_us, 2155);
  const HtaQueue queue = hta_queue(events, 7);
  EXPECT_EQ(queue.samples, 5004);
  EXPECT_NEAR(queue.mean, 0.823, 0.0005);
  EXPECT_EQ(queue.max, 10);
}

TEST_F(Kineto, HtaFiguresOfEightRanks) {
  const auto trace = read("a100_world8_overlap.json.gz");
  EXPECT_EQ(trace.world_size, 8);
  const HtaEvents events = hta_events(trace);
  const auto found = hta_breakdown(events);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->span_us, 383404);
  EXPECT_EQ(found->idle_us, 62119);
  EXPECT_EQ(found->compute_us, 234760);
  EXPECT_EQ(found->non_compute_us, 86525);
  EXPECT_EQ(found->comm_us, 132510);
  EXPECT_EQ(found->overlap_us, 62313);
  EXPECT_EQ(found->exposed_us(), 70197);
  const HtaIdle idle = hta_idle(events, 7);
  EXPECT_EQ(idle.host_wait_us, 102154);
  EXPECT_EQ(idle.kernel_wait_us, 14226);
  EXPECT_EQ(idle.other_us, 32183);
}

// The reference figures come from doubles of microseconds since 1970: good to a few hundred ns over a trace.
TEST_F(Kineto, StrictBreakdownOfBert) {
  const StepBreakdown b = strict("h100_bert_small.json.gz");
  EXPECT_NEAR(static_cast<double>(b.compute_ns), 307197.75, 60);
  EXPECT_EQ(b.exposed_comm_ns(), 0);
  EXPECT_EQ(b.exposed_copy_ns, 2240);
  EXPECT_NEAR(static_cast<double>(b.idle_ns), 3598387.2, 60);
  EXPECT_NEAR(static_cast<double>(b.total_ns), 3907824.95, 2);
}

TEST_F(Kineto, StrictBreakdownOfQwenAndItsOrphans) {
  const auto trace = read("h100_qwen_0.5b.json.gz");
  int64_t work = 0;
  for (const auto& event : trace.events) work += is_gpu_work(trace, event) ? 1 : 0;
  EXPECT_EQ(work, 1707);
  const auto model = profiler::to_trace(trace);
  ASSERT_TRUE(model);
  EXPECT_EQ(model->dropped_spans, 1707u - 1198u);
  const StepBreakdown b = strict("h100_qwen_0.5b.json.gz");
  EXPECT_NEAR(static_cast<double>(b.compute_ns), 31903115.2, 500);
  EXPECT_NEAR(static_cast<double>(b.exposed_copy_ns), 2367.9, 2);
  EXPECT_NEAR(static_cast<double>(b.idle_ns), 2986935.8, 500);
  EXPECT_NEAR(static_cast<double>(b.total_ns), 34892418.9, 2);
  const StepBreakdown all = strict("h100_qwen_0.5b.json.gz", true);
  EXPECT_NEAR(static_cast<double>(all.compute_ns) / 1e6, 45.645, 0.001);
  EXPECT_NEAR(static_cast<double>(all.total_ns) / 1e6, 49.653, 0.001);
}

std::set<std::string> names_of(const HtaEvents& events, const std::vector<HtaEvent>& list) {
  std::set<std::string> names;
  for (const HtaEvent& one : list) {
    const std::string& text = events.trace->text(one.event->name);
    names.insert(text.starts_with("ProfilerStep#") ? "ProfilerStep" : text);
  }
  return names;
}

TEST_F(Kineto, OneStepOfEachForADiff) {
  const auto base = read("tiny_base.json.gz");
  const auto test = read("tiny_test.json.gz");
  const auto before = hta_step(base, 1010);
  const auto after = hta_step(test, 1010);
  ASSERT_TRUE(before);
  ASSERT_TRUE(after);
  EXPECT_EQ(before->cpu.size(), 6u);
  EXPECT_EQ(before->gpu.size(), 1u);
  const auto step = std::find_if(before->cpu.begin(), before->cpu.end(), [&](const HtaEvent& one) {
    return base.text(one.event->name) == "ProfilerStep#1010";
  });
  ASSERT_NE(step, before->cpu.end());
  EXPECT_EQ(step->end_us - step->start_us, 122149);
  const auto old_names = names_of(*before, before->cpu);
  const auto new_names = names_of(*after, after->cpu);
  std::vector<std::string> added;
  std::vector<std::string> deleted;
  std::set_difference(new_names.begin(), new_names.end(), old_names.begin(), old_names.end(),
                      std::back_inserter(added));
  std::set_difference(old_names.begin(), old_names.end(), new_names.begin(), new_names.end(),
                      std::back_inserter(deleted));
  EXPECT_EQ(added, (std::vector<std::string>{"AddmmBackward0", "All2All_Pooled_Req", "CatBackward0"}));
  EXPECT_EQ(deleted, std::vector<std::string>{"nccl:all_reduce"});
  EXPECT_EQ(old_names.size() - deleted.size(), 5u);
  EXPECT_TRUE(after->gpu.empty());
  EXPECT_EQ(hta_step(base, 7).error().code, ErrorCode::kNotFound);
}

TEST_F(Kineto, NoGpuActivityIsSaid) {
  for (const char* file : {"cpu_only.json.gz", "non_gpu.json.gz"}) {
    const auto trace = read(file);
    const auto found = hta_breakdown(hta_events(trace));
    ASSERT_FALSE(found) << file;
    EXPECT_NE(found.error().what.find("no GPU activity"), std::string::npos);
    const auto model = profiler::to_trace(trace);
    ASSERT_FALSE(model) << file;
    EXPECT_EQ(model.error().code, ErrorCode::kBadFile);
    EXPECT_NE(model.error().what.find("no GPU activity"), std::string::npos);
  }
}

}  // namespace
}  // namespace mbb::analysis
