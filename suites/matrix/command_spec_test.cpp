// Commands of cells: reading, templates, quoting, and every way to write one wrongly.
#include "suites/matrix/command_spec.h"

#include <gtest/gtest.h>

#include "suites/matrix/suite.h"

namespace mbb::suites {
namespace {

Result<Suite> expand(const std::string& text) {
  return parse_suite("purpose = \"test\"\n" + text, "dir/s.toml", Settings{}, {}, {});
}

TEST(CommandSpec, ASuiteASweepAndACellMayHaveOne) {
  const auto suite = expand(R"([command]
run = "train --tp {tp}"
log = "torchtitan"
[[cell]]
name = "theirs"
[[cell]]
name = "other"
command = { run = "other", silence_limit_s = 7 }
[sweep.tp]
axes = { tp = [1, 2] }
command = { run = "third {tensor_model_parallel_size}" }
)");
  ASSERT_TRUE(suite) << format(suite.error());
  ASSERT_EQ(suite->cells.size(), 4U);
  EXPECT_EQ(suite->cells[0].command->run, "train --tp {tp}");
  EXPECT_EQ(suite->cells[0].command->log, "torchtitan");
  EXPECT_EQ(suite->cells[0].command->line, 3);
  EXPECT_EQ(suite->cells[1].command->run, "other");
  EXPECT_EQ(suite->cells[1].command->silence_limit_s, 7);
  EXPECT_EQ(suite->cells[1].command->log, "auto");
  EXPECT_EQ(suite->cells[2].command->run, "third {tensor_model_parallel_size}");
}

TEST(CommandSpec, AnotherTrainersModelNeedNotBeOurs) {
  const auto refuses = [](const trainer::Config&) -> Status {
    return fail(ErrorCode::kBadArgument, "no such mapping");
  };
  const std::string text =
      "purpose = \"x\"\nmodel = \"our-own-model\"\n[command]\nrun = \"x\"\n[sweep.a]\naxes = { tp = [1, 2] }\n";
  const auto suite = parse_suite(text, "s.toml", Settings{}, {}, refuses);
  ASSERT_TRUE(suite) << format(suite.error());
  EXPECT_EQ(suite->cells.size(), 2U);
}

TEST(CommandSpec, ErrorsCarryTheirPlace) {
  const auto error = [](const std::string& command) {
    const auto suite = expand("[command]\n" + command + "\n[[cell]]\nname = \"a\"\n");
    return suite ? std::string("none") : suite.error().what + " | " + suite.error().hint;
  };
  EXPECT_EQ(error("run = \"x {gpsu}\"").substr(0, 17), "dir/s.toml:3:7: {");
  EXPECT_NE(error("run = 3").find("must be a string"), std::string::npos);
  EXPECT_NE(error("run = \"x\"\ntime_limit_s = -1").find("dir/s.toml:4"), std::string::npos);
  EXPECT_NE(error("run = \"x\"\nlog = \"megatron\"").find("no log format"), std::string::npos);
}

TEST(CommandSpec, ValuesAreWordsOfTheShell) {
  const auto value = [](std::string_view name) -> Result<std::string> {
    if (name == "layout") return std::string("Et*2|(t*2|)*3,tL");
    if (name == "quoted") return std::string("it's");
    if (name == "empty") return std::string();
    return std::string("4");
  };
  EXPECT_EQ(*expand_template("a {tp} {layout} {empty} {quoted}", value), "a 4 'Et*2|(t*2|)*3,tL' '' 'it'\\''s'");
  EXPECT_EQ(*expand_template("${HOME} {{x}} $HOME {tp}", value), "${HOME} {x} $HOME 4");
  EXPECT_EQ(*expand_template("{layout}/log", value, false), "Et*2|(t*2|)*3,tL/log");
  EXPECT_FALSE(expand_template("{tp", value));
}

}  // namespace
}  // namespace mbb::suites
