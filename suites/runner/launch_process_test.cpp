// What a child is told: everything, or, when it is another program, what was set.
#include "suites/runner/launch_process.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "profiler/base/file.h"
#include "suites/matrix/settings.h"
#include "suites/runner/child.h"
#include "trainer/run/knobs.h"

namespace mbb::suites {
namespace {

TEST(LaunchProcess, AProgramOfAnotherDayIsToldOnlyWhatWasSet) {
  const std::filesystem::path folder = testing::TempDir() + "launch-" + std::to_string(getpid());
  ASSERT_TRUE(make_dirs(folder));
  trainer::Config config;
  config.parallel.pipeline_model_parallel_size = 2;
  RunOptions options;
  const auto told = [&] {
    const auto process = launch_process(config, folder, options);
    EXPECT_TRUE(process);
    return read_file(folder / kLaunchConfigFile).value();
  };
  EXPECT_EQ(told(), trainer::knobs().to_lines(config));
  options.program = "/opt/old/mbbench";
  EXPECT_EQ(told(), "parallel.pipeline_model_parallel_size=2\n");
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace mbb::suites
