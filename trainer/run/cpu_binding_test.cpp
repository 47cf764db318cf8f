// The knob binds the calling thread, and what is in force is what the kernel says.
#include "trainer/run/cpu_binding.h"

#include <gtest/gtest.h>

#include <thread>

#include "profiler/host/affinity.h"

namespace mbb::trainer {
namespace {

TEST(CpuBinding, BindsTheThreadAndReadsItBack) {
  const profiler::CpuSet allowed = profiler::allowed_cpus();
  ASSERT_FALSE(allowed.empty());
  std::thread([&] {
    const std::string one = std::to_string(allowed.back());
    ASSERT_TRUE(bind_rank(one, -1, 0, 1));
    EXPECT_EQ(profiler::allowed_cpus(), profiler::CpuSet{allowed.back()});
    EXPECT_TRUE(binding_in_force().starts_with(one)) << binding_in_force();
  }).join();
  std::thread([&] {
    ASSERT_TRUE(bind_rank("none", -1, 0, 1));
    EXPECT_EQ(profiler::allowed_cpus(), allowed);
  }).join();
  if (allowed.size() < 2) return;
  std::thread([&] {
    ASSERT_TRUE(bind_rank("local", -1, 1, 2));
    EXPECT_EQ(profiler::allowed_cpus(), profiler::share_of(allowed, 1, 2));
    EXPECT_LT(profiler::allowed_cpus().size(), allowed.size());
  }).join();
}

TEST(CpuBinding, IsTriedWithoutBindingTheCaller) {
  const profiler::CpuSet allowed = profiler::allowed_cpus();
  for (const std::string& good : {std::string("none"), std::string("local"), std::to_string(allowed.back())})
    EXPECT_TRUE(check_binding(good)) << good;
  EXPECT_EQ(profiler::allowed_cpus(), allowed);
}

TEST(CpuBinding, ErrorsNameTheKnob) {
  for (const char* bad : {"near", "0-", "9999999"}) {
    EXPECT_FALSE(check_binding(bad)) << bad;
    const Status bound = bind_rank(bad, -1, 0, 1);
    ASSERT_FALSE(bound) << bad;
    EXPECT_NE(bound.error().what.find("host.cpu_binding"), std::string::npos) << bound.error().what;
  }
  const Status none_such = bind_rank("1000", -1, 0, 1);
  ASSERT_FALSE(none_such);
  EXPECT_EQ(none_such.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(none_such.error().what.find("host.cpu_binding"), std::string::npos);
  // The kernel would take those that are there and leave out the others.
  const std::string here = profiler::cpus_text(profiler::allowed_cpus());
  const Status some = bind_rank(here + ",1000-1001", -1, 0, 1);
  ASSERT_FALSE(some);
  EXPECT_NE(some.error().what.find("CPUs 1000-1001 are not among those of this process, " + here), std::string::npos)
      << some.error().what;
}

}  // namespace
}  // namespace mbb::trainer
