// Tests of the Kineto reader on small texts: exact times, both Chrome forms, bad input.
#include "profiler/trace/readers/kineto.h"

#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>

#include <fstream>

#include "profiler/trace/readers/kernel_class.h"

namespace mbb::profiler {
namespace {

class KinetoReader : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = std::filesystem::temp_directory_path() / ("mbb_kineto_" + std::to_string(::getpid()) + ".json");
  }
  void TearDown() override { std::filesystem::remove(path_); }
  Result<KinetoTrace> read(const std::string& text) const {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << text;
    return read_kineto(path_);
  }
  std::filesystem::path path_;
};

constexpr const char* kSmall = R"({"distributedInfo": {"rank": 3, "world_size": 8, "pg": [{"rank": 9}]},
  "deviceProperties": [{"id": 0, "name": "x", "traceEvents": [1], "more": {"name": "y"}}, {"id": 1, "name": "x"}],
  "traceEvents": [
   {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 22, "ts": 4458676983500.25, "dur": 5, "args": {"correlation": 7}},
   {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 4458676983543.183, "dur": 41.407,
    "args": {"device": 0, "stream": 7, "correlation": 7, "grid": [1, 2, 3], "bw": NaN, "more": {"stream": 99}}},
   {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce", "pid": 0, "tid": 20, "ts": 4458676983600, "dur": 10,
    "args": {"stream": 20, "correlation": 8, "Collective name": "allreduce", "In msg nelems": 12, "Process Group Ranks": "[0, 1]"}},
   {"ph": "X", "name": "no start"},
   {"ph": "X", "name": "bad start", "ts": "soon"},
   {"ph": "s", "id": 1, "name": "ac2g", "ts": 1}
  ], "traceName": "t"})";

TEST_F(KinetoReader, TimesAreExact) {
  const auto trace = read(kSmall);
  ASSERT_TRUE(trace) << trace.error().what;
  EXPECT_EQ(trace->rank, 3);
  EXPECT_EQ(trace->world_size, 8);
  EXPECT_EQ(trace->devices, std::vector<std::string>{"x"});
  ASSERT_EQ(trace->events.size(), 3u);
  EXPECT_EQ(trace->malformed_events, 2);
  EXPECT_EQ(trace->other_events, 1);
  const KinetoEvent& gemm = trace->events[1];
  EXPECT_EQ(gemm.start_ns, 4458676983543183);
  EXPECT_EQ(gemm.duration_ns, 41407);
  EXPECT_TRUE(gemm.fractional);
  EXPECT_EQ(gemm.stream, 7);
  EXPECT_EQ(gemm.correlation, 7);
  EXPECT_EQ(trace->text(gemm.name), "gemm");
  EXPECT_FALSE(trace->events[2].fractional);
  ASSERT_EQ(trace->collectives.size(), 1u);
  EXPECT_EQ(trace->collectives[0].in_elements, 12);
  EXPECT_EQ(trace->collectives[0].ranks, "[0, 1]");
}

TEST_F(KinetoReader, ModelTakesLinkedWorkAndCountsOrphans) {
  const auto kineto = read(kSmall);
  ASSERT_TRUE(kineto);
  const auto model = to_trace(*kineto);
  ASSERT_TRUE(model);
  EXPECT_EQ(model->dropped_spans, 1u);
  ASSERT_EQ(model->spans.size(), 2u);
  EXPECT_EQ(model->steps[0].end_ns - model->steps[0].start_ns, 41407);
  EXPECT_EQ(model->steps[0].rank, 3);
  const auto all = to_trace(*kineto, {.orphans = true});
  ASSERT_EQ(all->spans.size(), 3u);
  EXPECT_EQ(all->spans.back().kind, SpanKind::kCommOther);
}

TEST_F(KinetoReader, UnixTimesFit) {
  const auto trace = read(R"([{"ph":"X","cat":"cpu_op","name":"k","ts":1661203463029548,"dur":2}])");
  ASSERT_TRUE(trace);
  ASSERT_EQ(trace->events.size(), 1u);
  EXPECT_EQ(trace->events[0].start_ns, 1661203463029548000);
}

TEST_F(KinetoReader, AListOfEventsIsATraceToo) {
  const auto trace =
      read(R"([{"ph":"X","cat":"kernel","name":"k","ts":1e3,"dur":2,"args":{"stream":1,"correlation":4}}])");
  ASSERT_TRUE(trace) << trace.error().what;
  ASSERT_EQ(trace->events.size(), 1u);
  EXPECT_EQ(trace->events[0].start_ns, 1'000'000);
  EXPECT_EQ(trace->events[0].stream, 1);
}

TEST_F(KinetoReader, BadFilesAreErrors) {
  const std::string whole = kSmall;
  for (size_t size = 0; size < whole.size(); size += 11) ASSERT_FALSE(read(whole.substr(0, size))) << size;
  for (const char* text : {"", "nonsense", "{}", "{\"traceEvents\": 3}", "[1, 2", "{\"traceEvents\": [{]}"}) {
    const auto trace = read(text);
    ASSERT_FALSE(trace) << text;
    EXPECT_EQ(trace.error().code, ErrorCode::kBadFile);
    EXPECT_NE(trace.error().what.find(path_.string()), std::string::npos);
  }
  EXPECT_FALSE(read(std::string(2'000'000, '['))) << "deep nesting must not exhaust the stack";
  EXPECT_EQ(read_kineto("/no/such/file").error().code, ErrorCode::kNotFound);
  EXPECT_FALSE(read_kineto(std::filesystem::temp_directory_path()));
}

TEST_F(KinetoReader, NumbersOutOfRangeAreCountedNotUsed) {
  const auto trace = read(R"({"traceEvents":[
    {"ph":"X","name":"a","ts":99999999999999999999999999,"dur":1},
    {"ph":"X","name":"b","ts":1,"dur":-4},
    {"ph":"X","name":"c","ts":1,"dur":2,"args":{"stream":99999999999999999999,"correlation":1.5}},
    {"ph":"X","name":"d","ts":9000000000000000,"dur":9000000000000000}]})");
  ASSERT_TRUE(trace) << trace.error().what;
  EXPECT_EQ(trace->malformed_events, 3);
  ASSERT_EQ(trace->events.size(), 1u);
  EXPECT_EQ(trace->events[0].stream, -1);
  EXPECT_EQ(trace->events[0].correlation, -1);
}

TEST_F(KinetoReader, CutGzipIsAnError) {
  gzFile file = gzopen(path_.c_str(), "wb");
  gzputs(file, kSmall);
  gzclose(file);
  ASSERT_TRUE(read_kineto(path_));
  std::filesystem::resize_file(path_, std::filesystem::file_size(path_) - 20);
  EXPECT_FALSE(read_kineto(path_));
}

TEST(KernelClass, ByName) {
  EXPECT_TRUE(is_comm_kernel("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)"));
  EXPECT_TRUE(is_comm_kernel("void ncclKernelX"));
  EXPECT_TRUE(is_memory_kernel("Memcpy DtoH (Device -> Pinned)"));
  EXPECT_TRUE(is_memory_kernel("hipMemcpyAsync"));
  EXPECT_FALSE(is_comm_kernel("hipMemcpyAsync"));
  EXPECT_TRUE(is_compute_kernel("void cutlass::Kernel<...>"));
  EXPECT_FALSE(is_compute_kernel("Event Sync"));
  EXPECT_EQ(kind_of_kernel("Memset (Device)"), SpanKind::kCopy);
}

}  // namespace
}  // namespace mbb::profiler
