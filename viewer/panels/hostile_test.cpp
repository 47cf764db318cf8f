// Garbled stores, bundles and traces: whatever the bytes, a panel draws or says what is wrong.
#include <fmt/format.h>

#include <array>
#include <fstream>
#include <random>

#include "profiler/base/file.h"
#include "viewer/app/stage_fixture_test.h"
#include "viewer/load/kernels.h"
#include "viewer/panels/panel.h"
#include "viewer/timeline/diff.h"
#include "viewer/timeline/generate.h"
#include "viewer/timeline/model.h"
#include "viewer/widgets/probe.h"

namespace mbb::viewer {
namespace {

namespace fs = std::filesystem;

class HostileTest : public StageTest {
 protected:
  // Every panel (those named in `some`, unless it is empty), after what lies on the disk has changed.
  void look_at_all(const std::string& what, const std::string& some = "") {
    ++app_->session().generation;
    for (const PanelEntry& entry : panels()) {
      if (!some.empty() && some.find(entry.name) == std::string::npos) continue;
      play(fmt::format("panel {}\nwait\n", entry.name));
      const std::string state = probe_find_value("state").value_or("(none)");
      EXPECT_TRUE(state == "ready" || state == "empty" || state == "error")
          << what << ", " << entry.name << ": " << state;
      if (state == "error") {
        EXPECT_FALSE(probe_find_value("state.error").value_or("").empty()) << what;
      }
    }
  }

  static std::string bytes_of(const fs::path& file) { return read_file(file.string()).value_or(std::string()); }
  static void put(const fs::path& file, const std::string& bytes) {
    std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
  }

  std::string bent(std::string bytes) {
    const auto below = [&](std::size_t most) {
      return static_cast<std::size_t>(random_() % std::max<std::size_t>(most, 1));
    };
    switch (random_() % 4) {
      case 0: bytes.resize(below(bytes.size())); break;
      case 1:
        for (int i = 0; i < 20 && !bytes.empty(); ++i) bytes[below(bytes.size())] = static_cast<char>(random_());
        break;
      case 2: {
        const std::size_t from = below(bytes.size());
        std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(from), std::min<std::size_t>(64, bytes.size() - from),
                    static_cast<char>(0xFF));
        break;
      }
      default: bytes.insert(below(bytes.size()), std::string(200, '\x1B')); break;
    }
    return bytes;
  }

