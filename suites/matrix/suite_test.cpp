// Suite files: expansion, layers, filters, every refusal with its place, and damaged files.
#include "suites/matrix/suite.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <set>

#include "profiler/base/file.h"
#include "profiler/base/text.h"
#include "suites/matrix/shipped_specs.h"
#include "trainer/run/knobs.h"
#include "trainer/run/layout.h"

namespace mbb::suites {
namespace {

const char* const kSuite = R"(purpose = "test"
model = "llama3-8b"
gpus = 16

[base]
recipe = "bf16"
global_batch_size = 64
train.mbs = 2

[[cell]]
name = "tp4-only"
set = { tp = 4, optimizer.lr = 1e-4 }
published = "someone: 12"

[[cell]]
name = "plain"

[sweep.near]
axes = { tp = [1, 2, 4, 8], pp = [1, 2] }
set = { sp = false }
where = "tp * pp <= 8 and dp > 1"

[[skip]]
when = "tp == 8"
reason = "too narrow"
)";

Result<Suite> expand(const std::string& text, const Settings& settings = {}, const SuiteFilter& filter = {},
                     const Resolves& resolves = {}) {
  return parse_suite(text, "dir/s.toml", settings, filter, resolves);
}

std::string names(const Result<Suite>& suite) {
  if (!suite) return format(suite.error());
  std::vector<std::string> all;
  for (const Cell& cell : suite->cells) all.push_back(cell.name + (cell.skipped ? "(skipped)" : ""));
  return join(all, " ");
}

const Cell& cell(const Suite& suite, std::string_view name) {
  for (const Cell& each : suite.cells)
    if (each.name == name) return each;
  throw std::runtime_error("no such cell");
}

TEST(Suite, ExpandsCellsAndSweepsWithSources) {
  const auto suite = expand(kSuite);
  ASSERT_TRUE(suite) << format(suite.error());
  EXPECT_EQ(names(suite), "tp4-only plain tp1-pp1 tp1-pp2 tp2-pp1 tp2-pp2 tp4-pp1 tp4-pp2 tp8-pp1(skipped)");
  EXPECT_EQ(suite->name, "s");
  EXPECT_EQ(suite->purpose, "test");
  EXPECT_EQ(suite->hash.size(), 32u);
  const Cell& first = cell(*suite, "tp4-only");
  EXPECT_EQ(first.config.model.name, "llama3-8b");
  EXPECT_EQ(first.config.parallel.gpus, 16);
  EXPECT_EQ(first.config.parallel.tensor_model_parallel_size, 4);
  EXPECT_EQ(first.config.train.micro_batch_size, 2);
  EXPECT_EQ(first.config.optimizer.lr, 1e-4);
  EXPECT_EQ(first.published, "someone: 12");
  EXPECT_EQ(describe(first.sources.at("parallel.tensor_model_parallel_size")), "dir/s.toml:12:14");
  EXPECT_EQ(describe(first.sources.at("model.name")), "dir/s.toml:2:9");
  EXPECT_EQ(describe(first.sources.at("train.micro_batch_size")), "dir/s.toml:8:13");
  const Cell& swept = cell(*suite, "tp2-pp2");
  EXPECT_EQ(swept.sweep, "near");
  EXPECT_EQ(swept.config.parallel.pipeline_model_parallel_size, 2);
  EXPECT_EQ(swept.config.parallel.sequence_parallel, false);
  EXPECT_EQ(cell(*suite, "tp8-pp1").skipped->reason, "too narrow");
}

TEST(Suite, CommandLineWinsOverCellsAndSettingsLose) {
  SettingsPlaces places;
  places.environment = {{"MBBENCH_RECIPE", "fp32"}, {"MBBENCH_SEED", "7"}};
  const auto settings = read_settings(places, {{"tp", "2", "tp=2"}, {"runs_dir", "x", "runs_dir=x"}});
  ASSERT_TRUE(settings);
  const auto suite = expand(kSuite, *settings);
  ASSERT_TRUE(suite) << format(suite.error());
  const Cell& first = cell(*suite, "tp4-only");
  EXPECT_EQ(first.config.parallel.tensor_model_parallel_size, 2);
  EXPECT_EQ(describe(first.sources.at("parallel.tensor_model_parallel_size")), "argument 'tp=2'");
  EXPECT_EQ(first.config.precision.recipe, trainer::Recipe::kBf16);
  EXPECT_EQ(first.config.train.seed, 7);
  // All axis values of tp are 2 now: one combination of each pp stays, the others are named as the same.
  EXPECT_EQ(names(suite), "tp4-only plain tp1-pp1 tp1-pp2");
  ASSERT_EQ(suite->dropped.size(), 6u);
  EXPECT_EQ(suite->dropped[0].name, "tp2-pp1");
  EXPECT_EQ(suite->dropped[0].reason, "is the same configuration as cell 'tp1-pp1'");
}

TEST(Suite, CombinationsThatDoNotResolveAreDroppedWithTheReason) {
  const Resolves even = [](const trainer::Config& config) -> Status {
    if (config.parallel.tensor_model_parallel_size == 2) return fail(ErrorCode::kBadArgument, "two is not enough");
    return {};
  };
  const auto suite = expand(kSuite, {}, {}, even);
  EXPECT_EQ(names(suite), "tp4-only plain tp1-pp1 tp1-pp2 tp4-pp1 tp4-pp2 tp8-pp1(skipped)");
  EXPECT_EQ(suite->dropped.at(1).name, "tp2-pp2");
  EXPECT_EQ(suite->dropped.at(1).reason, "two is not enough");
}

TEST(Suite, FiltersByPatternAndOnlyOverridesSkip) {
  EXPECT_EQ(names(expand(kSuite, {}, {{"tp8"}, {}})), "tp8-pp1");
  EXPECT_EQ(names(expand(kSuite, {}, {{"*-pp2"}, {"tp4*"}})), "tp1-pp2 tp2-pp2");
  EXPECT_EQ(names(expand(kSuite, {}, {{"tp2-pp1"}, {}})), "tp2-pp1");
  EXPECT_EQ(names(expand(kSuite, {}, {{}, {"pp"}})), "tp4-only plain");
  EXPECT_EQ(names(expand(kSuite, {}, {{"tp9"}, {}})),
            "error: suite s: no cell matches --only 'tp9'\n"
            "  hint: its cells: tp4-only, plain, tp1-pp1, tp1-pp2, tp2-pp1, tp2-pp2, tp4-pp1, tp4-pp2, tp8-pp1");
  EXPECT_EQ(names(expand(kSuite, {}, {{"plain"}, {"plain"}})), "error: suite s: --only and --skip leave no cell");
}

TEST(Suite, AxisValuesNameTheirCells) {
  EXPECT_EQ(names(expand("purpose='p'\n[sweep.s]\naxes = { parallel.sp = [true, false, 'auto'], recipe = ['bf16'], "
                         "lr = [0.5, 1] }\n")),
            "sp-bf16-lr0.5 sp-bf16-lr1 no-sp-bf16-lr0.5 no-sp-bf16-lr1 sp-auto-bf16-lr0.5 sp-auto-bf16-lr1");
}

struct Refusal {
  const char* text;
  const char* message;
};

TEST(Suite, RefusalsNameThePlaceRuleAndRemedy) {
  const Refusal refusals[] = {
      {"", "error: dir/s.toml:1:1: 'purpose' is missing\n  hint: add purpose = \"...\""},
      {"purpose = 3", "error: dir/s.toml:1:11: 'purpose' must be a string, not an integer"},
      {"purpose = ' '", "error: dir/s.toml:1:11: 'purpose' is empty"},
      {"purpose = 'p'",
       "error: dir/s.toml: the suite has no cell\n  hint: add a [[cell]] with a name, or a [sweep.NAME] with axes"},
      {"purpos = 'p'", "error: dir/s.toml:1:1: a suite has no key 'purpos'\n  hint: did you mean 'purpose'?"},
      {"purpose = 'p'\ntp = 4",
       "error: dir/s.toml:2:1: a suite has no key 'tp'\n  hint: knobs of every cell go into [base]"},
      {"purpose = 'p'\nwhat = 4",
       "error: dir/s.toml:2:1: a suite has no key 'what'\n  hint: a suite has purpose, based_on, hardware, model, "
       "gpus, "
       "basis, base, cell, sweep, cover, skip, claim, command"},
      {"purpose = 'p'\n[base]\ntp = 0\n[[cell]]\nname = 'a'",
       "error: dir/s.toml:3:6: parallel.tensor_model_parallel_size must be at least 1 and at most 65536, not 0\n"
       "  hint: GPUs that share each layer's weights; divides the heads and the MLP width."},
      {"purpose = 'p'\n[base]\nruns_dir = 'x'\n[[cell]]\nname = 'a'",
       "error: dir/s.toml:3:1: 'runs_dir' is a setting of the product, not a knob of a run\n  hint: set it in "
       "mbbench.toml or on the command line"},
      {"purpose = 'p'\nmodel = 'a'\n[base]\nmodel.name = 'b'\n",
       "error: dir/s.toml:4:7: model.name is set twice, here as 'model.name' and at 2:1 as 'model'\n  hint: keep one "
       "of them"},
      {"purpose = 'p'\n[base]\nmicro_batch_sizes = 1",
       "error: dir/s.toml:3:1: no knob is called 'micro_batch_sizes'\n  hint: did you mean 'micro_batch_size' "
       "(train.micro_batch_size)?"},
      {"purpose = 'p'\n[cell]\nname = 'a'",
       "error: dir/s.toml:2:1: 'cell' (written [[cell]]) must be a list, not a table"},
      {"purpose = 'p'\n[[cell]]\nset = {}", "error: dir/s.toml:2:1: 'name' is missing\n  hint: add name = \"...\""},
      {"purpose = 'p'\n[[cell]]\nname = 'a b'",
       "error: dir/s.toml:3:8: 'a b' cannot name a cell\n  hint: letters, digits and . _ + - , at most 100, not "
       "beginning with a dot"},
      {"purpose = 'p'\n[[cell]]\nname = 'a'\n[[cell]]\nname = 'a'",
       "error: dir/s.toml:5:8: here is a cell 'a', a name taken at 3:8\n  hint: rename one of them"},
      {"purpose = 'p'\n[[cell]]\nname = 'a'\nsets = {}",
       "error: dir/s.toml:4:1: [[cell]] has no key 'sets'\n  hint: did you mean 'set'?"},
      {"purpose = 'p'\n[[cell]]\nname = 'a'\nset = 1", "error: dir/s.toml:4:7: 'set' must be a table, not an integer"},
      {"purpose = 'p'\n[sweep.x]", "error: dir/s.toml:2:1: sweep 'x' has no axes\n  hint: add axes = { tp = [1, 2] }"},
      {"purpose = 'p'\n[sweep.x]\naxes = { tp = 2 }",
       "error: dir/s.toml:3:15: axis 'tp' must be a list, not an integer"},
      {"purpose = 'p'\n[sweep.x]\naxes = { tp = [] }", "error: dir/s.toml:3:15: axis 'tp' has no values"},
      {"purpose = 'p'\n[sweep.x]\naxes = { tp = [1, 'two'] }",
       "error: dir/s.toml:3:19: parallel.tensor_model_parallel_size must be an integer, not the string \"two\""},
      {"purpose = 'p'\n[sweep.x]\naxes = { tp = [2] }\nwhere = 'tp > 4'",
       "error: dir/s.toml: the suite has no cell\n  hint: add a [[cell]] with a name, or a [sweep.NAME] with axes"},
      {"purpose = 'p'\n[sweep.x]\naxes = { tp = [2] }\nwhere = 'tp >> 4'",
       "error: dir/s.toml:4:14: in 'where': expected a value, not '>'"},
      {"purpose = 'p'\n[sweep.x]\naxes = { tp = [2] }\nwhere = 'tpp > 4'",
       "error: dir/s.toml:4:10: in 'where': no knob is called 'tpp'\n  hint: did you mean 'pp' "
       "(parallel.pipeline_model_parallel_size)?"},
      {"purpose = 'p'\n[sweep.x]\naxes = { tp = [2] }\nwhere = 'recipe > 4'",
       "error: dir/s.toml:4:17: in 'where', for cell 'tp2': expected two numbers, not text and a number"},
      {"purpose = 'p'\n[[cell]]\nname = 'tp2'\n[sweep.x]\naxes = { tp = [2] }",
       "error: dir/s.toml:4:1: sweep 'x' makes a cell 'tp2', a name taken at 3:8\n  hint: rename that cell, or exclude "
       "the combination with where"},
      {"purpose = 'p'\n[[skip]]\nwhen = 'true'",
       "error: dir/s.toml:2:1: 'reason' is missing\n  hint: add reason = \"...\""},
      {"purpose = 'p'\n[[skip]]\nreason = 'true'",
       "error: dir/s.toml:2:1: 'when' is missing\n  hint: add when = \"...\""},
      {"purpose = 'p'\npurpose = 'q'", "error: dir/s.toml:2:11: not TOML:"},
  };
  for (const Refusal& refusal : refusals) {
    const std::string got = names(expand(refusal.text));
    // The TOML reader's own words may change with its version; the place and our beginning may not.
    const std::string wanted = refusal.message;
    EXPECT_EQ(wanted.ends_with("not TOML:") ? got.substr(0, wanted.size()) : got, wanted) << refusal.text;
  }
}

TEST(Suite, TooManyCellsAreRefusedBeforeTheyAreMade) {
  std::string values = "1";
  for (int i = 2; i <= 100; ++i) values += fmt::format(", {}", i);
  const std::string text =
      fmt::format("purpose = 'p'\n[sweep.x]\naxes = {{ tp = [{0}], pp = [{0}], mbs = [{0}] }}\n", values);
  const std::string got = names(expand(text));
  EXPECT_NE(
      got.find("10000 cells are more than the 4096 a suite may have\n  hint: narrow the axes, or split the suite"),
      std::string::npos)
      << got;
}

TEST(Suite, QuickstartHasItsFiveCells) {
  const auto suite = open_suite("quickstart", {}, {}, {});
  ASSERT_TRUE(suite) << format(suite.error());
  EXPECT_EQ(names(suite), "one-rank tp2-sp pp2 dp2 tp2-pp2-dp2");
  for (const Cell& each : suite->cells) {
    const auto& config = each.config;
    EXPECT_EQ(config.train.global_batch_size, 8);
    EXPECT_EQ(config.train.micro_batch_size, 2);
    EXPECT_EQ(config.train.seq_length, 64);
    EXPECT_EQ(config.precision.recipe, trainer::Recipe::kFp32);
    EXPECT_EQ(config.model.name, "quickstart-llama");
  }
  const auto& last = cell(*suite, "tp2-pp2-dp2").config.parallel;
  EXPECT_EQ(last.gpus, 8);
  EXPECT_TRUE(last.sequence_parallel_on());
}

TEST(Suite, EveryShippedSuiteIsCurrentAndExpands) {
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(MBB_SOURCE_DIR "/suites/specs"))
    files += entry.path().extension() == ".toml" ? 1 : 0;
  EXPECT_EQ(shipped_specs().size(), files);
  for (const ShippedSpec& spec : shipped_specs()) {
    EXPECT_EQ(read_file(fmt::format("{}/suites/specs/{}.toml", MBB_SOURCE_DIR, spec.name)).value(), spec.bytes);
    const auto suite = open_suite(std::string(spec.name), {}, {}, {});
    EXPECT_TRUE(suite) << (suite ? "" : format(suite.error()));
  }
}

