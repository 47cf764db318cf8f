// The program as a user meets it: a small suite end to end, kills and resume, bad input with message and exit status.
#include <gtest/gtest.h>

#include <csignal>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "analysis/exposure/breakdown.h"
#include "analysis/exposure/hta_view.h"
#include "baselines/store/bundle.h"
#include "profiler/memory/snapshot.h"
#include "profiler/trace/trace_file.h"
#include "suites/cli/program_fixture_test.h"

namespace mbb::suites {
namespace {

class Cli : public ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    write("small.toml", R"(purpose = "Two mappings, a few steps."
[base]
micro_batch_size = 2
global_batch_size = 4
seq_length = 16
train_iters = 12
[[cell]]
name = "one"
[[cell]]
name = "tp2"
set = { tp = 2 }
[[cell]]
name = "pp2"
set = { pp = 2 }
)");
  }

  void expect_refused(const std::string& arguments, int status, const std::string& part) const {
    const Answer answer = run(arguments);
    EXPECT_EQ(answer.status, status) << arguments << "\n" << answer.out;
    EXPECT_NE(answer.out.find(part), std::string::npos) << arguments << "\n" << answer.out;
  }
};

TEST_F(Cli, ASuiteTrainsStoresShowsAndCompares) {
  const Answer first = run("suite ./small.toml --quiet --tag a");
  ASSERT_EQ(first.status, 0) << first.out;
  for (const char* cell : {"one", "tp2", "pp2"}) EXPECT_NE(first.out.find(cell), std::string::npos) << first.out;
  EXPECT_NE(first.out.find("functional/cpu"), std::string::npos) << first.out;
  ASSERT_EQ(run("suite ./small.toml --quiet --tag b lr=0.001").status, 0);
  const Answer show = run("show @a");
  EXPECT_EQ(show.status, 0);
  EXPECT_NE(show.out.find("losses equal one"), std::string::npos) << show.out;
  EXPECT_EQ(run("show @latest --cell tp2").status, 0);
  const Answer compare = run("compare @a @b");
  EXPECT_EQ(compare.status, 0);
  EXPECT_NE(compare.out.find("optimizer.lr"), std::string::npos) << compare.out;
  EXPECT_NE(run("list runs").out.find("3 ok"), std::string::npos);
  fs::remove(folder_ / "mbbench-runs" / "mbbench.sqlite");
  const Answer index = run("index");
  EXPECT_EQ(index.status, 0) << index.out;
  EXPECT_EQ(run("show @a").out, show.out) << "the store is rebuilt from bundles";
}

TEST_F(Cli, ASuiteOfGpusThatAreNotHereIsProjectedWithATwin) {
  const std::string cell = "suite llama3-8b-bf16 --only cp2-128gpu";
  const Answer plan = run(cell + " --dry-run");
  EXPECT_EQ(plan.status, 0) << plan.out;
  EXPECT_NE(plan.out.find("project, and train its twin"), std::string::npos) << plan.out;
  EXPECT_NE(plan.out.find("GPU-hours"), std::string::npos) << plan.out;
  const Answer answer = run(cell + " --quiet");
  EXPECT_EQ(answer.status, 0) << answer.out;
  for (const char* part : {"projected", "Projection: kernels h100-sxm", "10630 tokens/s/GPU", "1 ok, 0 broken"})
    EXPECT_NE(answer.out.find(part), std::string::npos) << part << "\n" << answer.out;
  EXPECT_NE(run("show @latest").out.find("losses equal one rank's within"), std::string::npos);
  const Answer required = run(cell + " --quiet --require measured");
  EXPECT_EQ(required.status, 4) << required.out;
  EXPECT_NE(required.out.find("skipped"), std::string::npos) << required.out;
}

TEST_F(Cli, SuitesAreListedAndAskedForByName) {
  const Answer list = run("list suites");
  EXPECT_EQ(list.status, 0) << list.out;
  for (const char* part : {"llama3-70b-fp8", "guide-claims", "named skips", "Llama 3 70B pre-training in FP8"})
    EXPECT_NE(list.out.find(part), std::string::npos) << part;
  expect_refused("suite llama3-70b-fp9", 64, "did you mean 'llama3-70b-fp8'?");
  expect_refused("suite llama3-70b-fp8 --max-cells 3 --dry-run", 64, "are more than --max-cells 3");
  expect_refused("suite llama3-70b-fp8 --only tp16 --dry-run", 64, "no cell matches --only 'tp16'");
  expect_refused("suite llama3-70b-fp8 --hardware h10 --dry-run", 64, "no hardware is named");
  expect_refused("suite llama3-70b-fp8 recip=bf16 --dry-run", 64, "did you mean 'recipe'");
}

TEST_F(Cli, ABadCommandLineHasOneStatusAndABrokenPlanIsNoSuccess) {
  expect_refused("run tpp=2", 64, "tpp");
  expect_refused("run --tpp 2", 64, "tpp");
  expect_refused("run --tpp=2", 64, "tpp");
  expect_refused("run 2", 64, "sets nothing");
  expect_refused("run --tp", 64, "has no value");
  write("broken.toml",
        "purpose = \"x\"\n[[cell]]\nname = \"good\"\n[[cell]]\nname = \"bad\"\nset = { global_batch_size = 3, "
        "micro_batch_size = "
        "2 }\n");
  expect_refused("suite ./broken.toml --dry-run", 4, "broken: ");
  EXPECT_EQ(run("suite ./broken.toml --dry-run --only good").status, 0);
}

