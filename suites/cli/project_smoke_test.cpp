// `mbbench project` and `mbbench advise` as a person meets them: a step, its timeline, a stored projection, bad input.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>

namespace mbb::suites {
namespace {

namespace fs = std::filesystem;

struct Answer {
  int status = -1;
  std::string out;
  bool says(const std::string& text) const { return out.find(text) != std::string::npos; }
};

class ProjectCommand : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / ("mbbench_project_" + std::to_string(getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override {
    if (!HasFailure()) fs::remove_all(folder_);
  }

  Answer run(const std::string& arguments) const {
    Answer answer;
    const std::string program = fs::absolute(fs::path(MBB_BINARY_DIR) / "bin" / "mbbench").string();
    FILE* pipe = popen(("cd " + folder_.string() + " && " + program + " " + arguments + " 2>&1").c_str(), "r");
    std::array<char, 4096> buffer{};
    for (size_t got = 0; (got = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
      answer.out.append(buffer.data(), got);
    const int status = pclose(pipe);
    answer.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return answer;
  }

  fs::path folder_;
};

constexpr const char* kStep = "project model=llama3-8b gpus=16 tp=2 pp=2 gbs=32 seq_length=8192 recipe=bf16 ";

TEST_F(ProjectCommand, PrintsAStepItsTimelineAndItsCost) {
  const Answer a = run(std::string(kStep) + "--timeline --train-tokens 15T --price 2.5");
  EXPECT_EQ(a.status, 0) << a.out;
  EXPECT_TRUE(a.says("tp2 cp1 pp2 dp4")) << a.out;
  EXPECT_TRUE(a.says("16 GPUs, 8 micro-batches of 1 x 8192 tokens, bf16, on h100-sxm")) << a.out;
  EXPECT_TRUE(a.says("tokens/s/GPU")) << a.out;
  EXPECT_TRUE(a.says("fits")) << a.out;
  EXPECT_TRUE(a.says("days")) << a.out;
  EXPECT_TRUE(a.says("published H100 steps")) << a.out;
  EXPECT_TRUE(a.says("projected: nothing here was measured.")) << a.out;
  EXPECT_TRUE(a.says("####")) << a.out;  // compute in the timeline
}

TEST_F(ProjectCommand, KeepsAProjectionAsARun) {
  const Answer saved = run(std::string(kStep) + "--save");
  EXPECT_EQ(saved.status, 0) << saved.out;
  const Answer shown = run("show @latest");
  EXPECT_EQ(shown.status, 0) << shown.out;
  EXPECT_TRUE(shown.says("projected")) << shown.out;
  const Answer timeline = run("show @latest --timeline");
  EXPECT_EQ(timeline.status, 0) << timeline.out;
  EXPECT_TRUE(timeline.says("compute")) << timeline.out;
}

TEST_F(ProjectCommand, SaysThatAPlanDoesNotFit) {
  const Answer a = run("project model=llama3-70b gpus=8 tp=8 gbs=8 seq_length=8192 recipe=bf16");
  EXPECT_EQ(a.status, 0) << a.out;
  EXPECT_TRUE(a.says("DOES NOT FIT")) << a.out;
}

TEST_F(ProjectCommand, ListsCardsAndWhatTheirCostsRestOn) {
  const Answer a = run("list hardware");
  EXPECT_EQ(a.status, 0) << a.out;
  EXPECT_TRUE(a.says("h100-sxm") && a.says("measured 2026")) << a.out;
  EXPECT_TRUE(a.says("gb200") && a.says("ceilings only")) << a.out;
}

TEST_F(ProjectCommand, NamesBadInput) {
  const Answer card = run(std::string(kStep) + "--hardware h100-smx");
  EXPECT_EQ(card.status, 4) << card.out;
  EXPECT_TRUE(card.says("no hardware is named \"h100-smx\"") && card.says("h100-sxm")) << card.out;
  const Answer tokens = run(std::string(kStep) + "--train-tokens many");
  EXPECT_EQ(tokens.status, 64) << tokens.out;
  EXPECT_TRUE(tokens.says("--train-tokens many is no number above 0")) << tokens.out;
  const Answer price = run(std::string(kStep) + "--price 2");
  EXPECT_EQ(price.status, 64) << price.out;
  EXPECT_TRUE(price.says("--price without --train-tokens")) << price.out;
  const Answer types = run("project model=llama3-8b gpus=8 recipe=fp32");
  EXPECT_EQ(types.status, 4) << types.out;
  EXPECT_TRUE(types.says("h100-sxm has no rates for products of f32")) << types.out;
  const Answer mapping = run("project model=llama3-8b gpus=8 tp=3");
  EXPECT_EQ(mapping.status, 64) << mapping.out;
  std::ofstream(folder_ / "bad.toml") << "hardware = \"h100-sxm\"\n";
  const Answer file = run(std::string(kStep) + "--costs bad.toml");
  EXPECT_EQ(file.status, 4) << file.out;
  EXPECT_TRUE(file.says("bad.toml") && file.says("lacks 'date'")) << file.out;
}

TEST_F(ProjectCommand, AdviseRanksWhatFits) {
  const Answer a = run("advise --model llama3-8b layers=8 --gpus 8 gbs=8 mbs=1 seq_length=8192 tp=2 cp=1 --rows 3");
  EXPECT_EQ(a.status, 0) << a.out;
  EXPECT_TRUE(a.says("fastest")) << a.out;
  EXPECT_TRUE(a.says("tp2")) << a.out;
  EXPECT_FALSE(a.says("tp4")) << a.out;
  EXPECT_TRUE(a.says("fit and are ranked")) << a.out;
  const Answer none = run("advise --model llama3.1-405b --gpus 2 gbs=8 seq_length=8192");
  EXPECT_EQ(none.status, 4) << none.out;
  EXPECT_TRUE(none.says("no mapping of llama3.1-405b onto 2 GPUs fits")) << none.out;
  const Answer missing = run("advise --model llama3-8b");
  EXPECT_EQ(missing.status, 64) << missing.out;
}

}  // namespace
}  // namespace mbb::suites