const char* const kCover = R"X(purpose = "test"
[base]
train_iters = 2
[cover.all]
total = 12
reference = { mapping = "one" }
where = "not (tp == 2 and recipe == 'bf16')"
set = { sp = false }
[cover.all.axes]
family.small = { num_layers = 2 }
family.large = { num_layers = 4 }
mapping = { one = {}, tp2 = { tp = 2 }, tp4 = { tp = 4 } }
recipe = { fp32 = {}, bf16 = { recipe = "bf16" } }
)X";

TEST(Suite, ACoverMeetsEveryPairAndKeepsItsReferences) {
  const auto suite = expand(kCover);
  ASSERT_TRUE(suite.has_value()) << suite.error().what;
  std::set<std::string> names;
  for (const Cell& cell : suite->cells) names.insert(cell.name);
  // Four references, and all of the six others that are allowed: 12 of them are asked for.
  EXPECT_EQ(names, (std::set<std::string>{"small-one-fp32", "small-one-bf16", "large-one-fp32", "large-one-bf16",
                                          "small-tp2-fp32", "large-tp2-fp32", "small-tp4-fp32", "large-tp4-fp32",
                                          "small-tp4-bf16", "large-tp4-bf16"}));
  ASSERT_EQ(suite->dropped.size(), 1U);
  EXPECT_EQ(suite->dropped[0].name, "tp2 with bf16");
  EXPECT_EQ(suite->cells.back().sweep, "all");
  SuiteFilter few;
  few.total = 0;
  const auto covering = expand(kCover, {}, few);
  ASSERT_TRUE(covering.has_value());
  EXPECT_LT(covering->cells.size(), suite->cells.size());
}

