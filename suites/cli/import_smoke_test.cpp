// mbbench import: logs, configurations, traces and snapshots of other tools become runs or knobs, and nothing is left
// out unseen.
#include <gtest/gtest.h>

#include <algorithm>

#include "baselines/store/bundle.h"
#include "suites/cli/command.h"
#include "suites/cli/program_fixture_test.h"

namespace mbb::suites {
namespace {

class ImportCli : public ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    script_ = fs::absolute(fs::path(MBB_SOURCE_DIR) / "suites" / "foreign" / "stand_in_bridge.sh").string();
    data_ = fs::absolute(fs::path(MBB_SOURCE_DIR) / ".." / "shared" / "data");
  }

  baselines::Run stored() const {
    const auto reader =
        baselines::BundleReader::open(fs::directory_iterator(folder_ / "mbbench-runs" / "runs")->path());
    EXPECT_TRUE(reader);
    auto run = reader->read_all();
    EXPECT_TRUE(run) << run.error().what;
    return std::move(*run);
  }
  static double metric(const baselines::Cell& cell, const std::string& id) {
    for (const auto& one : cell.metrics)
      if (one.name == id) return one.value;
    return -1;
  }

  fs::path data_;
  std::string script_;
};

TEST_F(ImportCli, LogsBecomeLaunchesOfACellAndTheirConfigurationKnobs) {
  ASSERT_EQ(sh("sh " + script_ + " --iters 30 --step-ms 500 > a.log").status, 0);
  ASSERT_EQ(sh("sh " + script_ + " --iters 30 --step-ms 502 > b.log").status, 0);
  write("run_config.yaml",
        "model:\n  num_layers: 32\n  hidden_size: 4096\n  ffn_hidden_size: 14336\n  num_attention_heads: 32\n"
        "  num_query_groups: 8\n  tensor_model_parallel_size: 4\n  bf16: true\n  frobnicate: 3\n");
  const Answer answer = run("import . --cell theirs --on 'NVIDIA H100 80GB HBM3' --tag got");
  EXPECT_EQ(answer.status, 0) << answer.out;
  EXPECT_TRUE(answer.has("model.frobnicate")) << answer.out;
  EXPECT_TRUE(answer.has("parallel.tensor_model_parallel_size")) << answer.out;
  const baselines::Run imported = stored();
  ASSERT_EQ(imported.cells.size(), 1U);
  const baselines::Cell& cell = imported.cells[0];
  EXPECT_EQ(cell.status, baselines::CellStatus::kOk) << cell.reason;
  EXPECT_EQ(cell.name, "theirs");
  EXPECT_EQ(cell.model, "llama3-8b");
  EXPECT_EQ(cell.gpus, 8);
  ASSERT_EQ(cell.launches.size(), 2U);
  EXPECT_NEAR(metric(cell, "step_time"), 501.2e6, 0.5e6);
  EXPECT_NEAR(metric(cell, "tokens_per_second_per_gpu"), 8 * 4096 / 0.5012 / 8, 10);
  EXPECT_GT(metric(cell, "mfu_bf16"), 1);
  EXPECT_TRUE(run("list runs").has("import"));
  EXPECT_EQ(run("show @got --cell theirs").status, 0);
}

TEST_F(ImportCli, RatesAreHeldAgainstADeviceByAnyOfItsNamesAndADeviceWithoutAPeakIsSaid) {
  ASSERT_EQ(sh("sh " + script_ + " --iters 30 --step-ms 5 > fast.log").status, 0);
  const std::string log = "import fast.log model=llama3-8b gpus=8 --on ";
  for (const char* device : {"h100-sxm", "'NVIDIA H100 80GB HBM3'"}) {
    const Answer answer = run(log + device);
    EXPECT_EQ(answer.status, kExitBroken) << answer.out;
    EXPECT_TRUE(answer.has("that a NVIDIA H100 80GB HBM3 does in")) << answer.out;
  }
  const Answer unknown = run(log + "H100");
  EXPECT_EQ(unknown.status, 0) << unknown.out;
  EXPECT_TRUE(unknown.has("no peak of 'H100' is known")) << unknown.out;
  EXPECT_TRUE(unknown.has("TFLOP/s/GPU are ours by neither convention")) << unknown.out;
}

