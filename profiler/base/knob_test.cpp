// Knob records, tables and their renderings, on a small configuration that has every type of field.
#include "profiler/base/knob.h"

#include <gtest/gtest.h>

#include "profiler/base/knob_render.h"
#include "profiler/base/knob_table.h"

namespace mbb {
namespace {

enum class Colour { kRed, kDeepBlue };

struct Paint {
  bool wet = false;
  std::optional<bool> glossy;
  int64_t coats = 2;
  double thickness = 0.5;
  Colour colour = Colour::kRed;
};
struct Shop {
  std::string name;
  std::vector<int64_t> shelves;
  KnobMap prices;
  int64_t coats = 1;
};
struct House {
  Paint paint;
  Shop shop;
  std::string owner = "me";
};

std::vector<Knob> house_knobs() {
  return {
      {.key = "owner", .field = field(&House::owner), .doc = "Who lives there.", .identity = false},
      {.key = "paint.wet", .field = field(&House::paint, &Paint::wet), .doc = "Still wet."},
      {.key = "paint.glossy", .field = field(&House::paint, &Paint::glossy), .doc = "Shines."},
      {.key = "paint.coats", .field = field(&House::paint, &Paint::coats), .range = at_least(1), .doc = "Layers."},
      {.key = "paint.thickness",
       .aliases = {"mm"},
       .field = field(&House::paint, &Paint::thickness),
       .range = above(0),
       .unit = "mm",
       .doc = "Of one coat.",
       .history = "Was 0.4.",
       .needs = {"a brush", "a wall"},
       .projected = false},
      {.key = "paint.colour",
       .field = field(&House::paint, &Paint::colour),
       .choices = {choice("red", Colour::kRed), choice("deep_blue", Colour::kDeepBlue, "like the sea")},
       .doc = "Hue | tone."},
      {.key = "shop.name", .field = field(&House::shop, &Shop::name), .doc = "Sign."},
      {.key = "shop.shelves", .field = field(&House::shop, &Shop::shelves), .range = within(0, 9), .doc = "Loads."},
      {.key = "shop.prices", .field = field(&House::shop, &Shop::prices), .doc = "By article."},
      {.key = "shop.coats", .field = field(&House::shop, &Shop::coats), .doc = "On the hook."},
  };
}

const KnobTable& table() {
  static const KnobTable instance(house_knobs(), House{});
  return instance;
}

struct Filled {
  House house;
  KnobSources sources;
  Status set(std::string_view name, std::string_view text) {
    return table().set_text(house, sources, name, text, {Layer::kEnvironment, "MBBENCH_X", 0, 0});
  }
  Status set_value(std::string_view name, KnobData value) {
    return table().set(house, sources, name, std::move(value), {Layer::kSuite, "a.toml", 3, 5});
  }
};

TEST(Knob, TextReachesEveryTypeOfField) {
  Filled f;
  ASSERT_TRUE(f.set("wet", "on"));
  ASSERT_TRUE(f.set("glossy", "false"));
  ASSERT_TRUE(f.set("paint.coats", "3"));
  ASSERT_TRUE(f.set("MM", "x") ? false : true);  // case counts
  ASSERT_TRUE(f.set("mm", "1e-1"));
  ASSERT_TRUE(f.set("colour", "deep-blue"));
  ASSERT_TRUE(f.set("shelves", "[1, 2,3]"));
  ASSERT_TRUE(f.set("prices.red.matt", "7"));
  ASSERT_TRUE(f.set("shop.prices.blue", "8"));
  EXPECT_TRUE(f.house.paint.wet);
  EXPECT_EQ(f.house.paint.glossy, false);
  EXPECT_EQ(f.house.paint.coats, 3);
  EXPECT_EQ(f.house.paint.thickness, 0.1);
  EXPECT_EQ(f.house.paint.colour, Colour::kDeepBlue);
  EXPECT_EQ(f.house.shop.shelves, (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(f.house.shop.prices, (KnobMap{{"red.matt", "7"}, {"blue", "8"}}));
  EXPECT_EQ(table().text(f.house, "shop.prices"), "blue=8,red.matt=7");
  House again;
  KnobSources sources;
  ASSERT_TRUE(table().from_lines(again, sources, table().to_lines(f.house), {}));
  EXPECT_EQ(table().to_lines(again), table().to_lines(f.house));
}

TEST(Knob, FileValuesKeepTheirType) {
  Filled f;
  ASSERT_TRUE(f.set_value("thickness", int64_t{2}));
  EXPECT_EQ(f.house.paint.thickness, 2.0);
  ASSERT_TRUE(f.set_value("shelves", int64_t{4}));
  EXPECT_EQ(f.house.shop.shelves, std::vector<int64_t>{4});
  ASSERT_TRUE(f.set_value("glossy", true));
  ASSERT_TRUE(f.set_value("glossy", std::string("auto")));
  EXPECT_EQ(f.house.paint.glossy, std::nullopt);
  EXPECT_EQ(f.set_value("paint.coats", std::string("3")).error().what,
            "a.toml:3:5: paint.coats must be an integer, not the string \"3\"");
  EXPECT_EQ(f.set_value("paint.coats", 2.5).error().what,
            "a.toml:3:5: paint.coats must be an integer, not the number 2.5");
  EXPECT_EQ(f.set_value("wet", int64_t{1}).error().what,
            "a.toml:3:5: paint.wet must be true or false, not the number 1");
  EXPECT_EQ(f.set_value("shop.name", true).error().what,
            "a.toml:3:5: shop.name must be a string, not the boolean true");
  EXPECT_EQ(f.set_value("colour", int64_t{1}).error().what,
            "a.toml:3:5: paint.colour must be one of red, deep_blue, not the number 1");
  EXPECT_EQ(f.set_value("prices", KnobMap{{"a", "1,2"}}).error().what,
            "a.toml:3:5: shop.prices must be a table of values without '=' or ',', not '1,2'");
}

TEST(Knob, RefusalsNameTheRuleAndChangeNothing) {
  Filled f;
  const auto what = [&](const char* name, std::string_view text) { return f.set(name, text).error().what; };
  const std::string prefix = "environment variable MBBENCH_X: ";
  EXPECT_EQ(what("paint.coats", "0"), prefix + "paint.coats must be at least 1, not 0");
  EXPECT_EQ(what("paint.coats", "9007199254740993"),
            prefix + "paint.coats must be an integer of at most 2^53, not 9007199254740993");
  EXPECT_EQ(what("paint.coats", "99999999999999999999"),
            prefix + "paint.coats must be an integer of at most 2^53, not '99999999999999999999'");
  EXPECT_EQ(what("thickness", "nan"), prefix + "paint.thickness must be a number (mm), not 'nan'");
  EXPECT_EQ(what("thickness", "0"), prefix + "paint.thickness must be above 0, not 0");
  EXPECT_EQ(what("shelves", "1,10"), prefix + "shop.shelves must be at least 0 and at most 9, not 10");
  EXPECT_EQ(what("shelves", "1,,2"), prefix + "shop.shelves must be integers separated by commas, not '1,,2'");
  EXPECT_EQ(what("shop.name", "two\nlines"),
            prefix + "shop.name must be one line without control characters, not 'two\\x0alines'");
  EXPECT_EQ(what("glossy", "maybe"), prefix + "paint.glossy must be true, false or auto, not 'maybe'");
  EXPECT_EQ(format(f.set("coats", "1").error()),
            "error: " + prefix + "'coats' is the name of several knobs\n  hint: write one of paint.coats, shop.coats");
  EXPECT_EQ(format(f.set("colou", "red").error()),
            "error: " + prefix + "no knob is called 'colou'\n  hint: did you mean 'colour' (paint.colour)?");
  EXPECT_EQ(format(f.set("qqqqqqqq", "red").error()),
            "error: " + prefix + "no knob is called 'qqqqqqqq'\n  hint: `mbbench knobs` lists them all");
  EXPECT_EQ(what("", ""), prefix + "no knob is called ''");
  EXPECT_TRUE(f.sources.empty());
  EXPECT_EQ(table().to_lines(f.house), table().to_lines(House{}));
  EXPECT_EQ(table().from_lines(f.house, f.sources, "wet=true\nhuh\n", {Layer::kSuite, "stored", 0, 0}).error().what,
            "stored:2:1: expected key=value, not 'huh'");
}

TEST(Knob, IdentityCountsOnlyWhatSplitsASeries) {
  Filled f;
  ASSERT_TRUE(f.set("owner", "you"));
  EXPECT_EQ(table().identity_hash(f.house), table().identity_hash(House{}));
  ASSERT_TRUE(f.set("wet", "true"));
  EXPECT_NE(table().identity_hash(f.house), table().identity_hash(House{}));
}

TEST(Knob, ContradictoryRecordsAreBugs) {
  const auto build = [](auto change) {
    auto knobs = house_knobs();
    change(knobs);
    const KnobTable bad(std::move(knobs), House{});
  };
  EXPECT_DEATH(build([](auto& k) { k[1].aliases = {"mm"}; }), "spelling mm belongs to two knobs");
  EXPECT_DEATH(build([](auto& k) { k[3].range = at_least(5); }), "default of paint.coats is outside its range");
  EXPECT_DEATH(build([](auto& k) { k[3].doc = ""; }), "knob paint.coats has no sentence");
  EXPECT_DEATH(build([](auto& k) { k[5].choices = {}; }), "choices go with an enumeration");
  Shop shop;
  KnobSources sources;
  EXPECT_DEATH((void)table().set_text(shop, sources, "wet", "true", {}), "another type of configuration");
}

TEST(Knob, SourcesTellWhereAndNamesAreStable) {
  EXPECT_EQ(describe({}), "default");
  EXPECT_EQ(describe({Layer::kProject, "p/mbbench.toml", 2, 1}), "p/mbbench.toml:2:1");
  EXPECT_EQ(describe({Layer::kCommandLine, "tp=4", 0, 0}), "argument 'tp=4'");
  for (const Layer layer : {Layer::kDefault, Layer::kShipped, Layer::kUser, Layer::kProject, Layer::kEnvironment,
                            Layer::kSuite, Layer::kCommandLine})
    EXPECT_EQ(parse_layer(name(layer)).value(), layer);
  EXPECT_FALSE(parse_layer("moon"));
}

TEST(Knob, RendersOrigins) {
  Filled f;
  ASSERT_TRUE(f.set("owner", "you"));
  ASSERT_TRUE(f.set_value("paint.coats", int64_t{3}));
  const std::string text = render_origins_text(table(), f.house, f.sources);
  EXPECT_EQ(text,
            "owner = you            environment variable MBBENCH_X\n"
            "paint.wet = false      default\n"
            "paint.glossy = auto    default\n"
            "paint.coats = 3        suite: a.toml:3:5\n"
            "paint.thickness = 0.5  default\n"
            "paint.colour = red     default\n"
            "shop.name =            default\n"
            "shop.shelves =         default\n"
            "shop.prices =          default\n"
            "shop.coats = 1         default\n");
}

TEST(Knob, RendersTextMarkdownJson) {
  const KnobTable small({house_knobs()[0], house_knobs()[4], house_knobs()[5]}, House{});
  EXPECT_EQ(render_knobs_text(small),
            "  owner\n      string  (default me)\n      Who lives there.\n"
            "\n[paint]\n"
            "  thickness, mm\n      number (mm), above 0  (default 0.5)\n      Of one coat.\n      needs a brush; a "
            "wall\n"
            "  colour\n      red, deep_blue  (default red)\n      Hue | tone.\n");
  EXPECT_EQ(
      render_knobs_json(small),
      "[\n"
      R"(  {"key": "owner", "aliases": [], "type": "string", "choices": [], "default": "me", "unit": "", "low": null, "low_allowed": true, "high": null, "high_allowed": true, "identity": false, "projected": true, "needs": [], "doc": "Who lives there.", "history": ""},)"
      "\n"
      R"(  {"key": "paint.thickness", "aliases": ["mm"], "type": "number", "choices": [], "default": "0.5", "unit": "mm", "low": 0, "low_allowed": false, "high": null, "high_allowed": true, "identity": true, "projected": false, "needs": ["a brush", "a wall"], "doc": "Of one coat.", "history": "Was 0.4."},)"
      "\n"
      R"(  {"key": "paint.colour", "aliases": [], "type": "choice", "choices": ["red", "deep_blue"], "default": "red", "unit": "", "low": null, "low_allowed": true, "high": null, "high_allowed": true, "identity": true, "projected": true, "needs": [], "doc": "Hue | tone.", "history": ""})"
      "\n]\n");
  const std::string page = render_knobs_markdown(small, "House");
  EXPECT_TRUE(page.starts_with("# House\n\n")) << page;
  EXPECT_NE(page.find("| `owner` | string | `me` | Who lives there. Does not split a series. |\n"), std::string::npos)
      << page;
  EXPECT_NE(page.find(" Was 0.4. Needs a brush; a wall. Not projected. |\n"), std::string::npos) << page;
  EXPECT_NE(page.find("\n## paint\n"), std::string::npos) << page;
  EXPECT_NE(page.find("| `colour` | red, deep_blue | `red` | Hue \\| tone. `deep_blue`: like the sea. |\n"),
            std::string::npos)
      << page;
}

}  // namespace
}  // namespace mbb
