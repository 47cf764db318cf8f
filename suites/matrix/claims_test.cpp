// Claims of a suite file: what is read, and every refusal with its place.
#include "suites/matrix/claims.h"

#include <gtest/gtest.h>

#include <cmath>

#include "suites/matrix/suite.h"

namespace mbb::suites {
namespace {

const char* const kCells = "purpose = 'p'\n[[cell]]\nname = 'plain'\n[[cell]]\nname = 'fast'\n";

Result<Suite> with(const std::string& claim, const SuiteFilter& filter = {}) {
  return parse_suite(kCells + claim, "dir/s.toml", {}, filter, {});
}

const char* const kClaim =
    "[[claim]]\nname = 'c'\nsays = 'faster'\nsource = 'guide'\na = 'plain'\nb = 'fast'\nmetric = 'step_time'\n"
    "ratio = [0.5, 0.9]\n";

TEST(Claims, AreReadWithTheirRange) {
  const auto suite = with(kClaim);
  ASSERT_TRUE(suite) << format(suite.error());
  ASSERT_EQ(suite->claims.size(), 1U);
  const Claim& claim = suite->claims[0];
  EXPECT_EQ(claim.name + claim.says + claim.source + claim.a + claim.b + claim.metric,
            "cfasterguideplainfaststep_time");
  EXPECT_EQ(claim.low, 0.5);
  EXPECT_EQ(claim.high, 0.9);
}

TEST(Claims, OneEndMayBeOpen) {
  std::string text = kClaim;
  text.replace(text.find("[0.5, 0.9]"), 10, "[1, \"any\"]");
  const auto suite = with(text);
  ASSERT_TRUE(suite) << format(suite.error());
  EXPECT_EQ(suite->claims[0].low, 1.0);
  EXPECT_TRUE(std::isinf(suite->claims[0].high));
}

TEST(Claims, GoWithTheirCells) {
  EXPECT_EQ(with(kClaim, {{"fast"}, {}})->claims.size(), 0U);
  EXPECT_EQ(with(kClaim, {{}, {}})->claims.size(), 1U);
}

struct Refusal {
  const char* from;
  const char* to;
  const char* message;
};

TEST(Claims, RefusalsNameThePlaceAndTheNearestName) {
  const Refusal refusals[] = {
      {"'plain'", "'plian'", "s.toml:10:5: no cell is called 'plian'"},
      {"'step_time'", "'step_tim'", "s.toml:12:10: no metric is called 'step_tim'"},
      {"says = 'faster'\n", "", "'says' is missing"},
      {"says", "sais", "s.toml:8:1: [[claim]] has no key 'sais'"},
      {"[0.5, 0.9]", "[0.9, 0.5]", "'ratio' from 0.9 to 0.5 holds nothing"},
      {"[0.5, 0.9]", "[0.5]", "a [[claim]] needs 'ratio'"},
      {"[0.5, 0.9]", "[-1, 2]", "an end of 'ratio' must be a number above 0"},
      {"'guide'", "' '", "'source' is empty"},
  };
  for (const Refusal& refusal : refusals) {
    std::string text = kClaim;
    text.replace(text.find(refusal.from), std::string(refusal.from).size(), refusal.to);
    const auto suite = with(text);
    ASSERT_FALSE(suite) << text;
    EXPECT_NE(suite.error().what.find(refusal.message), std::string::npos) << suite.error().what;
  }
  EXPECT_NE(with(std::string(kClaim) + kClaim).error().what.find("a claim 'c' is there already"), std::string::npos);
}

}  // namespace
}  // namespace mbb::suites
