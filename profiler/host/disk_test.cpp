// File systems by kind, and whether they take a file.
#include "profiler/host/disk.h"

#include <gtest/gtest.h>

#include <filesystem>

namespace mbb::profiler {
namespace {

TEST(Disk, NetworkFileSystemsAreKnown) {
  EXPECT_TRUE(is_network_file_system(0x6969));
  EXPECT_TRUE(is_network_file_system(static_cast<std::int32_t>(0xFF534D42))) << "sign-extended";
  EXPECT_FALSE(is_network_file_system(0xEF53)) << "ext4";
  EXPECT_FALSE(is_network_file_system(0x01021994)) << "tmpfs";
}

TEST(Disk, APathThatIsNotThereYetIsJudgedByTheFolderAboveIt) {
  const auto here = std::filesystem::temp_directory_path();
  const auto facts = disk_of((here / "not" / "there" / "yet").string());
  ASSERT_TRUE(facts);
  EXPECT_EQ(facts->path, here.lexically_normal().string());
  EXPECT_TRUE(facts->writable);
  EXPECT_GT(facts->free_bytes, 0);
  EXPECT_FALSE(facts->file_system.empty());
}

TEST(Disk, ProcIsNotForWriting) {
  const auto facts = disk_of("/proc/mbbench-runs");
  ASSERT_TRUE(facts);
  EXPECT_EQ(facts->path, "/proc");
  EXPECT_FALSE(facts->writable) << "for root too";
}

}  // namespace
}  // namespace mbb::profiler
