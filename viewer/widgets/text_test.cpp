// Text from files is safe to draw; numbers read as tables print them.
#include "viewer/widgets/text.h"

#include <gtest/gtest.h>

#include <cmath>

namespace mbb::viewer {
namespace {

TEST(CleanText, KeepsGoodUtf8) {
  EXPECT_EQ(clean("layers.3.mlp"), "layers.3.mlp");
  EXPECT_EQ(clean("\xC2\xB5s \xE2\x89\xA4 \xF0\x9F\x98\x80"), "\xC2\xB5s \xE2\x89\xA4 \xF0\x9F\x98\x80");
}

TEST(CleanText, ReplacesWhatIsNotUtf8) {
  EXPECT_EQ(clean("a\xFFz"), "a\xEF\xBF\xBDz");
  EXPECT_EQ(clean("\xC0\xAF"), "\xEF\xBF\xBD\xEF\xBF\xBD") << "overlong";
  EXPECT_EQ(clean("\xED\xA0\x80").find("\xED"), std::string::npos) << "surrogate";
  EXPECT_EQ(clean("abc\xE2\x89"), "abc\xEF\xBF\xBD\xEF\xBF\xBD") << "cut short";
}

TEST(CleanText, NoControlsNoDirectionTricks) {
  EXPECT_EQ(clean("a\nb\tc\x1B[31m"), std::string("a b c\xC2\xB7[31m"));
  EXPECT_EQ(clean(std::string("a\0b", 3)),
            "a\xC2\xB7"
            "b");
  EXPECT_EQ(clean("x\xE2\x80\xAEgnp.exe"), "x\xC2\xB7gnp.exe");
}

TEST(CleanText, HugeTextIsCutAtACharacter) {
  const std::string cut = clean(std::string(1 << 20, 'x'), 64);
  EXPECT_LE(cut.size(), 64U);
  EXPECT_TRUE(cut.ends_with("\xE2\x80\xA6"));
  std::string wide;
  for (int i = 0; i < 100; ++i) wide += "\xE2\x89\xA4";
  EXPECT_EQ(clean(wide, 32).size() % 3, 0U);
}

TEST(Numbers, CountsAndPercents) {
  EXPECT_EQ(count_text(1638), "1,638");
  EXPECT_EQ(count_text(-12345), "-12,345");
  EXPECT_EQ(count_text(2.2e6), "2.20 M");
  EXPECT_EQ(count_text(0.5), "0.50");
  EXPECT_EQ(count_text(std::nan("")), "-");
  EXPECT_EQ(percent_text(0.017, true), "+1.70 %");
  EXPECT_EQ(percent_text(-0.5), "-50.0 %");
  EXPECT_EQ(quantity_text(81.6e6, "ns"), "81.6 ms");
  EXPECT_EQ(quantity_text(3, "tokens/s"), "3 tokens/s");
  EXPECT_EQ(utc_text(1'780'000'000'000'000'000), "2026-05-28 20:26");
  EXPECT_EQ(utc_text(0), "-");
}

}  // namespace
}  // namespace mbb::viewer