TEST_F(ImportCli, ABundleIsIndexedAndARedactedOneHasNoFilesName) {
  ASSERT_EQ(sh("sh " + script_ + " --iters 20 > alicewonder-tp2.log").status, 0);
  ASSERT_EQ(run("import alicewonder-tp2.log").status, 0);
  ASSERT_EQ(run("export @latest --format bundle --redact --output to").status, 0);
  EXPECT_EQ(sh("grep -rl alicewonder to").status, 1);
  EXPECT_TRUE(fs::exists(folder_ / "to" / "cells" / "redacted-1-tp2"));
  const Answer answer = run("import to");
  EXPECT_EQ(answer.status, 4) << answer.out;
  EXPECT_TRUE(answer.has("to is a bundle of this program") && answer.has("mbbench index to")) << answer.out;
}

TEST_F(ImportCli, OneLaunchASideIsNothingToFailOn) {
  ASSERT_EQ(sh("sh " + script_ + " --iters 20 > one.log").status, 0);
  ASSERT_EQ(run("import one.log --tag a").status, 0);
  ASSERT_EQ(run("import one.log --tag b").status, 0);
  const Answer answer = run("compare @a @b --fail-on slower");
  EXPECT_EQ(answer.status, 2) << answer.out;
  EXPECT_TRUE(answer.has("no pair of cells has equal work and launches enough")) << answer.out;
}

TEST_F(ImportCli, ALogAloneIsMeasuredOnAnUnknownDevice) {
  ASSERT_EQ(sh("sh " + script_ + " --iters 30 > only.log && gzip only.log").status, 0);
  const Answer answer = run("import only.log.gz");
  EXPECT_EQ(answer.status, 0) << answer.out;
  EXPECT_TRUE(answer.has("unknown device")) << answer.out;
  const baselines::Run imported = stored();
  EXPECT_EQ(imported.cells[0].name, "only");
  EXPECT_LT(metric(imported.cells[0], "mfu_bf16"), 0) << "no peak is guessed";
  EXPECT_NEAR(metric(imported.cells[0], "logged_tflops_per_gpu"), 412.3, 1e-6);
  const Answer diagnosed = run("diagnose @latest --hardware h100-sxm");
  EXPECT_EQ(diagnosed.status, 0) << diagnosed.out;
  EXPECT_TRUE(diagnosed.has("What a change is worth is not known: cell only says no model.name")) << diagnosed.out;
}

TEST_F(ImportCli, WhatCannotBeIsBrokenWithTheReason) {
  const auto broken = [&](const std::string& arguments, const std::string& part) {
    const Answer answer = run("import " + arguments);
    EXPECT_EQ(answer.status, 4) << arguments << "\n" << answer.out;
    EXPECT_TRUE(answer.has(part)) << arguments << "\n" << answer.out;
    const baselines::Run imported = stored();
    EXPECT_EQ(imported.cells.at(0).status, baselines::CellStatus::kBroken);
    EXPECT_TRUE(imported.cells.at(0).metrics.empty()) << "a broken cell has no numbers";
    fs::remove_all(folder_ / "mbbench-runs");
  };
  ASSERT_EQ(sh("sh " + script_ + " --iters 30 --gbs 1024 --step-ms 500 > fast.log").status, 0);
  const std::string h100 = " --on 'NVIDIA H100 80GB HBM3' model=llama3-8b ";
  broken("fast.log" + h100 + "recipe=bf16", "TFLOP/s/GPU are");
  broken("fast.log" + h100, "does in fp8");
  ASSERT_EQ(sh("for i in $(seq 100); do echo '{\"step\": '$i', \"step_time_s\": 0.5, \"loss\": '$([ $i -gt 5 ] && echo "
               "NaN || echo 2.0)'}'; done > nan.jsonl")
                .status,
            0);
  broken("nan.jsonl", "the loss of step 6 is nan");
}