TEST_F(Cli, TheProfiledWindowIsTheUsers) {
  ASSERT_EQ(run("run tp=2 mbs=2 gbs=4 seq_length=16 train_iters=12 profile_step_start=4 profile_step_end=6 "
                "profile_ranks=1 --quiet")
                .status,
            0);
  const auto bundle = fs::directory_iterator(folder_ / "mbbench-runs" / "runs")->path();
  const auto reader = baselines::BundleReader::open(bundle);
  ASSERT_TRUE(reader);
  const auto stored = reader->read_all();
  ASSERT_TRUE(stored) << stored.error().what;
  const baselines::Launch& launch = stored->cells[0].launches[0];
  for (const baselines::Step& step : launch.steps)
    EXPECT_EQ((step.flags & baselines::kStepProfiled) != 0, step.index == 4 || step.index == 5) << step.index;
  const auto trace = profiler::read_trace(reader->launch_file(stored->cells[0].name, 0, launch.trace_files.at(0)));
  ASSERT_TRUE(trace);
  EXPECT_EQ(profiler::ranks(*trace), std::vector<int32_t>{1});
  ASSERT_EQ(trace->steps.size(), 2U);
  EXPECT_EQ(trace->steps[0].step, 4);
  expect_refused("run train_iters=12 profile_step_end=13", 64, "profiling.profile_step_end");
  expect_refused("run train_iters=12 profile_ranks=3", 64, "profiling.profile_ranks");
  expect_refused("run use_nsys_profiler=true", 64, "use_nsys_profiler");
}

constexpr const char* kTraced =
    "run tp=2 pp=2 mbs=1 gbs=4 seq_length=64 train_iters=12 profile_step_start=6 profile_step_end=10 --quiet "
    "record_memory_history=true memory_snapshot_path=snapshot.pickle";

