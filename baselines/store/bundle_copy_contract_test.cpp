// Copies of bundles: whole and verified elsewhere, or nothing at all.
#include "baselines/store/bundle_copy.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>

#include "baselines/store/fixture.h"
#include "baselines/store/store.h"
#include "profiler/base/file.h"

namespace mbb::baselines {
namespace {

namespace fs = std::filesystem;

class BundleCopy : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = fs::temp_directory_path() / "mbb-copy-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }
  BundleReader finished() { return BundleReader::open(write_synthetic_bundle(folder_ / "from").value()).value(); }
  // Names in the folder: a copy that failed leaves none.
  size_t entries() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }
  fs::path folder_;
};

TEST_F(BundleCopy, IsTheSameRunWithoutWhatLiesBeside) {
  const BundleReader from = finished();
  std::ofstream(from.folder() / "cells/tp1/notes.txt") << "not of the run";
  const auto size = copy_bundle(from, folder_ / "deep/er/to/");
  ASSERT_TRUE(size) << size.error().what;
  EXPECT_EQ(size->cells, 5);
  const fs::path to = folder_ / "deep/er/to";
  EXPECT_FALSE(fs::exists(to / "cells/tp1/notes.txt"));
  EXPECT_FALSE(fs::exists(to / ".lock"));
  int64_t files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(to)) {
    if (!entry.is_regular_file()) continue;
    ++files;
    const fs::path original = from.folder() / entry.path().lexically_relative(to);
    EXPECT_EQ(read_file(entry.path()).value(), read_file(original).value()) << original;
  }
  EXPECT_EQ(files, size->files);
  fs::remove_all(from.folder());
  Store store = Store::open(folder_ / "store.sqlite").value();
  const auto report = store.index(folder_ / "deep");
  ASSERT_TRUE(report);
  EXPECT_EQ(report->runs, 1);
  EXPECT_EQ(report->cells, 5);
}

TEST_F(BundleCopy, WhatIsThereIsNeverWrittenOver) {
  const BundleReader from = finished();
  fs::create_directories(folder_ / "folder");
  std::ofstream(folder_ / "file") << "x";
  fs::create_symlink("nowhere", folder_ / "link");
  for (const char* name : {"folder", "file", "link", "from/r-1", "from"}) {
    const auto to = std::string(name) == "from/r-1" ? from.folder() / "copy" : folder_ / name;
    const auto copied = copy_bundle(from, to);
    ASSERT_FALSE(copied) << name;
    EXPECT_EQ(copied.error().code, ErrorCode::kBadArgument) << name;
  }
  EXPECT_EQ(entries(), 4U);
  EXPECT_TRUE(whole_cells(from));
}

TEST_F(BundleCopy, OnlyARunThatIsWhole) {
  const BundleReader from = finished();
  const auto refused = [&](const char* says) {
    const auto copied = copy_bundle(BundleReader::open(from.folder()).value(), folder_ / "to");
    ASSERT_FALSE(copied);
    EXPECT_NE(copied.error().what.find(says), std::string::npos) << copied.error().what;
    EXPECT_EQ(entries(), 1U);
  };
  baselines::Run run = from.run();
  run.ended_unix_ns = 0;
  {
    auto writer = BundleWriter::reopen(from.folder()).value();
    refused("has not ended");  // it is being written
    ASSERT_TRUE(writer.write_run(run));
  }
  refused("has not ended");
  fs::remove(from.folder() / "cells/tp1/launches/0/ops.csv");
  refused("launches/0/ops.csv is missing");
  fs::remove(from.folder() / "cells/tp1/checksums");
  refused("1 of its 5 cells lack, tp1");
}

TEST_F(BundleCopy, NothingStaysOfACopyThatFindsNoRoom) {
  const BundleReader from = finished();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1000, 1000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const auto copied = copy_bundle(from, folder_ / "to");
    ::_exit(copied || copied.error().code != ErrorCode::kIo ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(entries(), 1U);
}

}  // namespace
}  // namespace mbb::baselines
