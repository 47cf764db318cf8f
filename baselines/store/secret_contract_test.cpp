// A secret in the environment and on the command line reaches no file that a run leaves behind.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "baselines/store/bundle.h"
#include "baselines/store/fixture.h"
#include "baselines/store/store.h"
#include "profiler/base/env.h"
#include "profiler/base/file.h"
#include "profiler/host/captured.h"

namespace mbb::baselines {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSecret = "hunter2-correct-horse";
constexpr const char* kAllowed = "3141592";

bool holds(const fs::path& file, const std::string& text) {
  return read_file(file.string()).value().find(text) != std::string::npos;
}

TEST(Secrets, ReachNoStoredFile) {
  std::string pattern = fs::temp_directory_path() / "mbb-secret-XXXXXX";
  ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
  const fs::path folder = pattern;
  ASSERT_EQ(::setenv("WANDB_API_KEY", kSecret, 1), 0);
  ASSERT_EQ(::setenv("MBBENCH_HUB_TOKEN", kSecret, 1), 0);
  ASSERT_EQ(::setenv("OMP_PLACES", kAllowed, 1), 0);
  const auto known = [](std::string_view name) { return name == "tp"; };
  const std::string secret = kSecret;
  auto run = make_synthetic_run();
  run.environment = profiler::capture_environment(env_all(), known);
  run.argv = profiler::capture_arguments({"suite", "x", "--hub-token", secret, "--key=" + secret, "auth=" + secret,
                                          "-p" + secret, "https://me:" + secret + "@host/x", "tp=2", "--", secret},
                                         known);
  {
    auto writer = BundleWriter::create(folder, run).value();
    for (const Cell& cell : run.cells) ASSERT_TRUE(writer.finish_cell(cell));
    // Open while we look, so that the write-ahead log is looked at as well.
    Store store = Store::open(folder / "store.sqlite").value();
    ASSERT_TRUE(store.index(folder));
    int files = 0;
    int with_allowed = 0;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      if (!entry.is_regular_file()) continue;
      ++files;
      EXPECT_FALSE(holds(entry.path(), kSecret)) << entry.path();
      with_allowed += holds(entry.path(), kAllowed) ? 1 : 0;
    }
    EXPECT_GT(files, 20);
    EXPECT_GE(with_allowed, 2) << "what may be stored is found in run.json and in the store, so the search works";
    EXPECT_TRUE(fs::exists(folder / "store.sqlite-wal"));
  }
  EXPECT_FALSE(holds(folder / "store.sqlite", kSecret)) << "after the log was merged";
  EXPECT_TRUE(holds(folder / "store.sqlite", "WANDB_API_KEY")) << "that it was set is stored";
  ::unsetenv("WANDB_API_KEY");
  ::unsetenv("MBBENCH_HUB_TOKEN");
  ::unsetenv("OMP_PLACES");
  fs::remove_all(folder);
}

}  // namespace
}  // namespace mbb::baselines
