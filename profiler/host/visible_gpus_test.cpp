// CUDA_VISIBLE_DEVICES, read as CUDA does.
#include "profiler/host/visible_gpus.h"

#include <gtest/gtest.h>

namespace mbb::profiler {
namespace {

using Places = std::vector<int>;

const std::vector<std::string> kFour = {"GPU-aa11", "GPU-aa22", "GPU-bb33", "GPU-cc44"};

TEST(VisibleGpus, AllWhereNothingIsSaid) {
  EXPECT_EQ(visible_gpus(std::nullopt, kFour), (Places{0, 1, 2, 3}));
  EXPECT_EQ(visible_gpus(std::nullopt, {}), Places{});
}

TEST(VisibleGpus, NumbersAndBeginningsOfUuidsInTheirOrder) {
  EXPECT_EQ(visible_gpus("1", kFour), Places{1});
  EXPECT_EQ(visible_gpus("3, 0", kFour), (Places{3, 0}));
  EXPECT_EQ(visible_gpus("GPU-bb,GPU-aa22", kFour), (Places{2, 1}));
}

TEST(VisibleGpus, NothingBehindANameThatIsNone) {
  EXPECT_EQ(visible_gpus("", kFour), Places{});
  EXPECT_EQ(visible_gpus("-1", kFour), Places{});
  EXPECT_EQ(visible_gpus("2,4,1", kFour), Places{2});
  EXPECT_EQ(visible_gpus("0x,1", kFour), Places{});
  EXPECT_EQ(visible_gpus("GPU-aa,1", kFour), Places{}) << "begins like two";
  EXPECT_EQ(visible_gpus("1,1", kFour), Places{}) << "named twice";
}

TEST(VisibleGpus, AnInstanceOfAGpuIsNotTold) {
  EXPECT_EQ(visible_gpus("MIG-1234", kFour), std::nullopt);
}

}  // namespace
}  // namespace mbb::profiler
