// Text readers and writers: goldens of what people see, and refusals of what is no value.
#include "profiler/base/text.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace mbb {
namespace {

TEST(Text, SplitsJoinsTrimsReplaces) {
  EXPECT_EQ(split("a,,b", ',').size(), 3u);
  EXPECT_EQ(split("", ',').size(), 1u);
  EXPECT_EQ(join({"a", "b"}, ", "), "a, b");
  EXPECT_EQ(trim(" \t a b \n"), "a b");
  EXPECT_EQ(replace_all("a-b-c", "-", "_"), "a_b_c");
  EXPECT_EQ(replace_all("aaa", "", "x"), "aaa");
}

TEST(Text, EditDistanceCountsSwapsAsOne) {
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("abc", "abc"), 0u);
  EXPECT_EQ(edit_distance("seq_lenght", "seq_length"), 1u);
  EXPECT_EQ(edit_distance("seq-length", "SEQ_LENGTH"), 0u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
}

TEST(Text, NearestFindsTyposAndNotStrangers) {
  const std::vector<std::string> names = {"tensor_model_parallel_size", "train_iters", "lr", "tp", "pp"};
  EXPECT_EQ(nearest("tensor-model-paralel-size", names), "tensor_model_parallel_size");
  EXPECT_EQ(nearest("train_iter", names), "train_iters");
  EXPECT_EQ(nearest("tpp", names), "tp");
  EXPECT_EQ(nearest("zebra", names), std::nullopt);
  EXPECT_EQ(nearest("h200", {"h100-sxm", "h200-sxm", "b200"}), "h200-sxm") << "the only one that begins so";
  EXPECT_EQ(nearest("a100", {"a100-sxm", "a100-pcie"}), std::nullopt);
  EXPECT_EQ(nearest("", names), std::nullopt);
  EXPECT_EQ(nearest(std::string(100000, 'x'), names), std::nullopt);
}

TEST(Text, GlobMatches) {
  EXPECT_TRUE(glob_match("tp*-pp?", "tp2-sp-pp4"));
  EXPECT_TRUE(glob_match("*", ""));
  EXPECT_FALSE(glob_match("tp?", "tp"));
  EXPECT_FALSE(glob_match("", "a"));
  EXPECT_FALSE(glob_match(std::string(30, '*') + "b", std::string(5000, 'a')));  // no blow-up
}

TEST(Text, ParsesWholeNumbersOnly) {
  EXPECT_EQ(parse_int("1_000_000"), 1000000);
  EXPECT_EQ(parse_int("-12"), -12);
  EXPECT_EQ(parse_int("+5"), 5);
  EXPECT_EQ(parse_int("9223372036854775807"), std::numeric_limits<int64_t>::max());
  for (const char* bad :
       {"", "-", "+", "+-5", "1.0", "1e3", " 1", "1 ", "0x10", "_1", "1_", "1__0", "9223372036854775808", "--1"})
    EXPECT_EQ(parse_int(bad), std::nullopt) << bad;
  EXPECT_EQ(parse_double("3e-4"), 3e-4);
  EXPECT_EQ(parse_double("+2"), 2.0);
  for (const char* bad : {"", "inf", "nan", "-inf", "1e999", "1,5", "++1", "1 ", "0x1p3x"})
    EXPECT_EQ(parse_double(bad), std::nullopt) << bad;
  EXPECT_EQ(parse_bool("On"), true);
  EXPECT_EQ(parse_bool("0"), false);
  EXPECT_EQ(parse_bool("maybe"), std::nullopt);
}

TEST(Text, ParsesDurationsAndSizes) {
  EXPECT_EQ(parse_duration_ns("250us"), 250'000);
  EXPECT_EQ(parse_duration_ns("1.5 s"), 1'500'000'000);
  EXPECT_EQ(parse_duration_ns("2h"), 7'200'000'000'000);
  for (const char* bad : {"5", "s", "", "1e30d", "3 weeks"}) EXPECT_EQ(parse_duration_ns(bad), std::nullopt) << bad;
  EXPECT_EQ(parse_size_bytes("4096"), 4096);
  EXPECT_EQ(parse_size_bytes("64KiB"), 65536);
  EXPECT_EQ(parse_size_bytes("1.5 GiB"), 1610612736);
  EXPECT_EQ(parse_size_bytes("10MB"), 10'000'000);
  for (const char* bad : {"", "KiB", "1 parsec", "1e300TB"}) EXPECT_EQ(parse_size_bytes(bad), std::nullopt) << bad;
}

TEST(Text, FormatsTimes) {
  EXPECT_EQ(format_ns(0), "0 ns");
  EXPECT_EQ(format_ns(850), "850 ns");
  EXPECT_EQ(format_ns(1380), "1.38 us");
  EXPECT_EQ(format_ns(9.996e6), "10.0 ms");
  EXPECT_EQ(format_ns(171.9e6), "171.9 ms");
  EXPECT_EQ(format_ns(-39.5e6), "-39.5 ms");
  EXPECT_EQ(format_ns(999.96e6), "1.00 s");
  EXPECT_EQ(format_ns(20e9), "20.0 s");
  EXPECT_EQ(format_ns(119.4e9), "119.4 s");
  EXPECT_EQ(format_ns(245e9), "4m05s");
  EXPECT_EQ(format_ns(11520e9), "3h12m");
  EXPECT_EQ(format_ns(187200e9), "2d04h");
  EXPECT_EQ(format_ns(std::nan("")), "-");
}

TEST(Text, FormatsBytesAndCounts) {
  EXPECT_EQ(format_bytes(512), "512 B");
  EXPECT_EQ(format_bytes(1023.9 * 1024), "1023.9 KiB");
  EXPECT_EQ(format_bytes(1023.99 * 1024), "1.0 MiB");
  EXPECT_EQ(format_bytes(71.6 * 1024 * 1024 * 1024), "71.6 GiB");
  EXPECT_EQ(format_bytes_decimal(16.78e6), "16.8 MB");
  EXPECT_EQ(format_count(942e15, "F"), "942 PF");
  EXPECT_EQ(format_count(449.22e9, "F"), "449 GF");
  EXPECT_EQ(format_count(3.1415e12, "F/s"), "3.14 TF/s");
  EXPECT_EQ(format_count(999.6e9, ""), "1.00 T");
  EXPECT_EQ(format_count(12, ""), "12");
  EXPECT_EQ(format_count(0.5, ""), "0.50");
  EXPECT_EQ(format_percent(0.041), "4.1 %");
  EXPECT_EQ(format_percent(std::nan("")), "-");
  EXPECT_EQ(format_exact(3e-4), "0.0003");
}

TEST(Text, ExactFormReadsBackTheSame) {
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> exponent(-300, 300);
  for (int i = 0; i < 2000; ++i) {
    const double value = std::pow(10.0, exponent(random));
    EXPECT_EQ(parse_double(format_exact(value)), value);
  }
}

TEST(Text, QuotesForJsonAndTerminals) {
  EXPECT_EQ(json_quote("a\"b\\c\n\x01"), R"("a\"b\\c\n\u0001")");
  EXPECT_EQ(json_quote("\xff"
                       "é"),
            "\"\xEF\xBF\xBD"
            "é\"");
  EXPECT_EQ(json_quote("\xC0\xAF\xED\xA0\x80"), "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"");
  EXPECT_EQ(printable("a\x1b[31m\xff é"), "a\\x1b[31m\\xff é");
  EXPECT_EQ(printable("abcdef", 3), "abc...");
  EXPECT_EQ(display_width("±é x"), 4u);
}

TEST(Text, AnyBytesAreSafe) {
  std::mt19937 random(11);
  for (int i = 0; i < 3000; ++i) {
    std::string bytes(random() % 24, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    json_quote(bytes);
    printable(bytes);
    parse_int(bytes);
    parse_double(bytes);
    parse_duration_ns(bytes);
    parse_size_bytes(bytes);
    nearest(bytes, {"alpha", "beta"});
    glob_match(bytes, "alphabet");
  }
}

}  // namespace
}  // namespace mbb
