// Widths of columns by what stands in them, columns that fold, and text that is cut.
#include "viewer/widgets/columns.h"

#include <gtest/gtest.h>

#include <cfloat>
#include <numeric>

#include "viewer/app/stage.h"
#include "viewer/theme/style.h"
#include "viewer/widgets/fit.h"

namespace mbb::viewer {
namespace {

using Needs = std::vector<ColumnNeed>;
using Widths = std::vector<float>;

TEST(Columns, EachGetsWhatItNeedsAndTheFlexibleOnesTheRest) {
  EXPECT_EQ(column_widths(Needs{{100, 60, true}, {50, 50, false}, {30, 30, true}}, 300), (Widths{160, 50, 90}));
  EXPECT_EQ(column_widths(Needs{{100, 60, false}, {50, 50, false}}, 300), (Widths{100, 50}));
  EXPECT_TRUE(column_widths({}, 300).empty());
}

TEST(Columns, TheWidestFlexibleGivesFirst) {
  const Widths widths = column_widths(Needs{{400, 60, true}, {50, 50, false}, {80, 60, true}}, 330);
  EXPECT_EQ(widths[1], 50) << "numbers stay whole";
  EXPECT_EQ(widths[2], 80) << "a short name stays whole";
  EXPECT_NEAR(widths[0], 200, 1);
}

TEST(Columns, WhereNothingFitsAllGiveDownToTheirLeast) {
  const Needs needs{{400, 60, true}, {150, 90, false}, {100, 40, false}};
  const Widths widths = column_widths(needs, 230);
  EXPECT_NEAR(widths[0], 60, 1);
  EXPECT_LE(std::accumulate(widths.begin(), widths.end(), 0.0F), 231);
  const Widths least = column_widths(needs, 190);
  for (std::size_t i = 0; i < needs.size(); ++i) EXPECT_NEAR(least[i], needs[i].least, 1) << i;
  const Widths narrow = column_widths(needs, 120);
  EXPECT_LE(std::accumulate(narrow.begin(), narrow.end(), 0.0F), 121) << "none lies outside";
  EXPECT_NEAR(narrow[0], 40, 1);
  EXPECT_NEAR(narrow[2], 40, 1);
}

TEST(Columns, FoldWhereTheyTellNothing) {
  TableData data;
  data.columns = {{"cell", "", Align::kLeft, 0, "", false},
                  {"class", "", Align::kLeft, 0, "", false, Fold::kWhenEqual},
                  {"verdict", "", Align::kLeft, 80, "", false, Fold::kWhenEmpty},
                  {"unit", "", Align::kLeft, 80, "", false, Fold::kWhenEmpty}};
  const auto row = [&](const char* cell, const char* label, const char* verdict) {
    std::vector<TableCell> cells(4);
    cells[0].text = cell;
    cells[1].text = label;
    cells[2].text = verdict;
    cells[3].text = "ms";
    data.rows.push_back(cells);
    data.keys.emplace_back(cell);
  };
  row("a", "cpu", "-");
  row("b", "cpu", "-");
  EXPECT_EQ(shown_columns(data), (std::vector<std::size_t>{0, 3})) << "equal units are still told";
  EXPECT_NE(table_csv(data, {0}).find("verdict"), std::string::npos) << "copies have every column";
  row("c", "measured", "slower");
  EXPECT_EQ(shown_columns(data), (std::vector<std::size_t>{0, 1, 2, 3}));
  data.rows.clear();
  EXPECT_EQ(shown_columns(data).size(), 4U) << "an empty table shows its columns";
}

TEST(FitText, CutsAtTheEndOrInTheMiddleAndSaysSo) {
  const auto stage = open_headless({});
  load_fonts(1);
  const ImFont& font = *fonts().text;
  const auto width = [&](const std::string& text) {
    return font.CalcTextSizeA(font.FontSize, FLT_MAX, 0, text.c_str()).x;
  };
  const std::string path = "layers.0.attn.proj.reduce_scatter.bwd";
  EXPECT_EQ(fit_text(font, font.FontSize, path, width(path)), path);
  for (const Cut cut : {Cut::kEnd, Cut::kMiddle}) {
    for (float room = 0; room < width(path) - 1; room += 3) {
      const std::string fitted = fit_text(font, font.FontSize, path, room, cut);
      EXPECT_LE(width(fitted), room + 0.01F) << fitted;
      EXPECT_TRUE(fitted.empty() || fitted.find("\xE2\x80\xA6") != std::string::npos) << fitted;
    }
  }
  EXPECT_TRUE(fit_text(font, font.FontSize, path, 120, Cut::kMiddle).ends_with("bwd"));
  EXPECT_TRUE(fit_text(font, font.FontSize, path, 120, Cut::kEnd).starts_with("layers.0"));
  // Never inside a letter of several bytes.
  const std::string greek = "\xCE\xB1\xCE\xB2\xCE\xB3\xCE\xB4\xCE\xB5\xCE\xB6\xCE\xB7\xCE\xB8";
  for (float room = 8; room < 60; room += 1) {
    const std::string fitted = fit_text(font, font.FontSize, greek, room, Cut::kMiddle);
    for (std::size_t i = 0; i < fitted.size();) {
      const auto lead = static_cast<unsigned char>(fitted[i]);
      ASSERT_TRUE(lead >= 0xC0 || lead < 0x80) << fitted;
      i += lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
    }
  }
}

}  // namespace
}  // namespace mbb::viewer
