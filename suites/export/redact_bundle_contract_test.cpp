// Secrets are planted in every text of a run and in every file of its launches: no byte of the redacted bundle has one,
// and it still verifies, indexes and names its cells, and what is the same in two runs stays the same.
#include "suites/export/redact_bundle.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "baselines/store/fixture.h"
#include "baselines/store/record_fields.h"
#include "baselines/store/store.h"
#include "profiler/base/file.h"
#include "profiler/base/text.h"
#include "profiler/trace/trace_file.h"
#include "suites/export/redaction.h"

namespace mbb::suites {
namespace {

namespace fs = std::filesystem;

// Each is looked for by the word in it, whatever case it is in.
constexpr const char* kSecrets[] = {"alicewonder", "acmelabs",    "zephyr",  "4711234",
                                    "hunter2",     "10.20.30.40", "7c3f1e0a"};
constexpr const char* kPlanted =
    " read /home/alicewonder/acmelabs/run.py:12 from git@git.acmelabs.com:alicewonder/zephyr.git as "
    "alicewonder@node17.acmelabs.com (10.20.30.40), job 4711234, SLURM_JOB_ID=4711234, zephyr-login:123:456 [0], "
    "GPU-7c3f1e0a-0000-1111-2222-333344445555, MY_TOKEN=hunter2; Alicewonder's";

std::string found_in(const std::string& text) {
  const std::string lower = to_lower(text);
  for (const char* secret : kSecrets)
    if (lower.find(secret) != std::string::npos) return secret;
  return "";
}

// Plants in every text but those that the format fixes.
class Plant {
 public:
  template <typename T>
  void operator()(const char* key, T& value) {
    visit(key, value);
  }
  template <typename T>
  void need(const char* key, T& value) {
    visit(key, value);
  }
  int planted = 0;

 private:
  void visit(const std::string& key, std::string& value) {
    constexpr const char* kFixed[] = {"id", "run", "name", "command", "planned_cells", "class_hash", "identity_hash"};
    if (std::find(std::begin(kFixed), std::end(kFixed), key) != std::end(kFixed)) return;
    value += kPlanted;
    ++planted;
  }
  template <typename T>
  void visit(const std::string& key, std::vector<T>& values) {
    if (key == "trace_files") return;
    for (T& value : values) visit(key, value);
  }
  template <typename T>
  void visit(const std::string&, T& value) {
    if constexpr (std::is_class_v<T>) baselines::fields(*this, value);
  }
};

profiler::Trace trace_with_secrets() {
  profiler::Trace trace;
  profiler::StringTable strings;
  trace.tracks.push_back({0, profiler::StreamKind::kHost, strings.intern("thread 4711234 (alicewonder's zephyr)")});
  profiler::Span span;
  span.end_ns = 1000;
  span.name = strings.intern(std::string("step") + kPlanted);
  span.op = strings.intern("layers.0.mlp.fc1.fwd");
  trace.spans.push_back(span);
  trace.strings = strings.strings();
  return trace;
}

class Redacted : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = fs::temp_directory_path() / "mbb-redact-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }

