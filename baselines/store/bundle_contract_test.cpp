// Bundles: what is written is read back, and what is cut, bent, missing or newer is named.
#include "baselines/store/bundle.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <fstream>
#include <random>
#include <set>

#include "baselines/store/fixture.h"
#include "baselines/store/record_text.h"
#include "profiler/base/file.h"

namespace mbb::baselines {
namespace {

namespace fs = std::filesystem;

class Bundle : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = fs::temp_directory_path() / "mbb-bundle-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    parent_ = pattern;
  }
  void TearDown() override { fs::remove_all(parent_); }
  fs::path write(const SyntheticOptions& options = {}) { return write_synthetic_bundle(parent_, options).value(); }
  static void replace(const fs::path& file, const std::string& from, const std::string& to) {
    std::string text = read_file(file).value();
    const std::size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    std::ofstream(file, std::ios::binary) << text.replace(at, from.size(), to);
  }
  fs::path parent_;
};

// Every stored field, as text: two runs are equal when these are.
std::string everything(const Run& run) {
  std::string text = run_text(run, 1);
  for (const Cell& cell : run.cells) {
    text += cell_config_text(cell) + cell_result_text(cell) + cell.program_json;
    for (const Launch& launch : cell.launches) {
      text += launch_text(launch) + steps_text(launch.steps) + ops_text(launch.ops) + memory_text(launch.memory);
    }
  }
  return text;
}

TEST_F(Bundle, ReadsBackWhatWasWritten) {
  baselines::Run run = make_synthetic_run();
  run.cells[0].launches[0].steps[1].loss = std::nan("");
  run.cells[0].launches[0].steps[2].loss = INFINITY;
  run.cells[0].launches[0].steps[3].wall_ns = std::numeric_limits<std::int64_t>::max();
  run.cells[0].launches[0].ops[0].path = "odd,\"path\"\nwith lines";
  run.cells[0].metrics[0].low = -INFINITY;
  run.cells[1].reason = "control \x01 and \xc3\xa9";
  auto writer = BundleWriter::create(parent_, run).value();
  for (const Cell& cell : run.cells) ASSERT_TRUE(writer.finish_cell(cell));
  const auto reader = BundleReader::open(writer.folder());
  ASSERT_TRUE(reader) << reader.error().what;
  const auto back = reader->read_all();
  ASSERT_TRUE(back) << back.error().what;
  EXPECT_EQ(everything(*back), everything(run));
  EXPECT_TRUE(std::isnan(back->cells[0].launches[0].steps[1].loss));
  EXPECT_EQ(loss_checksum(back->cells[0].launches[0].steps), loss_checksum(run.cells[0].launches[0].steps));
  EXPECT_EQ(back->cells[0].metrics[0].low, -INFINITY);
}

TEST_F(Bundle, BytesThatAreNoTextAreReplacedNotFatal) {
  baselines::Run run = make_synthetic_run();
  run.cells[0].reason = "log line \xff\xfe";
  auto writer = BundleWriter::create(parent_, run).value();
  ASSERT_TRUE(writer.finish_cell(run.cells[0]));
  const Cell back = BundleReader::open(writer.folder()).value().read_cell(run.cells[0].name).value();
  EXPECT_EQ(back.reason, "log line \xef\xbf\xbd\xef\xbf\xbd");
}

TEST_F(Bundle, SameRunTwiceIsRefused) {
  write();
  const auto second = write_synthetic_bundle(parent_);
  ASSERT_FALSE(second);
  EXPECT_NE(second.error().what.find("is already there"), std::string::npos);
}

TEST_F(Bundle, RunsOfOneMinuteNeverShareAnId) {
  baselines::Run run = make_synthetic_run();
  std::set<std::string> ids;
  for (const std::uint64_t nonce : {7, 7, 8, 0xffff, 0xffff}) {
    ASSERT_TRUE(BundleWriter::create_new(parent_, run, nonce));
    EXPECT_TRUE(ids.insert(run.id).second) << run.id;
    EXPECT_EQ(BundleReader::open(parent_ / run.id).value().run().id, run.id);
  }
  EXPECT_TRUE(ids.contains(new_run_id(run.created_unix_ns, 9)));
  EXPECT_TRUE(ids.contains(new_run_id(run.created_unix_ns, 0)));  // past ffff
}

TEST_F(Bundle, OneWriterAtATime) {
  const baselines::Run run = make_synthetic_run();
  auto writer = BundleWriter::create(parent_, run).value();
  const auto second = BundleWriter::reopen(writer.folder());
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::kUnavailable);
  { BundleWriter gone = std::move(writer); }
  EXPECT_TRUE(BundleWriter::reopen(parent_ / run.id));
}

