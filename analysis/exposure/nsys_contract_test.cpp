// The step breakdown of real Nsight Systems exports against reference figures, and bad files.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "analysis/exposure/breakdown.h"
#include "profiler/trace/readers/nsys.h"

namespace mbb::analysis {
namespace {

using profiler::SpanKind;

class Nsys : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* set = std::getenv("MBBENCH_TEST_DATA");
    folder_ = std::filesystem::path(set != nullptr ? set : MBB_SOURCE_DIR "/../shared/data") / "traces/nsys";
    if (!std::filesystem::exists(folder_))
      GTEST_SKIP() << "no exports at " << folder_ << " (set MBBENCH_TEST_DATA to the data folder)";
  }
  std::filesystem::path folder_;
};

struct Expected {
  int32_t device;
  int64_t kernels, nccl, span_ns, busy_ns, compute_ns, nccl_ns, idle_ns;
};

void expect_device(const profiler::NsysTrace& nsys, const Expected& expected) {
  int64_t kernels = 0;
  int64_t nccl = 0;
  for (const auto& span : nsys.trace.spans) {
    if (nsys.trace.rank_of(span) != expected.device) continue;
    ++kernels;
    nccl += span.kind == SpanKind::kCommOther ? 1 : 0;
  }
  EXPECT_EQ(kernels, expected.kernels);
  EXPECT_EQ(nccl, expected.nccl);
  for (const StepTimes& times : break_down(nsys.trace)) {
    const StepBreakdown& b = times.breakdown;
    if (b.rank != expected.device) continue;
    EXPECT_EQ(b.total_ns, expected.span_ns);
    EXPECT_EQ(b.total_ns - b.idle_ns, expected.busy_ns);
    EXPECT_EQ(b.compute_ns, expected.compute_ns);
    EXPECT_EQ(b.comm_busy_ns, expected.nccl_ns);
    EXPECT_EQ(b.comm_overlap_ns, 0);
    EXPECT_EQ(b.idle_ns, expected.idle_ns);
  }
}

TEST_F(Nsys, TwoGpus) {
  const auto nsys = profiler::read_nsys(folder_ / "mfu_2gpu_before.sqlite", {.copies = false, .host = true});
  ASSERT_TRUE(nsys) << nsys.error().what;
  EXPECT_EQ(nsys->trace.steps.size(), 2u);
  EXPECT_EQ(nsys->malformed_rows, 0);
  expect_device(*nsys, {0, 1993, 33, 299848812, 270863484, 253690832, 17172652, 28985328});
  expect_device(*nsys, {1, 2017, 33, 298661551, 264324724, 256095624, 8229100, 34336827});
  int64_t attributed = 0;
  for (const auto& span : nsys->trace.spans) attributed += span.kind != SpanKind::kHost && span.op != 0 ? 1 : 0;
  EXPECT_GT(attributed, 0) << "kernels know the NVTX range that launched them";
}

TEST_F(Nsys, Mock) {
  const auto nsys = profiler::read_nsys(folder_ / "mock.sqlite", {.copies = false, .host = true});
  ASSERT_TRUE(nsys) << nsys.error().what;
  EXPECT_EQ(nsys->unlinked_kernels, 0);
  expect_device(*nsys, {0, 2, 0, 18254667, 4129, 4129, 0, 18250538});
}

TEST_F(Nsys, CopiesAndFillsBesideKernels) {
  const auto nsys = profiler::read_nsys(folder_ / "mfu_2gpu_before.sqlite");
  ASSERT_TRUE(nsys);
  int64_t copies = 0;
  for (const auto& span : nsys->trace.spans) copies += span.kind == SpanKind::kCopy ? 1 : 0;
  EXPECT_EQ(copies, 1020);
  for (const StepTimes& times : break_down(nsys->trace)) {
    const StepBreakdown& b = times.breakdown;
    EXPECT_EQ(b.compute_ns + b.exposed_comm_ns() + b.exposed_copy_ns + b.idle_ns, b.total_ns);
  }
}

TEST_F(Nsys, DamagedFilesNeverCrash) {
  std::ifstream in(folder_ / "mock.sqlite", std::ios::binary);
  std::stringstream all;
  all << in.rdbuf();
  const std::string whole = all.str();
  const auto path = std::filesystem::temp_directory_path() / ("mbb_nsys_" + std::to_string(::getpid()) + ".sqlite");
  const auto read = [&](const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
    return profiler::read_nsys(path);
  };
  std::mt19937 random(1);
  for (int round = 0; round < 40; ++round) {
    std::string bytes = whole;
    for (int flips = 0; flips < 50; ++flips) bytes[random() % bytes.size()] = static_cast<char>(random());
    if (round % 4 == 0) bytes.resize(random() % bytes.size());
    const auto result = read(bytes);
    if (result) {
      break_down(result->trace);
    }
  }
  EXPECT_FALSE(read("no database at all, but some text that is long enough to be looked at"));
  const auto empty = read("");
  ASSERT_FALSE(empty);
  EXPECT_NE(empty.error().what.find("no GPU activity"), std::string::npos) << empty.error().what;
  std::filesystem::remove(path);
  EXPECT_EQ(profiler::read_nsys(path).error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace mbb::analysis