TEST(Suite, ReferencesOfACoverAreTrainedFromOtherSeedsToo) {
  std::string text = kCover;
  text.replace(text.find("where"), 0, "reference_seeds = [2, 3]\n");
  const auto suite = expand(text);
  ASSERT_TRUE(suite.has_value()) << suite.error().what;
  std::map<std::string, int64_t> seeds;
  for (const Cell& cell : suite->cells) seeds[cell.name] = cell.config.train.seed;
  EXPECT_EQ(seeds.size(), 10U + 4 * 2);
  EXPECT_EQ(seeds.at("large-one-bf16"), 1234);
  EXPECT_EQ(seeds.at("large-one-bf16-seed2"), 2);
  EXPECT_EQ(seeds.at("small-one-fp32-seed3"), 3);
  // A seed of the command line is every cell's.
  Settings typed;
  typed.command_line.push_back({"seed", "7"});
  const auto alike = expand(text, typed);
  ASSERT_TRUE(alike.has_value()) << alike.error().what;
  EXPECT_EQ(alike->cells.size(), 10U);
}

TEST(Suite, TwoCoversDoNotGiveTwoCellsOneName) {
  const char* const axes = "total = 2\naxes.m.one = {}\naxes.m.two = { gpus = 2 }\naxes.r.f = {}\n";
  const auto suite = expand(fmt::format("purpose = 'p'\n[cover.x]\n{}[cover.y]\nset = {{ seed = 5 }}\n{}", axes, axes));
  ASSERT_FALSE(suite.has_value());
  EXPECT_EQ(
      format(suite.error()),
      "error: dir/s.toml:7:1: cover 'y' makes a cell 'one-f', a name taken at 2:1\n  hint: call a value of one of "
      "its axes otherwise");
}