TEST_F(Bundle, BrokenCellsKeepNoNumber) {
  baselines::Run run = make_synthetic_run();
  auto writer = BundleWriter::create(parent_, run).value();
  Cell cell = run.cells[0];
  cell.status = CellStatus::kBroken;
  EXPECT_FALSE(writer.finish_cell(cell));
  cell.metrics.clear();
  EXPECT_TRUE(writer.finish_cell(cell));
}

TEST_F(Bundle, CellsOfAnotherRunAndBadNamesAreRefused) {
  const baselines::Run run = make_synthetic_run();
  auto writer = BundleWriter::create(parent_, run).value();
  Cell cell = run.cells[0];
  cell.name = "../outside";
  EXPECT_FALSE(writer.begin_cell(cell));
  EXPECT_FALSE(writer.finish_cell(cell));
  EXPECT_FALSE(writer.launch_folder(cell.name, 0));
  cell = run.cells[0];
  cell.run = "r-other";
  EXPECT_FALSE(writer.begin_cell(cell));
  cell = run.cells[0];
  cell.launches[0].trace_files = {"../../../secret"};
  EXPECT_FALSE(writer.finish_cell(cell));
}

TEST_F(Bundle, ACellThatRunsIsReadAsFarAsItHasGot) {
  baselines::Run run = make_synthetic_run({.cells = 2, .launches = 2, .steps = 12});
  run.ended_unix_ns = 0;
  auto writer = BundleWriter::create(parent_, run);
  ASSERT_TRUE(writer) << writer.error().what;
  const Cell& cell = run.cells[0];
  ASSERT_TRUE(writer->begin_cell(cell));
  const auto reader = BundleReader::open(writer->folder());
  ASSERT_TRUE(reader);
  EXPECT_TRUE(reader->being_written());
  EXPECT_FALSE(reader->read_begun(run.cells[1].name)) << "it has not begun";
  ASSERT_TRUE(write_launch(writer->launch_folder(cell.name, 0).value(), cell.launches[0]));
  const fs::path second = writer->launch_folder(cell.name, 1).value();
  auto live = LiveSteps::create(second);
  ASSERT_TRUE(live) << live.error().what;
  const auto begun = [&] { return reader->read_begun(cell.name).value(); };
  ASSERT_EQ(begun().launches.size(), 2U);
  EXPECT_TRUE(begun().launches[1].steps.empty()) << "no step has ended";
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(live->add(cell.launches[1].steps[static_cast<size_t>(i)]));
  Cell seen = begun();
  EXPECT_EQ(steps_text(seen.launches[0].steps), steps_text(cell.launches[0].steps));
  ASSERT_EQ(seen.launches[1].steps.size(), 5U);
  EXPECT_EQ(seen.launches[1].steps[4].wall_ns, cell.launches[1].steps[4].wall_ns);
  EXPECT_EQ(seen.knobs.size(), cell.knobs.size());
  std::ofstream(second / "steps.live.csv", std::ios::app) << "5,12";  // a line that is being written
  EXPECT_EQ(begun().launches[1].steps.size(), 5U);
  ASSERT_TRUE(write_launch(second, cell.launches[1]));
  EXPECT_FALSE(fs::exists(second / "steps.live.csv")) << "what counts has taken its place";
  ASSERT_TRUE(writer->finish_cell(cell));
  EXPECT_TRUE(reader->read_cell(cell.name));
  { const BundleWriter gone = std::move(*writer); }
  EXPECT_FALSE(reader->being_written());
}

TEST_F(Bundle, ALaunchThatLeftNothingIsRecorded) {
  baselines::Run run = make_synthetic_run();
  auto writer = BundleWriter::create(parent_, run).value();
  Cell cell = run.cells[0];
  ASSERT_TRUE(writer.begin_cell(cell));
  ASSERT_TRUE(writer.launch_folder(cell.name, 7));
  ASSERT_TRUE(writer.finish_cell(cell));
  const Cell back = BundleReader::open(writer.folder()).value().read_cell(cell.name).value();
  ASSERT_EQ(back.launches.size(), cell.launches.size() + 1);
  EXPECT_EQ(back.launches.back().index, 7);
  EXPECT_EQ(back.launches.back().reason, "left no result");
}

