// The mappings that GPUs are tested with, of more than two ranks, on ranks of the CPU: each trains like one rank.
#include "trainer/execute/cuda/mapping_cases_test.h"
#include "trainer/run/equal_training_test.h"
#include "trainer/run/layout.h"
#include "trainer/run/near_fp32_test.h"

namespace mbb::trainer {
namespace {

class LargeMappings : public testing::TestWithParam<cuda::Mapping> {};

std::vector<cuda::Mapping> of_more_than_two() {
  std::vector<cuda::Mapping> all;
  for (const cuda::Mapping& mapping : cuda::kMappings) {
    const auto layout =
        resolve(cuda::mapped(mapping, mapping.takes(Recipe::kFp32) ? Recipe::kFp32 : Recipe::kFp8Current));
    if (!layout || layout->mesh.world_size() > 2) all.push_back(mapping);
  }
  return all;
}

TEST_P(LargeMappings, TrainLikeOneRank) {
  for (const Recipe recipe : {Recipe::kBf16, Recipe::kFp8Current}) {
    if (!GetParam().takes(recipe)) continue;
    const auto layout = resolve(cuda::mapped(GetParam(), recipe));
    EXPECT_TRUE(layout.has_value()) << format(layout.error());
  }
  const auto one = train_and_collect(cuda::base_of(GetParam()));
  ASSERT_TRUE(one.has_value()) << format(one.error());
  const auto many = train_and_collect(cuda::mapped(GetParam(), Recipe::kFp32));
  ASSERT_TRUE(many.has_value()) << format(many.error());
  EXPECT_LT(furthest(losses_of(many->steps), losses_of(one->steps)), 1e-5);
  expect_equal_gradients(many->gradients[0], one->gradients[0], 1e-4);
}

INSTANTIATE_TEST_SUITE_P(All, LargeMappings, testing::ValuesIn(of_more_than_two()),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace mbb::trainer