TEST_F(ImportCli, ABatchThatGrowsIsNotTimedAsItsLast) {
  ASSERT_EQ(sh("sh " + script_ + " --iters 60 --gbs 128 --step-ms 20000 > grows.log && sh " + script_ +
               " --iters 80 --gbs 256 --step-ms 20000 | grep 'iteration ' | tail -20 >> grows.log")
                .status,
            0);
  const Answer answer = run("import grows.log --on 'NVIDIA H100 80GB HBM3' model=llama3-8b recipe=bf16");
  EXPECT_EQ(answer.status, 0) << answer.out;
  const baselines::Run imported = stored();
  const baselines::Cell& cell = imported.cells.at(0);
  EXPECT_EQ(cell.launches.at(0).steps.size(), 80U);
  EXPECT_NEAR(metric(cell, "tokens_per_second_per_gpu"), 128 * 4096 / 20.0 / 8, 5);
  EXPECT_TRUE(answer.has("grows: the 80 steps are of 2 sizes")) << answer.out;
  EXPECT_TRUE(run("show @latest --cell grows").has("the 60 steps of 524288 tokens"));
}

TEST_F(ImportCli, AnUnknownDeviceAndNumberOfThemAreNotGuessed) {
  ASSERT_EQ(sh("for i in 1 2 3 4 5 6 7 8 9; do echo '{\"step\": '$i', \"step_time_s\": 0.5, \"tokens\": 4096}'; done > "
               "own.jsonl")
                .status,
            0);
  const Answer answer = run("import own.jsonl");
  EXPECT_EQ(answer.status, 0) << answer.out;
  const baselines::Run imported = stored();
  EXPECT_EQ(class_label(imported.cells.at(0)), "measured/unknown device");
  EXPECT_NEAR(metric(imported.cells[0], "tokens_per_second"), 8192, 1);
  EXPECT_LT(metric(imported.cells[0], "tokens_per_second_per_gpu"), 0) << "of how many GPUs?";
  fs::remove_all(folder_ / "mbbench-runs");
  EXPECT_EQ(run("run --quiet --command 'cat own.jsonl'").status, 0);
  EXPECT_EQ(class_label(stored().cells.at(0)), "measured/unknown device") << "a command cell alike";
}

TEST_F(ImportCli, AConfigurationAloneBecomesASuiteFileThatRuns) {
  write(
      "args.txt",
      "------------------------ arguments ------------------------\n"
      "  bf16 ............................................ False\n  fp16 ............................................ "
      "False\n"
      "  global_batch_size ............................... 4\n  micro_batch_size ................................ 2\n"
      "  seq_length ...................................... 16\n  train_iters ..................................... 8\n"
      "  tensor_model_parallel_size ...................... 2\n  some_other_thing ................................ 1\n"
      "-------------------- end of arguments ---------------------\n");
  const Answer answer = run("import args.txt --output mine.toml");
  EXPECT_EQ(answer.status, 0) << answer.out;
  EXPECT_TRUE(answer.has("some_other_thing")) << answer.out;
  EXPECT_FALSE(fs::exists(folder_ / "mbbench-runs")) << "knobs alone are no run";
  EXPECT_TRUE(run("suite ./mine.toml --dry-run").has("project")) << "planned on GPUs";
  const Answer ran = run("suite ./mine.toml --quiet --no-twins");
  EXPECT_EQ(ran.status, 0) << ran.out;
  EXPECT_EQ(stored().cells[0].gpus, 2);
}

TEST_F(ImportCli, TracesAndSnapshotsOfOtherTools) {
  if (!fs::exists(data_)) GTEST_SKIP() << "no " << data_;
  const Answer answer = run("import " + (data_ / "traces/kineto/a100_world2_nccl.json.gz").string() + " " +
                            (data_ / "traces/nsys/mfu_2gpu_before.sqlite").string() + " " +
                            (data_ / "memory/mini_snapshot.pickle").string());
  EXPECT_EQ(answer.status, 0) << answer.out;
  const baselines::Run imported = stored();
  ASSERT_EQ(imported.cells.size(), 3U);
  EXPECT_GT(metric(imported.cells[0], "exposed_comm"), 0);
  EXPECT_GT(metric(imported.cells[0], "idle"), 0);
  EXPECT_GT(metric(imported.cells[1], "exposed_comm_other"), 0);
  EXPECT_EQ(imported.cells[1].gpus, 2);
  EXPECT_EQ(metric(imported.cells[2], "peak_memory"), 402752512);
  const auto& map = imported.cells[2].launches[0].memory.at(0);
  int64_t alive = 0;
  for (const auto& block : map.live_at_peak) alive += block.bytes;
  EXPECT_EQ(alive, map.peak_bytes) << "the live set is the peak";
  EXPECT_EQ(run("show @latest --cell " + imported.cells[0].name + " --timeline").status, 0);
}