TEST_F(Bundle, DamageIsNamed) {
  struct Case {
    const char* file;
    const char* from;
    const char* to;
    const char* says;
  };
  const Case cases[] = {
      {"cells/tp1/result.json", "\"status\": \"ok\"", "\"status\": \"no\"", "result.json is not what was written"},
      {"cells/tp1/launches/0/steps.csv", "index", "indexx", "launches/0/steps.csv has"},
      {"cells/tp1/checksums", "config.json", "confug.json", "its last line does not fit the others"},
      {"run.json", "\"tag\": \"\"", "\"tag\": \"x\"", "its checksum does not fit its content"},
      {"run.json", "\"version\": 1", "\"version\": 2", "written by a newer mbbench"},
      {"run.json", "mbbench-run", "something", "it is no run of mbbench"},
      {"run.json", "{", "", "it is not JSON"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.says);
    fs::remove_all(parent_ / make_synthetic_run().id);
    const fs::path folder = write();
    replace(folder / c.file, c.from, c.to);
    const auto reader = BundleReader::open(folder);
    const auto run = reader ? reader->read_all() : Result<baselines::Run>(tl::unexpected<Error>(reader.error()));
    ASSERT_FALSE(run);
    EXPECT_NE(run.error().what.find(c.says), std::string::npos) << run.error().what;
    EXPECT_NE(run.error().what.find(folder.string()), std::string::npos) << run.error().what;
  }
}

TEST_F(Bundle, MissingFilesAreNamed) {
  const fs::path folder = write();
  fs::remove(folder / "cells/tp1/launches/1/ops.csv");
  const auto reader = BundleReader::open(folder).value();
  const auto entries = reader.cells().value();
  ASSERT_EQ(entries.size(), 5U);
  EXPECT_EQ(entries[0].state, CellState::kDamaged);
  EXPECT_EQ(entries[0].trouble.what, "cell tp1: launches/1/ops.csv is missing");
  for (std::size_t i = 1; i < entries.size(); ++i) EXPECT_EQ(entries[i].state, CellState::kFinished);
  EXPECT_FALSE(reader.read_all());
  EXPECT_TRUE(reader.read_cell(entries[1].name));

  fs::remove(folder / "cells/tp1/checksums");
  EXPECT_EQ(reader.cells().value()[0].state, CellState::kUnfinished);
  EXPECT_EQ(reader.read_all().value().cells.size(), 4U);
  fs::remove_all(folder / "cells");
  const auto gone = reader.cells().value();
  for (const CellEntry& entry : gone) EXPECT_EQ(entry.state, CellState::kUnfinished);
  fs::remove(folder / "run.json");
  EXPECT_EQ(BundleReader::open(folder).error().code, ErrorCode::kNotFound);
  EXPECT_FALSE(looks_like_bundle(folder));
}

TEST_F(Bundle, PipesInThePlaceOfFilesDoNotHang) {
  const fs::path folder = write();
  for (const char* file : {"cells/tp1/checksums", "run.json"}) {
    fs::remove(folder / file);
    ASSERT_EQ(::mkfifo((folder / file).c_str(), 0600), 0);
    const auto reader = BundleReader::open(folder);
    if (reader) {
      EXPECT_EQ(reader->cells().value()[0].state, CellState::kDamaged);
    } else {
      EXPECT_EQ(reader.error().code, ErrorCode::kBadFile);
    }
  }
}

TEST_F(Bundle, ACellInAnotherCellsPlaceIsNoticed) {
  const fs::path folder = write();
  const auto names = make_synthetic_run().planned_cells;
  fs::remove_all(folder / "cells" / names[0]);
  fs::rename(folder / "cells" / names[1], folder / "cells" / names[0]);
  const auto cell = BundleReader::open(folder).value().read_cell(names[0]);
  ASSERT_FALSE(cell);
  EXPECT_NE(cell.error().what.find("in the place of cell tp1"), std::string::npos) << cell.error().what;
}

