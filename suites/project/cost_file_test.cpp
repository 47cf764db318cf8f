// Cost tables: the shipped ones are whole, damaged ones are named by place.
#include "suites/project/cost_file.h"

#include <gtest/gtest.h>

#include "baselines/kernels/cost_files.h"
#include "profiler/base/text.h"
#include "suites/project/projector.h"

namespace mbb::suites {
namespace {

std::string shipped() {
  EXPECT_FALSE(baselines::cost_files().empty());
  return std::string(*baselines::cost_files()[0].text);
}

TEST(CostFile, EveryShippedTableIsWhole) {
  for (const baselines::CostFile& file : baselines::cost_files()) {
    const auto table = parse_costs(std::string(*file.text), std::string(file.path));
    ASSERT_TRUE(table.has_value()) << table.error().what;
    EXPECT_EQ(table->hardware, file.hardware);
    EXPECT_TRUE(table->measured);
    const auto hardware = trainer::find_hardware(table->hardware);
    ASSERT_TRUE(hardware.has_value());
    // Nothing is faster than the card.
    EXPECT_LT(table->copy_gb_s * 1e9, hardware->memory_bytes_per_s);
    for (const auto& form : table->bf16)
      for (const trainer::GemmPoint& p : form) EXPECT_LT(p.tflops, hardware->bf16_tflops);
    for (const auto& form : table->fp8)
      for (const trainer::GemmPoint& p : form) EXPECT_LT(p.tflops, hardware->fp8_tflops);
    for (const trainer::TermFacts& term : table->terms) {
      EXPECT_FALSE(term.source.empty());
      EXPECT_GT(term.sigma, 0);
    }
  }
}

TEST(CostFile, NamesWhatIsWrongAndWhere) {
  const auto error = [](std::string_view from, std::string_view to) {
    const auto table = parse_costs(replace_all(shipped(), from, to), "costs.toml");
    return table ? std::string("read") : table.error().what;
  };
  EXPECT_EQ(error("nothing", "nothing"), "read");
  EXPECT_NE(error("copy_gb_s = 3020", "copy_gbs = 3020").find("[kernel] lacks 'copy_gb_s'"), std::string::npos);
  EXPECT_NE(error("sms = 132", "sms = 132\nsmz = 1").find("[kernel] has no 'smz'"), std::string::npos);
  EXPECT_NE(error("copy_gb_s = 3020", "copy_gb_s = -1").find("'copy_gb_s' = -1 must be at least 1"), std::string::npos);
  EXPECT_NE(error("copy_gb_s = 3020", "copy_gb_s = \"fast\"").find("must be a number, not a string"),
            std::string::npos);
  EXPECT_NE(error("all_gather = [272, 365, 15]", "all_gather = [272]").find("'all_gather' has rows of 3 numbers"),
            std::string::npos);
  EXPECT_NE(error("reduce_scatter = 1\n", "").find("[beside] lacks 'reduce_scatter'"), std::string::npos);
  EXPECT_NE(error("reduce_scatter = 1\n", "reduce_scatter = 0.9\n").find("'reduce_scatter' = 0.9 must be at least 1"),
            std::string::npos);
  EXPECT_TRUE(error("copy_gb_s = 3020", "copy_gb_s = -1").starts_with("costs.toml:"));
}

TEST(CostFile, CardsWithoutMeasurementsAreScaledCeilings) {
  const auto h100 = find_costs("h100-sxm");
  const auto b200 = find_costs("b200");
  const auto a100 = find_costs("a100-sxm");
  ASSERT_TRUE(h100 && b200 && a100);
  EXPECT_FALSE(b200->measured);
  EXPECT_NEAR(b200->bf16[0][0].tflops / h100->bf16[0][0].tflops, 2250 / 989.4, 1e-6);
  EXPECT_EQ(b200->published.rows, 0);
  EXPECT_GE(b200->term(trainer::CostTerm::kGemm).sigma, 0.2);
  EXPECT_TRUE(a100->fp8[0].empty());
  const auto none = find_costs("h100sxm");
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().code, ErrorCode::kNotFound);
  EXPECT_NE(none.error().hint.find("h100-sxm"), std::string::npos);
}

}  // namespace
}  // namespace mbb::suites
