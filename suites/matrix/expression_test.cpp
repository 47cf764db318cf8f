// Conditions of suite files: precedence, types, refusals with their offset, and random texts.
#include "suites/matrix/expression.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <random>

namespace mbb::suites {
namespace {

Status known(std::string_view name) {
  if (name == "tp" || name == "pp" || name == "lr" || name == "recipe" || name == "sp" || name == "big" ||
      name == "dist")
    return {};
  return fail(ErrorCode::kNotFound, fmt::format("no knob is called '{}'", name), "a hint");
}

ExpressionValue lookup(std::string_view name) {
  if (name == "tp") return int64_t{4};
  if (name == "pp") return int64_t{8};
  if (name == "lr") return 0.5;
  if (name == "sp") return KnobAuto{};
  if (name == "big") return int64_t{INT64_MAX};
  if (name == "dist") return true;
  return std::string("bf16");
}

// "true", "false", or "offset: what".
std::string result_of(std::string_view text) {
  const auto parsed = Expression::parse(text, known);
  if (!parsed) return fmt::format("{}: {}", parsed.error().offset, parsed.error().what);
  const auto value = parsed->evaluate(lookup);
  if (!value) return fmt::format("{}: {}", value.error().offset, value.error().what);
  return *value ? "true" : "false";
}

TEST(Expression, Conditions) {
  for (const char* text : {"tp * pp <= 32",
                           "tp==4",
                           "not tp == 5",
                           "not tp > 4 and pp == 8",
                           "1 + 2 * 3 == 7",
                           "(1 + 2) * 3 == 9",
                           "10 - 2 - 3 == 5",
                           "7 / 2 == 3",
                           "7 % 4 == 3",
                           "-7 / 2 == -3",
                           "7.0 / 2 == 3.5",
                           "- -1 == 1",
                           "2 - -1 == 3",
                           "recipe == 'bf16'",
                           "recipe != \"fp32\"",
                           "lr < 1",
                           "lr == 5e-1",
                           "tp > 5 or pp > 5",
                           "true",
                           "not false",
                           "sp == 'auto'",
                           "sp != true",
                           "dist",
                           "dist and tp < pp",
                           "true or tp / 0 == 1",
                           "false or true and true",
                           "big == 9223372036854775807",
                           "0 - big - 1 < 0",
                           "(0 - big - 1) % -1 == 0",
                           "not (dist and false)"})
    EXPECT_EQ(result_of(text), "true") << text;
  for (const char* text : {"tp * pp < 32", "false", "not dist", "true and false", "sp == true", "recipe == 'fp32'"})
    EXPECT_EQ(result_of(text), "false") << text;
}

TEST(Expression, RefusalsSayWhere) {
  EXPECT_EQ(result_of(""), "0: the condition ends where a value is expected");
  EXPECT_EQ(result_of("tp >"), "4: the condition ends where a value is expected");
  EXPECT_EQ(result_of("tp > 4 pp"), "7: expected an operator or the end, not 'pp'");
  EXPECT_EQ(result_of("tp = 4"), "3: expected an operator or the end, not '='");
  EXPECT_EQ(result_of("tpp > 4"), "0: no knob is called 'tpp'");
  EXPECT_EQ(result_of("tp"), "0: expected a condition, not a number");
  EXPECT_EQ(result_of("tp and true"), "0: expected a condition, not a number");
  EXPECT_EQ(result_of("recipe > 4"), "7: expected two numbers, not text and a number");
  EXPECT_EQ(result_of("recipe == 4"), "7: text and a number never compare");
  EXPECT_EQ(result_of("dist == 1"), "5: true or false and a number never compare");
  EXPECT_EQ(result_of("1 < tp < 5"), "7: comparisons do not chain");
  EXPECT_EQ(result_of("tp / (pp - 8) == 1"), "3: division by zero");
  EXPECT_EQ(result_of("tp % 0.0 == 1"), "3: division by zero");
  EXPECT_EQ(result_of("big + 1 > 0"), "4: a number too large for 64 bits");
  EXPECT_EQ(result_of("(0 - big - 1) / -1 > 0"), "14: a number too large for 64 bits");
  EXPECT_EQ(result_of("-(0 - big - 1) > 0"), "0: a number too large for 64 bits");
  EXPECT_EQ(result_of("(tp > 4"), "7: expected ')'");
  EXPECT_EQ(result_of("recipe == 'bf16"), "10: a string that does not end");
  EXPECT_EQ(result_of("tp > 4x"), "5: '4x' is no number");
  EXPECT_EQ(result_of("tp > $"), "5: expected a value, not '$'");
  EXPECT_EQ(result_of("tp + not true"), "5: 'not' needs parentheses here");
  EXPECT_EQ(result_of("- recipe == 1"), "0: expected a number after '-', not text");
  EXPECT_EQ(result_of(std::string(200, '(') + "tp"), "65: a condition nested too deeply");
  EXPECT_EQ(result_of(std::string(5000, ' ')), "0: a condition of more than 4096 bytes");
  const std::string minuses(4000, '-');
  EXPECT_EQ(result_of(minuses + "1 == 1"), "65: a condition nested too deeply");
}

TEST(Expression, RandomTextsEndInAnAnswer) {
  const char* words[] = {"tp", "pp",  "lr", "recipe", "sp",  "big", "dist", "(",    ")",  "and",
                         "or", "not", "+",  "-",      "*",   "/",   "%",    "==",   "!=", "<",
                         "<=", ">",   "0",  "1",      "'x'", "\"",  "2.5",  "true", " ",  "\xff"};
  std::mt19937 random(3);
  size_t answers = 0;
  for (int i = 0; i < 50000; ++i) {
    std::string text;
    for (size_t n = random() % 9; n > 0; --n)
      text += std::string(words[random() % std::size(words)]) + (random() % 4 ? " " : "");
    const std::string result = result_of(text);
    EXPECT_FALSE(result.empty());
    if (result == "true" || result == "false") ++answers;
  }
  EXPECT_GT(answers, 100u);
}

}  // namespace
}  // namespace mbb::suites
