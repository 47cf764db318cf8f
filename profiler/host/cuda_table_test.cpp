// The CUDA library is optional: without it the program says what is missing; answers split into reason and remedy.
#include "profiler/host/cuda_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>

namespace mbb::profiler {
namespace {

TEST(CudaTable, TestProgramsHaveNoLibraryBesideThemAndSaySo) {
  const auto table = cuda_table();
  ASSERT_FALSE(table.has_value());
  EXPECT_NE(table.error().what.find("libmbbench_cuda.so is not there"), std::string::npos);
  EXPECT_NE(table.error().hint.find("MBB_CUDA"), std::string::npos);
}

TEST(CudaTable, AnswersCarryReasonAndRemedyAndTheirKind) {
  CudaText text{};
  constexpr std::string_view kAnswer = "no device\ncheck the driver";
  EXPECT_TRUE(cuda_answer(true, text).has_value());
  std::copy(kAnswer.begin(), kAnswer.end(), text.text);
  text.code = ErrorCode::kOutOfMemory;
  const auto answer = cuda_answer(false, text);
  ASSERT_FALSE(answer.has_value());
  EXPECT_EQ(answer.error().what, "no device");
  EXPECT_EQ(answer.error().hint, "check the driver");
  EXPECT_EQ(answer.error().code, ErrorCode::kOutOfMemory);
}

}  // namespace
}  // namespace mbb::profiler
