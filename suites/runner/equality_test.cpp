// The loss verdict: equal, different, different length, nothing to compare with.
#include "suites/runner/equality.h"

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "suites/runner/gradients.h"

namespace mbb::suites {
namespace {

baselines::Cell cell(const std::string& name, int ranks, std::vector<double> losses,
                     const std::string& recipe = "fp32") {
  baselines::Cell c;
  c.name = name;
  c.model = "m";
  c.ranks = ranks;
  c.knobs = {{"precision.recipe", recipe}, {"parallel.gpus", std::to_string(ranks)}, {"train.seed", "1"}};
  c.metrics.push_back({"step_time", 1e6});
  baselines::Launch launch;
  for (size_t i = 0; i < losses.size(); ++i) {
    baselines::Step step;
    step.index = static_cast<int64_t>(i);
    step.loss = losses[i];
    launch.steps.push_back(step);
  }
  c.launches.push_back(launch);
  return c;
}

TEST(Equality, EqualLossesGetAVerdictAndKeepTheirNumbers) {
  baselines::Cell two = cell("tp2", 2, {5.0, 4.0 + 1e-6});
  judge_losses(two, {cell("one", 1, {5.0, 4.0})});
  EXPECT_EQ(two.status, baselines::CellStatus::kOk);
  ASSERT_EQ(two.verdicts.size(), 1U);
  EXPECT_EQ(two.verdicts[0].verdict, baselines::Verdict::kSame);
  EXPECT_EQ(two.verdicts[0].against, "one");
  EXPECT_EQ(two.metrics.size(), 1U);
}

TEST(Equality, ADifferentLossBreaksTheCellAndTakesItsNumbers) {
  for (const double wrong : {4.0 + 1e-4, std::numeric_limits<double>::quiet_NaN()}) {
    baselines::Cell two = cell("tp2", 2, {5.0, wrong});
    judge_losses(two, {cell("one", 1, {5.0, 4.0})});
    EXPECT_EQ(two.status, baselines::CellStatus::kBroken) << wrong;
    EXPECT_TRUE(two.metrics.empty());
    EXPECT_NE(two.reason.find("step 1"), std::string::npos) << two.reason;
  }
}

// What sums round otherwise grows with training; what is wrong is wrong from the first steps.
TEST(Equality, RoundingMayGrowWithTheSteps) {
  const auto off_at = [](size_t step, double relative) {
    std::vector<double> losses(150, 4.0);
    losses[step] *= 1 + relative;
    baselines::Cell two = cell("tp2", 2, losses);
    judge_losses(two, {cell("one", 1, std::vector<double>(150, 4.0))});
    return two;
  };
  EXPECT_EQ(off_at(126, 1.7e-5).status, baselines::CellStatus::kOk);
  EXPECT_EQ(off_at(20, 1.7e-5).status, baselines::CellStatus::kBroken);
  const baselines::Cell wrong = off_at(126, 3e-5);
  EXPECT_EQ(wrong.status, baselines::CellStatus::kBroken);
  EXPECT_EQ(wrong.reason, "loss of step 126 differs from one by 3.00e-05 (limit 2.5e-05 relative)");
}

TEST(Equality, UnevenStepsHaveLossesThatCount) {
  baselines::Cell one = cell("one", 1, {5.0, 4.0}), two = cell("tp2", 2, {5.0, 4.0}),
                  wrong = cell("pp2", 2, {5.0, 4.5});
  one.status = two.status = wrong.status = baselines::CellStatus::kUnstable;
  judge_losses(two, {one});
  EXPECT_EQ(two.status, baselines::CellStatus::kUnstable);
  ASSERT_EQ(two.verdicts.size(), 1U);
  EXPECT_EQ(two.verdicts[0].verdict, baselines::Verdict::kSame);
  judge_losses(wrong, {one});
  EXPECT_EQ(wrong.status, baselines::CellStatus::kBroken);
}

TEST(Equality, AMissingStepBreaksTheCell) {
  baselines::Cell two = cell("tp2", 2, {5.0});
  judge_losses(two, {cell("one", 1, {5.0, 4.0})});
  EXPECT_EQ(two.status, baselines::CellStatus::kBroken);
}

TEST(Equality, KnobsThatOnlySayHowTheWorkIsRunDoNotMakeItOtherWork) {
  for (const char* knob : {"memory.recompute_granularity", "memory.cpu_offloading", "fusion.residual_fusion",
                           "memory.expandable_segments", "memory.nccl_net_gdr_level"}) {
    baselines::Cell again = cell("again", 1, {5.0, 4.5});
    again.knobs.push_back({knob, "other"});
    judge_losses(again, {cell("one", 1, {5.0, 4.0})});
    EXPECT_EQ(again.status, baselines::CellStatus::kBroken) << knob;
  }
  baselines::Cell frozen = cell("frozen", 1, {5.0, 4.5});
  frozen.knobs.push_back({"memory.frozen", "embedding.*"});
  judge_losses(frozen, {cell("one", 1, {5.0, 4.0})});
  EXPECT_EQ(frozen.status, baselines::CellStatus::kOk);
}

TEST(Equality, ExpertsAreBalancedInAMicroBatchWhoseSizeIsOtherWork) {
  for (const char* model : {"llama3.1-8b", "mixtral-8x7b"}) {
    const auto sized = [&](const char* name, double loss, const char* size) {
      baselines::Cell c = cell(name, 1, {5.0, loss});
      c.model = model;
      c.knobs.push_back({"train.micro_batch_size", size});
      return c;
    };
    baselines::Cell wider = sized("wider", 4.5, "2");
    judge_losses(wider, {sized("one", 4.0, "1")});
    const bool experts = std::string_view(model) == "mixtral-8x7b";
    EXPECT_EQ(wider.status, experts ? baselines::CellStatus::kOk : baselines::CellStatus::kBroken) << model;
    EXPECT_EQ(wider.verdicts.empty(), experts) << model;
  }
}

TEST(Equality, SequencesThatContextParallelismRoundsUpAreOtherWork) {
  for (const char* sequences : {"stream", "lognormal"}) {
    baselines::Cell one = cell("one", 1, {5.0, 4.0}), two = cell("cp2", 2, {5.0, 4.5});
    for (baselines::Cell* c : {&one, &two}) {
      c->knobs.push_back({"packing.sequences", sequences});
      c->knobs.push_back({"parallel.context_parallel_size", c == &two ? "2" : "1"});
    }
    judge_losses(two, {one});
    const bool packs = std::string_view(sequences) == "lognormal";
    EXPECT_EQ(two.status, packs ? baselines::CellStatus::kOk : baselines::CellStatus::kBroken) << sequences;
    ASSERT_EQ(two.verdicts.size(), 1U) << sequences;
    EXPECT_EQ(two.verdicts[0].verdict == baselines::Verdict::kIncomparable, packs) << sequences;
  }
}

TEST(Equality, OtherWorkIsNotCompared) {
  baselines::Cell two = cell("tp2", 2, {5.0, 1.0});
  baselines::Cell other = cell("one", 1, {5.0, 4.0});
  other.knobs[2].value = "2";
  judge_losses(two, {other, cell("bf16", 1, {5.0, 4.0}, "bf16"), cell("two", 2, {5.0, 4.0})});
  EXPECT_EQ(two.status, baselines::CellStatus::kOk);
  ASSERT_EQ(two.verdicts.size(), 1U);
  EXPECT_EQ(two.verdicts[0].verdict, baselines::Verdict::kIncomparable);
  EXPECT_NE(two.verdicts[0].text.find("nothing was proven"), std::string::npos) << two.verdicts[0].text;
  baselines::Cell one = cell("one", 1, {5.0, 4.0});
  judge_losses(one, {});
  EXPECT_TRUE(one.verdicts.empty()) << "what others are compared with";
}

TEST(Equality, LowerPrecisionMayBeOffByTwiceWhatOneRankIs) {
  const std::vector<baselines::Cell> finished{cell("one", 1, {5.0, 4.0}), cell("one-bf16", 1, {5.0, 4.01}, "bf16")};
  baselines::Cell near = cell("tp2", 2, {5.0, 4.019}, "bf16");
  judge_losses(near, finished);
  EXPECT_EQ(near.status, baselines::CellStatus::kOk) << near.reason;
  ASSERT_EQ(near.verdicts.size(), 1U);
  EXPECT_EQ(near.verdicts[0].against, "one");
  baselines::Cell far = cell("tp2", 2, {5.0, 4.021}, "bf16");
  judge_losses(far, finished);
  EXPECT_EQ(far.status, baselines::CellStatus::kBroken);
  EXPECT_NE(far.reason.find("more than twice"), std::string::npos) << far.reason;
}

// One seed's rounding may cancel: the seeds together say how far it goes.
TEST(Equality, OneRankMayComeNearByChanceWithOneSeedAndNotWithAll) {
  const auto seeded = [](baselines::Cell c, const char* seed) {
    c.knobs[2].value = seed;
    return c;
  };
  const baselines::Cell exact = cell("one", 1, {5.0, 4.0}), lucky = cell("one-fp8", 1, {5.0, 4.00001}, "fp8_current");
  const baselines::Cell other = seeded(cell("one-seed2", 1, {6.0, 5.0}), "2");
  const baselines::Cell other_fp8 = seeded(cell("one-fp8-seed2", 1, {6.0, 5.01}, "fp8_current"), "2");
  const auto status_of = [&](double loss, std::vector<baselines::Cell> finished) {
    baselines::Cell two = cell("tp2", 2, {5.0, loss}, "fp8_current");
    judge_losses(two, finished);
    EXPECT_EQ(two.verdicts.size(), 1U);
    return two.status;
  };
  EXPECT_EQ(status_of(4.01, {exact, lucky}), baselines::CellStatus::kBroken);
  EXPECT_EQ(status_of(4.01, {exact, lucky, other, other_fp8}), baselines::CellStatus::kOk);
  // Four values of spread 1e-3 say little: Student's t of one in ten thousand, either side of two steps, is 18.5.
  EXPECT_EQ(status_of(4.07, {exact, lucky, other, other_fp8}), baselines::CellStatus::kOk);
  EXPECT_EQ(status_of(4.08, {exact, lucky, other, other_fp8}), baselines::CellStatus::kBroken);
  EXPECT_EQ(status_of(4.01, {exact, lucky, other}), baselines::CellStatus::kBroken) << "half a pair";
  EXPECT_EQ(status_of(4.01, {exact, lucky, other, seeded(cell("b", 1, {6.0, 5.01}, "bf16"), "2")}),
            baselines::CellStatus::kBroken)
      << "another recipe";
  baselines::Cell foreign = other, foreign_fp8 = other_fp8;
  foreign.model = foreign_fp8.model = "n";
  EXPECT_EQ(status_of(4.01, {exact, lucky, foreign, foreign_fp8}), baselines::CellStatus::kBroken) << "another model";
}

TEST(Equality, HowWorkIsOverlappedIsNoOtherWork) {
  baselines::Cell two = cell("tp2", 2, {5.0, 1.0});
  two.knobs.push_back({"overlap.tp_comm_overlap", "true"});
  two.knobs.push_back({"data_parallel.use_torch_fsdp2", "true"});
  judge_losses(two, {cell("one", 1, {5.0, 4.0})});
  EXPECT_EQ(two.status, baselines::CellStatus::kBroken);
}

TEST(Equality, GradientsReducedInBf16AreLowerPrecision) {
  baselines::Cell two = cell("dp2", 2, {5.0, 4.01}, "bf16");
  baselines::Cell one = cell("one-bf16", 1, {5.0, 4.01}, "bf16");
  for (baselines::Cell* c : {&two, &one}) c->knobs.push_back({"data_parallel.grad_reduce_in_fp32", "false"});
  judge_losses(two, {cell("one", 1, {5.0, 4.0}), one});
  ASSERT_EQ(two.verdicts.size(), 1U);
  EXPECT_EQ(two.verdicts[0].verdict, baselines::Verdict::kSame);
}

TEST(Equality, TheFirstOneRankCellOfAPrecisionHasNothingToCompareWith) {
  const std::vector<baselines::Cell> finished{cell("one", 1, {5.0, 4.0})};
  const References with = references_of(cell("one-bf16", 1, {5.0, 4.01}, "bf16"), finished);
  EXPECT_EQ(with.exact, nullptr);
  EXPECT_EQ(with.rounded, nullptr);
  EXPECT_NE(references_of(cell("tp2", 2, {5.0, 4.0}), finished).exact, nullptr);
}

TEST(Learning, IsJudgedWhereTheEntropyOfTheDataIsKnown) {
  const auto verdict = [](double loss, double entropy) {
    baselines::Cell one = cell("one", 1, {5.0, loss, loss, loss, loss, loss});
    judge_learning(one, entropy);
    return one.verdicts.empty() ? std::string("none") : std::string(name(one.verdicts[0].verdict));
  };
  EXPECT_EQ(verdict(3.0, 3.1), "same");
  EXPECT_EQ(verdict(3.2, 3.1), "inconclusive");
  EXPECT_EQ(verdict(3.0, std::numeric_limits<double>::quiet_NaN()), "none");
}

TEST(GradientVerdict, NamesTheWeightThatDiffers) {
  const Gradients exact{{"a", {1.0F, 2.0F}}, {"b", {0.0F, 3.0F}}};
  baselines::Cell same = cell("tp2", 2, {5.0});
  judge_gradients(same, exact, exact, nullptr, "one");
  EXPECT_EQ(same.status, baselines::CellStatus::kOk);
  EXPECT_EQ(same.verdicts.back().change, 0.0);
  for (const float wrong : {3.001F, std::nanf("")}) {
    Gradients off = exact;
    off["b"][1] = wrong;
    baselines::Cell two = cell("tp2", 2, {5.0});
    judge_gradients(two, off, exact, nullptr, "one");
    EXPECT_EQ(two.status, baselines::CellStatus::kBroken);
    EXPECT_NE(two.reason.find("gradient of b differs"), std::string::npos) << two.reason;
    EXPECT_TRUE(two.metrics.empty());
    // One rank in the same precision is off by more than half of that: allowed.
    Gradients rounded = exact;
    rounded["b"][1] = 3.0009F;
    baselines::Cell low = cell("tp2", 2, {5.0}, "bf16");
    judge_gradients(low, off, exact, &rounded, "one");
    EXPECT_EQ(low.status == baselines::CellStatus::kOk, !std::isnan(wrong));
  }
  // One rank came near by chance, and from another seed it did not.
  Gradients near = exact, far = exact, off = exact;
  near["b"][1] = 3.00001F;
  far["b"][1] = 3.0009F;
  off["b"][1] = 3.0015F;
  for (const bool seeds : {false, true}) {
    baselines::Cell low = cell("tp2", 2, {5.0}, "bf16");
    judge_gradients(low, off, exact, &near, "one",
                    seeds ? std::vector<RoundedGradients>{{exact, far}} : std::vector<RoundedGradients>{});
    EXPECT_EQ(low.status == baselines::CellStatus::kOk, seeds) << low.reason;
  }
  baselines::Cell lost = cell("tp2", 2, {5.0});
  judge_gradients(lost, {{"a", {1.0F, 2.0F}}}, exact, nullptr, "one");
  EXPECT_NE(lost.reason.find("b has no gradient"), std::string::npos);
}

// [3, 2] of which tensor parallelism makes [4, 2].
TEST(GradientVerdict, RowsThatPadTheVocabularyAreNotCompared) {
  const Gradients exact{{"embedding.weight", {1.0F, 2.0F, 3.0F, 4.0F, 5.0F, 6.0F}}};
  const auto judged = [&](const char* path, std::vector<float> mine) {
    baselines::Cell two = cell("tp2", 2, {5.0});
    judge_gradients(two, {{path, std::move(mine)}}, {{path, exact.begin()->second}}, nullptr, "one");
    return two;
  };
  EXPECT_EQ(judged("embedding.weight", {1, 2, 3, 4, 5, 6, 0, 0}).status, baselines::CellStatus::kOk);
  EXPECT_EQ(judged("lm_head.weight", {1, 2, 3, 4, 5, 6, 0, 0}).status, baselines::CellStatus::kOk);
  EXPECT_EQ(judged("embedding.weight", {1, 2, 3, 4, 5, 7, 0, 0}).status, baselines::CellStatus::kBroken)
      << "a real row";
  EXPECT_EQ(judged("embedding.weight", {1, 2, 3, 4, 5, 6, 0, 1}).status, baselines::CellStatus::kBroken)
      << "padding has no gradient";
  EXPECT_EQ(judged("embedding.weight", {1, 2, 3, 4}).status, baselines::CellStatus::kBroken) << "a row is lost";
  EXPECT_EQ(judged("layers.0.fc1.weight", {1, 2, 3, 4, 5, 6, 0, 0}).status, baselines::CellStatus::kBroken)
      << "no table of the vocabulary";
}

TEST(GradientVerdict, AFileGivesBackWhatTheRanksHandedOut) {
  trainer::Tensor weight;
  weight.path = "w";
  weight.full_shape = trainer::Shape{4, 2};
  weight.shape = trainer::Shape{2, 2};
  weight.cuts = {{0, trainer::Axis::kTp, {}}};
  GradientRecorder recorder;
  const std::vector<float> first{1, 2, 3, 4}, second{7, 8};
  recorder.add({.tp = 0}, 0, weight, 0, first);
  recorder.add({.tp = 1}, 0, weight, 2, second);
  recorder.add({.tp = 1}, 1, weight, 0, first);  // a later step
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / fmt::format("gradients_test_{}", getpid());
  std::filesystem::create_directories(folder);
  ASSERT_TRUE(recorder.write(folder).has_value());
  const auto read = read_gradients(folder);
  ASSERT_TRUE(read.has_value()) << read.error().what;
  const std::vector<float>& w = read->at("w");
  EXPECT_EQ(std::vector<float>(w.begin(), w.begin() + 4), first);
  EXPECT_TRUE(std::isnan(w[4]) && std::isnan(w[5])) << "no rank had these";
  EXPECT_EQ(std::vector<float>(w.begin() + 6, w.end()), second);
  std::filesystem::resize_file(folder / kGradientsFile, 10);
  EXPECT_FALSE(read_gradients(folder).has_value());
}

}  // namespace
}  // namespace mbb::suites
