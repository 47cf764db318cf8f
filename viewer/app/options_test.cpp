// The command line, the remembered layout, scripts as text, and when frames are due.
#include "viewer/app/options.h"

#include <gtest/gtest.h>

#include "viewer/app/frame_loop.h"
#include "viewer/app/script.h"
#include "viewer/app/view_state.h"
#include "viewer/widgets/keys.h"

namespace mbb::viewer {
namespace {

Result<Options> parse(std::vector<const char*> words) {
  words.insert(words.begin(), "mbbench-view");
  return parse_options(static_cast<int>(words.size()), words.data());
}

TEST(ViewOptions, GoodLine) {
  const auto options =
      parse({"--store", "/x/s.sqlite", "@latest",   "@2",    "--panel",       "run",  "--select",      "cell=tp2",
             "--theme", "light",       "--product", "image", "--environment", "rack", "--environment", "gpu.*",
             "--size",  "800x600",     "--scale",   "2",     "--screenshot",  "a.png"});
  ASSERT_TRUE(options.has_value()) << options.error().what;
  EXPECT_EQ(options->run, "@latest");
  EXPECT_EQ(options->other, "@2");
  EXPECT_EQ(options->width, 800);
  EXPECT_EQ(options->selects.at(0).second, "tp2");
  EXPECT_EQ(options->theme, Theme::kLight);
  EXPECT_EQ(options->source.roles.product, std::vector<std::string>{"image"});
  EXPECT_EQ(options->source.roles.environment, (std::vector<std::string>{"rack", "gpu.*"}));
}

TEST(ViewOptions, EachMistakeNamesItsOption) {
  const std::vector<std::pair<std::vector<const char*>, const char*>> bad = {
      {{"--panel", "rnus"}, "--panel rnus"},   {{"--theme", "blue"}, "--theme blue"},
      {{"--size", "12"}, "--size 12"},         {{"--size", "9999999x5"}, "--size"},
      {{"--scale", "99"}, "--scale"},          {{"--select", "cell"}, "--select cell"},
      {{"a", "b", "c"}, "more than two runs"}, {{"--nonsense"}, "nonsense"}};
  for (const auto& [words, part] : bad) {
    const auto options = parse(words);
    ASSERT_FALSE(options.has_value()) << part;
    EXPECT_EQ(options.error().code, ErrorCode::kBadArgument);
    EXPECT_NE(options.error().what.find(part), std::string::npos) << options.error().what;
  }
}

TEST(ViewState, RoundTripsAndForgivesDamage) {
  ViewState state;
  state.panel = "run";
  state.theme = Theme::kLight;
  state.navigator_open = false;
  state.width = 999;
  const ViewState back = parse_view_state(view_state_text(state));
  EXPECT_EQ(back.panel, "run");
  EXPECT_EQ(back.theme, Theme::kLight);
  EXPECT_FALSE(back.navigator_open);
  EXPECT_EQ(back.width, 999);
  const ViewState damaged = parse_view_state("panel = gone\nwidth = -5\nheight = 99999999\n\xFF\xFE=\n=====\n");
  EXPECT_EQ(damaged.panel, "runs");
  EXPECT_EQ(damaged.width, 1440);
  EXPECT_EQ(damaged.height, 900);
}

TEST(ScriptText, ParsesQuotesAndComments) {
  const auto script = parse_script("# nothing\n\npanel run   # go\ntype \"two words\"\n");
  ASSERT_TRUE(script.has_value());
  ASSERT_EQ(script->size(), 2U);
  EXPECT_EQ(script->at(1).words.at(0), "two words");
  EXPECT_EQ(script->at(1).line, 4);
}

TEST(ScriptText, MistakesNameTheirLine) {
  for (const char* text : {"\nfly away", "\nclick", "\ntype \"open", "\nwait now"}) {
    const auto script = parse_script(text);
    ASSERT_FALSE(script.has_value()) << text;
    EXPECT_NE(script.error().what.find("line 2"), std::string::npos) << script.error().what;
  }
}

TEST(Keys, Chords) {
  EXPECT_EQ(parse_chord("Ctrl+F")->key, kKeyF);
  EXPECT_TRUE(parse_chord("Ctrl+f")->ctrl);
  EXPECT_TRUE(parse_chord("?")->shift);
  EXPECT_EQ(parse_chord("Escape")->key, kKeyEscape);
  EXPECT_FALSE(parse_chord("Hyper+Q").has_value());
}

TEST(Redraw, NoFrameWithoutAChange) {
  RedrawClock clock;
  while (clock.take_frame(false)) {
  }
  const long drawn = clock.drawn();
  for (int i = 0; i < 1000; ++i) EXPECT_FALSE(clock.take_frame(false));
  EXPECT_EQ(clock.drawn(), drawn);
  EXPECT_EQ(clock.wait_s(false, false, 1.0), 1.0);
  EXPECT_LT(clock.wait_s(false, true, 1.0), 0.6) << "a caret blinks";
  clock.note_change();
  EXPECT_EQ(clock.wait_s(false, false, 1.0), 0);
  EXPECT_TRUE(clock.take_frame(false));
  EXPECT_TRUE(clock.take_frame(true)) << "an animation goes on";
}

}  // namespace
}  // namespace mbb::viewer