TEST_F(ImportCli, OurOwnTraceKeepsItsClass) {
  ASSERT_EQ(run("run train_iters=6 profile_step_start=3 profile_step_end=5 --quiet").status, 0);
  ASSERT_EQ(run("export @latest --format kineto --output k").status, 0);
  const std::string trace = (folder_ / "k" / "run" / "launch0" / "rank0.json.gz").string();
  fs::remove_all(folder_ / "mbbench-runs");
  ASSERT_EQ(run("import " + trace).status, 0);
  const baselines::Run imported = stored();
  EXPECT_EQ(class_label(imported.cells.at(0)), "functional/cpu");
  ASSERT_EQ(sh("gunzip -c " + trace + " | sed 's|functional/cpu|functional/gpu|' > other.json").status, 0);
  const Answer unknown = run("import other.json");
  EXPECT_EQ(unknown.status, 4) << unknown.out;
  EXPECT_TRUE(unknown.has("functional/gpu")) << unknown.out;
}

// What PyTorch's profiler writes of one rank: a launch and its kernel, `start` us on the clock that ranks share.
std::string kineto_of(int rank, int world, double start) {
  return "{\"schemaVersion\": 1, \"distributedInfo\": {\"backend\": \"nccl\", \"rank\": " + std::to_string(rank) +
         ", \"world_size\": " + std::to_string(world) +
         "}, \"deviceProperties\": [{\"id\": 0, \"name\": \"NVIDIA H100 80GB HBM3\"}], \"traceEvents\": [\n{\"ph\": "
         "\"X\", \"cat\": "
         "\"cuda_runtime\", \"name\": \"cudaLaunchKernel\", \"pid\": 1, \"tid\": 1, \"ts\": " +
         std::to_string(start) +
         ", \"dur\": 5, \"args\": {\"correlation\": 7}},\n{\"ph\": \"X\", \"cat\": \"kernel\", "
         "\"name\": \"gemm\", \"pid\": 0, \"tid\": 7, \"ts\": " +
         std::to_string(start + 10) +
         ", \"dur\": 100, \"args\": {\"correlation\": 7, \"stream\": 7, \"device\": " + std::to_string(rank) +
         "}}\n]}\n";
}

TEST_F(ImportCli, KinetoFilesOfOneWorldAreOneCell) {
  write("rank0.json", kineto_of(0, 2, 1000));
  write("rank1.json", kineto_of(1, 2, 1020));
  write("later-rank1.json", kineto_of(1, 2, 9000));
  write("alone.json", kineto_of(0, 1, 1000));
  const Answer answer = run("import rank0.json rank1.json later-rank1.json alone.json");
  ASSERT_EQ(answer.status, 0) << answer.out;
  const baselines::Run imported = stored();
  ASSERT_EQ(imported.cells.size(), 3U) << "another time and another world are cells of their own";
  EXPECT_EQ(imported.cells[0].gpus, 2);
  EXPECT_EQ(class_label(imported.cells[0]), "measured/NVIDIA H100 80GB HBM3\u00d72") << "as the trace says";
  EXPECT_FALSE(answer.has("no peak of")) << answer.out;
  std::vector<std::string> classes;
  for (const auto& op : imported.cells[0].launches.at(0).ops) classes.push_back(op.rank_class);
  std::sort(classes.begin(), classes.end());
  classes.erase(std::unique(classes.begin(), classes.end()), classes.end());
  EXPECT_EQ(classes, (std::vector<std::string>{"rank0", "rank1"}));
  EXPECT_EQ(imported.cells[1].gpus, 1);
  EXPECT_EQ(imported.cells[2].gpus, 1);
  const Answer compared = run("compare @latest @latest");
  EXPECT_TRUE(compared.has("no step was timed") && !compared.has("nan")) << compared.out;
  EXPECT_TRUE(run("show @latest --collectives").has("no collective of known ranks"));
}