  // A finished run of `cells` cells of a suite of the user's, secrets everywhere.
  fs::path write_secrets() {
    baselines::Run run = baselines::make_synthetic_run({.cells = 2, .launches = 1, .steps = 4, .layers = 1});
    Plant plant;
    baselines::fields(plant, run);
    run.argv.push_back({"--zephyr", "hunter2", false});
    run.argv.push_back({"", "abc123", true});
    run.environment.push_back({"ALICEWONDER_HOME", "abc123", true});
    run.environment.push_back({"OMP_PLACES", "/home/alicewonder", false});
    run.fingerprint.facts.push_back({"image", "registry.acmelabs.com/zephyr:25.09", false});
    run.cells.resize(2);
    run.planned_cells = {"tp2-alicewonder", "tp4-zephyr"};
    auto writer = baselines::BundleWriter::create(folder_ / "from", run).value();
    for (size_t i = 0; i < run.cells.size(); ++i) {
      baselines::Cell cell = run.cells[i];
      cell.name = run.planned_cells[i];
      baselines::config_fields(plant, cell);
      baselines::result_fields(plant, cell);
      cell.knobs.push_back(
          {"command.run", "srun -A acmelabs ./zephyr --token hunter2", "suite", "/home/alicewonder/s.toml", 3, true});
      cell.knobs.push_back({"data.path", "/home/alicewonder/text", "suite", "zephyr.toml", 3, true});
      cell.knobs.push_back({"model.name", "zephyr-7b", "suite", "zephyr.toml", 3, true});
      cell.model = "zephyr-7b";
      cell.program_json = R"({"model": "zephyr-7b", "rank_classes": [{"note": "of zephyr-7b, /home/alicewonder/x"}]})";
      for (baselines::Launch& launch : cell.launches) {
        baselines::fields(plant, launch);
        for (baselines::OpRow& op : launch.ops) op.path += kPlanted;
        for (baselines::MemoryMap& map : launch.memory) fields(plant, map);
        launch.trace_files = {"trace.mbt"};
        const fs::path at = writer.launch_folder(cell.name, launch.index).value();
        EXPECT_TRUE(profiler::write_trace(at / "trace.mbt", trace_with_secrets()));
        for (const char* file : {"command.log", "command.sh", "stderr.log", "zephyr.pickle", "step_ends.csv"})
          std::ofstream(at / file) << kPlanted;
        std::ofstream(at / "telemetry.csv") << profiler_header() << "1,-1,,,,,,,,,,0.5,0.5,\n";
      }
      EXPECT_TRUE(writer.finish_cell(cell));
    }
    EXPECT_GT(plant.planted, 100);
    return writer.folder();
  }
  static std::string profiler_header() {
    return "at_ns,gpu,sm_mhz,memory_mhz,power_w,temperature_c,throttle_reasons,ecc_corrected,ecc_uncorrected,"
           "nvlink_tx_kib,nvlink_rx_kib,host_busy,process_cpus,failed\n";
  }

  fs::path folder_;
};

TEST_F(Redacted, NoByteHoldsASecretAndTheBundleIsWhole) {
  const auto from = baselines::BundleReader::open(write_secrets());
  ASSERT_TRUE(from) << from.error().what;
  const auto out = redact_bundle(*from, folder_ / "to", {"tag"});
  ASSERT_TRUE(out) << format(out.error());
  EXPECT_EQ(out->size.cells, 2);
  for (const char* kind : {"path", "host", "user", "job", "address", "id", "value", "command", "name"})
    EXPECT_NE(out->replaced.find(kind), std::string::npos) << out->replaced;
  const std::string left = join(out->left_out, ", ");
  for (const char* what : {"variables of the environment (", "the suite's file (1)", "command.log (2)",
                           "zephyr.pickle (2)", "step_ends.csv (2)"})
    EXPECT_NE(left.find(what), std::string::npos) << left;
  int files = 0, traces = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder_ / "to")) {
    EXPECT_EQ(found_in(entry.path().lexically_relative(folder_).string()), "") << entry.path();
    if (!entry.is_regular_file()) continue;
    ++files;
    EXPECT_EQ(found_in(read_file(entry.path()).value()), "") << entry.path();
    if (entry.path().extension() != ".mbt") continue;
    ++traces;
    const auto trace = profiler::read_trace(entry.path());
    ASSERT_TRUE(trace) << trace.error().what;
    for (const std::string& text : trace->strings) EXPECT_EQ(found_in(text), "") << text;
    EXPECT_EQ(trace->text(trace->spans.at(0).op), "layers.0.mlp.fc1.fwd");
  }
  EXPECT_EQ(files, out->size.files);
  EXPECT_EQ(traces, 2);
  const auto run = baselines::BundleReader::open(folder_ / "to").value().read_all();
  ASSERT_TRUE(run) << run.error().what;
  EXPECT_EQ(run->cells[0].name, "tp2-user-1") << "what a sentence told to be a user is one in a name, too";
  EXPECT_TRUE(run->cells[1].name.starts_with("tp4-")) << run->cells[1].name;
  EXPECT_EQ(run->cells[0].model, run->cells[1].model);
  EXPECT_NE(run->cells[0].program_json.find(run->cells[0].model), std::string::npos) << "one name, one placeholder";
  EXPECT_EQ(run->cells[0].identity_hash, baselines::identity_hash(run->cells[0]));
  EXPECT_TRUE(fs::exists(folder_ / "to/cells/tp2-user-1/launches/0/telemetry.csv"));
  auto store = baselines::Store::open(folder_ / "store.sqlite").value();
  const auto report = store.index(folder_ / "to");
  ASSERT_TRUE(report) << report.error().what;
  EXPECT_EQ(report->cells, 2);
  EXPECT_TRUE(report->troubles.empty());
}