// Kills a writer again and again: every cell is then either finished and whole, or unfinished; none is damaged.
TEST_F(Bundle, KilledAtAnyMomentStaysReadable) {
  SyntheticOptions options;
  options.cells = 6;
  const baselines::Run run = make_synthetic_run(options);
  std::mt19937 random(3);
  std::size_t finished = 0;
  for (int round = 0; round < 40 && finished < run.cells.size(); ++round) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const fs::path folder = parent_ / run.id;
      auto writer = looks_like_bundle(folder) ? BundleWriter::reopen(folder) : BundleWriter::create(parent_, run);
      if (!writer) ::_exit(1);
      const auto reader = BundleReader::open(folder).value();
      const auto entries = reader.cells().value();
      for (const CellEntry& entry : entries) {
        if (entry.state == CellState::kFinished) continue;
        for (const Cell& cell : run.cells) {
          if (cell.name == entry.name && (!writer->begin_cell(cell) || !writer->finish_cell(cell))) ::_exit(2);
        }
      }
      ::_exit(0);
    }
    ::usleep(static_cast<useconds_t>(1000 + random() % 30'000));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0) << status;
    if (!looks_like_bundle(parent_ / run.id)) {
      fs::remove_all(parent_ / run.id);
      continue;
    }
    const auto reader = BundleReader::open(parent_ / run.id);
    ASSERT_TRUE(reader) << reader.error().what;
    std::size_t now = 0;
    const auto entries = reader->cells().value();
    for (const CellEntry& entry : entries) {
      EXPECT_NE(entry.state, CellState::kDamaged) << entry.trouble.what;
      now += entry.state == CellState::kFinished ? 1 : 0;
    }
    EXPECT_GE(now, finished) << "a finished cell stays";
    finished = now;
  }
  auto writer =
      looks_like_bundle(parent_ / run.id) ? BundleWriter::reopen(parent_ / run.id) : BundleWriter::create(parent_, run);
  ASSERT_TRUE(writer) << writer.error().what;
  for (const Cell& cell : run.cells) ASSERT_TRUE(writer->finish_cell(cell));
  EXPECT_EQ(everything(BundleReader::open(writer->folder()).value().read_all().value()), everything(run));
  for (const auto& entry : fs::recursive_directory_iterator(writer->folder()))
    EXPECT_EQ(entry.path().string().find(kTemporarySuffix), std::string::npos) << entry.path();
}

std::string bent(std::string text, std::mt19937& random) {
  if (random() % 3 == 0) {
    text.resize(random() % (text.size() + 1));
  } else {
    for (unsigned flips = 1 + random() % 4; flips > 0 && !text.empty(); --flips) {
      text[random() % text.size()] = static_cast<char>(random());
    }
  }
  return text;
}

TEST_F(Bundle, BentFilesNeverCrashAndNeverPass) {
  SyntheticOptions options;
  options.cells = 1;
  options.launches = 1;
  options.layers = 1;
  options.steps = 4;
  const fs::path folder = write(options);
  const auto whole = everything(BundleReader::open(folder).value().read_all().value());
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file() && entry.path().filename() != ".lock") files.push_back(entry.path());
  }
  std::mt19937 random(11);
  for (int round = 0; round < 600; ++round) {
    const fs::path& file = files[random() % files.size()];
    const std::string before = read_file(file).value();
    const std::string after = bent(before, random);
    std::ofstream(file, std::ios::binary) << after;
    const auto reader = BundleReader::open(folder);
    if (reader) {
      const auto run = reader->read_all();
      if (run && after != before) {
        EXPECT_EQ(everything(*run), whole) << file << " passed with other content";
      }
    }
    std::ofstream(file, std::ios::binary) << before;
  }
}

// Below the checksums: the parsers themselves take anything.
TEST(RecordText, BentTextNeverCrashes) {
  const baselines::Run run = make_synthetic_run();
  const Cell& cell = run.cells[0];
  const Launch& launch = cell.launches[0];
  std::mt19937 random(5);
  for (int round = 0; round < 400; ++round) {
    (void)parse_run(bent(run_text(run, 1), random), 1);
    (void)parse_cell(bent(cell_config_text(cell), random), bent(cell_result_text(cell), random));
    (void)parse_launch(bent(launch_text(launch), random));
    (void)parse_memory(bent(memory_text(launch.memory), random));
    (void)parse_steps(bent(steps_text(launch.steps), random));
    (void)parse_ops(bent(ops_text(launch.ops), random));
  }
}

TEST(RecordText, SaysWhichFieldIsWrong) {
  const auto launch = [](const char* text) { return parse_launch(text).error().what; };
  EXPECT_EQ(launch("{}"), "index is missing");
  EXPECT_EQ(launch("[]"), "the text is not an object");
  EXPECT_EQ(launch(R"({"index": 1.5})"), "index is not an integer");
  EXPECT_EQ(launch(R"({"index": 4294967296})"), "index is out of range");
  EXPECT_EQ(launch(R"({"index": 0, "counts": [{"name": "a", "count": "b"}]})"), "counts[0].count is not an integer");
  EXPECT_TRUE(parse_launch(R"({"index": 0, "added_by_a_later_version": {}})")) << "unknown fields are passed over";
  EXPECT_EQ(launch((std::string(100'000, '[') + std::string(100'000, ']')).c_str()), "it nests deeper than 64 levels");
}

}  // namespace
}  // namespace mbb::baselines
