// What projections are worth: the errors on published steps and on our own that the shipped table states are those that
// come out, and a fit finds what was put in.
#include "baselines/kernels/cost_files.h"
#include "suites/project/accuracy.h"

#include <gtest/gtest.h>

#include <cmath>
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
  EXPECT_NEAR(ratio_error(j.errors), stated.ratio_error, 0.001);
}

std::vector<CaseError> of_family(const std::vector<CaseError>& errors, bool experts) {
  std::vector<CaseError> family;
  for (const CaseError& e : errors)
    if (e.of->experts == experts) family.push_back(e);
  return family;
}

void expect_stated(const std::vector<CaseError>& errors, const trainer::StepErrors& stated, const char* what) {
  const Accuracy a = accuracy(errors);
  EXPECT_EQ(static_cast<int>(a.rows), stated.rows) << what;
  EXPECT_NEAR(a.median, stated.median, 0.001) << what;
  EXPECT_NEAR(a.p90, stated.p90, 0.002) << what;
  EXPECT_NEAR(a.coverage, stated.coverage, 0.02) << what;
}

TEST(Accuracy, TheTableStatesWhoseErrorsByFamily) {
  const Judged& j = judged();
  const trainer::PublishedAccuracy& stated = j.costs.published;
  const auto plain = errors_of(j.published.cases, j.costs, Assume::kNothing);
  ASSERT_TRUE(plain.has_value());
  expect_stated(of_family(*plain, false), stated.dense, "dense");
  expect_stated(of_family(*plain, true), stated.experts, "experts");
  expect_stated(of_family(j.errors, false), stated.dense_assumed, "dense, assumed");
  expect_stated(of_family(j.errors, true), stated.experts_assumed, "experts, assumed");
  const auto cases = measured_cases(j.costs);
  ASSERT_TRUE(cases.has_value());
  const auto own = errors_of(*cases, j.costs);
  ASSERT_TRUE(own.has_value());
  expect_stated(*own, stated.ours, "ours");
  // Where nothing is assumed a step is our program of it.
  int moved = 0;
  for (size_t i = 0; i < plain->size(); ++i) {
    const PublishedCase& of = *(*plain)[i].of;
    const bool assumed = overlaps_tensor_parallel(of.row) || of.row.date < "2025";
    if (!assumed) {
      EXPECT_EQ((*plain)[i].projected_ns, j.errors[i].projected_ns) << of.row.model_id;
    }
    moved += (*plain)[i].projected_ns != j.errors[i].projected_ns;
    if (of.row.model_id != "llama3-70b") continue;
    const auto projected = project(of.layout, of.programs, j.costs);
    ASSERT_TRUE(projected.has_value());
    EXPECT_EQ((*plain)[i].projected_ns, projected->step_ns);
  }
  EXPECT_GT(moved, 20);
}

TEST(Accuracy, EveryTableStatesTheErrorsOnOurOwnSteps) {
  for (const baselines::CostFile& file : baselines::cost_files()) {
    const auto costs = find_costs(std::string(file.hardware));
    ASSERT_TRUE(costs.has_value());
    const auto cases = measured_cases(*costs);
    ASSERT_TRUE(cases.has_value()) << file.path;
    const auto own = errors_of(*cases, *costs);
    ASSERT_TRUE(own.has_value()) << file.path;
    EXPECT_GE(own->size(), 5u) << file.path;
    expect_stated(*own, costs->published.ours, file.hardware.data());
  }
}

TEST(Accuracy, ErrorsThatTwoStepsShareCancelInTheirRatio) {
  PublishedCase one, other, third;
  one.row.model_id = other.row.model_id = third.row.model_id = "m";
  one.row.release = other.row.release = "r";
  third.row.release = "another";
  EXPECT_NEAR(ratio_error({{&one, 0.1, true, 0, 0, 0}, {&other, 0.1, true, 0, 0, 0}}), 0, 1e-12);
  EXPECT_NEAR(ratio_error({{&one, 0.1, true, 0, 0, 0}, {&other, -0.1, true, 0, 0, 0}}), std::log(1.1 / 0.9), 1e-12);
  EXPECT_EQ(ratio_error({{&one, 0.1, true, 0, 0, 0}, {&third, -0.1, true, 0, 0, 0}}), 0);
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
