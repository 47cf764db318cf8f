// Fixed work is fixed: where its code lies does not depend on what else a build links.
#include "trainer/execute/cpu/reference_work.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "trainer/ops/cpu/functions.h"

namespace mbb::trainer {
namespace {

TEST(ReferenceWork, ItsLoopsAndThoseOfOpsBeginCacheLines) {
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(&reference_work_ns) % 64, 0U);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(&cpu_gemm) % 64, 0U);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(&cpu_adamw) % 64, 0U);
}

TEST(ReferenceWork, TakesTime) {
  EXPECT_GT(reference_work_ns(), 10'000);
}

}  // namespace
}  // namespace mbb::trainer
