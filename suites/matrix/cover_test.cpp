// Every allowed pair stands in some combination; a seed always gives the same list.
#include "suites/matrix/cover.h"

#include <gtest/gtest.h>

#include <set>

namespace mbb::suites {
namespace {

bool holds_pair(const Cover& cover, size_t a, size_t i, size_t b, size_t j) {
  for (const Combination& c : cover.combinations)
    if (c[a] == i && c[b] == j) return true;
  return false;
}

TEST(CoverPairs, MeetsEveryPairWithFewCombinations) {
  const std::vector<size_t> sizes{5, 4, 3, 3, 2};
  const auto all = [](const Combination&) { return true; };
  for (uint64_t seed : {1, 2, 3}) {
    const Cover cover = cover_pairs(sizes, all, 0, seed);
    EXPECT_TRUE(cover.uncovered.empty());
    EXPECT_EQ(cover.covering, cover.combinations.size());
    EXPECT_LE(cover.combinations.size(), 40U) << "of 360";
    for (size_t a = 0; a < sizes.size(); ++a)
      for (size_t b = a + 1; b < sizes.size(); ++b)
        for (size_t i = 0; i < sizes[a]; ++i)
          for (size_t j = 0; j < sizes[b]; ++j) EXPECT_TRUE(holds_pair(cover, a, i, b, j));
  }
}

TEST(CoverPairs, TakesOnlyWhatIsAllowedAndSaysWhatIsLeft) {
  // Value 2 of axis 0 goes with value 0 of axis 1 only.
  const auto allowed = [](const Combination& c) { return c[0] != 2 || c[1] == 0; };
  const Cover cover = cover_pairs({3, 3, 2}, allowed, 0, 7);
  for (const Combination& c : cover.combinations) EXPECT_TRUE(allowed(c));
  std::set<std::pair<size_t, size_t>> left;
  for (const auto& pair : cover.uncovered) {
    EXPECT_EQ(pair.axis_a, 0U);
    EXPECT_EQ(pair.value_a, 2U);
    left.insert({pair.axis_b, pair.value_b});
  }
  EXPECT_EQ(left, (std::set<std::pair<size_t, size_t>>{{1, 1}, {1, 2}}));
}

TEST(CoverPairs, RandomOnesAreDistinctAndFollowTheSeed) {
  const auto all = [](const Combination&) { return true; };
  const Cover one = cover_pairs({6, 6, 6}, all, 100, 1);
  EXPECT_EQ(one.combinations.size(), 100U);
  EXPECT_EQ(std::set<Combination>(one.combinations.begin(), one.combinations.end()).size(), 100U);
  EXPECT_EQ(one.combinations, cover_pairs({6, 6, 6}, all, 100, 1).combinations);
  EXPECT_NE(one.combinations, cover_pairs({6, 6, 6}, all, 100, 2).combinations);
  EXPECT_LE(cover_pairs({2, 2}, all, 100, 1).combinations.size(), 4U);
}

}  // namespace
}  // namespace mbb::suites
