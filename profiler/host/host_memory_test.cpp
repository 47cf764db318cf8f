// What a host and its control groups leave, read from files as the kernel writes them.
#include "profiler/host/host_memory.h"

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "profiler/base/file.h"

namespace mbb::profiler {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMiB = int64_t{1} << 20;

class HostMemory : public testing::Test {
 protected:
  void SetUp() override {
    const auto* const test = testing::UnitTest::GetInstance()->current_test_info();
    root_ = fs::path(testing::TempDir()) / fmt::format("mbbench_memory_{}_{}", test->name(), getpid());
    put("proc/meminfo", "MemTotal:       16384 kB\nMemFree:         1024 kB\nMemAvailable:    8192 kB\n");
  }
  void TearDown() override { fs::remove_all(root_); }

  void put(const std::string& file, const std::string& text) const {
    fs::create_directories((root_ / file).parent_path());
    ASSERT_TRUE(write_file(root_ / file, text).has_value()) << file;
  }

  fs::path root_;
};

TEST_F(HostMemory, IsWhatTheKernelSaysIsAvailable) {
  EXPECT_EQ(available_memory_bytes(root_), 8 * kMiB);
  put("proc/meminfo", "MemTotal: 16384 kB\n");
  EXPECT_EQ(available_memory_bytes(root_), 0) << "not known";
}

TEST_F(HostMemory, IsLessInAGroupWithALimit) {
  put("proc/self/cgroup", "0::/a/b\n");
  put("sys/fs/cgroup/a/b/memory.max", "max\n");
  put("sys/fs/cgroup/a/b/memory.current", "1048576\n");
  EXPECT_EQ(available_memory_bytes(root_), 8 * kMiB) << "no limit";
  put("sys/fs/cgroup/a/memory.max", fmt::format("{}\n", 6 * kMiB));
  put("sys/fs/cgroup/a/memory.current", fmt::format("{}\n", 4 * kMiB));
  EXPECT_EQ(available_memory_bytes(root_), 2 * kMiB) << "the group above it has one";
  put("sys/fs/cgroup/a/memory.stat", fmt::format("anon 1\ninactive_file {}\n", kMiB));
  EXPECT_EQ(available_memory_bytes(root_), 3 * kMiB) << "file caches are given back";
}

TEST_F(HostMemory, KnowsTheFirstVersionOfGroupsAndContainersWithoutTheirPath) {
  put("proc/self/cgroup", "3:cpu,memory:/host/path/of/a/container\n1:name=systemd:/\n");
  put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  put("sys/fs/cgroup/memory/memory.usage_in_bytes", "1\n");
  EXPECT_EQ(available_memory_bytes(root_), 8 * kMiB) << "the number that stands for none";
  put("sys/fs/cgroup/memory/memory.limit_in_bytes", fmt::format("{}\n", 5 * kMiB));
  put("sys/fs/cgroup/memory/memory.usage_in_bytes", fmt::format("{}\n", 4 * kMiB));
  EXPECT_EQ(available_memory_bytes(root_), kMiB);
}

TEST(HostMemoryHere, IsKnown) {
  EXPECT_GT(available_memory_bytes(), 0);
}

}  // namespace
}  // namespace mbb::profiler