TEST_F(ImportCli, WhatCannotBeReadIsNamed) {
  const auto refused = [&](const std::string& arguments, int status, const std::string& part) {
    const Answer answer = run("import " + arguments);
    EXPECT_EQ(answer.status, status) << arguments << "\n" << answer.out;
    EXPECT_TRUE(answer.has(part)) << arguments << "\n" << answer.out;
  };
  write("nothing.log", "no step here\n");
  write("empty", "");
  write("broken.yaml", "model:\n  _target_: x\n  a b c\n");
  refused("nothing.log", 4, "no step found");
  refused("empty", 4, "is empty");
  refused("broken.yaml", 4, "line 3");
  refused("no-such-file", 4, "no file or folder");
  refused("nothing.log --log torchtita", 64, "did you mean 'torchtitan'?");
  refused("nothing.log nosuchknob=3", 64, "nosuchknob");
  ASSERT_EQ(sh("sh " + script_ + " --iters 20 > good.log").status, 0);
  const Answer mixed = run("import .");
  EXPECT_EQ(mixed.status, 0) << mixed.out;
  EXPECT_TRUE(mixed.has("left out: ")) << mixed.out;
  EXPECT_FALSE(fs::exists(folder_ / "mbbench-runs" / "mbbench.sqlite-journal"));
  refused("good.log gpus=4", 4, "parallel.gpus is 4 as set and 8 in the log");
}

// A store that cannot be used never loses a run: the bundle is whole, and index brings it in.
TEST_F(ImportCli, ALockedOlderNewerOrBrokenStoreIsSaidAndTheBundleStays) {
  ASSERT_EQ(sh("sh " + script_ + " --iters 20 > good.log").status, 0);
  ASSERT_EQ(run("import good.log").status, 0);
  const std::string store = "mbbench-runs/mbbench.sqlite";
  fs::copy_file(folder_ / store, folder_ / "good.sqlite");
  write("garbage", "this is no database, and long enough to be looked at as one ................................");
  fs::copy_file(folder_ / "garbage", folder_ / store, fs::copy_options::overwrite_existing);
  fs::remove(folder_ / (store + "-wal"));
  fs::remove(folder_ / (store + "-shm"));
  const Answer corrupt = run("import good.log");
  EXPECT_EQ(corrupt.status, 0) << corrupt.out;
  EXPECT_TRUE(corrupt.has("the store was not updated")) << corrupt.out;
  EXPECT_TRUE(corrupt.has("mbbench index")) << corrupt.out;
  const Answer shown = run("show @latest");
  EXPECT_EQ(shown.status, 4);
  EXPECT_TRUE(shown.has("mbbench.sqlite")) << shown.out;
  std::ifstream kept(folder_ / store);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(kept), {}).substr(0, 8), "this is ") << "it stays as it was";
  fs::copy_file(folder_ / "good.sqlite", folder_ / store, fs::copy_options::overwrite_existing);
  {  // the version that SQLite keeps at byte 60 of the file
    std::fstream file(folder_ / store, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(60);
    file.write("\0\0\0\x63", 4);
  }
  const Answer newer = run("show @latest");
  EXPECT_EQ(newer.status, 4);
  EXPECT_TRUE(newer.has("written by a newer mbbench")) << newer.out;
  EXPECT_TRUE(newer.has("mbbench index")) << newer.out;
  fs::remove(folder_ / store);
  write(store, "");
  const Answer emptied = run("list runs");
  EXPECT_EQ(emptied.status, 4) << emptied.out;
  EXPECT_TRUE(emptied.has("the file is empty")) << emptied.out;
  EXPECT_TRUE(emptied.has("mbbench index")) << emptied.out;
  fs::remove(folder_ / store);
  const Answer index = run("index");
  EXPECT_EQ(index.status, 0) << index.out;
  EXPECT_TRUE(index.has("indexed 2 runs")) << index.out;
}

}  // namespace
}  // namespace mbb::suites
