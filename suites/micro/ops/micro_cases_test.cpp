// The list's configurations build, and together hold every op kind that one rank can run on a GPU.
#include "suites/micro/ops/micro_cases.h"

#include <gtest/gtest.h>

#include <set>

#include "suites/micro/ops/op_rows.h"
#include "trainer/ops/op_kind.h"
#include "trainer/ops/table.h"

namespace mbb::suites {
namespace {

// What only programs over several ranks, packs or a planted fault hold.
const std::set<std::string> kElsewhere{"gemm_rows",
                                       "gemm_scaled_rows",
                                       "amax",
                                       "pack_fp8",
                                       "unpack_fp8",
                                       "segment_counts",
                                       "receive_plan",
                                       "quantize_tokens",
                                       "split_columns",
                                       "join_columns",
                                       "columns_to_rows",
                                       "rows_to_columns",
                                       "reorder_runs",
                                       "dequantize_tokens",
                                       "add_parts",
                                       "merge_attention",
                                       "scalar_sum",
                                       "group_identity",
                                       "fill_zero",
                                       "delay",
                                       "kept_experts",
                                       "merge_pieces"};

TEST(MicroCases, HoldEveryOpKindOfOneRank) {
  std::set<std::string> seen;
  for (const MicroCase& c : micro_cases()) {
    const auto built = build_case(c.settings);
    ASSERT_TRUE(built.has_value()) << c.name << ": " << format(built.error());
    ASSERT_FALSE(built->rows.empty());
    for (const OpRow& row : built->rows) {
      seen.insert(row.kind);
      EXPECT_GT(row.bytes, 0) << c.name << " " << row.name;
    }
  }
  std::set<std::string> missing;
  for (const trainer::OpKind* kind : trainer::op_table())
    if (!kind->cuda.empty() && !kind->communicates && !seen.contains(std::string(kind->name)))
      missing.insert(std::string(kind->name));
  EXPECT_EQ(missing, kElsewhere);
}

TEST(MicroCases, InputsOfATensorwiseScaleAreReadTwice) {
  const auto built = build_case({"model=llama3-8b", "num_layers=1", "recipe=fp8_current"});
  ASSERT_TRUE(built.has_value()) << format(built.error());
  std::set<std::string> twice;
  for (const OpRow& row : built->rows) {
    if (row.again == 0) continue;
    twice.insert(row.kind);
    EXPECT_LT(row.again, row.bytes) << row.name;
  }
  EXPECT_TRUE(twice.contains("quantize") && twice.contains("swiglu_quantize")) << twice.size();
  const auto delayed = build_case({"model=llama3-8b", "num_layers=1", "recipe=fp8_delayed"});
  ASSERT_TRUE(delayed.has_value()) << format(delayed.error());
  for (const OpRow& row : delayed->rows) EXPECT_FALSE(row.kind == "quantize_delayed" && row.again > 0) << row.name;
}

TEST(MicroCases, BlocksUnderAScaleOfTheWholeAreReadTwice) {
  for (const char* recipe : {"nvfp4", "mxfp8", "fp8_blockwise"}) {
    const auto built = build_case({"model=llama3-8b", "num_layers=1", std::string("recipe=") + recipe});
    ASSERT_TRUE(built.has_value()) << format(built.error());
    int found = 0;
    for (const OpRow& row : built->rows) {
      if (row.kind != "quantize_blocks") continue;
      ++found;
      EXPECT_EQ(row.again > 0, recipe == std::string("nvfp4")) << row.name;
      EXPECT_LT(row.again, row.bytes) << row.name;
    }
    EXPECT_GT(found, 0) << recipe;
  }
}

// A loss reads one logit a token: it is no op on large tensors, however many words there are.
TEST(MicroCases, TheLargestTensorCountsAsFarAsItIsTouched) {
  const auto built = build_case({"model=llama3-8b", "num_layers=1", "seq_length=8192", "recipe=bf16"});
  ASSERT_TRUE(built.has_value()) << format(built.error());
  for (const OpRow& row : built->rows) {
    EXPECT_GT(row.largest, 0) << row.name;
    EXPECT_LE(row.largest, row.bytes) << row.name;
    if (row.kind == "rmsnorm") {
      EXPECT_DOUBLE_EQ(row.largest, 8192.0 * 4096 * 2);
    }
  }
}

TEST(MicroCases, ScaledMomentsAreReadTwice) {
  const auto built = build_case({"model=llama3-8b", "num_layers=1", "recipe=bf16", "use_precision_aware_optimizer=true",
                                 "exp_avg_dtype=fp8", "exp_avg_sq_dtype=fp8"});
  ASSERT_TRUE(built.has_value()) << format(built.error());
  for (const OpRow& row : built->rows) {
    if (row.kind != "adamw") continue;
    EXPECT_DOUBLE_EQ(row.again / row.bytes, 6.0 / 16.0) << row.name;  // gradient and moments, of what else is moved
  }
}

TEST(MicroCases, WhatIsOffloadedGoesOverTheLink) {
  const auto built = build_case(
      {"model=llama3-8b", "num_layers=2", "recipe=bf16", "cpu_offloading=true", "cpu_offloading_num_layers=1"});
  ASSERT_TRUE(built.has_value()) << format(built.error());
  int copies = 0;
  for (const OpRow& row : built->rows) {
    EXPECT_EQ(row.link != Link::kNone, row.kind == "copy") << row.name;
    copies += row.kind == "copy" ? 1 : 0;
  }
  EXPECT_GT(copies, 0);
}

TEST(MicroCases, SettingsAreReadAsTheProgramReadsThem) {
  const auto built = build_case({"model=llama3-8b", "num_layers=none"});
  ASSERT_FALSE(built.has_value());
  EXPECT_NE(built.error().what.find("num_layers"), std::string::npos) << built.error().what;
  EXPECT_FALSE(build_case({"llama3-8b"}).has_value());
}

}  // namespace
}  // namespace mbb::suites
