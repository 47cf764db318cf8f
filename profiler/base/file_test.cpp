// Whole files: what is read and written, and what is refused.
#include "profiler/base/file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>

namespace mbb {
namespace {

class WholeFile : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = std::filesystem::temp_directory_path() / "mbb-files-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path folder_;
};

TEST_F(WholeFile, RoundTripKeepsEveryByte) {
  std::string bytes("a\0b\r\n\xff", 6);
  bytes += std::string(100'000, 'x');
  ASSERT_TRUE(write_file(folder_ / "f", bytes));
  EXPECT_EQ(read_file(folder_ / "f").value(), bytes);
  ASSERT_TRUE(write_file(folder_ / "f", ""));
  EXPECT_EQ(read_file(folder_ / "f").value(), "");
  int entries = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder_)) ++entries;
  EXPECT_EQ(entries, 1) << "no temporary stays";
}

TEST_F(WholeFile, FilesThatSayNoSizeAreRead) {
  EXPECT_FALSE(read_file("/proc/self/status").value().empty());
}

TEST_F(WholeFile, RefusesWhatIsNoFile) {
  EXPECT_EQ(read_file(folder_ / "absent").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(read_file(folder_).error().code, ErrorCode::kBadFile);
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(read_file(folder_ / "pipe").error().code, ErrorCode::kBadFile);
  ASSERT_TRUE(write_file(folder_ / "f", "12345"));
  EXPECT_TRUE(read_file(folder_ / "f", 5).has_value());
  EXPECT_FALSE(read_file(folder_ / "f", 4).has_value());
}

TEST_F(WholeFile, FailedWriteLeavesTheOldFile) {
  ASSERT_TRUE(write_file(folder_ / "f", "old"));
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{1000, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status status = write_file(folder_ / "f", std::string(5000, 'n'));
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kIo);
  EXPECT_NE(status.error().hint.find("ulimit"), std::string::npos);
  EXPECT_EQ(read_file(folder_ / "f").value(), "old");
  for (const auto& refuse : {+[](const std::string& path) { return write_file(path, "x"); }, +check_writable}) {
    const Status nowhere = refuse(folder_ / "absent" / "f");
    ASSERT_FALSE(nowhere);
    EXPECT_TRUE(nowhere.error().what.ends_with("/absent/f: there is no folder " + (folder_ / "absent").string()))
        << nowhere.error().what;
    EXPECT_FALSE(refuse(folder_)) << "a folder";
    EXPECT_TRUE(refuse("/dev/null"));
  }
  EXPECT_TRUE(check_writable(folder_ / "new"));
}

}  // namespace
}  // namespace mbb
