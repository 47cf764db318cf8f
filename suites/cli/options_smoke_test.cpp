// No option, knob or name is taken and does nothing: each is refused with what it lacks.
#include <gtest/gtest.h>

#include "baselines/store/bundle.h"
#include "suites/cli/program_fixture_test.h"

namespace mbb::suites {
namespace {

class Options : public ProgramTest {
 protected:
  void expect_refused(const std::string& arguments, const std::string& part) const {
    const Answer answer = run(arguments);
    EXPECT_EQ(answer.status, 64) << arguments << "\n" << answer.out;
    EXPECT_TRUE(answer.has(part)) << arguments << "\n" << answer.out;
    EXPECT_FALSE(fs::exists(folder_ / "mbbench-runs")) << arguments;
  }
  // Leaves the only run as a kill before its cell b would.
  void end_before_cell_b() const {
    const fs::path bundle = *fs::directory_iterator(folder_ / "mbbench-runs" / "runs");
    baselines::Run begun = baselines::BundleReader::open(bundle)->run();
    begun.ended_unix_ns = 0;
    fs::remove_all(bundle / "cells" / "b");
    ASSERT_TRUE(baselines::BundleWriter::reopen(bundle)->write_run(begun).has_value());
  }
};

TEST_F(Options, ThatNeedAnotherOneAreRefusedWithoutIt) {
  expect_refused("suite quickstart --run @latest", "--run without --resume");
  expect_refused("suite quickstart --resume --dry-run", "--dry-run with --resume");
  expect_refused("suite quickstart --resume --tag night", "--tag with --resume");
  expect_refused("suite quickstart --dry-run --seed 3", "suite quickstart has no [cover]");
  expect_refused("suite quickstart --dry-run --combinations 3", "whose combinations --combinations could change");
  expect_refused("run --log jsonl", "--log without --command");
  expect_refused("run --log-file x", "--log-file without --command");
  expect_refused("run --tag ''", "--tag is empty");
  expect_refused("show @latest --step 1", "--step without --timeline");
  expect_refused("show @latest --rows 3", "--rows without --cell");
  expect_refused("show @latest --timeline --json", "--timeline with --json");
  expect_refused("project --costs x.toml --hardware b200", "--hardware with --costs");
  expect_refused("project --price 2", "--price without --train-tokens");
  expect_refused("project --timeline --json", "--timeline with --json");
  expect_refused("project --published tp=2", "argument 'tp=2' with --published");
  expect_refused("explain --json --ops", "--ops with --json");
  expect_refused("export @latest --format csv --against @2", "--against with --format csv");
  expect_refused("advise --model llama3-8b --gpus 8 --rows -1", "--rows -1: a number from 1 on");
  expect_refused("advise --model llama3-8b --gpus 8 --rows many", "--rows many: a number from 1 on");
}

TEST_F(Options, OfImportThatTheFilesGiveNothingToDoAreRefused) {
  write("run_config.yaml", "_target_: x.ConfigContainer\ntrain:\n  micro_batch_size: 2\n");
  expect_refused("import run_config.yaml --cell mine", "--cell: none of the files is a log");
  expect_refused("import run_config.yaml --log nemo", "--log: none of the files is a log");
  expect_refused("import run_config.yaml --tag t", "--tag: a configuration alone becomes knobs");
  expect_refused("import run_config.yaml --on h100-sxm", "--on: a configuration alone becomes knobs");
  EXPECT_EQ(run("import run_config.yaml").status, 0);
}

TEST_F(Options, KnobsWhereNothingRunsAreRefused) {
  for (const char* command :
       {"show @latest", "compare @2 @latest", "diagnose @latest", "export @latest", "index", "doctor"})
    expect_refused(std::string(command) + " tp=2", "parallel.tensor_model_parallel_size is a knob of a run");
  EXPECT_EQ(run("gc runs_dir=elsewhere").status, 0);
  EXPECT_TRUE(run("show --help").has("Settings may follow"));
  EXPECT_TRUE(run("run --help").has("Any knob may follow"));
}

TEST_F(Options, HelpKnowsValuesPartsSettingsAndModels) {
  EXPECT_TRUE(run("help fp8_current").has("fp8_current is a value of\nprecision.recipe"));
  EXPECT_TRUE(run("help num_splits").has("num_splits is a part of\noverlap.tp_comm_overlap_cfg"));
  EXPECT_TRUE(run("help gc.keep_days").has("gc.keep_days"));
  EXPECT_TRUE(run("help llama3-8b").has("llama3-8b is a model"));
  EXPECT_EQ(run("help nosuchword").status, 64);
}

TEST_F(Options, TheViewersHelpIsItsOwn) {
  if (!fs::exists(fs::path(program_).parent_path() / "mbbench-view")) GTEST_SKIP() << "no viewer in this build";
  const Answer answer = run("view --help");
  EXPECT_EQ(answer.status, 0) << answer.out;
  EXPECT_TRUE(answer.has("--screenshot") && answer.has("--script")) << answer.out;
}

TEST_F(Options, ARefusalSaysWhereAKnobWasSetThatNobodyTyped) {
  write("mbbench.toml", "[train]\nglobal_batch_size = 3\n");
  for (const char* command : {"explain", "project", "run"}) {
    const Answer answer = run(std::string(command) + " mbs=2");
    EXPECT_EQ(answer.status, 64) << answer.out;
    EXPECT_TRUE(answer.has("train.global_batch_size stands at ") && answer.has("mbbench.toml:2:21")) << answer.out;
  }
  EXPECT_FALSE(run("explain mbs=2 gbs=3").has("stands at"));
  expect_refused("run runs_dir=", "argument 'runs_dir=': runs_dir is empty");
}

TEST_F(Options, AModelThatIsNoneIsABadValueOfItsKnob) {
  expect_refused("explain model=llama", "model.name: no model is named \"llama\"");
  EXPECT_EQ(run("explain model=none/config.json").status, 4) << "a file that is not there";
}

constexpr const char* kSmall =
    "layers=1 hidden_size=64 num_attention_heads=4 num_query_groups=2 kv_channels=16 vocab_size=256 seq_length=16 "
    "mbs=1 gbs=2 train_iters=3 --quiet";

TEST_F(Options, AModelFileIsASeriesByWhatItSaysAndItsPathCountsFromTheSuites) {
  const auto write_model = [&](int width) {
    fs::create_directories(folder_ / "own" / "small");
    write("own/small/config.json",
          "{\"model_type\": \"llama\", \"hidden_size\": 64, \"intermediate_size\": " + std::to_string(width) +
              ", \"num_hidden_layers\": 1, \"num_attention_heads\": 4, \"vocab_size\": 256, "
              "\"max_position_embeddings\": 64, \"rope_theta\": 10000.0, \"rms_norm_eps\": 1e-5, "
              "\"tie_word_embeddings\": false, \"hidden_act\": \"silu\"}");
  };
  const auto cell_of = [&](const std::string& command) {
    const Answer answer = sh(command);
    EXPECT_EQ(answer.status, 0) << answer.out;
    const auto runs = folder_ / "mbbench-runs" / "runs";
    const auto reader = baselines::BundleReader::open(*fs::directory_iterator(runs));
    auto cell = reader->read_cell("run").value();
    fs::remove_all(runs);
    return cell;
  };
  const std::string train =
      program_ + " run " + kSmall + " runs_dir=" + (folder_ / "mbbench-runs").string() + " model=";
  write_model(64);
  const baselines::Cell here = cell_of(train + "own/small"),
                        there = cell_of("cd own && " + train + "small/config.json");
  EXPECT_TRUE(here.model.starts_with("small@")) << here.model;
  EXPECT_EQ(here.identity_hash, there.identity_hash) << "wherever the file lies";
  write("own/s.toml", std::string("purpose = \"x\"\nmodel = \"./small\"\n[base]\nseq_length = 16\n") +
                          "global_batch_size = 2\ntrain_iters = 3\n[[cell]]\nname = \"run\"\n");
  const baselines::Cell suite = cell_of(program_ + " suite own/s.toml --quiet");
  EXPECT_EQ(suite.model, here.model);
  EXPECT_EQ(cell_of("cd own && " + program_ + " suite s.toml --quiet runs_dir=../mbbench-runs").model, here.model);
  write_model(96);
  EXPECT_NE(cell_of(train + "own/small").identity_hash, here.identity_hash);
}

TEST_F(Options, ARunThatIsJudgedTakesNothingOfItsOwn) {
  for (const auto& [more, named] :
       {std::pair{"tp=2", "parallel.tensor_model_parallel_size is a knob of a run, and gate --run runs nothing"},
        {"--launches 7", "--launches with --run"}}) {
    const Answer answer = run(std::string("gate --run @latest ") + more);
    EXPECT_EQ(answer.status, 64) << answer.out;
    EXPECT_TRUE(answer.has(named)) << answer.out;
  }
  EXPECT_FALSE(run("gate --run @latest gate.max_silent_nights=2").has("knob of a run"));
}

TEST_F(Options, ASuiteThatGoesOnFindsItsFilesWhereItsSuiteLies) {
  fs::create_directories(folder_ / "own");
  write("own/text", std::string(4000, 'a') + std::string(4000, 'b'));
  write("own/two.toml", std::string("purpose = \"x\"\n[base]\nseq_length = 16\nglobal_batch_size = 2\n") +
                            "train_iters = 3\ndata.path = \"text\"\n[[cell]]\nname = \"a\"\n[[cell]]\nname = "
                            "\"b\"\nset = { tp = 2 }\n");
  ASSERT_EQ(run("suite own/two.toml --quiet").status, 0);
  end_before_cell_b();
  const Answer resumed = run("suite own/two.toml --quiet --resume");
  EXPECT_EQ(resumed.status, 0) << resumed.out;
  EXPECT_TRUE(resumed.has("2 ok, 0 broken")) << resumed.out;
}

TEST_F(Options, ARunThatGoesOnBringsItsFinishedCellsIntoTheStore) {
  write("two.toml", std::string("purpose = \"x\"\n[base]\nseq_length = 16\nglobal_batch_size = 2\n") +
                        "train_iters = 3\n[[cell]]\nname = \"a\"\n[[cell]]\nname = \"b\"\nset = { tp = 2 }\n");
  ASSERT_EQ(run("suite ./two.toml --quiet").status, 0);
  end_before_cell_b();  // on a disk that was full
  for (const char* file : {"mbbench.sqlite", "mbbench.sqlite-wal", "mbbench.sqlite-shm"})
    fs::remove(folder_ / "mbbench-runs" / file);
  const Answer resumed = run("suite ./two.toml --quiet --resume");
  ASSERT_EQ(resumed.status, 0) << resumed.out;
  const Answer listed = run("list runs");
  EXPECT_TRUE(listed.has("2 ok, 0 skipped, 0 broken, 0 unstable of 2")) << listed.out;
}

}  // namespace
}  // namespace mbb::suites
