// Order, filter and copies of tables.
#include "viewer/widgets/table.h"

#include <gtest/gtest.h>

#include <cmath>

namespace mbb::viewer {
namespace {

TableData sample() {
  TableData data;
  data.columns = {{"cell", "", Align::kLeft, 0, "", false}, {"step", "ms", Align::kRight, 80, "", false}};
  const auto row = [&](const char* name, const char* text, double order) {
    TableCell number;
    number.text = text;
    number.order = order;
    TableCell word;
    word.text = name;
    data.rows.push_back({word, number});
    data.keys.emplace_back(name);
  };
  row("tp2", "10", 10);
  row("dp2, \"zero\"", "9", 9);
  row("pp2|vpp", "-", std::nan(""));
  row("TP1", "20", 20);
  return data;
}

using Order = std::vector<std::uint32_t>;

TEST(Table, NumbersSortAsNumbersAndMissingOnesStayLast) {
  const TableData data = sample();
  EXPECT_EQ(table_order(data, "", 1, false), (Order{1, 0, 3, 2}));
  EXPECT_EQ(table_order(data, "", 1, true), (Order{3, 0, 1, 2}));
  EXPECT_EQ(table_order(data, "", -1, false), (Order{0, 1, 2, 3}));
}

TEST(Table, FilterNeedsEveryWordWhateverItsCase) {
  const TableData data = sample();
  EXPECT_EQ(table_order(data, "tp", -1, false), (Order{0, 3}));
  EXPECT_EQ(table_order(data, "tp 20", -1, false), (Order{3}));
  EXPECT_EQ(table_order(data, "nothing", -1, false), Order{});
  EXPECT_TRUE(matches_words("abc", "   "));
}

TEST(Table, MarkdownEscapesAndAligns) {
  const TableData data = sample();
  EXPECT_EQ(table_markdown(data, {2, 0}), "| cell | step (ms) |\n|---|---:|\n| pp2\\|vpp | - |\n| tp2 | 10 |\n");
}

TEST(Table, CsvQuotesAsTheRfcSays) {
  const TableData data = sample();
  EXPECT_EQ(table_csv(data, {1}), "cell,step (ms)\r\n\"dp2, \"\"zero\"\"\",9\r\n");
}

}  // namespace
}  // namespace mbb::viewer