TEST(Suite, RefusalsOfCoversNameThePlace) {
  const auto refused = [](std::string from, std::string to) {
    std::string text = kCover;
    text.replace(text.find(from), from.size(), to);
    const auto suite = expand(text);
    return suite ? std::string("accepted") : suite.error().what;
  };
  EXPECT_NE(refused("\"one\" }", "\"two\" }").find("no axis 'mapping' has a value 'two'"), std::string::npos);
  EXPECT_NE(refused("total = 12", "total = -1").find("s.toml:5:9: 'total' is negative"), std::string::npos);
  EXPECT_NE(refused("tp2 = { tp = 2 }", "tp2 = 2").find("'mapping.tp2' must be a table"), std::string::npos);
  EXPECT_NE(refused("tp2 = { tp = 2 }", "tp2 = { tq = 2 }").find("tq"), std::string::npos);
  EXPECT_NE(refused("total", "totals").find("has no key 'totals'"), std::string::npos);
  EXPECT_NE(refused("where", "reference_seeds = 2\nwhere").find("'reference_seeds' must be"), std::string::npos);
  EXPECT_NE(refused("where", "reference_seeds = [\"a\"]\nwhere").find("each of 'reference_seeds' must be"),
            std::string::npos);
  EXPECT_NE(refused("reference = { mapping = \"one\" }", "reference_seeds = [2]").find("without 'reference'"),
            std::string::npos);
}

