// Every shipped suite: each cell resolves, its program builds, its memory is predicted, it has a twin that fits 64
// ranks; what is skipped is skipped by name; sweeps say what they yield; claims compare cells that differ.
#include <gtest/gtest.h>

#include <set>

#include "suites/matrix/shipped_specs.h"
#include "suites/matrix/suite.h"
#include "suites/matrix/toml_file.h"
#include "suites/runner/twin.h"
#include "trainer/models/hardware.h"
#include "trainer/run/knobs.h"
#include "trainer/run/layout.h"
#include "trainer/run/step_programs.h"

namespace mbb::suites {
namespace {

Status resolves(const trainer::Config& config) {
  const auto layout = trainer::resolve(config);
  return layout ? Status{} : tl::unexpected<Error>(layout.error());
}

class ShippedSpecs : public testing::TestWithParam<std::string> {};

// The structure of a program, without what only its data-parallel size changes: those of one structure are built once.
std::string structure(const Cell& cell) {
  trainer::Config c = cell.config;
  c.parallel.gpus = 0;
  c.train.global_batch_size = 0;
  return trainer::knobs().to_lines(c);
}

TEST_P(ShippedSpecs, EveryCellIsACellThatCanRun) {
  const auto suite = open_suite(GetParam(), {}, {}, resolves);
  ASSERT_TRUE(suite) << format(suite.error());
  EXPECT_GE(suite->purpose.size(), 30U);
  EXPECT_TRUE(suite->purpose.ends_with(".")) << suite->purpose;
  std::set<std::string> built;
  for (const Cell& cell : suite->cells) {
    SCOPED_TRACE(GetParam() + " " + cell.name);
    if (GetParam() == "not-modelled") {
      ASSERT_TRUE(cell.skipped);
      continue;
    }
    const auto layout = trainer::resolve(cell.config);
    ASSERT_TRUE(layout) << format(layout.error());
    if (cell.config.host.device != trainer::Device::kCuda || !built.insert(structure(cell)).second) continue;
    const auto programs = trainer::build_programs(*layout);
    ASSERT_TRUE(programs) << format(programs.error());
    // Cells that measure are of a size that tells something; those of an equality matrix are small.
    const bool small = GetParam().starts_with("mappings-");
    for (const trainer::MemoryPlan& plan : programs->plans) EXPECT_GT(plan.arena_bytes, small ? 0 : int64_t{1} << 30);
    const auto twin = twin_of(cell.config);
    ASSERT_TRUE(twin) << format(twin.error());
    EXPECT_LE(twin->ranks, kTwinRanks);
  }
}

TEST_P(ShippedSpecs, SweepsSayWhatTheyYield) {
  const auto suite = open_suite(GetParam(), {}, {}, {});
  ASSERT_TRUE(suite) << format(suite.error());
  const auto file = parse_toml(suite->text, GetParam());
  ASSERT_TRUE(file);
  const TomlNode* sweeps = file->root.find("sweep");
  if (sweeps == nullptr) return;
  for (const TomlNode& sweep : sweeps->items) EXPECT_NE(sweep.find("yields"), nullptr) << sweep.key;
}

TEST_P(ShippedSpecs, ClaimsCompareCellsThatDiffer) {
  const auto suite = open_suite(GetParam(), {}, {}, {});
  ASSERT_TRUE(suite) << format(suite.error());
  const auto lines = [&](const std::string& name) {
    for (const Cell& cell : suite->cells)
      if (cell.name == name) return trainer::knobs().to_lines(cell.config);
    return std::string();
  };
  for (const Claim& claim : suite->claims) EXPECT_NE(lines(claim.a), lines(claim.b)) << claim.name;
}

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const ShippedSpec& spec : shipped_specs()) all.emplace_back(spec.name);
  return all;
}
std::string test_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  for (char& c : name)
    if (c == '-' || c == '.') c = '_';
  return name;
}
INSTANTIATE_TEST_SUITE_P(Specs, ShippedSpecs, testing::ValuesIn(names()), test_name);

TEST(ShippedSpecs, HoldEverySuiteThatIsPromised) {
  std::set<std::string> all;
  for (const std::string& name : names()) all.insert(name);
  for (const char* name : {"quickstart",
                           "mappings-cpu",
                           "llama3-70b-fp8",
                           "llama3-70b-bf16",
                           "llama3-8b-bf16",
                           "llama3-8b-fp8",
                           "llama3.1-405b-fp8",
                           "gpt3-175b-bf16",
                           "mixtral-8x7b-bf16",
                           "mixtral-8x22b-bf16",
                           "deepseek-v3-bf16",
                           "precision",
                           "mappings",
                           "overlap",
                           "vboost",
                           "packing",
                           "memory",
                           "long-sequence",
                           "scaling-weak",
                           "scaling-strong",
                           "host-overhead",
                           "guide-claims",
                           "not-modelled"})
    EXPECT_TRUE(all.contains(name)) << name;
}

// Models of the table without a suite would be forgotten ones.
TEST(ShippedSpecs, MostModelsHaveASuite) {
  std::set<std::string> used;
  for (const ShippedSpec& spec : shipped_specs()) {
    const auto suite = open_suite(std::string(spec.name), {}, {}, {});
    ASSERT_TRUE(suite) << format(suite.error());
    for (const Cell& cell : suite->cells) used.insert(cell.config.model.name);
  }
  for (const char* name :
       {"gpt3-175b",      "gpt3-20b",        "gpt3-5b",       "gpt-462b",    "mt-nlg-530b",   "llama2-7b",
        "llama2-13b",     "llama2-70b",      "llama3-8b",     "llama3-70b",  "llama3.1-405b", "nemotron4-15b",
        "nemotron4-340b", "mixtral-8x7b",    "mixtral-8x22b", "deepseek-v3", "t5-11b",        "qwen2.5-7b",
        "qwen3-30b-a3b",  "qwen3-235b-a22b", "gpt-oss-20b",   "gpt-oss-120b"})
    EXPECT_TRUE(used.contains(name)) << name;
}

}  // namespace
}  // namespace mbb::suites
