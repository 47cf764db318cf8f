// Each rule on a made-up cell that shows its loss, and on one that must stay silent.
#include "analysis/diagnose/diagnose.h"

#include <gtest/gtest.h>

namespace mbb::analysis {
namespace {

constexpr double kGiB = 1 << 30;

baselines::Cell cell_with(std::vector<std::pair<const char*, double>> metrics,
                          std::vector<std::pair<const char*, const char*>> knobs) {
  baselines::Cell cell;
  cell.metrics.push_back({"step_time", 200e6});
  cell.metrics.push_back({"peak_memory", 75 * kGiB});
  for (const auto& [name, value] : metrics) cell.metrics.push_back({name, value});
  for (const auto& [key, value] : knobs) cell.knobs.push_back({key, value});
  return cell;
}

std::vector<Symptom> of(const baselines::Cell& cell) {
  return symptoms(cell, knob_text_of(cell), 78 * kGiB);
}

TEST(Diagnose, ExposedTpNamesItsOpsAndTheOverlap) {
  auto cell = cell_with({{"exposed_comm_tp", 7.0}, {"exposed_comm_dp", 0.2}},
                        {{"parallel.tensor_model_parallel_size", "4"}, {"overlap.tp_comm_overlap", "false"}});
  baselines::Launch launch;
  for (int layer = 0; layer < 3; ++layer) {
    baselines::OpRow op;
    op.path = "layers." + std::to_string(layer) + ".attn.proj.fwd.scatter";
    op.stream = "tp";
    op.total_ns = 1000;
    launch.ops.push_back(op);
  }
  cell.launches.push_back(launch);
  const auto found = of(cell);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].what,
            "TP communication exposed: 14.0 ms of 200.0 ms (7.0 %), most in layers.*.attn.proj.fwd.scatter");
  EXPECT_DOUBLE_EQ(found[0].lost_ns, 14e6);
  ASSERT_EQ(found[0].remedies.size(), 2U);
  EXPECT_EQ(found[0].remedies[0].text(), "tp_comm_overlap=true");
  EXPECT_EQ(found[0].remedies[1].text(), "tensor_model_parallel_size=2");
}

TEST(Diagnose, QuantizedProductsAreTriedSplit) {
  const auto found = of(cell_with({{"exposed_comm_tp", 7.0}}, {{"precision.recipe", "fp8_current"},
                                                               {"overlap.tp_comm_overlap", "true"},
                                                               {"parallel.tensor_model_parallel_size", "1"}}));
  ASSERT_EQ(found.size(), 1U);
  ASSERT_EQ(found[0].remedies.size(), 2U);
  EXPECT_EQ(found[0].remedies[0].text(),
            "tp_comm_overlap_cfg.qkv.method=pipeline tp_comm_overlap_cfg.proj.method=pipeline "
            "tp_comm_overlap_cfg.fc1.method=pipeline tp_comm_overlap_cfg.fc2.method=pipeline");
}

TEST(Diagnose, ExposedExchangesAreTriedByCountsAndBelowTheWorstCase) {
  const auto remedies = [](std::vector<std::pair<const char*, const char*>> knobs) {
    const auto found = of(cell_with({{"exposed_comm_ep", 40.0}}, knobs));
    std::string text;
    for (const Remedy& remedy : found.at(0).remedies) text += remedy.text() + "; ";
    return text;
  };
  EXPECT_NE(remedies({{"parallel.moe_dropless_bound", "0"}}).find("moe_exchange=counts; moe_dropless_bound=4"),
            std::string::npos);
  EXPECT_EQ(remedies({{"parallel.moe_dropless_bound", "1.5"}}).find("moe_dropless_bound"), std::string::npos);
  EXPECT_EQ(remedies({{"parallel.moe_exchange", "counts"}}).find("moe_exchange"), std::string::npos);
  EXPECT_EQ(remedies({{"parallel.moe_expert_capacity_factor", "1"}}).find("moe_exchange"), std::string::npos);
}

TEST(Diagnose, WhatIsOnAlreadyIsNotAdvised) {
  const auto found = of(cell_with({{"exposed_comm_dp", 3.0}}, {{"data_parallel.overlap_grad_reduce", "true"},
                                                               {"data_parallel.overlap_param_gather", "true"},
                                                               {"data_parallel.grad_reduce_in_fp32", "false"}}));
  ASSERT_EQ(found.size(), 1U);
  EXPECT_TRUE(found[0].remedies.empty());
}

TEST(Diagnose, TheLargestLossLeads) {
  const auto found = of(cell_with({{"bubble", 12.0}, {"idle_host_bound", 20.0}, {"exposed_comm_pp", 1.0}},
                                  {{"parallel.virtual_pipeline_model_parallel_size", "2"}}));
  ASSERT_EQ(found.size(), 3U);
  EXPECT_TRUE(found[0].all_of_it) << found[0].what;
  EXPECT_EQ(found[0].remedies[0].text(), "enable_cuda_graph=true");
  EXPECT_EQ(found[1].remedies[0].text(), "virtual_pipeline_model_parallel_size=3");
}

TEST(Diagnose, UnusedMemoryIsSpentOnWhatWasRecomputed) {
  auto cell = cell_with({}, {{"memory.recompute_granularity", "full"}, {"memory.recompute_num_layers", "8"}});
  EXPECT_TRUE(of(cell).empty()) << "75 of 78 GiB are in use";
  cell.metrics[1].value = 60 * kGiB;
  const auto found = of(cell);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].what, "18.0 GiB of 78.0 GiB unused while recompute_granularity=full");
  EXPECT_EQ(found[0].remedies.front().text(), "recompute_granularity=selective");
  EXPECT_EQ(found[0].remedies.back().text(), "recompute_granularity=none");
  cell.metrics.pop_back();
  EXPECT_TRUE(of(cell).empty()) << "of a log that says nothing of memory nothing is unused";
  cell.metrics.push_back({"peak_memory", 60 * kGiB});
  EXPECT_TRUE(symptoms(cell, knob_text_of(cell), 0).empty()) << "of a card whose memory is not known nothing is said";
}

TEST(Diagnose, Bf16OfLargeLayersIsTriedInFp8) {
  EXPECT_EQ(of(cell_with({{"fp8_eligible_flops", 68.0}}, {{"precision.recipe", "bf16"}})).size(), 1U);
  EXPECT_TRUE(of(cell_with({{"fp8_eligible_flops", 68.0}}, {{"precision.recipe", "fp8_current"}})).empty());
  EXPECT_TRUE(of(cell_with({{"fp8_eligible_flops", 10.0}}, {{"precision.recipe", "bf16"}})).empty());
}

TEST(Diagnose, ACellWithoutAStepTimeHasNoLosses) {
  baselines::Cell cell;
  cell.metrics.push_back({"bubble", 30.0});
  EXPECT_TRUE(of(cell).empty());
}

}  // namespace
}  // namespace mbb::analysis