const char* const kBased = R"(purpose = "test"
based_on = ["own", "h100"]
hardware = "h200-sxm"
[base]
micro_batch_size = 3
[basis.own]
micro_batch_size = 2
global_batch_size = 12
[[cell]]
name = "a"
)";

TEST(Suite, BasisTablesStandBeforeTheBaseAndTravelWithTheText) {
  const auto suite = expand(kBased);
  ASSERT_TRUE(suite) << format(suite.error());
  const trainer::Config& config = suite->cells[0].config;
  EXPECT_EQ(config.train.micro_batch_size, 3) << "[base] wins";
  EXPECT_EQ(config.train.global_batch_size, 12);
  EXPECT_EQ(config.host.device, trainer::Device::kCuda) << "of the shipped table";
  EXPECT_EQ(suite->hardware, "h200-sxm");
  EXPECT_EQ(describe(suite->cells[0].sources.at("train.global_batch_size")), "dir/s.toml:8:21");
  EXPECT_EQ(describe(suite->cells[0].sources.at("host.device")).rfind("shipped/basis/h100.toml:", 0), 0U);
  // What a bundle keeps needs no other file.
  EXPECT_NE(suite->text.find("[basis.h100]"), std::string::npos);
  const auto again = expand(suite->text);
  ASSERT_TRUE(again) << format(again.error());
  EXPECT_EQ(again->text, suite->text);
  EXPECT_EQ(trainer::knobs().to_lines(again->cells[0].config), trainer::knobs().to_lines(config));
}

