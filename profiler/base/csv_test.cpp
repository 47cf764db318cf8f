// Comma-separated tables: quoting, numbers, and files that are cut or bent.
#include "profiler/base/csv.h"

#include <gtest/gtest.h>

#include <random>

namespace mbb {
namespace {

TEST(Csv, FieldsRoundTrip) {
  const std::vector<std::string> fields = {"plain", "", "a,b", "say \"x\"", "two\nlines", "\r", "\"", " spaced "};
  std::string text = "a,b,c,d,e,f,g,h\n";
  for (std::size_t i = 0; i < fields.size(); ++i) {
    if (i > 0) text += ',';
    append_csv_field(text, fields[i]);
  }
  text += '\n';
  const auto table = CsvTable::parse(text);
  ASSERT_TRUE(table) << table.error().what;
  ASSERT_EQ(table->rows(), 1U);
  for (std::size_t i = 0; i < fields.size(); ++i) EXPECT_EQ(table->text(0, static_cast<int>(i)), fields[i]);
}

TEST(Csv, LinesAreCountedThroughQuotes) {
  const auto table = CsvTable::parse("a,b\r\n\"x\ny\",1\r\nz,2");
  ASSERT_TRUE(table);
  ASSERT_EQ(table->rows(), 2U);
  EXPECT_EQ(table->line(0), 2);
  EXPECT_EQ(table->line(1), 4);
  EXPECT_EQ(table->column("b"), 1);
  EXPECT_EQ(table->column("c"), -1);
  EXPECT_EQ(table->text(0, -1), "");
}

TEST(Csv, NumbersMustBeWholeAndFit) {
  const auto table = CsvTable::parse("n\n12\n\n1x\n99999999999999999999\n-5\nnan\n").value();
  std::int64_t value = 7;
  EXPECT_TRUE(table.read(0, 0, value));
  EXPECT_EQ(value, 12);
  EXPECT_TRUE(table.read(1, 0, value)) << "empty keeps the value";
  EXPECT_EQ(value, 12);
  const Status bent = table.read(2, 0, value);
  ASSERT_FALSE(bent);
  EXPECT_EQ(bent.error().what, "line 4: n is \"1x\", which is not a number that fits it");
  EXPECT_FALSE(table.read(3, 0, value));
  std::uint32_t natural = 0;
  EXPECT_FALSE(table.read(4, 0, natural));
  double real = 0;
  EXPECT_TRUE(table.read(5, 0, real));
  EXPECT_TRUE(real != real);
}

TEST(Csv, RefusesBentTables) {
  for (const char* bent : {"", "a,b\n1\n", "a\n\"open\n", "a\nx\"y\n", "a\n\"x\"y\n", "a\nx\ry\n"})
    EXPECT_FALSE(CsvTable::parse(bent)) << bent;
}

TEST(Csv, RandomTextNeverCrashes) {
  std::mt19937 random(7);
  const std::string_view alphabet = "ab,\"\r\n1-.";
  for (int round = 0; round < 20'000; ++round) {
    std::string text(random() % 40, ' ');
    for (char& c : text) c = alphabet[random() % alphabet.size()];
    const auto table = CsvTable::parse(text);
    EXPECT_TRUE(!table || !table->columns().empty());
  }
}

}  // namespace
}  // namespace mbb
