// What projections are worth: the errors on published steps and on our own that the shipped table states are those that
// come out, and a fit finds what was put in.
#include "suites/project/accuracy.h"

#include <gtest/gtest.h>

#include <set>

#include "suites/project/published_config.h"

namespace mbb::suites {
namespace {

struct Judged {
  PublishedCases published;
  trainer::CostTable costs;
  std::vector<CaseError> errors;
};

// Built once: it takes seconds.
const Judged& judged() {
  static const Judged made = [] {
    Judged j;
    j.published = published_cases();
    auto costs = find_costs(kDefaultHardware);
    EXPECT_TRUE(costs.has_value()) << (costs ? "" : costs.error().what);
    j.costs = std::move(*costs);
    auto errors = errors_of(j.published.cases, j.costs);
    EXPECT_TRUE(errors.has_value()) << (errors ? "" : errors.error().what);
    j.errors = std::move(*errors);
    return j;
  }();
  return made;
}

TEST(Accuracy, TheTableStatesTheErrorsThatComeOut) {
  const Judged& j = judged();
  const Accuracy a = accuracy(j.errors);
  const trainer::PublishedAccuracy& stated = j.costs.published;
  EXPECT_EQ(static_cast<int>(a.rows), stated.rows);
  std::set<std::string> models;
  for (const PublishedCase& of : j.published.cases) models.insert(of.row.model_id);
  EXPECT_EQ(static_cast<int>(models.size()), stated.models);
  EXPECT_NEAR(a.median, stated.median, 0.001);
  EXPECT_NEAR(a.p90, stated.p90, 0.002);
  EXPECT_NEAR(a.coverage, stated.coverage, 0.02);
  // Steps nobody fitted to are projected worse, not better.
  EXPECT_GE(stated.unseen_median, stated.median);
}

TEST(Accuracy, DenseModelsMeetTheAim) {
  std::vector<CaseError> dense;
  for (const CaseError& e : judged().errors)
    if (!e.of->experts) dense.push_back(e);
  const Accuracy a = accuracy(dense);
  EXPECT_GE(a.rows, 50U);
  EXPECT_LE(a.median, 0.03);
  EXPECT_LE(a.p90, 0.08);
  EXPECT_LE(std::abs(a.bias), 0.02);
  EXPECT_GE(a.coverage, 0.7);
  EXPECT_LE(a.coverage, 0.95);
}

TEST(Accuracy, OurOwnStepsWithin) {
  const auto cases = measured_cases(judged().costs);
  ASSERT_TRUE(cases.has_value()) << cases.error().what;
  const auto errors = errors_of(*cases, judged().costs);
  ASSERT_TRUE(errors.has_value());
  EXPECT_GE(errors->size(), 7U);
  for (const CaseError& e : *errors)
    EXPECT_LE(std::abs(e.error), 0.09) << e.of->row.model_id << " " << e.of->row.precision << " " << e.error;
  EXPECT_LE(accuracy(*errors).median, 0.04);
}

TEST(Accuracy, EveryRowIsUsedOrLeftOutWithAReason) {
  const PublishedCases& p = judged().published;
  size_t rows = 0;
  for (const baselines::PublishedRow& row : baselines::published_rows()) rows += row.hardware == "H100" ? 1 : 0;
  EXPECT_EQ(p.cases.size() + p.left_out.size(), rows);
  for (const auto& [row, reason] : p.left_out) EXPECT_FALSE(reason.empty()) << row.model_id;
  // The newest release of each model with experts, once a source.
  for (const PublishedCase& of : p.cases) {
    EXPECT_GT(of.published_ns, 0);
    EXPECT_EQ(of.layout.mesh.world_size(), of.row.gpus);
    EXPECT_EQ(of.layout.config.parallel.tensor_model_parallel_size, of.row.tp);
  }
}

TEST(Accuracy, AFitFindsWhatWasPutIn) {
  // Steps that a table with other factors projects, as if published.
  auto cases = measured_cases(judged().costs);
  ASSERT_TRUE(cases.has_value());
  trainer::CostTable truth = judged().costs;
  std::vector<double> values = fitted_values(truth);
  ASSERT_EQ(values.size(), fitted_names(truth).size());
  truth.terms[static_cast<size_t>(trainer::CostTerm::kGemm)].factor *= 1.06;
  const auto made = errors_of(*cases, truth);
  ASSERT_TRUE(made.has_value());
  for (size_t i = 0; i < cases->size(); ++i) (*cases)[i].published_ns = (*made)[i].projected_ns;
  const trainer::CostTable found = calibrate(*cases, judged().costs);
  const auto before = errors_of(*cases, judged().costs), after = errors_of(*cases, found);
  ASSERT_TRUE(before.has_value() && after.has_value());
  EXPECT_GE(accuracy(*before).median, 0.015);
  EXPECT_LE(accuracy(*after).median, accuracy(*before).median / 2);
  const auto factor = [](const trainer::CostTable& t) { return t.term(trainer::CostTerm::kGemm).factor; };
  EXPECT_GT(factor(found), factor(judged().costs) * 1.02);
}

TEST(PublishedConfig, SaysWhatARowAsksFor) {
  baselines::PublishedRow row;
  row.source = "NVIDIA-NeMo/Megatron-Bridge:docs";
  row.release = "26.04";
  row.model_id = "llama3-70b";
  row.precision = "fp8";
  row.gpus = 64;
  row.global_batch = 256;
  row.micro_batch = 1;
  row.seq_length = 8192;
  row.tp = 4;
  row.pp = 8;
  row.cp = 1;
  row.vpp = 5;
  row.tokens_per_s_per_gpu = 1;
  const auto config = published_config(row);
  ASSERT_TRUE(config.has_value()) << config.error().what;
  EXPECT_EQ(config->precision.recipe, trainer::Recipe::kFp8Current);
  EXPECT_EQ(config->parallel.virtual_pipeline_model_parallel_size, 5);
  row.source = "somebody else";
  row.release = "1";
  EXPECT_EQ(published_config(row).error().what, "another trainer");
  row.release = "NeMo 24.12";
  EXPECT_EQ(published_config(row)->precision.recipe, trainer::Recipe::kFp8Delayed);
  row.variant = "LoRA";
  EXPECT_EQ(published_config(row).error().what, "variant LoRA");
  row.variant = "";
  row.tp = 0;
  EXPECT_EQ(published_config(row).error().what, "the mapping is not stated");
}

}  // namespace
}  // namespace mbb::suites
