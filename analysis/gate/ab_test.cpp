// Looks, error of repeated looks, power, and differences too small to matter.
#include "analysis/gate/ab.h"

#include <gtest/gtest.h>

#include "analysis/gate/simulated_nights.h"

namespace mbb::analysis {
namespace {

using baselines::Verdict;

// Launches arms until a look decides; the verdict of the last look.
Verdict run_ab(double change, double sigma, size_t budget, SimulatedNoise& noise, size_t* launches) {
  std::vector<double> a, b;
  const auto looks = ab_looks(budget);
  for (const size_t look : looks) {
    while (a.size() < look) {
      a.push_back(100 * (1 + sigma * noise.normal()));
      b.push_back(100 * (1 + change) * (1 + sigma * noise.normal()));
    }
    *launches = look;
    const Verdict verdict = ab_look(a, b, looks.size()).verdict;
    if (verdict != Verdict::kInconclusive) return verdict;
  }
  return Verdict::kInconclusive;
}

TEST(Ab, LooksAreFixedBeforeTheStart) {
  EXPECT_EQ(ab_looks(12), (std::vector<size_t>{3, 5, 7, 10, 12}));
  EXPECT_EQ(ab_looks(1), std::vector<size_t>{3});
}

TEST(Ab, EqualProductsAreSeldomCalledDifferentHoweverOftenOneLooks) {
  SimulatedNoise noise(5);
  int different = 0;
  for (int i = 0; i < 1000; ++i) {
    size_t launches = 0;
    const Verdict v = run_ab(0.0, 0.02, 12, noise, &launches);  // noise so large that "same" ends it seldom
    different += v == Verdict::kSlower || v == Verdict::kFaster ? 1 : 0;
  }
  EXPECT_LE(different, 50) << "of 1000 at alpha 5 %";
}

TEST(Ab, TwoPercentIsFoundWithTheSignAndAClearCaseEndsEarly) {
  SimulatedNoise noise(6);
  int slower = 0;
  for (int i = 0; i < 200; ++i) {
    size_t launches = 0;
    slower += run_ab(0.02, 0.005, 12, noise, &launches) == Verdict::kSlower ? 1 : 0;
  }
  EXPECT_GE(slower, 190);
  size_t launches = 0;
  EXPECT_EQ(run_ab(-0.2, 0.002, 12, noise, &launches), Verdict::kFaster);
  EXPECT_LE(launches, 5U);
}

TEST(Ab, ADifferenceThatIsSureButTooSmallToMatterIsSame) {
  SimulatedNoise noise(7);
  size_t launches = 0;
  EXPECT_EQ(run_ab(0.003, 0.0005, 12, noise, &launches), Verdict::kSame);
}

}  // namespace
}  // namespace mbb::analysis
