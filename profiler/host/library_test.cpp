// Libraries, programs, injected tools and throttle bits as they are told to a person.
#include "profiler/host/library.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "profiler/host/nvml.h"

namespace mbb::profiler {
namespace {

// Sets a variable for one test and puts back what was there.
class ScopedEnv {
 public:
  ScopedEnv(const char* name, const char* value) : name_(name) {
    if (const char* was = std::getenv(name)) was_ = was, had_ = true;
    setenv(name, value, 1);
  }
  ~ScopedEnv() { had_ ? setenv(name_, was_.c_str(), 1) : unsetenv(name_); }

 private:
  const char* name_;
  std::string was_;
  bool had_ = false;
};

TEST(Library, TheFirstNameThatOpensIsTheOneTold) {
  const auto found = find_library({"libmbbench_not_there.so.1", "libm.so.6"}, {});
  ASSERT_TRUE(found);
  EXPECT_NE(found->path.find("libm"), std::string::npos);
  EXPECT_EQ(found->version, "");
}

TEST(Library, AMissingOneIsToldInTheLoadersWords) {
  const auto found = find_library({"libmbbench_not_there.so.1", "libmbbench_nor_this.so"}, {});
  ASSERT_FALSE(found);
  EXPECT_NE(found.error().what.find("libmbbench_not_there.so.1"), std::string::npos);
}

TEST(Library, VersionNumbersAreTakenApart) {
  const auto none = find_library({"libc.so.6"}, {VersionCall::Shape::kReturnsSize, "mbbench_no_such_function", {100}});
  ASSERT_TRUE(none);
  EXPECT_EQ(none->version, "");
  // A function with a fixed answer: getpagesize() = 4096 -> 4.0.96 by {1000, 100, 1}.
  const auto page = find_library({"libc.so.6"}, {VersionCall::Shape::kReturnsSize, "getpagesize", {1000, 100, 1}});
  ASSERT_TRUE(page);
  EXPECT_EQ(page->version, "4.0.96");
}

TEST(Library, ProgramsAreFoundOnPath) {
  const ScopedEnv path("PATH", ":/nowhere:/bin");
  EXPECT_EQ(find_program("sh"), "/bin/sh");
  EXPECT_EQ(find_program("mbbench-no-such-program"), "");
}

TEST(CuptiHolder, IsReadFromWhatToolsInject) {
  const ScopedEnv none("NVTX_INJECTION64_PATH", ""), preload("LD_PRELOAD", ""), no("NSYS_PROFILING_SESSION_ID", "");
  {
    const ScopedEnv nothing("CUDA_INJECTION64_PATH", "");
    EXPECT_EQ(cupti_holder(), "");
    EXPECT_EQ(cupti_holder("Nsight Compute"), "Nsight Compute");
    EXPECT_EQ(cupti_holder("CUPTI for <not provided>"), "another tool, which does not give its name");
    const ScopedEnv session("NSYS_PROFILING_SESSION_ID", "4711");
    EXPECT_EQ(cupti_holder("CUPTI for <not provided>"), "Nsight Systems (NSYS_PROFILING_SESSION_ID)");
    EXPECT_EQ(cupti_holder(""), "Nsight Systems (NSYS_PROFILING_SESSION_ID)");
  }
  const ScopedEnv nsys("CUDA_INJECTION64_PATH", "/opt/nvidia/nsight-systems/2025/target/libToolsInjection64.so");
  EXPECT_EQ(cupti_holder(), "Nsight Systems (CUDA_INJECTION64_PATH)");
}

TEST(Throttle, BitsAreToldInWords) {
  EXPECT_EQ(throttle_text(0), "none");
  EXPECT_EQ(throttle_text(0x4), "power cap");
  EXPECT_EQ(throttle_text(0x44), "power cap, hardware thermal");
  EXPECT_EQ(throttle_text(0x1000), "0x1000");
}

}  // namespace
}  // namespace mbb::profiler
