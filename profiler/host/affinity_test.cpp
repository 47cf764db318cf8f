// Lists of CPUs, shares of them, and a binding that is read back.
#include "profiler/host/affinity.h"

#include <gtest/gtest.h>

#include <thread>

namespace mbb::profiler {
namespace {

TEST(Affinity, ListsAsTheKernelWritesThem) {
  EXPECT_EQ(parse_cpus("0-3,8\n").value(), (CpuSet{0, 1, 2, 3, 8}));
  EXPECT_EQ(parse_cpus("5").value(), CpuSet{5});
  EXPECT_EQ(cpus_text({0, 1, 2, 3, 8}), "0-3,8");
  EXPECT_EQ(cpus_text({}), "");
  for (const char* bad : {"", "a", "3-1", "-1", "1-", "0,,2", "99999999"}) {
    const auto cpus = parse_cpus(bad);
    ASSERT_FALSE(cpus) << bad;
    EXPECT_NE(cpus.error().hint.find("0-3,8"), std::string::npos);
  }
}

TEST(Affinity, SharesAreDisjointAndCoverTheSet) {
  const CpuSet cpus{0, 1, 2, 3, 4, 5, 6};
  CpuSet all;
  for (int i = 0; i < 3; ++i)
    for (const int cpu : share_of(cpus, i, 3)) all.push_back(cpu);
  EXPECT_EQ(all, cpus);
  EXPECT_EQ(share_of(cpus, 5, 8), cpus) << "fewer CPUs than parts: all of them";
}

TEST(Affinity, ABindingIsReadBack) {
  std::thread([] {
    const CpuSet before = allowed_cpus();
    ASSERT_FALSE(before.empty());
    ASSERT_TRUE(bind_to({before.front()}));
    EXPECT_EQ(allowed_cpus(), CpuSet{before.front()});
    const Status refused = bind_to({});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable);
  }).join();
}

TEST(Affinity, AnUnknownDeviceSaysSo) {
  const auto cpus = cpus_near("ffff:ff:1f.7");
  ASSERT_FALSE(cpus);
  EXPECT_NE(cpus.error().what.find("ffff:ff:1f.7"), std::string::npos);
}

}  // namespace
}  // namespace mbb::profiler