  std::mt19937_64 random_{20261128};
};

TEST_F(HostileTest, BentStoresNeverCrash) {
  open_store({.runs = 2, .cells = 2, .launches = 1, .steps = 10, .trace_spans = 2'000});
  play(fmt::format("resize 700x420\nselect other={}\nwait\n", bundles_[0].filename().string()));
  const fs::path file = folder_ / "store.sqlite";
  const std::string good = bytes_of(file);
  for (int i = 0; i < 4; ++i) {
    put(file, bent(good));
    look_at_all(fmt::format("store bent {}", i), "runs history");
  }
  put(file, good);
  ++app_->session().generation;
  play("panel run\nwait\nexpect state ready\n");
}

TEST_F(HostileTest, BentBundleFilesNeverCrash) {
  open_demo({.runs = 1, .cells = 1, .launches = 1, .steps = 10, .trace_spans = 2'000});
  play("resize 700x420\nwait\n");
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(bundles_[0])) {
    if (entry.is_regular_file() && entry.path().filename() != ".lock") files.push_back(entry.path());
  }
  ASSERT_GT(files.size(), 8U);
  for (const fs::path& file : files) {
    const std::string good = bytes_of(file);
    put(file, bent(good));
    look_at_all(file.filename().string(), "run timeline");
    put(file, good);
  }
  for (const fs::path& file : files) {
    const std::string good = bytes_of(file);
    fs::remove(file);
    look_at_all(file.filename().string() + " removed", "memory program");
    put(file, good);
  }
}

TEST_F(HostileTest, AStoreOfANewerProgramThatStillSuitsIsRead) {
  open_store({.runs = 1, .cells = 1, .launches = 1, .steps = 5, .trace_spans = 0});
  std::string bytes = bytes_of(folder_ / "store.sqlite");
  bytes[63] = 99;  // SQLite's user_version; the oldest reader it names is this one
  put(folder_ / "store.sqlite", bytes);
  ++app_->session().generation;
  play("panel runs\nwait\nexpect state ready\nexpect runs.shown 1\n");
}

// Traces that no reader would give: every number may be anything.
TEST(HostileTrace, AnyNumbersAreArrangedComparedAndGrouped) {
  std::mt19937_64 random(7);
  const std::atomic<bool> go_on{false};
  for (int round = 0; round < 60; ++round) {
    profiler::Trace trace = generate_trace({.spans = 400, .ranks = 2, .steps = 2, .micro_batches = 2});
    const auto odd = [&](std::int64_t usual) -> std::int64_t {
      constexpr std::array<std::int64_t, 6> kOdd = {
          0, -1, std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::min(), 1'000'000'000'000,
          7};
      return random() % 8 == 0 ? kOdd[random() % kOdd.size()] : usual;
    };
    for (profiler::Span& span : trace.spans) {
      span.start_ns = odd(span.start_ns);
      span.end_ns = odd(span.end_ns);
      if (random() % 16 == 0) span.track = static_cast<std::uint32_t>(random());
      if (random() % 16 == 0) span.name = static_cast<profiler::StringId>(random());
      if (random() % 16 == 0) span.op = static_cast<profiler::StringId>(random());
      if (random() % 16 == 0) span.micro_batch = static_cast<std::int32_t>(random());
      if (random() % 16 == 0) span.step = static_cast<std::int32_t>(random());
      if (random() % 16 == 0) span.kind = static_cast<profiler::SpanKind>(random() % 256);
      if (random() % 16 == 0) span.phase = static_cast<profiler::Phase>(random() % 256);
    }
    for (profiler::StepWindow& step : trace.steps) step.end_ns = odd(step.end_ns);
    if (round % 10 == 9) trace.tracks.clear();
    const auto shared = std::make_shared<const profiler::Trace>(trace);
    const auto model = build_timeline(shared, static_cast<ColorBy>(round % 3), go_on);
    ASSERT_TRUE(model.has_value()) << model.error().what;
    std::size_t drawn = 0;
    for (const Lane& lane : model->lanes) {
      if (!lane.exposed) drawn += lane.spans.size();
    }
    EXPECT_EQ(drawn + model->left_out, trace.spans.size()) << "every span is drawn or counted";
    const auto kernels = kernel_table(trace, go_on);
    ASSERT_TRUE(kernels.has_value());
    for (const KernelRow& row : kernels->rows) EXPECT_GE(row.total_ns, 0);
    (void)diff_traces(trace, 0, *shared, 1);
    (void)find_linked(trace, static_cast<std::uint32_t>(random() % trace.spans.size()), go_on);
  }
}

TEST(Kernels, AreGroupedByNameWithTheOpsThatLaunchedThem) {
  profiler::Trace trace;
  profiler::StringTable strings;
  const auto gemm = strings.intern("gemm_kernel");
  const auto copy = strings.intern("copy_kernel");
  trace.tracks = {{0, profiler::StreamKind::kCompute, 0}};
  trace.steps = {{0, 0, 0, 1000}, {0, 1, 1000, 2000}};
  const auto add = [&](profiler::StringId name, const char* op, std::int64_t start, std::int64_t end) {
    profiler::Span span;
    span.start_ns = start;
    span.end_ns = end;
    span.name = name;
    span.op = strings.intern(op);
    trace.spans.push_back(span);
  };
  for (int layer = 0; layer < 2; ++layer) {
    add(gemm, fmt::format("layers.{}.fc1.fwd", layer).c_str(), 100 * layer, 100 * layer + 10 + layer * 30);
    add(gemm, fmt::format("layers.{}.fc2.fwd", layer).c_str(), 100 * layer + 50, 100 * layer + 55);
  }
  add(copy, "optimizer.copy", 900, 904);
  trace.strings = strings.strings();
  const auto table = kernel_table(trace, std::atomic<bool>{false});
  ASSERT_TRUE(table.has_value());
  ASSERT_EQ(table->rows.size(), 2U);
  EXPECT_EQ(table->share_of, 2) << "two steps of one rank";
  const KernelRow& row = table->rows[0];
  EXPECT_EQ(row.name, "gemm_kernel");
  EXPECT_EQ(row.calls, 4);
  EXPECT_EQ(row.total_ns, 60);
  EXPECT_EQ(row.max_ns, 40);
  EXPECT_EQ(row.ops, (std::vector<std::string>{"layers.*.fc1.fwd", "layers.*.fc2.fwd"})) << "most time first";
}

}  // namespace
}  // namespace mbb::viewer