TEST(Suite, RefusalsOfBasisAndHardwareNameThePlace) {
  const auto refused = [](const std::string& from, const std::string& to) {
    std::string text = kBased;
    text.replace(text.find(from), from.size(), to);
    const auto suite = expand(text);
    return suite ? std::string("accepted") : format(suite.error());
  };
  EXPECT_EQ(refused("\"h100\"", "\"h10\""),
            "error: dir/s.toml:2:20: no basis is called 'h10'\n  hint: did you mean 'h100'?");
  EXPECT_EQ(refused("[\"own\", \"h100\"]", "\"own\""),
            "error: dir/s.toml:2:12: 'based_on' must be a list, not a string");
  EXPECT_NE(refused("h200-sxm", "h20-sxm").find("dir/s.toml:3:12: no hardware is named"), std::string::npos);
  EXPECT_NE(refused("micro_batch_size = 2", "micro_batch_sizes = 2").find("dir/s.toml:7:1: no knob is called"),
            std::string::npos);
  EXPECT_NE(refused("\"own\", \"h100\"", "\"../h100\"").find("no basis is called '../h100'"), std::string::npos);
}

TEST(Suite, ASweepIsHeldToTheCellsItYields) {
  const std::string text = "purpose='p'\n[sweep.s]\naxes = { tp = [1, 2, 4] }\nyields = 3\n";
  EXPECT_EQ(names(expand(text)), "tp1 tp2 tp4");
  const Resolves no_two = [](const trainer::Config& config) -> Status {
    if (config.parallel.tensor_model_parallel_size == 2) return fail(ErrorCode::kBadArgument, "two is not enough");
    return {};
  };
  EXPECT_EQ(names(expand(text, {}, {}, no_two)),
            "error: dir/s.toml:4:10: sweep 's' makes 2 cells, not the 3 it yields\n  hint: no cell: tp2 (two is not "
            "enough)");
  // Knobs of a command line change what the combinations are.
  const auto settings = read_settings({}, {{"tp", "2", "tp=2"}});
  ASSERT_TRUE(settings);
  EXPECT_EQ(names(expand(text, *settings)), "tp1");
}

TEST(Suite, MoreCellsThanTheUserAllowsAreRefused) {
  SuiteFilter few;
  few.max_cells = 8;
  EXPECT_EQ(
      names(expand(kSuite, {}, few)),
      "error: suite s: 9 cells are more than --max-cells 8\n  hint: raise it, or narrow the suite with --only and "
      "--skip");
  few.skip = {"tp8"};
  EXPECT_TRUE(expand(kSuite, {}, few));
}

