// `mbbench project` and `mbbench advise` as a person meets them: a step, its timeline, a stored projection, bad input.
#include <gtest/gtest.h>

#include "suites/cli/program_fixture_test.h"

namespace mbb::suites {
namespace {

using ProjectCommand = ProgramTest;

constexpr const char* kStep = "project model=llama3-8b gpus=16 tp=2 pp=2 gbs=32 seq_length=8192 recipe=bf16 ";

TEST_F(ProjectCommand, PrintsAStepItsTimelineAndItsCost) {
  const Answer a = run(std::string(kStep) + "--timeline --train-tokens 15T --price 2.5");
  EXPECT_EQ(a.status, 0) << a.out;
  EXPECT_TRUE(a.has("tp2 cp1 pp2 dp4")) << a.out;
  EXPECT_TRUE(a.has("16 GPUs, 8 micro-batches of 1 x 8192 tokens, bf16, on h100-sxm")) << a.out;
  EXPECT_TRUE(a.has("tokens/s/GPU")) << a.out;
  EXPECT_TRUE(a.has("fits")) << a.out;
  EXPECT_TRUE(a.has("days")) << a.out;
  EXPECT_TRUE(a.has("published H100 steps")) << a.out;
  EXPECT_TRUE(a.has("projected: nothing here was measured.")) << a.out;
  EXPECT_TRUE(a.has("####")) << a.out;  // compute in the timeline
}

TEST_F(ProjectCommand, KeepsAProjectionAsARun) {
  const Answer saved = run(std::string(kStep) + "--save");
  EXPECT_EQ(saved.status, 0) << saved.out;
  const Answer shown = run("show @latest");
  EXPECT_EQ(shown.status, 0) << shown.out;
  EXPECT_TRUE(shown.has("projected")) << shown.out;
  const Answer timeline = run("show @latest --timeline");
  EXPECT_EQ(timeline.status, 0) << timeline.out;
  EXPECT_TRUE(timeline.has("compute")) << timeline.out;
  ASSERT_EQ(run("export @latest --format kineto --output k").status, 0);
  std::string file;
  for (const auto& entry : fs::recursive_directory_iterator(folder_ / "k"))
    if (entry.path().filename() == "rank0.json.gz") file = entry.path();
  const Answer back = run("import " + file);
  EXPECT_EQ(back.status, 0) << back.out;
  EXPECT_TRUE(back.has("projected") && !back.has("measured/")) << "it does not come back as measured\n" << back.out;
}

TEST_F(ProjectCommand, DiagnoseNamesLossesAndWhatAKnobIsWorth) {
  ASSERT_EQ(run(std::string(kStep) + "overlap_grad_reduce=false --save").status, 0);
  const Answer told = run("diagnose @latest");
  EXPECT_EQ(told.status, 0) << told.out;
  // Overlap in its usual form takes as much from products as it hides, as two cards measured: another mapping is worth
  // more.
  EXPECT_TRUE(told.has("TP communication exposed") && told.has("tensor_model_parallel_size=1")) << told.out;
  EXPECT_TRUE(told.has("DP communication exposed")) << told.out;
  EXPECT_TRUE(told.has("pipeline bubble") && told.has("virtual_pipeline_model_parallel_size=")) << told.out;
  EXPECT_TRUE(told.has("recipe=fp8") && told.has("projected on h100-sxm: nothing here was measured.")) << told.out;
  EXPECT_EQ(run("diagnose @latest --cell nosuch").status, 4);
  EXPECT_EQ(run("diagnose @latest --hardware h1000").status, 64);

  ASSERT_EQ(run("run train_iters=4 --quiet").status, 0);
  const Answer cpu = run("diagnose @latest");
  EXPECT_EQ(cpu.status, 64) << cpu.out;
  EXPECT_TRUE(cpu.has("its time says nothing of a GPU") && cpu.has("--hardware")) << cpu.out;
  const Answer training = run("show @latest --train-tokens 15T --price 2");
  EXPECT_TRUE(training.has("functional/cpu  its time says nothing of a GPU")) << training.out;
  const Answer projected = run("show @2 --train-tokens 15T --price 2");
  EXPECT_TRUE(projected.has("a whole training") && !projected.has("says nothing of a GPU")) << projected.out;
  const Answer as_bf16 = run("diagnose @latest --hardware h100-sxm");
  EXPECT_EQ(as_bf16.status, 0) << as_bf16.out;
  EXPECT_TRUE(as_bf16.has("In bf16: fp32 is the default of CPU ranks")) << as_bf16.out;
  ASSERT_EQ(run("run train_iters=4 recipe=fp32 --quiet").status, 0);
  EXPECT_TRUE(run("diagnose @latest --hardware h100-sxm").has("no rates for products of f32"));
}

TEST_F(ProjectCommand, SaysOnItsFirstLineThatTheStepsSizeIsTheQuickstarts) {
  const auto first_line = [](const Answer& a) { return a.out.substr(0, a.out.find('\n')); };
  const Answer both = run("project model=llama3-8b gpus=8 tp=2"),
               one = run("project model=llama3-8b gpus=8 tp=2 gbs=8");
  EXPECT_NE(first_line(both).find("train.seq_length and train.global_batch_size are the quickstart's"),
            std::string::npos)
      << both.out;
  EXPECT_NE(first_line(one).find("(train.seq_length is the quickstart's"), std::string::npos) << one.out;
  EXPECT_FALSE(run("project model=llama3-8b gpus=8 tp=2 gbs=8 seq_length=4096").has("quickstart's"));
}

TEST_F(ProjectCommand, SaysThatAPlanDoesNotFit) {
  const Answer a = run("project model=llama3-70b gpus=8 tp=8 gbs=8 seq_length=8192 recipe=bf16");
  EXPECT_EQ(a.status, 0) << a.out;
  EXPECT_TRUE(a.has("DOES NOT FIT")) << a.out;
}

TEST_F(ProjectCommand, ListsCardsAndWhatTheirCostsRestOn) {
  const Answer a = run("list hardware");
  EXPECT_EQ(a.status, 0) << a.out;
  EXPECT_TRUE(a.has("h100-sxm") && a.has("measured 2026")) << a.out;
  EXPECT_TRUE(a.has("gb200") && a.has("ceilings only")) << a.out;
}

TEST_F(ProjectCommand, NamesBadInput) {
  const Answer card = run(std::string(kStep) + "--hardware h100-smx");
  EXPECT_EQ(card.status, 64) << card.out;
  EXPECT_TRUE(card.has("no hardware is named \"h100-smx\"") && card.has("h100-sxm")) << card.out;
  const Answer tokens = run(std::string(kStep) + "--train-tokens many");
  EXPECT_EQ(tokens.status, 64) << tokens.out;
  EXPECT_TRUE(tokens.has("--train-tokens many is no number above 0")) << tokens.out;
  const Answer price = run(std::string(kStep) + "--price 2");
  EXPECT_EQ(price.status, 64) << price.out;
  EXPECT_TRUE(price.has("--price without --train-tokens")) << price.out;
  const Answer types = run("project model=llama3-8b gpus=8 recipe=fp32");
  EXPECT_EQ(types.status, 4) << types.out;
  EXPECT_TRUE(types.has("h100-sxm has no rates for products of f32")) << types.out;
  const Answer mapping = run("project model=llama3-8b gpus=8 tp=3");
  EXPECT_EQ(mapping.status, 64) << mapping.out;
  std::ofstream(folder_ / "bad.toml") << "hardware = \"h100-sxm\"\n";
  const Answer file = run(std::string(kStep) + "--costs bad.toml");
  EXPECT_EQ(file.status, 4) << file.out;
  EXPECT_TRUE(file.has("bad.toml") && file.has("lacks 'date'")) << file.out;
}

TEST_F(ProjectCommand, EmulatedRecipesAreNotProjected) {
  const std::string base = "project model=llama3-8b layers=2 gpus=2 gbs=8 seq_length=4096 ";
  const Answer hopper = run(base + "recipe=mxfp8");
  EXPECT_EQ(hopper.status, 4) << hopper.out;
  EXPECT_TRUE(hopper.has("h100-sxm has no mxfp8, and emulated steps are not projected")) << hopper.out;
  EXPECT_TRUE(run(base + "recipe=fp8_current --hardware a100-sxm").has("a100-sxm has no fp8_current"));
  EXPECT_EQ(run(base + "recipe=mxfp8 --hardware gb200").status, 0);
}

TEST_F(ProjectCommand, SaysWhatTheTimeIsAsWithoutAndHoldsThePlanAgainstTheGivenLimit) {
  const std::string base = "project model=llama3-8b layers=2 gpus=2 gbs=8 seq_length=4096 ";
  const Answer plain = run(base), with = run(base + "enable_cuda_graph=false fwd_layernorm_sm_margin=16 limit_gib=1");
  EXPECT_FALSE(plain.has("not projected")) << plain.out;
  EXPECT_TRUE(
      with.has("not projected: overlap.fwd_layernorm_sm_margin = 16, host.enable_cuda_graph = false; the time "
               "is as without"))
      << with.out;
  EXPECT_TRUE(with.has("of 1.0 GiB that a plan may take: DOES NOT FIT")) << with.out;
}

TEST_F(ProjectCommand, WhatMessagesOfExpertsHoldIsSaid) {
  const std::string step = "project model=mixtral-8x7b layers=4 gpus=8 ep=8 etp=1 gbs=8 seq_length=4096 ";
  EXPECT_TRUE(run(step).has("messages hold the worst that a router may choose"));
  EXPECT_FALSE(run(step + "moe_router_force_load_balancing=true moe_dropless_bound=1.125").has("hold the worst"));
  const std::string advice =
      "advise model=mixtral-8x7b layers=4 --gpus 8 gbs=8 mbs=1 pp=1 tp=1 seq_length=4096 --rows 2 ";
  const Answer balanced = run(advice);
  EXPECT_EQ(balanced.status, 0) << balanced.out;
  EXPECT_TRUE(balanced.has("Of experts with balanced load")) << balanced.out;
  EXPECT_FALSE(run(advice + "moe_dropless_bound=2").has("Of experts with balanced load"));
}

TEST_F(ProjectCommand, AdviseCutsLayersThatDoNotDivide) {
  const std::string base = "model=llama3-8b layers=15 --gpus 4 gbs=16 mbs=1 seq_length=4096 tp=1 cp=1 pp=4 vpp=2 ";
  const Answer a = run("advise " + base + "--rows 1");
  EXPECT_EQ(a.status, 0) << a.out;
  EXPECT_TRUE(a.has("tp1 pp4 vpp2 Et|(t*2|)*6t*2L mbs1")) << a.out;
  EXPECT_EQ(run("advise " + base + "account_for_loss_in_pipeline_split=true --rows 1").status, 0)
      << "the user's own way to cut them";
  EXPECT_TRUE(run("advise model=llama3-8b layers=15 --gpus 4 gbs=16 mbs=1 seq_length=4096 tp=1 cp=1 pp=4 "
                  "account_for_loss_in_pipeline_split=false --rows 1")
                  .has("does not divide model.num_layers"));
}

TEST_F(ProjectCommand, AdviseRanksWhatFits) {
  const Answer a = run("advise --model llama3-8b layers=8 --gpus 8 gbs=8 mbs=1 seq_length=8192 tp=2 cp=1 --rows 3");
  EXPECT_EQ(a.status, 0) << a.out;
  EXPECT_TRUE(a.has("fastest")) << a.out;
  EXPECT_TRUE(a.has("tp2")) << a.out;
  EXPECT_FALSE(a.has("tp4")) << a.out;
  EXPECT_TRUE(a.has("fit and are ranked")) << a.out;
  EXPECT_TRUE(a.has("llama3-8b on 8 GPUs, 8 sequences of 8192 tokens a step, bf16, on h100-sxm\n")) << a.out;
  const Answer unsaid = run("advise --model llama3-8b layers=8 --gpus 8 tp=2 pp=1 mbs=1 --rows 1");
  EXPECT_TRUE(unsaid.has("(train.seq_length and train.global_batch_size are the quickstart's")) << unsaid.out;
  const Answer none = run("advise --model llama3.1-405b --gpus 2 gbs=8 seq_length=8192");
  EXPECT_EQ(none.status, 4) << none.out;
  EXPECT_TRUE(none.has("no mapping of llama3.1-405b onto 2 GPUs fits")) << none.out;
  const Answer missing = run("advise --model llama3-8b");
  EXPECT_EQ(missing.status, 64) << missing.out;
}

}  // namespace
}  // namespace mbb::suites
