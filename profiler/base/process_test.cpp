// Clocks, environment, log lines, hashes and files, as the rest of the product relies on them.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <thread>

#include "profiler/base/clock.h"
#include "profiler/base/env.h"
#include "profiler/base/file.h"
#include "profiler/base/hash.h"
#include "profiler/base/log.h"

namespace mbb {
namespace {

class Folder {
 public:
  Folder() {
    std::string pattern = testing::TempDir() + "mbb_base_XXXXXX";
    path_ = ::mkdtemp(pattern.data());
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(Clock, MovesForwardAndSeparatesCpuFromWaiting) {
  const Stopwatch watch;
  const int64_t cpu_before_ns = thread_cpu_ns();
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_GE(watch.elapsed_ns(), 30'000'000);
  EXPECT_LT(thread_cpu_ns() - cpu_before_ns, 25'000'000);
  EXPECT_GE(process_cpu_ns(), thread_cpu_ns() - cpu_before_ns);
  EXPECT_GT(wall_ns(), 1'600'000'000'000'000'000);
}

TEST(Clock, IsoTime) {
  EXPECT_EQ(iso_time(0), "1970-01-01T00:00:00.000Z");
  EXPECT_EQ(iso_time(1'709'164'799'999'999'999), "2024-02-28T23:59:59.999Z");
  EXPECT_EQ(iso_time(-1), "1969-12-31T23:59:59.999Z");
}

TEST(Env, ListIsSortedAndReadsAreTyped) {
  const auto vars = env_vars();
  EXPECT_TRUE(std::is_sorted(vars.begin(), vars.end(), [](const auto& a, const auto& b) { return a.name < b.name; }));
  ::setenv("NO_COLOR", "12", 1);
  EXPECT_EQ(env_text("NO_COLOR"), "12");
  EXPECT_EQ(env_int("NO_COLOR").value(), 12);
  EXPECT_EQ(env_bool("NO_COLOR").error().what, "environment variable NO_COLOR='12' is neither true nor false");
  ::setenv("NO_COLOR", "", 1);
  EXPECT_EQ(env_text("NO_COLOR"), std::nullopt);
  ::unsetenv("NO_COLOR");
  EXPECT_EQ(env_int("NO_COLOR").value(), std::nullopt);
  EXPECT_DEATH(env_text("SOME_UNDECLARED_NAME"), "read but not declared");
}

TEST(Env, SettingsAreThePrefixedNamesThatAreNotDeclared) {
  ::setenv("MBBENCH_ZZ_ONE", "1", 1);
  ::setenv("MBBENCH_LOG", "info", 1);
  const auto settings = env_settings();
  const auto has = [&](const char* name) {
    return std::any_of(settings.begin(), settings.end(), [&](const auto& entry) { return entry.first == name; });
  };
  EXPECT_TRUE(has("MBBENCH_ZZ_ONE"));
  EXPECT_FALSE(has("MBBENCH_LOG"));
  ::unsetenv("MBBENCH_ZZ_ONE");
  ::unsetenv("MBBENCH_LOG");
}

TEST(Log, LevelsFilterAndSinkReceives) {
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel, std::string_view line) { lines.emplace_back(line); });
  set_log_level(LogLevel::kWarning);
  log_info("hidden {}", 1);
  log_warning("shown {}", 2);
  set_log_level(LogLevel::kInfo);
  set_log_sink({});
  EXPECT_EQ(lines, std::vector<std::string>{"shown 2"});
  testing::internal::CaptureStderr();
  log_error("on stderr");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "mbbench: error: on stderr\n");
}

TEST(Log, LevelComesFromTheEnvironment) {
  ::setenv("MBBENCH_LOG", "Debug", 1);
  ASSERT_TRUE(set_log_level_from_env());
  EXPECT_EQ(log_level(), LogLevel::kDebug);
  ::setenv("MBBENCH_LOG", "loud", 1);
  EXPECT_EQ(format(set_log_level_from_env().error()),
            "error: MBBENCH_LOG='loud' is not a log level\n  hint: one of error, warning, info, debug");
  ::unsetenv("MBBENCH_LOG");
  set_log_level(LogLevel::kInfo);
}

TEST(Hash, StreamCutsDoNotMatterAndFilesAgree) {
  // XXH3-128 of no bytes, as the algorithm's specification lists it.
  EXPECT_EQ(hash_hex(""), "99aa06d3014798d86001c324468d497f");
  const std::string bytes(3'000'000, 'q');
  Hasher hasher;
  hasher.update(std::string_view(bytes).substr(0, 17)).update(std::string_view(bytes).substr(17));
  EXPECT_EQ(hasher.hex(), hash_hex(bytes));
  const Folder folder;
  ASSERT_TRUE(write_file(folder.file("f"), bytes));
  EXPECT_EQ(hash_file_hex(folder.file("f")).value(), hash_hex(bytes));
  EXPECT_EQ(hash_file_hex(folder.file("none")).error().code, ErrorCode::kNotFound);
}

TEST(File, WritesWholeOrNotAtAll) {
  const Folder folder;
  const std::string path = folder.file("deep/er/file");
  EXPECT_EQ(write_file(path, "x").error().code, ErrorCode::kNotFound);
  ASSERT_TRUE(make_dirs(folder.file("deep/er")));
  ASSERT_TRUE(write_file(path, std::string("a\0b", 3)));
  ASSERT_TRUE(write_file(path, "second"));
  ASSERT_TRUE(append_file(path, " line"));
  EXPECT_EQ(read_file(path).value(), "second line");
  // No temporary file stays behind, also when the rename is refused.
  EXPECT_EQ(write_file(folder.file("deep"), "x").error().code, ErrorCode::kIo);
  size_t entries = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::recursive_directory_iterator(folder.path())) ++entries;
  EXPECT_EQ(entries, 3u);
}

TEST(File, ErrorsNameThePath) {
  const Folder folder;
  EXPECT_EQ(read_file(folder.file("none")).error().what,
            "reading " + folder.file("none") + ": No such file or directory");
  EXPECT_EQ(read_file(folder.path()).error().what, "reading " + folder.path() + ": it is not a regular file");
  ASSERT_TRUE(write_file(folder.file("f"), "0123456789"));
  EXPECT_EQ(read_file(folder.file("f"), 4).error().what,
            "reading " + folder.file("f") + ": larger than 4 B, the most that is read whole");
  EXPECT_EQ(make_dirs(folder.file("f/g")).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(read_file(folder.file("f"), 10).value(), "0123456789");
  EXPECT_EQ(read_file("/dev/zero", 1 << 16).error().code, ErrorCode::kBadFile);
  EXPECT_GT(read_file("/proc/self/status").value().size(), 100u);  // a size of 0 is told, yet there are bytes
}

}  // namespace
}  // namespace mbb
