// Differences of stored step programs.
#include "analysis/report/program_diff.h"

#include <gtest/gtest.h>

#include "analysis/report/op_groups.h"

namespace mbb::analysis {
namespace {

// A program of one rank class on `gpus` GPUs with these ops.
std::string program(int gpus, const std::string& ops) {
  return "{\"format\": \"mbbench-program\", \"rank_classes\": [{\"role\": \"decoder\", \"summary\": {\"gpus\": " +
         std::to_string(gpus) + "}, \"segments\": [{\"ops\": [" + ops + "]}]}]}";
}
std::string op(const std::string& path, int runs, double flops, double bytes, const std::string& stream = "compute") {
  return "{\"path\": \"" + path + "\", \"kind\": \"gemm\", \"stream\": \"" + stream +
         "\", \"runs\": " + std::to_string(runs) + ", \"flops\": " + std::to_string(flops) +
         ", \"bytes\": " + std::to_string(bytes) + "}";
}

TEST(ProgramDiff, NewGoneAndChangedOpsByPath) {
  const std::string before = program(1, op("layers.0.fc1.fwd", 2, 100, 10) + "," + op("layers.1.fc1.fwd", 2, 100, 10) +
                                            "," + op("head.fwd", 1, 5, 5) + "," + op("gone", 1, 1, 1));
  const std::string after = program(1, op("layers.0.fc1.fwd", 2, 100, 6) + "," + op("layers.1.fc1.fwd", 2, 100, 6) +
                                           "," + op("head.fwd", 1, 5, 5) + "," + op("quantize", 4, 0, 3));
  const auto diff = program_diff(before, after);
  ASSERT_TRUE(diff) << diff.error().what;
  ASSERT_EQ(diff->ops.size(), 3u);
  EXPECT_EQ(diff->equal, 1u);
  EXPECT_EQ(diff->ops[0].path, "quantize");
  EXPECT_FALSE(diff->ops[0].in_old);
  EXPECT_EQ(diff->ops[1].path, "gone");
  EXPECT_EQ(diff->ops[2].path, "layers.*.fc1.fwd");
  EXPECT_EQ(diff->ops[2].before.bytes, 40);
  EXPECT_EQ(diff->ops[2].after.bytes, 24);
  EXPECT_EQ(to_text(program_table(*diff, "a", 2)),
            "a: what differs in the step program\n"
            "op          kind  stream   runs a step     FLOPs      bytes      sent\n"
            "+ quantize  gemm  compute       - -> 4    - -> 0  - -> 12 B  - -> 0 B\n"
            "- gone      gemm  compute       1 -> -  1 F -> -   1 B -> -  0 B -> -\n"
            "1 more differ.\n"
            "3 ops differ, 1 are equal; sums over a step and all GPUs, + new, - gone.\n");
}

TEST(ProgramDiff, AMappingThatOnlySpreadsWorkLeavesItsFlops) {
  const auto diff = program_diff(program(1, op("fc1.fwd", 4, 100, 40)), program(2, op("fc1.fwd", 4, 50, 20)));
  ASSERT_TRUE(diff);
  ASSERT_EQ(diff->ops.size(), 1u);
  EXPECT_EQ(diff->ops[0].before.flops, diff->ops[0].after.flops);
  EXPECT_EQ(diff->ops[0].after.runs, 8);
  EXPECT_FALSE(program_diff("", "{}"));
  EXPECT_FALSE(program_diff("{\"format\": \"other\"}", "{}"));
  EXPECT_EQ(grouped_path("layers.12.mlp.fc1.fwd.split2"), "layers.*.mlp.fc1.fwd.split2");
}

}  // namespace
}  // namespace mbb::analysis