TEST_F(Cli, ARunIsExportedForOtherTools) {
  ASSERT_EQ(run(kTraced).status, 0);
  const Answer kineto = run("export @latest --format kineto --output k");
  ASSERT_EQ(kineto.status, 0) << kineto.out;
  const auto cell = fs::directory_iterator(folder_ / "k")->path().filename().string();
  for (int rank = 0; rank < 4; ++rank) {
    const auto read =
        profiler::read_kineto(folder_ / "k" / cell / "launch0" / ("rank" + std::to_string(rank) + ".json.gz"));
    ASSERT_TRUE(read) << read.error().what;
    EXPECT_EQ(read->rank, rank);
    EXPECT_EQ(read->world_size, 4);
    ASSERT_FALSE(read->collectives.empty());
    bool tp = false;
    for (const auto& c : read->collectives) tp = tp || (c.group == "tp" && c.group_size == 2 && c.in_elements > 0);
    EXPECT_TRUE(tp) << "collectives say which group they are of";
  }
  ASSERT_EQ(run("export @latest --format memory --output m").status, 0);
  for (const char* file : {"stage0.pickle", "stage1.pickle"}) {
    const auto snapshot = profiler::read_snapshot(folder_ / "m" / cell / "launch0" / file);
    ASSERT_TRUE(snapshot) << snapshot.error().what;
    EXPECT_GT(profiler::replay(snapshot->events.at(0)).peak_bytes, 100'000);
  }
  const auto bundle = fs::directory_iterator(folder_ / "mbbench-runs" / "runs")->path();
  EXPECT_NE(run("show @latest --timeline").out.find("rank 3  step 6"), std::string::npos);
  expect_refused("show @latest --timeline --step 2", 4, "traced steps are 6 to 9");
  const Answer sites = run("show @latest --collectives");
  EXPECT_NE(sites.out.find("layers.*."), std::string::npos) << sites.out;
  EXPECT_NE(sites.out.find("comm.tp"), std::string::npos) << sites.out;
  EXPECT_NE(sites.out.find("GEMMs of "), std::string::npos) << sites.out;
  EXPECT_NE(sites.out.find("layers.*.mlp.fc1.fwd"), std::string::npos) << sites.out;
  EXPECT_NE(sites.out.find("all compute of a rank's step"), std::string::npos) << sites.out;
  expect_refused("show @latest --beside " + cell, 64, "--beside without --collectives");
  EXPECT_TRUE(profiler::read_snapshot(bundle / "cells" / cell / "launches" / "0" / "snapshot.stage1.pickle"));
  EXPECT_TRUE(fs::exists(bundle / "cells" / cell / "launches" / "0" / "telemetry.csv"));
  ASSERT_EQ(run("export @latest --format csv --output c").status, 0);
  for (const char* file : {"metrics.csv", "steps.csv", "ops.csv", "memory.csv", "kernels.csv"})
    EXPECT_GT(fs::file_size(folder_ / "c" / file), 100U) << file;
  for (const char* file : {"metrics.csv", "steps.csv", "ops.csv", "kernels.csv"})
    EXPECT_NE(text_of(folder_ / "c" / file).find("functional/cpu"), std::string::npos) << "a time with its class";
  ASSERT_EQ(run("export @latest --format json --output j.json").status, 0);
  const auto json = nlohmann::json::parse(std::ifstream(folder_ / "j.json"));
  EXPECT_EQ(json["cells"][0]["launches"][0]["steps"].size(), 12U);
  EXPECT_GT(json["cells"][0]["launches"][0]["memory"][0]["tensors"].size(), 10U);
}

TEST_F(Cli, ARunsFolderThatMovedIsReadWhereItLies) {
  ASSERT_EQ(run("run train_iters=6 --quiet").status, 0);
  ASSERT_TRUE(run("show @latest").has("telemetry"));
  ASSERT_EQ(sh("mkdir there && mv mbbench-runs there/").status, 0);
  const Answer moved = sh("cd there && " + program_ + " show @latest");
  EXPECT_TRUE(moved.has("\ntelemetry\n") && !moved.has("not read")) << moved.out;
  ASSERT_EQ(sh("mv there/mbbench-runs/runs there/elsewhere").status, 0);
  const Answer gone = sh("cd there && " + program_ + " show @latest");
  EXPECT_EQ(gone.status, 0) << gone.out;
  EXPECT_TRUE(gone.has("not read: the bundle of run") && gone.has("mbbench index DIR")) << gone.out;
}

TEST_F(Cli, OutputGoesThroughWhatIsNoFile) {
  ASSERT_EQ(run("run train_iters=6 --quiet").status, 0);
  ASSERT_EQ(sh("mkfifo pipe && touch real && ln -s real link").status, 0);
  const Answer piped = sh("(" + program_ + " export @latest --format json --output pipe &) ; timeout 60 cat pipe");
  EXPECT_TRUE(piped.has("quickstart")) << piped.out;
  EXPECT_TRUE(fs::is_fifo(folder_ / "pipe"));
  ASSERT_EQ(run("export @latest --format json --output link").status, 0);
  EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
  EXPECT_GT(fs::file_size(folder_ / "real"), 100U);
  const Answer full = sh("(" + program_ + " show @latest > /dev/full)");
  EXPECT_EQ(full.status, 4) << full.out;
  EXPECT_TRUE(full.has("writing the output")) << full.out;
}

TEST_F(Cli, AReaderThatLeavesDoesNotEndARun) {
  const Answer left = sh("(" + program_ + " suite quickstart iters=6 --only one-rank --only dp2 iters=6 2>&1 >out; " +
                         "echo status $? >&3) 3>status | head -c 1 >/dev/null; cat status");
  EXPECT_TRUE(left.has("status 0")) << left.out;
  EXPECT_TRUE(text_of(folder_ / "out").find("2 ok, 0 broken") != std::string::npos) << text_of(folder_ / "out");
}

TEST_F(Cli, AReadOnlyStoreAnswers) {
  ASSERT_EQ(run("run train_iters=6 --quiet --tag kept").status, 0);
  ASSERT_EQ(sh("chmod -R a-w mbbench-runs").status, 0);
  const std::string other = geteuid() == 0 ? "setpriv --reuid 65534 --clear-groups " : "";
  ASSERT_EQ(sh("chmod a+rx .").status, 0);
  const Answer shown = sh(other + program_ + " show @kept");
  const Answer listed = sh(other + program_ + " list runs");
  EXPECT_EQ(sh("chmod -R u+w mbbench-runs").status, 0);
  EXPECT_TRUE(shown.status == 0 && shown.has("1 ok")) << shown.out;
  EXPECT_TRUE(listed.status == 0 && listed.has("kept")) << listed.out;
}

TEST_F(Cli, BadExportsSayWhatIsMissing) {
  ASSERT_EQ(run("run train_iters=6 profile_step_start=3 profile_step_end=3 --quiet").status, 0);
  expect_refused("export @latest --format kineto", 4, "holds no trace");
  expect_refused("export @latest --format memory", 4, "record_memory_history");
  expect_refused("export @latest", 64, "--format");
  expect_refused("export @latest --format pdf", 64, "kineto");
  expect_refused("export @latest --format csv --cell nosuch", 4, "nosuch");
  expect_refused("export @nosuch --format csv", 4, "nosuch");
  write("plain", "a file");
  expect_refused("export @latest --format csv --output plain/x", 4, "plain");
  const Answer broken = run("run train_iters=6 memory_snapshot_path=/no/such/folder/s.pickle --quiet");
  EXPECT_EQ(broken.status, 4);
  EXPECT_NE(broken.out.find("memory_snapshot_path"), std::string::npos) << broken.out;
  const Answer bound = run("run train_iters=6 cpu_binding=9999 --quiet");
  EXPECT_EQ(bound.status, 64);
  EXPECT_NE(bound.out.find("host.cpu_binding"), std::string::npos) << bound.out;
  const Answer clocks = run("run train_iters=6 --device cuda vboost=1 --quiet");
  EXPECT_NE(clocks.out.find("--allow-clock-changes"), std::string::npos) << clocks.out;
  EXPECT_EQ(clocks.status, 4) << "the one configuration did not run";
  EXPECT_NE(clocks.out.find("error: nothing ran: "), std::string::npos) << clocks.out;
}

// mpirun's processes have terminals, and what they print goes where its output goes.
TEST_F(Cli, ColoursAreForTerminalsThatSomebodySees) {
  if (std::system("script -qec true /dev/null >/dev/null 2>&1") != 0) GTEST_SKIP() << "no script(1) to make a terminal";
  const std::string in_terminal = "env -u NO_COLOR script -qec '" + program_ + " list models' /dev/null";
  EXPECT_TRUE(sh(in_terminal).has("\033["));
  const Answer ranks = sh("OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=0 " + in_terminal);
  EXPECT_TRUE(ranks.has("llama3-8b")) << ranks.out;
  EXPECT_FALSE(ranks.has("\033["));
  EXPECT_FALSE(run("list models").has("\033[")) << "a file";
}

TEST_F(Cli, ASlotThatOverflowsNamesItsKnobAndTheBoundInTheLineOfItsCell) {
  const Answer tight =
      run("run model=mixtral-8x7b layers=2 hidden_size=32 ffn_hidden_size=48 heads=4 kv_heads=2 vocab_size=256 "
          "num_experts=4 moe_router_topk=2 moe_ffn_hidden_size=24 seq_length=32 gbs=4 ep=2 moe_dropless_bound=1 "
          "train_iters=6 --quiet");
  EXPECT_EQ(tight.status, 4) << tight.out;
  const std::string before = "parallel.moe_dropless_bound must be at least ";
  const size_t line = tight.out.find("\nrun  "), at = tight.out.find(before, line);
  ASSERT_NE(line, std::string::npos) << tight.out;
  ASSERT_NE(at, std::string::npos) << tight.out;
  EXPECT_LT(at, tight.out.find('\n', line + 1)) << tight.out;
  EXPECT_GT(std::stod(tight.out.substr(at + before.size())), 1.0);
}

TEST_F(Cli, KnobsThatDoNothingAreSaidAndKept) {
  const Answer one = run("run train_iters=6 overlap_p2p_comm=true --quiet");
  EXPECT_EQ(one.status, 0) << one.out;
  const std::string note =
      "no effect: overlap.overlap_p2p_comm = true (needs pp > 1, or an encoder with GPUs of its own)";
  EXPECT_TRUE(one.has(note)) << one.out;
  const Answer kept = run("show @latest --cell run");
  EXPECT_TRUE(kept.has(note)) << kept.out;
  const Answer suite = run("suite ./small.toml overlap_p2p_comm=true --quiet");
  EXPECT_TRUE(suite.has(note + " in one, tp2.")) << suite.out;
  expect_refused("run moe_exchange=counts", 64, "needs a model with experts");
}

// A stand-in nvidia-smi keeps the slider in a file and lists what it was set to.
TEST_F(Cli, TheBoostSliderMovesForACellThatMayAndReturns) {
  write("slider", "1\n");
  write("nvidia-smi",
        "#!/bin/sh\n[ \"$1\" = boost-slider ] || exit 9\n"
        "if [ \"$2\" = -l ]; then\n  echo \"|   0   vboost    0/4    $(cat " +
            (folder_ / "slider").string() + ") |\"\n  exit 0\nfi\necho \"$3\" > " + (folder_ / "slider").string() +
            "\necho \"$3\" >> " + (folder_ / "set").string() + "\n");
  fs::permissions(folder_ / "nvidia-smi", fs::perms::owner_all);
  const std::string small = "PATH=\"$PWD:$PATH\" " + program_ + " run train_iters=6 --quiet vboost=3";
  const Answer refused = sh(small);
  EXPECT_NE(refused.out.find("skipped"), std::string::npos) << refused.out;
  EXPECT_FALSE(fs::exists(folder_ / "set"));
  const Answer moved = sh(small + " --allow-clock-changes");
  EXPECT_EQ(moved.status, 0) << moved.out;
  EXPECT_EQ(text_of(folder_ / "set"), "3\n1\n");
}

// HolisticTraceAnalysis, where a Python with it is: MBBENCH_TEST_PYTHON, or python3.
TEST_F(Cli, HolisticTraceAnalysisAgreesOnOurExport) {
  const char* const set = std::getenv("MBBENCH_TEST_PYTHON");
  const std::string python = set != nullptr ? set : "python3";
  if (std::system((python + " -c 'import hta.trace_analysis' >/dev/null 2>&1").c_str()) != 0)
    GTEST_SKIP() << python << " has no hta (pip install HolisticTraceAnalysis)";
  ASSERT_EQ(run(kTraced).status, 0);
  ASSERT_EQ(run("export @latest --format kineto --output k").status, 0);
  const fs::path traces = fs::directory_iterator(folder_ / "k")->path() / "launch0";
  write("ask.py", R"(import json, sys, logging
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
t = TraceAnalysis(trace_dir=sys.argv[1])
b = t.get_temporal_breakdown(visualize=False)
o = t.get_comm_comp_overlap(visualize=False)
rows = [{k: float(v) for k, v in r.items()} for r in b.to_dict("records")]
for row in rows:
  row["overlap"] = float(o[o["rank"] == row["rank"]]["comp_comm_overlap_pctg"].iloc[0])
json.dump(rows, open(sys.argv[2], "w"))
)");
  const std::string command =
      "cd " + folder_.string() + " && " + python + " ask.py " + traces.string() + " out.json > hta.log 2>&1";
  ASSERT_EQ(std::system(command.c_str()), 0) << std::ifstream(folder_ / "hta.log").rdbuf();
  const auto rows = nlohmann::json::parse(std::ifstream(folder_ / "out.json"));
  ASSERT_EQ(rows.size(), 4U);
  for (const auto& row : rows) {
    const int rank = row["rank"].get<int>();
    const auto read = profiler::read_kineto(traces / ("rank" + std::to_string(rank) + ".json.gz"));
    ASSERT_TRUE(read);
    const auto ours = analysis::hta_breakdown(analysis::hta_events(*read));
    ASSERT_TRUE(ours);
    EXPECT_EQ(row["idle_time(us)"].get<double>(), static_cast<double>(ours->idle_us)) << "rank " << rank;
    EXPECT_EQ(row["compute_time(us)"].get<double>(), static_cast<double>(ours->compute_us)) << "rank " << rank;
    EXPECT_EQ(row["non_compute_time(us)"].get<double>(), static_cast<double>(ours->non_compute_us)) << "rank " << rank;
    EXPECT_NEAR(
        row["overlap"].get<double>(),
        100.0 * static_cast<double>(ours->overlap_us) / static_cast<double>(std::max<int64_t>(1, ours->comm_us)), 1.0);
  }
}

TEST_F(Cli, BadInputSaysWhatAndWhereAndLeavesNothing) {
  expect_refused("list runs", 4, "no runs yet");
  expect_refused("suite quickstrat", 64, "did you mean 'quickstart'");
  expect_refused("suite quickstart tpp=2", 64, "tpp");
  expect_refused("suite quickstart seq_length=abc", 64, "seq_length");
  expect_refused("run tp=3", 64, "does not divide");
  expect_refused("run pp=3", 64, "parallel.pipeline_model_parallel_size");
  expect_refused("run --model llama9", 64, "llama9");
  expect_refused("run data.path=/no/such/file train_iters=1", 4, "/no/such/file");
  expect_refused("list nothing", 64, "nothing is listed");
  expect_refused("nonsense", 64, "nonsense");
  write("bad.toml", "purpose = \"x\"\n[base]\nmicro_batch_sise = 2\n[[cell]]\nname = \"a\"\n");
  expect_refused("suite ./bad.toml", 4, "bad.toml:3");
  write("type.toml", "purpose = \"x\"\n[base]\nmicro_batch_size = \"two\"\n[[cell]]\nname = \"a\"\n");
  expect_refused("suite ./type.toml", 4, "type.toml:3");
  expect_refused("suite ./missing.toml", 4, "missing.toml");
}

TEST_F(Cli, WhatALaunchCannotReadIsRefusedBeforeAnythingIsWritten) {
  write("empty.txt", "");
  write("short.txt", "too short");
  for (const char* path : {".", "empty.txt", "absent.txt"})
    expect_refused(std::string("run train_iters=1 data.path=") + path, 4, "data.path = ");
  expect_refused("run train_iters=1 data.path=short.txt", 64, "data.path = ");
  expect_refused("run train_iters=1 cpu_binding=zz", 64, "host.cpu_binding = zz");
  expect_refused("run train_iters=1 cpu_binding=1000", 4, "host.cpu_binding = 1000");
  expect_refused("suite ./small.toml data.path=absent.txt --quiet", 4, "cell one: data.path = ");
  expect_refused("run train_iters=1 --tag latest", 64, "@latest");
  expect_refused("run train_iters=1 --tag 2", 64, "--tag 2");
  EXPECT_FALSE(fs::exists(folder_ / "mbbench-runs"));
}

TEST_F(Cli, OtherDataIsAnotherSeriesAndComparesAsSuch) {
  const auto train = [&](const std::string& text, const std::string& tag) {
    std::string all;
    while (all.size() < 4000) all += text;
    write("t.txt", all);
    ASSERT_EQ(run("run data.path=t.txt train_iters=2 --quiet --tag " + tag).status, 0);
  };
  const auto told = [&](const std::string& run_name, const std::string& what) {
    const std::string out = run("show " + run_name + " --cell run").out;
    const size_t at = out.find("\n" + what + " ");
    return at == std::string::npos ? "" : out.substr(at + 1, out.find('\n', at + 1) - at - 1);
  };
  train("We the People. ", "a");
  train("We the People. ", "b");
  train("You the Machine. ", "c");
  EXPECT_NE(told("@a", "data"), "");
  EXPECT_EQ(told("@a", "data"), told("@b", "data"));
  EXPECT_EQ(told("@a", "series"), told("@b", "series"));
  EXPECT_NE(told("@a", "data"), told("@c", "data"));
  EXPECT_NE(told("@a", "series"), told("@c", "series"));
  EXPECT_FALSE(run("compare @a @b").has("Data differs"));
  const Answer differs = run("compare @a @c");
  EXPECT_TRUE(differs.has("Data differs, run") && differs.has("work data")) << differs.out;
  EXPECT_TRUE(run("show @c").has("at least 6 are needed")) << "too few steps say so";
  ASSERT_EQ(run("run train_iters=2 --quiet --tag shipped").status, 0);
  EXPECT_NE(told("@shipped", "data"), "");
}

TEST_F(Cli, AnExportedBundleIsReadWhereNothingElseOfTheRunIs) {
  ASSERT_EQ(run("run train_iters=2 --quiet --tag mine").status, 0);
  const Answer exported = run("export @mine --format bundle --output taken");
  ASSERT_EQ(exported.status, 0) << exported.out;
  EXPECT_TRUE(exported.has("taken\n1 cells, ")) << exported.out;
  expect_refused("export @mine --format bundle --output taken", 64, "taken is already there");
  expect_refused("export @mine --format bundle --cell run", 64, "--cell");
  expect_refused("export @nosuch --format bundle", 4, "nosuch");
  fs::rename(folder_ / "mbbench-runs", folder_ / "gone");
  EXPECT_EQ(run("show taken").status, 0);
  const Answer indexed = run("index taken");
  EXPECT_TRUE(indexed.has("indexed 1 runs, 1 cells; 0 unfinished, 0 unreadable")) << indexed.out;
  EXPECT_EQ(run("compare @mine taken").status, 0);
  fs::remove(folder_ / "taken" / "cells" / "run" / "checksums");
  expect_refused("export taken --format bundle --output again", 4, "is not finished");
  EXPECT_FALSE(fs::exists(folder_ / "again"));
}

TEST_F(Cli, ARedactedBundleSaysWhatIsGoneAndCompares) {
  write("secret-words.txt", std::string(4000, 'x') + " and more words");
  const std::string path = (folder_ / "secret-words.txt").string();
  ASSERT_EQ(run("run train_iters=2 --quiet --tag alicewonder data.path=" + path).status, 0);
  for (const char* to : {"one", "two"}) {
    const Answer exported = run(std::string("export @alicewonder --format bundle --redact --output ") + to);
    ASSERT_EQ(exported.status, 0) << exported.out;
    EXPECT_TRUE(exported.has("redacted  ") && exported.has("1 path") && exported.has("1 name")) << exported.out;
    EXPECT_TRUE(exported.has("stderr.log (1)") && exported.has("variables of the environment")) << exported.out;
  }
  EXPECT_EQ(sh("grep -rl -e alicewonder -e secret-words one two").status, 1);
  EXPECT_EQ(sh("diff -r one two").status, 0) << "names are numbered in order";
  const Answer same = run("compare one @alicewonder");
  EXPECT_EQ(same.status, 0) << same.out;
  EXPECT_TRUE(run("show one --cell run").has("path-1"));
  EXPECT_TRUE(run("index one runs_dir=elsewhere").has("indexed 1 runs, 1 cells; 0 unfinished, 0 unreadable"));
  expect_refused("export @alicewonder --format bundle --redact --output one", 64, "one is already there");
  expect_refused("export @alicewonder --format csv --redact", 64, "--redact with --format csv");
}

TEST_F(Cli, AFullDiskIsReadAllTheSame) {
  ASSERT_EQ(run("run train_iters=2 --quiet --tag mine").status, 0);
  const auto full = [this](const std::string& arguments) {
    return sh("trap '' XFSZ && ulimit -f 0 && " + program_ + " " + arguments);
  };
  const std::string bundle = fs::directory_iterator(folder_ / "mbbench-runs" / "runs")->path().string();
  for (const std::string& arguments :
       {std::string("list runs"), std::string("list series"), std::string("show @mine"),
        std::string("compare @mine @latest"), "show " + bundle, std::string("history run")}) {
    const Answer answer = full(arguments);
    EXPECT_EQ(answer.status, 0) << arguments << ": " << answer.out;
  }
  const Answer written = full("run train_iters=2 --quiet");
  EXPECT_EQ(written.status, 4) << written.out;
}

TEST_F(Cli, WithoutProcNothingRunsAndThatIsSaid) {
  const auto without = [this](const std::string& arguments) {
    return sh("unshare -rm sh -c 'mount -t tmpfs none /proc && " + program_ + " " + arguments + "'");
  };
  if (without("--version").status != 0) GTEST_SKIP() << "no namespace of our own here";
  for (const char* command : {"run train_iters=1", "suite quickstart", "gate quickstart", "noise quickstart",
                              "ab this this quickstart", "run --command true"}) {
    const Answer answer = without(std::string(command) + " --quiet");
    EXPECT_EQ(answer.status, 4) << command << ": " << answer.out;
    EXPECT_TRUE(answer.has("/proc/self/exe") && answer.has("mount /proc")) << command << ": " << answer.out;
  }
  EXPECT_FALSE(fs::exists(folder_ / "mbbench-runs")) << "no run is begun";
  EXPECT_TRUE(without("doctor").has("broken   /proc"));
  EXPECT_EQ(without("explain tp=2").status, 0) << "what runs nothing needs none";
}

TEST_F(Cli, ABrokenCellSaysWhyAndAnUnfinishedRunHasNoTables) {
  ASSERT_EQ(run("run train_iters=2 memory_snapshot_path=/no/such/folder/s.pickle --quiet --tag bad").status, 4);
  const Answer broken = run("show @bad --cell run");
  EXPECT_TRUE(broken.has("broken") && broken.has("/no/such/folder")) << broken.out;
  const auto bundle = fs::directory_iterator(folder_ / "mbbench-runs" / "runs")->path();
  fs::remove_all(bundle / "cells");
  fs::create_directories(bundle / "cells");
  expect_refused("export " + bundle.string() + " --format csv --output none", 4, "holds no finished cell");
  EXPECT_FALSE(fs::exists(folder_ / "none"));
}

TEST_F(Cli, HelpExplainsTheWordsOfTables) {
  for (const char* word : {"class", "functional/cpu", "ghost", "learning"})
    EXPECT_EQ(run(std::string("help ") + word).status, 0) << word;
  expect_refused("help gost", 64, "gost");
  EXPECT_TRUE(run("micro --help").has("Usage: mbbench micro"));
  EXPECT_FALSE(run("micro comm --help").has("Usage: mbbench micro"));  // another program's, where it was built
}

TEST_F(Cli, PackedRowsReportEfficiencyAndImbalance) {
  write("packing.toml", R"(purpose = "The same sequences, padded and packed."
[base]
sequences = "lognormal"
seq_length = 64
train_iters = 4
gpus = 2
[[cell]]
name = "padded"
[[cell]]
name = "packed"
set = { packed_sequence_size = 128 }
)");
  const Answer answer = run("suite ./packing.toml --quiet");
  ASSERT_EQ(answer.status, 0) << answer.out;
  for (const char* cell : {"padded", "packed"}) {
    const Answer show = run(std::string("show @latest --cell ") + cell);
    EXPECT_NE(show.out.find("row efficiency"), std::string::npos) << show.out;
    EXPECT_NE(show.out.find("DP imbalance"), std::string::npos) << show.out;
  }
}

TEST_F(Cli, AStepThatDoesNotFitIsSkippedWithWhatWouldHelp) {
  const Answer answer = run("run memory.limit_gib=0.0001 mbs=1 train_iters=1");
  EXPECT_EQ(answer.status, 4) << answer.out;
  EXPECT_NE(answer.out.find("skipped"), std::string::npos) << answer.out;
  const size_t at = answer.out.find("largest at the peak");
  ASSERT_NE(at, std::string::npos) << answer.out;
  EXPECT_EQ(answer.out.find("largest at the peak", at + 1), std::string::npos) << "said twice\n" << answer.out;
  EXPECT_FALSE(answer.has("lower train.micro_batch_size")) << answer.out;
  // The plan says as much beforehand.
  const Answer planned = run("explain memory.limit_gib=0.0001 mbs=1");
  EXPECT_EQ(planned.status, 0);
  EXPECT_TRUE(planned.has("too much stage 0: the step needs ")) << planned.out;
  EXPECT_TRUE(planned.has("largest at the peak: bucket0.")) << planned.out;
  EXPECT_TRUE(run("explain --tensor 'bucket0.*'").has("bucket0.main_grads")) << "lists them";
  EXPECT_TRUE(run("explain memory.limit_gib=1e300").has("memory.limit_gib must be at least 0 and at most"))
      << "bounded";
}

TEST_F(Cli, WhatNothingIsComparedWithIsCalledUnprovenEverywhere) {
  const Answer alone = run("run tp=2 train_iters=4 --quiet");
  EXPECT_EQ(alone.status, 0) << alone.out;
  EXPECT_TRUE(alone.has("0 ok, 1 unproven, 0 broken.")) << alone.out;
  EXPECT_TRUE(alone.has("one-rank cell of the same model, data and batch")) << alone.out;
  EXPECT_TRUE(run("list runs").has("0 ok, 1 unproven, 0 skipped"));
  EXPECT_EQ(run("help unproven").status, 0);
}

// On a machine with GPUs this would train on one, so it is asked for more than any has.
TEST_F(Cli, MissingGpusProjectTheCellOrSkipItAndSayWhy) {
  const Answer projected = run("run --device cuda gpus=512 gbs=512 recipe=bf16 train_iters=1 --quiet --no-twins");
  EXPECT_EQ(projected.status, 0) << projected.out;
  EXPECT_NE(projected.out.find("projected"), std::string::npos) << projected.out;
  // No rates of a GPU are known in fp32.
  const Answer answer = run("run --device cuda gpus=512 gbs=512 train_iters=1 --quiet");
  EXPECT_EQ(answer.status, 4) << answer.out;
  EXPECT_NE(answer.out.find("skipped"), std::string::npos) << answer.out;
  EXPECT_NE(answer.out.find("needs 512 GPUs"), std::string::npos) << answer.out;
  EXPECT_EQ(run("run --device cuda gpus=512 gbs=512 train_iters=1 --quiet --require measured").status, 4);
}

TEST_F(Cli, AStoreThatIsNoDatabaseIsRefusedAndTheBundleKept) {
  fs::create_directories(folder_ / "mbbench-runs");
  write("mbbench-runs/mbbench.sqlite", "this is no database, and it is long enough to be looked at as one. ");
  const Answer answer = run("suite ./small.toml --quiet --only one");
  EXPECT_EQ(answer.status, 0) << answer.out;
  EXPECT_NE(answer.out.find("the store was not updated"), std::string::npos) << answer.out;
  EXPECT_EQ(run("list runs").status, 4);
}

// Kills the whole process group at a random moment, resumes, and expects what an undisturbed run gives.
TEST_F(Cli, AKilledSuiteResumesToTheSameResult) {
  std::mt19937 random{std::random_device{}()};
  ASSERT_EQ(run("suite ./small.toml --quiet --tag whole").status, 0);
  std::map<std::string, std::string> expected;
  const auto read = [&](const fs::path& bundle) {
    std::map<std::string, std::string> sums;
    const auto reader = baselines::BundleReader::open(bundle);
    const auto all = reader->read_all();
    for (const auto& cell : all->cells)
      sums[cell.name] = std::string(baselines::name(cell.status)) + cell.loss_checksum;
    return sums;
  };
  for (const auto& entry : fs::directory_iterator(folder_ / "mbbench-runs" / "runs")) expected = read(entry.path());
  ASSERT_EQ(expected.size(), 3U);
  for (int round = 0; round < 3; ++round) {
    fs::remove_all(folder_ / "mbbench-runs");
    const pid_t child = fork();
    if (child == 0) {
      setpgid(0, 0);
      if (chdir(folder_.c_str()) != 0) _exit(1);
      execl(program_.c_str(), "mbbench", "suite", "./small.toml", "--quiet", nullptr);
      _exit(1);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(std::uniform_int_distribution<int>(5, 900)(random)));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    const Answer resumed = run("suite ./small.toml --quiet --resume");
    if (resumed.status == 4 && resumed.out.find("no unfinished run") != std::string::npos) {
      ASSERT_EQ(run("suite ./small.toml --quiet").status, 0);
    } else {
      ASSERT_EQ(resumed.status, 0) << resumed.out;
    }
    for (const auto& entry : fs::directory_iterator(folder_ / "mbbench-runs" / "runs")) {
      // A process killed while it made the folder leaves one without run.json: no bundle.
      if (!baselines::looks_like_bundle(entry.path())) continue;
      EXPECT_EQ(read(entry.path()), expected);
    }
  }
}

TEST_F(Cli, ARunGoesOnWithTheKnobsItBeganWith) {
  ASSERT_EQ(run("suite ./small.toml --quiet").status, 0);
  // As a kill before the last cell leaves it.
  const fs::path bundle = *fs::directory_iterator(folder_ / "mbbench-runs" / "runs");
  baselines::Run begun = baselines::BundleReader::open(bundle)->run();
  begun.ended_unix_ns = 0;
  fs::remove_all(bundle / "cells" / "tp2");
  ASSERT_TRUE(baselines::BundleWriter::reopen(bundle)->write_run(begun).has_value());
  const Answer other = run("suite ./small.toml --quiet --resume seed=7");
  EXPECT_EQ(other.status, 4) << other.out;
  EXPECT_TRUE(other.has("would go on with 7") && other.has("train.seed=")) << other.out;
  const Answer product = run("suite ./small.toml --quiet --resume gate.facts.image=other");
  EXPECT_EQ(product.status, 4) << product.out;
  EXPECT_TRUE(product.has("has 2 finished cells of another program or machine (image: ")) << product.out;
  const Answer same = run("suite ./small.toml --quiet --resume");
  EXPECT_EQ(same.status, 0) << same.out;
}

TEST_F(Cli, AProgramThatIsReplacedWhileItRunsLaunchesNothingMore) {
  fs::copy_file(program_, folder_ / "mbbench");
  write("two.toml", "purpose = \"x\"\n[[cell]]\nname = \"builds\"\ncommand = { run = \"cp " +
                        (folder_ / "mbbench").string() + " " + (folder_ / "new").string() + " && mv " +
                        (folder_ / "new").string() + " " + (folder_ / "mbbench").string() +
                        "\" }\n[[cell]]\nname = \"trains\"\nset = { train_iters = 2, tp = 2 }\n");
  const Answer answer = sh("./mbbench suite ./two.toml --quiet");
  EXPECT_EQ(answer.status, 4) << answer.out;
  EXPECT_TRUE(answer.has("was replaced while it ran")) << answer.out;
}

TEST_F(Cli, DoctorSaysWhatIsMissingAndWhyItMatters) {
  const Answer good = run("doctor");
  EXPECT_EQ(good.status, 0) << good.out;
  for (const char* part : {"program\n", "store\n", "NVIDIA driver\n", "libraries\n", "companions\n", "CUPTI"})
    EXPECT_NE(good.out.find(part), std::string::npos) << part << "\n" << good.out;
  const Answer bad = run("doctor runs_dir=/proc/mbbench-runs");
  EXPECT_EQ(bad.status, 4) << bad.out;
  EXPECT_NE(bad.out.find("broken   runs folder"), std::string::npos) << bad.out;
  EXPECT_NE(bad.out.find("set runs_dir to a folder you may write"), std::string::npos) << bad.out;
}

// As on a machine that a tarball was unpacked on.
TEST_F(Cli, DoctorSaysWhichLibrariesAProgramBesideItLacks) {
  const fs::path built = fs::path(program_).parent_path();
  if (!fs::exists(built / "mbbench-view")) GTEST_SKIP() << "no viewer in this build";
  for (const char* name : {"mbbench", "mbbench-view"}) fs::copy(built / name, folder_ / name);
  const Answer whole = sh("./mbbench doctor");
  EXPECT_TRUE(whole.has("ok       mbbench-view")) << whole.out;
  ASSERT_EQ(sh("sed -i 's/libglfw\\.so\\.3/libglfq.so.3/' mbbench-view").status, 0);
  const Answer lacking = sh("./mbbench doctor");
  EXPECT_EQ(lacking.status, 0) << lacking.out;
  EXPECT_TRUE(lacking.has("missing  mbbench-view")) << lacking.out;
  EXPECT_TRUE(lacking.has("does not start without libglfq.so.3\n")) << lacking.out;
}

}  // namespace
}  // namespace mbb::suites
