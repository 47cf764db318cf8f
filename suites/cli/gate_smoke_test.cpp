// The gate as a nightly job meets it: first night, accepted baseline, a quiet night, a slower product, reports on disk.
#include <gtest/gtest.h>

#include "suites/cli/program_fixture_test.h"

namespace mbb::suites {
namespace {

class GateCommand : public ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    std::ofstream(folder_ / "small.toml")
        << "purpose = \"one rank\"\n[base]\nmicro_batch_size = 1\nglobal_batch_size = 2\n"
           "seq_length = 16\ntrain_iters = 12\n[[cell]]\nname = \"one\"\n";
  }
};

TEST_F(GateCommand, NightsAgainstAnAcceptedBaseline) {
  const Answer first = run("gate small.toml --launches 5 --quiet");
  EXPECT_EQ(first.status, 0) << first.out;
  EXPECT_NE(first.out.find("new"), std::string::npos) << first.out;

  const Answer unnamed = run("baseline accept @latest --author ada");
  EXPECT_EQ(unnamed.status, 64) << "a reason is needed\n" << unnamed.out;
  ASSERT_EQ(run("baseline accept @latest --author ada --reason 'first night'").status, 0);
  EXPECT_NE(run("baseline list").out.find("first night"), std::string::npos);
  EXPECT_FALSE(run("baseline list").has("superseded"));
  ASSERT_EQ(run("baseline accept @latest --author ada --reason again --only one").status, 0);
  EXPECT_TRUE(run("baseline list").has("first night  superseded by a later one")) << run("baseline list").out;

  const Answer quiet =
      run("gate small.toml --launches 2 --quiet --junit-xml j.xml --export-markdown m.md --export-json j.json");
  EXPECT_NE(quiet.out.find("peak_memory"), std::string::npos) << quiet.out;
  EXPECT_NE(quiet.status, 1) << quiet.out;
  EXPECT_NE(quiet.status, 4) << quiet.out;
  EXPECT_NE(text_of(folder_ / "j.xml").find("<testsuite name=\"mbbench gate small\" tests=\"3\""), std::string::npos)
      << text_of(folder_ / "j.xml");
  EXPECT_EQ(text_of(folder_ / "m.md").rfind("<!-- mbbench gate -->", 0), 0U);
  EXPECT_NE(text_of(folder_ / "j.json").find("\"verdict\": \"same\""), std::string::npos)
      << text_of(folder_ / "j.json");

  for (const char* metric : {"cpu_step_time", "peak_memory", "last_loss"})
    EXPECT_NE(run(std::string("history one --json --metric ") + metric).out.find("\"launches\": 2"), std::string::npos)
        << metric;

  // A worse loss of the same build and configuration cannot be the product's doing; a planted baseline shows the way.
  std::string pins = text_of(folder_ / "mbbench-baselines.jsonl");
  const size_t at = pins.find("\"build\":\"");
  ASSERT_NE(at, std::string::npos);
  for (const std::string_view key : {"\"build\":\"", "\"product\":\"", "\"runs\":[\""})
    for (size_t line = 0; (line = pins.find(key, line)) != std::string::npos; line += key.size())
      pins.insert(line + key.size(), "older-");
  for (size_t line = 0; (line = pins.find("\"metric\":\"peak_memory\"", line)) != std::string::npos; ++line) {
    const size_t nights = pins.find("\"nights\":[[", line);
    const size_t end = pins.find("]]", nights);
    pins.replace(nights, end + 2 - nights, "\"nights\":[[1000,1000,1000,1000,1000]]");
  }
  std::ofstream(folder_ / "mbbench-baselines.jsonl") << pins;
  const Answer worse = run("gate small.toml --launches 2 --quiet");
  EXPECT_EQ(worse.status, 1) << "memory grew\n" << worse.out;
  EXPECT_TRUE(run("gate --run @latest").has("is a gate-confirm's, no night"));
  EXPECT_NE(worse.out.find("confirmed by 2 fresh launches"), std::string::npos) << worse.out;
  EXPECT_EQ(run("gate small.toml --launches 2 --quiet --fail-on broken").status, 0);
}

