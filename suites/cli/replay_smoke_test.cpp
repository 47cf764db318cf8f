// Routers' choices between cells of a suite and between runs: parallel.moe_router_replay.
#include <gtest/gtest.h>

#include "suites/cli/program_fixture_test.h"

namespace mbb::suites {
namespace {

class Replay : public ProgramTest {
 protected:
  Answer run(const std::string& arguments) const { return sh("timeout -s KILL 200 " + program_ + " " + arguments); }
};

TEST_F(Replay, LowerPrecisionTakesTheChoicesOfTheOneRankCell) {
  std::ofstream(folder_ / "s.toml") << R"(purpose = "Experts in lower precision, tokens going where one rank sent them."
model = "mixtral-8x7b"
[base]
data.kind = "synthetic"
seq_length = 16
train_iters = 4
num_layers = 2
hidden_size = 32
num_attention_heads = 4
num_query_groups = 4
kv_channels = 8
vocab_size = 64
make_vocab_size_divisible_by = 8
num_experts = 4
moe_router_topk = 2
moe_ffn_hidden_size = 24
record_gradients = true
moe_router_replay = "reference"
[[cell]]
name = "bf16-tp2-ep2"
set = { recipe = "bf16", tp = 2, ep = 2, etp = 1 }
[[cell]]
name = "bf16-one"
set = { recipe = "bf16" }
[[cell]]
name = "fp32-tp2-ep2"
set = { tp = 2, ep = 2, etp = 1 }
[[cell]]
name = "fp32-one"
)";
  const Answer all = run("suite ./s.toml");
  EXPECT_EQ(all.status, 0) << all.out;
  EXPECT_NE(all.out.find("4 ok, 0 broken"), std::string::npos) << all.out;
  const Answer shown = run("show @latest");
  EXPECT_NE(shown.out.find("losses are within"), std::string::npos) << shown.out;
  EXPECT_NE(shown.out.find("losses equal "), std::string::npos) << shown.out;

  const Answer alone = run("suite ./s.toml --only '*bf16*'");
  EXPECT_EQ(alone.status, 4) << alone.out;
  EXPECT_NE(alone.out.find("no one-rank fp32 cell of the same work ran before"), std::string::npos) << alone.out;
}

TEST_F(Replay, ARunTakesWhatAnotherRecorded) {
  const std::string small =
      "run model=mixtral-8x7b data.kind=synthetic seq_length=16 gbs=4 mbs=1 train_iters=3 layers=2 hidden_size=32 "
      "num_attention_heads=4 num_query_groups=4 kv_channels=8 vocab_size=64 num_experts=4 moe_router_topk=2 "
      "moe_ffn_hidden_size=24 --quiet ";
  EXPECT_EQ(run(small + "moe_router_replay=record").status, 0);
  const Answer found = sh("find mbbench-runs -name routing.bin");
  ASSERT_FALSE(found.out.empty());
  const std::string file = found.out.substr(0, found.out.find('\n'));
  EXPECT_EQ(run(small + "tp=2 ep=2 etp=1 moe_router_replay=" + file).status, 0);
  const Answer longer = run(small + "train_iters=4 moe_router_replay=" + file);
  EXPECT_EQ(longer.status, 4) << longer.out;
  EXPECT_NE(longer.out.find("the recorded choices have none of 2 experts for router layers.0.mlp.router, sample 12"),
            std::string::npos)
      << longer.out;
  const Answer outside = run(small + "recipe=bf16 moe_router_replay=reference");
  EXPECT_EQ(outside.status, 4) << outside.out;
}

}  // namespace
}  // namespace mbb::suites