TEST_F(Redacted, ARunThatNamesNothingIsAsItWas) {
  const auto from = baselines::BundleReader::open(baselines::write_synthetic_bundle(folder_ / "from").value()).value();
  const auto out = redact_bundle(from, folder_ / "to", {});
  ASSERT_TRUE(out) << format(out.error());
  const auto before = from.read_all().value(),
             after = baselines::BundleReader::open(folder_ / "to").value().read_all().value();
  ASSERT_EQ(after.cells.size(), before.cells.size());
  for (size_t i = 0; i < after.cells.size(); ++i) {
    EXPECT_EQ(after.cells[i].name, before.cells[i].name);
    EXPECT_EQ(after.cells[i].identity_hash, before.cells[i].identity_hash);
    ASSERT_EQ(after.cells[i].metrics.size(), before.cells[i].metrics.size());
    for (size_t m = 0; m < after.cells[i].metrics.size(); ++m)
      EXPECT_EQ(after.cells[i].metrics[m].value, before.cells[i].metrics[m].value);
  }
  EXPECT_EQ(after.fingerprint.class_hash, before.fingerprint.class_hash);
  EXPECT_EQ(redact_bundle(from, folder_ / "to", {}).error().code, ErrorCode::kBadArgument) << "it is there already";
}

TEST(Redaction, WordsOfOursStayAndNamesGo) {
  const auto told = [](const char* text) { return Redaction({"tp", "pp", "vpp", "fp8", "mean", "gbs"}).text(text); };
  for (const char* ours :
       {"tokens/s/GPU", "measured/NVIDIA H100 80GB HBM3\u00d78", "layers.0.mlp.fc1.fwd", "functional/cpu",
        "tp4 pp8: 95 % over 54 steps", "void cutlass::Kernel2<cutlass_80_tensorop_f16_s16816gemm>(Params)",
        "shipped/quickstart.toml", "cpus of rank 0: 0-1 (NUMA node 0)", "r-20261130-0353-572a",
        "losses equal one-rank within 0.0e+00 relative", "parallel.tensor_model_parallel_size = 3",
        "_ZN7cutlass13device_kernelI4gemm6kernel13GemmUniversalIN4cute5tupleEEEvNT_6ParamsE",
        "NVIDIA driver 580.159.03"})
    EXPECT_EQ(told(ours), ours);
  const std::pair<const char*, const char*> cases[] = {
      {"/data/x/y.txt: not found", "path-1: not found"},
      {"'/a/b' and /a/b, ~/c", "'path-1' and path-1, path-2"},
      {"/a/b.py:3 and /a/b.py:4", "path-1:3 and path-1:4"},
      {"--out=/a/b", "--out=path-1"},
      {"forward zephyr_model.py:7, mean.py", "forward path-1:7, mean.py"},
      {"data/set.txt", "path-1"},
      {"https://a.b/c?d", "address-1"},
      {"bob@x.org, then bob", "address-1, then user-1"},
      {"on node17.x.org", "on host-1"},
      {"dgx-03:11:12 [0] NCCL WARN; dgx-03", "host-1:11:12 [0] NCCL WARN; host-1"},
      {"fe80::1 and 10.0.0.1:80", "address-1 and address-2"},
      {"Submitted batch job 12345", "Submitted batch job job-1"},
      {"JobId=12345", "JobId=job-1"},
      {"WANDB_KEY=x", "WANDB_KEY=value-1"},
      {"key hf_abcdefghijklmnop", "key key-1"},
  };
  for (const auto& [text, redacted] : cases) EXPECT_EQ(told(text), redacted) << text;
  Redaction words({"tp", "fp", "mean"});
  EXPECT_EQ(words.name("tp4-fp8-4k"), "tp4-fp8-4k");
  EXPECT_EQ(words.name("tp4-Zephyr_zephyr-x9"), "tp4-redacted-1_redacted-1-x9");
  EXPECT_EQ(words.name("mean-20261130"), "mean-redacted-2");
  EXPECT_EQ(words.value("@latest"), "@redacted-3");
  EXPECT_EQ(words.value("0.5"), "0.5");
  EXPECT_EQ(words.name("tp4-job4711"), "tp4-job-1");
  EXPECT_EQ(words.name(words.name("tp4-Zephyr-job4711-node3")), "tp4-redacted-1-job-1-host-1") << "twice is once";
  EXPECT_EQ(words.summary(), "1 host, 1 job, 3 names");
}

}  // namespace
}  // namespace mbb::suites