TEST_F(GateCommand, BadInputIsNamed) {
  EXPECT_EQ(run("gate").status, 64);
  EXPECT_EQ(run("gate small.toml --launches none").status, 64);
  EXPECT_EQ(run("gate small.toml --fail-on slow").status, 64) << "before anything runs";
  EXPECT_EQ(run("gate small.toml --fail-on new").status, 64) << "no failure";
  EXPECT_EQ(run("gate --run @latest --only one").status, 64);
  EXPECT_EQ(run("gate small.toml --bridge this --junit-xml j.xml").status, 64);
  EXPECT_EQ(run("gate small.toml gate.facts.image=").status, 64) << "an empty variable is no product";
  const Answer typed = run("gate small.toml gate.product=commit");
  EXPECT_EQ(typed.status, 64) << "before anything runs";
  EXPECT_TRUE(typed.has("gate.product = 'commit' matches no fact")) << typed.out;
  EXPECT_TRUE(typed.has("build.commit")) << "the facts there are: " << typed.out;
  for (const char* text : {"[gate]\nproduct = \"commit\"\n", "[gate]\nproduct = \"cpu.model\"\n",
                           "[gate]\nmax_silent_nights = 0\n", "[gate]\nprodukt = \"commit\"\n"}) {
    write("mbbench.toml", text);
    write("j.xml", "last night's");
    const Answer written = run("gate small.toml --junit-xml j.xml");
    EXPECT_EQ(written.status, 4) << text << written.out;
    EXPECT_NE(text_of(folder_ / "j.xml").find("errors=\"1\""), std::string::npos) << text;
  }
  fs::remove(folder_ / "mbbench.toml");
  const Answer nowhere = run("gate small.toml --junit-xml nowhere/j.xml");
  EXPECT_EQ(nowhere.status, 4);
  EXPECT_TRUE(nowhere.has("error: writing nowhere/j.xml: there is no folder nowhere\n")) << nowhere.out;
  EXPECT_EQ(nowhere.out.find("one"), std::string::npos) << "said before anything runs\n" << nowhere.out;
  for (const char* other : {"j.xml", "./j.xml", "nowhere/../j.xml"})
    EXPECT_EQ(run("gate small.toml --junit-xml j.xml --export-json " + std::string(other)).status, 64) << other;
  std::ofstream(folder_ / "j.xml") << "last night's";
  EXPECT_EQ(run("gate nothing.toml --junit-xml j.xml").status, 4);
  EXPECT_NE(text_of(folder_ / "j.xml").find("errors=\"1\""), std::string::npos) << text_of(folder_ / "j.xml");
  EXPECT_EQ(run("gate nothing.toml --export-markdown m.md").status, 4);
  EXPECT_NE(text_of(folder_ / "j.xml").find("mbbench gate nothing\""), std::string::npos)
      << "as the suite calls itself";
  EXPECT_EQ(text_of(folder_ / "m.md").find("product"), std::string::npos) << text_of(folder_ / "m.md");
  fs::create_directory(folder_ / "broken");
  write("broken/mbbench.sqlite", "no database, and long enough to tell");
  const Answer store = run("gate small.toml runs_dir=broken --junit-xml j.xml");
  EXPECT_EQ(store.status, 4) << store.out;
  EXPECT_FALSE(store.has("[1/1] one")) << "said before anything runs\n" << store.out;
  EXPECT_NE(text_of(folder_ / "j.xml").find("it is no SQLite database"), std::string::npos);
  std::ofstream(folder_ / "mbbench-baselines.jsonl") << "not json\n";
  const Answer bad = run("gate small.toml --launches 1 --quiet");
  EXPECT_EQ(bad.status, 4);
  EXPECT_NE(bad.out.find("mbbench-baselines.jsonl:1: no baseline line"), std::string::npos) << bad.out;
  const Answer ab = run("ab nothing-here this small.toml");
  EXPECT_EQ(ab.status, 64);
  EXPECT_NE(ab.out.find("is no program, build folder or knob set"), std::string::npos) << ab.out;
}

TEST_F(GateCommand, ASuiteThatMeasuredNothingSaysWhyAndFails) {
  write("gpu.toml",
        "purpose = \"needs more GPUs than there are\"\n[base]\ndevice = \"cuda\"\ngpus = 512\nmicro_batch_size = "
        "1\nglobal_batch_size = 512\n[[cell]]\nname = \"g\"\n");
  for (const char* command : {"gate gpu.toml --quiet", "noise gpu.toml --quiet", "ab this this gpu.toml --quiet"}) {
    const Answer answer = run(command);
    EXPECT_EQ(answer.status, 4) << command << "\n" << answer.out;
    EXPECT_TRUE(answer.has("needs 512 GPUs")) << command << "\n" << answer.out;
  }
  EXPECT_EQ(run("baseline list @latest").status, 64);
  EXPECT_EQ(run("baseline list --reason x").status, 64);
  EXPECT_EQ(run("baseline expire b-1 --expires 3 --reason x --author ada").status, 64);
}

TEST_F(GateCommand, AnArmThatMeasuresNothingIsBrokenAndNamed) {
  for (const auto& [arms, said] : {std::pair{"this /bin/true", "B (/bin/true): launch 0: no step was recorded"},
                                   {"/bin/true this", "A (/bin/true): launch 0: no step was recorded"}}) {
    const Answer answer = run(std::string("ab ") + arms + " small.toml --budget 3 --quiet");
    EXPECT_EQ(answer.status, 4) << answer.out;
    EXPECT_TRUE(answer.has("broken")) << answer.out;
    EXPECT_TRUE(answer.has(said)) << answer.out;
    // Of launches with reference work one arm has another metric than an arm without a step.
    const Answer beside = run(std::string("ab ") + arms + " small.toml reference_work=true --budget 3 --quiet");
    EXPECT_EQ(beside.status, 4) << beside.out;
    EXPECT_TRUE(beside.has(said)) << beside.out;
  }
}

TEST_F(GateCommand, ArmsThatAreJudgedByDifferentMetricsAreIncomparable) {
  const Answer answer = run("ab this tp=2 small.toml --budget 3 --quiet");
  EXPECT_EQ(answer.status, 3) << answer.out;
  EXPECT_TRUE(answer.has("this is judged by cpu_step_time, tp=2 by peak_memory")) << answer.out;
}

TEST_F(GateCommand, AbTellsMoreWorkFromTheSame) {
  const Answer more = run("ab this global_batch_size=4 small.toml --budget 3 --quiet");
  EXPECT_NE(more.out.find("one"), std::string::npos) << more.out;
  EXPECT_TRUE(more.status == 1 || more.status == 2) << "twice the work is never same or faster\n" << more.out;
}

}  // namespace
}  // namespace mbb::suites
