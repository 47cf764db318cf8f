// Real captured traces of an H100 (baselines/measured): every kernel has its op, parts sum to the step, one clock
// holds.
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include "analysis/exposure/breakdown.h"
#include "analysis/exposure/hta_view.h"
#include "profiler/trace/trace_file.h"
#include "profiler/trace/writers/kineto_writer.h"

namespace mbb::analysis {
namespace {

class H100Trace : public testing::TestWithParam<const char*> {
 protected:
  static profiler::Trace load() {
    auto trace = profiler::read_trace(std::string(MBB_SOURCE_DIR "/baselines/measured/h100-sxm/traces/") + GetParam());
    EXPECT_TRUE(trace) << trace.error().what;
    return trace ? std::move(*trace) : profiler::Trace{};
  }
};

TEST_P(H100Trace, EveryKernelHasItsOpPhaseAndMicroBatch) {
  const profiler::Trace trace = load();
  ASSERT_FALSE(trace.steps.empty());
  EXPECT_EQ(trace.dropped_spans, 0U);
  std::set<std::string> kinds;
  for (const profiler::Span& span : trace.spans) {
    if (span.kind == profiler::SpanKind::kHost) continue;
    ASSERT_NE(span.op, 0U) << trace.text(span.name);
    EXPECT_NE(span.phase, profiler::Phase::kNone) << trace.text(span.op);
    EXPECT_NE(span.step, profiler::kNoStep) << trace.text(span.name);
    kinds.insert(name(span.phase));
  }
  for (const char* phase : {"forward", "backward", "wgrad", "optimizer"}) EXPECT_TRUE(kinds.contains(phase)) << phase;
}

TEST_P(H100Trace, PartsSumToTheStep) {
  const profiler::Trace trace = load();
  for (const StepTimes& step : break_down(trace)) {
    const StepBreakdown& b = step.breakdown;
    EXPECT_EQ(b.compute_ns + b.exposed_comm_ns() + b.exposed_copy_ns + b.idle_ns, b.total_ns);
    int64_t by_op = b.idle_ns;
    for (const OpTime& op : step.ops) by_op += op.exclusive_ns;
    EXPECT_EQ(by_op, b.total_ns);
    EXPECT_GT(static_cast<double>(b.compute_ns), 0.97 * static_cast<double>(b.total_ns)) << "a GPU-bound step";
  }
}

TEST_P(H100Trace, TheExportKeepsItsFigures) {
  const profiler::Trace trace = load();
  const auto file = std::filesystem::path(testing::TempDir()) / fmt::format("h100_{}_{}.json.gz", GetParam(), getpid());
  ASSERT_TRUE(profiler::write_kineto(file, trace, {}));
  const auto read = profiler::read_kineto(file);
  std::filesystem::remove(file);
  ASSERT_TRUE(read) << read.error().what;
  EXPECT_EQ(read->malformed_events, 0);
  const auto hta = hta_breakdown(hta_events(*read));
  ASSERT_TRUE(hta);
  // HTA leaves the last step out, counts no fill as compute, and rounds every event inward to whole microseconds. One
  // stream: lengths add up.
  int64_t compute_ns = 0, events = 0;
  for (const profiler::Span& span : trace.spans) {
    if (span.kind != profiler::SpanKind::kCompute || span.step == trace.steps.back().step) continue;
    if (trace.text(span.name).starts_with("Memset")) continue;
    compute_ns += span.end_ns - span.start_ns;
    ++events;
  }
  EXPECT_NEAR(static_cast<double>(hta->compute_us), static_cast<double>(compute_ns) * 1e-3,
              2.0 * static_cast<double>(events));
}

// HolisticTraceAnalysis, where a Python with it is: MBBENCH_TEST_PYTHON, or python3.
TEST_P(H100Trace, HolisticTraceAnalysisAgreesOnTheExport) {
  const char* const set = std::getenv("MBBENCH_TEST_PYTHON");
  const std::string python = set != nullptr ? set : "python3";
  if (std::system((python + " -c 'import hta.trace_analysis' >/dev/null 2>&1").c_str()) != 0)
    GTEST_SKIP() << python << " has no hta (pip install HolisticTraceAnalysis)";
  const auto folder = std::filesystem::path(testing::TempDir()) / fmt::format("hta_{}_{}", GetParam(), getpid());
  std::filesystem::create_directories(folder / "traces");
  const auto file = folder / "traces" / "rank0.json.gz";
  ASSERT_TRUE(profiler::write_kineto(file, load(), {}));
  std::ofstream(folder / "ask.py") << "import logging, sys\n"
                                      "logging.disable(logging.CRITICAL)\n"
                                      "from hta.trace_analysis import TraceAnalysis\n"
                                      "t = TraceAnalysis(trace_dir=sys.argv[1])\n"
                                      "r = t.get_temporal_breakdown(visualize=False).iloc[0]\n"
                                      "print(*(int(r[k + '_time(us)']) for k in ('idle', 'compute', 'non_compute')), "
                                      "file=open(sys.argv[2], 'w'))\n";
  const std::string command = python + " " + (folder / "ask.py").string() + " " + (folder / "traces").string() + " " +
                              (folder / "out").string() + " >/dev/null 2>&1";
  ASSERT_EQ(std::system(command.c_str()), 0);
  int64_t idle = -1, compute = -1, other = -1;
  std::ifstream(folder / "out") >> idle >> compute >> other;
  const auto ours = hta_breakdown(hta_events(profiler::read_kineto(file).value()));
  ASSERT_TRUE(ours);
  EXPECT_EQ(idle, ours->idle_us);
  EXPECT_EQ(compute, ours->compute_us);
  EXPECT_EQ(other, ours->non_compute_us);
  std::filesystem::remove_all(folder);
}

INSTANTIATE_TEST_SUITE_P(All, H100Trace, testing::Values("llama3-8b-8-layers-bf16.mbt", "llama3-8b-8-layers-fp8.mbt"),
                         [](const auto& test) {
                           return std::string(test.param).find("fp8") != std::string::npos ? "fp8" : "bf16";
                         });

}  // namespace
}  // namespace mbb::analysis