TEST(Suite, MappingsCpuHoldsTwoHundredCombinationsThatResolve) {
  const auto resolves = [](const trainer::Config& config) -> Status {
    const auto layout = trainer::resolve(config);
    return layout ? Status{} : tl::unexpected<Error>(layout.error());
  };
  const auto suite = open_suite("mappings-cpu", {}, {}, resolves);
  ASSERT_TRUE(suite.has_value()) << suite.error().what;
  EXPECT_GE(suite->cells.size(), 200U);
  for (const Cell& cell : suite->cells) EXPECT_TRUE(resolves(cell.config).has_value()) << cell.name;
  // Each value of each axis is in some cell: none was lost to a rule.
  for (const char* part :
       {"deepseek-", "gpt_oss-",       "-tp4-",     "-cp4_a2a_p2p-", "-cp2_list-",    "-tp2_cp2_dp-", "-pp2-",
        "-flat2-",   "-bf16-",         "-tp_ring",  "-tp_split",     "-fp8_current-", "-fsdp-",       "-hsdp-",
        "-ep4-",     "-tp2_ep4_etp1-", "-encoder-", "-vpp2_groups-", "-full-",        "-offloaded-",  "-experts_wgrad"})
    EXPECT_TRUE(std::any_of(suite->cells.begin(), suite->cells.end(), [&](const Cell& cell) {
      return cell.name.find(part) != std::string::npos;
    })) << part;
}

TEST(Suite, OwnSuitesComeFirstAndTyposAreNamed) {
  std::string pattern = testing::TempDir() + "mbb_suites_XXXXXX";
  const std::string folder = ::mkdtemp(pattern.data());
  ASSERT_TRUE(write_file(folder + "/quickstart.toml",
                         "purpose = 'mine'\n[[cell]]\nname = 'a'\nset = { data.path = 'x.txt' }\n"));
  Settings settings;
  settings.product.suites_dir = folder;
  const auto own = open_suite("quickstart", settings, {}, {});
  ASSERT_TRUE(own) << format(own.error());
  EXPECT_EQ(own->purpose, "mine");
  EXPECT_EQ(own->cells[0].config.data.path, folder + "/x.txt");
  EXPECT_EQ(list_suites(settings).value().size(), shipped_specs().size());
  EXPECT_EQ(open_suite(folder + "/quickstart.toml", {}, {}, {})->purpose, "mine");
  EXPECT_EQ(names(open_suite("quikstart", {}, {}, {})),
            "error: no suite is called 'quikstart'\n  hint: did you mean 'quickstart'?");
  EXPECT_EQ(names(open_suite("none.toml", {}, {}, {})),
            "error: reading none.toml: No such file or directory\n  hint: check the path");
  std::filesystem::remove_all(folder);
  settings.product_sources["suites_dir"] = {Layer::kCommandLine, "suites_dir=x", 0, 0};
  EXPECT_EQ(open_suite("quickstart", settings, {}, {}).error().what,
            "argument 'suites_dir=x': listing suites in " + folder + ": No such file or directory");
}

TEST(Suite, DamagedFilesEndInCellsOrAnErrorThatNamesTheFile) {
  std::mt19937 random(17);
  const std::string original = kSuite;
  size_t accepted = 0;
  for (int i = 0; i < 4000; ++i) {
    std::string text = original;
    for (size_t edits = 1 + random() % 4; edits > 0; --edits) {
      if (text.empty()) break;
      const size_t at = random() % text.size();
      switch (random() % 5) {
        case 0: text[at] = static_cast<char>(random()); break;
        case 1: text.erase(at, random() % 12); break;
        case 2: text.insert(at, text.substr(at / 2, random() % 40)); break;
        case 3: text.insert(at, 1, "[]{}=\"'.,#\n"[random() % 11]); break;
        default: text.resize(at + 1); break;
      }
    }
    const auto suite = expand(text);
    if (suite) {
      ++accepted;
    } else {
      EXPECT_EQ(suite.error().what.rfind("dir/s.toml", 0), 0u) << suite.error().what << "\n" << text;
    }
  }
  EXPECT_GT(accepted, 50u);
  EXPECT_FALSE(expand(std::string(200000, '[')));
  EXPECT_FALSE(expand("a = " + std::string(100000, '[')));
  EXPECT_FALSE(expand("a" + std::string(50000, '.') + " = 1"));
}

}  // namespace
}  // namespace mbb::suites
