// The store: what goes in comes out, indexing is repeatable, and every bad file is an error with a remedy.
#include "baselines/store/store.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <random>

#include "baselines/store/bundle.h"
#include "baselines/store/fixture.h"
#include "baselines/store/record_text.h"
#include "baselines/store/schema.h"
#include "baselines/store/store_impl.h"
#include "baselines/store/unproven.h"
#include "profiler/base/file.h"

namespace mbb::baselines {
namespace {

namespace fs = std::filesystem;
using StoredRun = baselines::Run;

class StoreFile : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = fs::temp_directory_path() / "mbb-store-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    file_ = folder_ / "store.sqlite";
  }
  void TearDown() override { fs::remove_all(folder_); }
  Store open() {
    auto store = Store::open(file_);
    EXPECT_TRUE(store) << store.error().what;
    return std::move(*store);
  }
  static void put(Store& store, const StoredRun& run) {
    ASSERT_TRUE(store.put_run(run, ""));
    for (const Cell& cell : run.cells) {
      const Status status = store.put_cell(cell);
      ASSERT_TRUE(status) << status.error().what;
    }
  }
  fs::path folder_;
  fs::path file_;
};

StoredRun made_up(std::uint64_t number, const std::string& tag = "") {
  SyntheticOptions options;
  options.seed = number;
  options.created_unix_ns += static_cast<std::int64_t>(number) * 60'000'000'000;
  options.tag = tag;
  options.launches = 2;
  options.steps = 5;
  options.layers = 2;
  return make_synthetic_run(options);
}

// All that the store keeps: everything but the program's text.
std::string everything(StoredRun run) {
  std::string text = run_text(run, 1);
  for (const Cell& cell : run.cells) {
    text += cell_config_text(cell) + cell_result_text(cell);
    for (const Launch& launch : cell.launches) {
      text += launch_text(launch) + steps_text(launch.steps) + ops_text(launch.ops) + memory_text(launch.memory);
    }
  }
  return text;
}

TEST_F(StoreFile, RunsComeBackWhole) {
  Store store = open();
  StoredRun run = made_up(1, "first");
  run.cells[0].reason = "it's \"quoted\"; DROP TABLE runs; -- \xc3\xa9";
  run.cells[0].launches[0].trace_files = {"trace.mbt"};
  run.cells[0].data_hash = "5a645372ef9522f0370a29be0d82a25b";
  put(store, run);
  EXPECT_EQ(store.journal_mode().value(), "wal");
  const auto back = store.load_run(run.id);
  ASSERT_TRUE(back) << back.error().what;
  EXPECT_EQ(everything(*back), everything(run));
  EXPECT_EQ(back->cells[0].data_hash, run.cells[0].data_hash);
  const RunSummary summary = store.summary(run.id).value();
  EXPECT_EQ(summary.cells_ok, 3);
  EXPECT_EQ(summary.cells_unproven, 0);
  EXPECT_EQ(summary.cells_skipped, 1);
  EXPECT_EQ(summary.cells_broken, 1);
  EXPECT_EQ(summary.cells_planned, 5);
  run.cells[0].verdicts.push_back({.subject = "loss", .verdict = Verdict::kIncomparable});
  ASSERT_TRUE(is_unproven(run.cells[0]));
  put(store, run);
  EXPECT_EQ(store.summary(run.id)->cells_ok, 2);
  EXPECT_EQ(store.summary(run.id)->cells_unproven, 1);
}

TEST_F(StoreFile, PuttingAgainReplaces) {
  Store store = open();
  StoredRun run = made_up(1);
  put(store, run);
  run.tag = "later";
  run.cells[0].metrics[0].value *= 2;
  put(store, run);
  EXPECT_EQ(everything(store.load_run(run.id).value()), everything(run));
  EXPECT_EQ(store.list_runs().value().size(), 1U);
  ASSERT_TRUE(store.remove_run(run.id));
  EXPECT_TRUE(store.list_runs().value().empty());
  EXPECT_TRUE(store.list_series().value().empty());
  const auto database = Database::open(file_, OpenMode::kReadOnly, 0).value();
  for (const char* table : {"cells", "steps", "ops", "knobs", "memory_tensors", "metrics", "launches"}) {
    EXPECT_EQ(database.integer(std::string("SELECT count(*) FROM ") + table).value(), 0) << table;
  }
}

TEST_F(StoreFile, AHistoryHoldsAllEpochsWithBuildAndVerdict) {
  Store store = open();
  for (const std::uint64_t i : {1, 2, 3}) {
    StoredRun run = made_up(i);
    run.command = i == 3 ? "gate" : "suite";
    run.epoch = i < 2 ? "e1" : "e2";
    run.fingerprint.facts.push_back({"build.commit", "c" + std::to_string(i)});
    if (i == 3) run.fingerprint.facts.push_back({"image", "nemo:25.09"});
    Cell& cell = run.cells[0];
    cell.verdicts = {{"step_ns", Verdict::kSame, "b-1"}, {"loss", Verdict::kSame, "one"}};
    if (i == 3) cell.verdicts.push_back({"step_ns", Verdict::kSlower, "b-2"});
    put(store, run);
  }
  const Cell cell = made_up(1).cells[0];
  auto points = store.history(cell.identity_hash, "step_ns");
  ASSERT_TRUE(points) << points.error().what;
  ASSERT_EQ(points->size(), 3U);
  EXPECT_EQ((*points)[0].epoch + (*points)[1].epoch, "e1e2") << "oldest first, over epochs";
  EXPECT_EQ((*points)[2].build, "c3");
  EXPECT_EQ((*points)[2].command, "gate");
  EXPECT_EQ((*points)[2].verdict + " " + (*points)[2].against, "slower b-2") << "the last one given";
  EXPECT_EQ((*points)[0].verdict, "same");
  EXPECT_TRUE(store.history(cell.identity_hash, "no such metric").value().empty());
  ASSERT_TRUE(name_products(store, {}, {{"build.*"}, {}}, *points));
  EXPECT_EQ((*points)[1].build, "c2");
  EXPECT_EQ((*points)[2].build, "image nemo:25.09") << "what the run declared of its product";
}

TEST_F(StoreFile, NamesOfRuns) {
  Store store = open();
  EXPECT_EQ(store.resolve("@latest").error().code, ErrorCode::kNotFound);
  const StoredRun a = made_up(1, "base");
  const StoredRun b = made_up(2, "base");
  const StoredRun c = made_up(3);
  for (const StoredRun* run : {&b, &c, &a}) put(store, *run);
  EXPECT_EQ(store.resolve("@latest").value(), c.id);
  EXPECT_EQ(store.resolve("@1").value(), c.id);
  EXPECT_EQ(store.resolve("@2").value(), b.id);
  EXPECT_EQ(store.resolve("@3").value(), a.id);
  EXPECT_EQ(store.resolve("@base").value(), b.id) << "the newest with the tag";
  EXPECT_EQ(store.resolve(a.id).value(), a.id);
  EXPECT_EQ(store.resolve(a.id.substr(0, a.id.size() - 1)).value(), a.id);
  const auto many = store.resolve("r-");
  ASSERT_FALSE(many);
  EXPECT_NE(many.error().what.find(a.id), std::string::npos) << many.error().what;
  for (const char* bad : {"@4", "@0", "@-1", "@", "@nothing", "", "x", "%", "r_2026"}) {
    EXPECT_EQ(store.resolve(bad).error().code, ErrorCode::kNotFound) << bad;
  }
  const auto runs = store.list_runs(2).value();
  ASSERT_EQ(runs.size(), 2U);
  EXPECT_EQ(runs[0].id, c.id);
}

TEST_F(StoreFile, SeriesNeverMix) {
  Store store = open();
  for (std::uint64_t i = 1; i <= 4; ++i) {
    StoredRun run = made_up(i);
    if (i == 4) run.epoch = "after a driver change";
    put(store, run);
  }
  const StoredRun any = made_up(1);
  const SeriesKey key{any.cells[0].identity_hash, "synthetic-" + any.fingerprint.class_hash, any.epoch, "step_ns"};
  const auto points = store.series(key).value();
  ASSERT_EQ(points.size(), 3U);
  for (std::size_t i = 1; i < points.size(); ++i) {
    EXPECT_LT(points[i - 1].created_unix_ns, points[i].created_unix_ns);
  }
  EXPECT_EQ(points[0].run, any.id);
  EXPECT_EQ(points[0].value, any.cells[0].metrics[0].value);
  SeriesKey real = key;
  real.class_hash = any.fingerprint.class_hash;
  EXPECT_TRUE(store.series(real).value().empty()) << "made-up runs never join measured ones";

  StoredRun moved = made_up(3);
  moved.epoch = "another";
  ASSERT_TRUE(store.put_run(moved, ""));
  EXPECT_EQ(store.series(key).value().size(), 2U) << "a run whose epoch changed moves";

  StoredRun emulated = made_up(5);
  emulated.cells[0].numerics_only = true;
  emulated.cells[1].status = CellStatus::kUnstable;
  put(store, emulated);
  const auto all = store.list_series().value();
  for (const SeriesSummary& series : all) EXPECT_NE(series.newest_unix_ns, 0);
  EXPECT_EQ(store.series(key).value().size(), 2U);
}

TEST_F(StoreFile, IndexRebuildsAndRepeats) {
  SyntheticOptions options;
  options.layers = 1;
  options.launches = 1;
  const fs::path first = write_synthetic_bundle(folder_ / "runs" / "deep", options).value();
  options.seed = 2;
  const fs::path second = write_synthetic_bundle(folder_ / "runs", options).value();
  Store store = open();
  const auto report = store.index(folder_ / "runs");
  ASSERT_TRUE(report) << report.error().what;
  EXPECT_EQ(report->runs, 2);
  EXPECT_EQ(report->cells, 10);
  EXPECT_TRUE(report->troubles.empty());
  const std::string id = BundleReader::open(first).value().run().id;
  const std::string before = everything(store.load_run(id).value());
  EXPECT_EQ(before, everything(BundleReader::open(first).value().read_all().value()));
  ASSERT_TRUE(store.index(folder_ / "runs"));
  EXPECT_EQ(everything(store.load_run(id).value()), before);
  EXPECT_EQ(store.summary(id).value().bundle, fs::absolute(first).string());
  EXPECT_EQ(everything(load_run(first.string(), nullptr).value()), before) << "a folder names a run, too";

  // Damage, an unfinished cell and a copy: named, and the rest is in.
  std::ofstream(first / "cells/tp1/result.json", std::ios::app) << " ";
  fs::remove(second / "cells/tp1/checksums");
  fs::copy(second, folder_ / "runs" / "zz-copy", fs::copy_options::recursive);
  const auto again = store.index(folder_ / "runs").value();
  EXPECT_EQ(again.unfinished, 1);
  ASSERT_EQ(again.troubles.size(), 2U);
  EXPECT_NE(again.troubles[0].what.find("result.json has"), std::string::npos) << again.troubles[0].what;
  EXPECT_NE(again.troubles[1].what.find("from another folder"), std::string::npos) << again.troubles[1].what;
  EXPECT_EQ(store.load_run(id).value().cells.size(), 5U) << "what was stored before the damage stays";
  EXPECT_EQ(store.load_run(BundleReader::open(second).value().run().id).value().cells.size(), 4U);
  EXPECT_EQ(store.index(folder_ / "absent").error().code, ErrorCode::kNotFound);
}

TEST_F(StoreFile, ViewsAreAContract) {
  Store store = open();
  const StoredRun run = made_up(1);
  put(store, run);
  const auto database = Database::open(file_, OpenMode::kReadOnly, 0).value();
  const auto columns = [&](const std::string& view) {
    return database.text("SELECT group_concat(name) FROM pragma_table_info('" + view + "')").value();
  };
  EXPECT_EQ(columns("v_runs"),
            "run,command,suite,tag,synthetic,created_unix_ns,ended_unix_ns,exit_status,class_hash,epoch,bundle");
  EXPECT_EQ(columns("v_steps"),
            "run,cell,class,launch,step,wall_ns,cpu_ns,modelled_ns,loss,grad_norm,learning_rate,tokens,flags,"
            "balance_loss,z_loss,mtp_loss,reference_ns");
  EXPECT_EQ(columns("v_ops"),
            "run,cell,class,launch,path,kind,role,phase,stream,rank_class,calls,total_ns,flops,bytes");
  EXPECT_EQ(database.integer("SELECT count(*) FROM v_steps").value(), 3 * 2 * 5);
  EXPECT_EQ(database
                .integer("SELECT total_ns FROM v_ops WHERE cell = 'tp1' AND launch = 0 AND path = "
                         "'layers.0.attn.qkv.fwd'")
                .value(),
            run.cells[0].launches[0].ops[3].total_ns);
}

TEST_F(StoreFile, BadFilesAreErrorsAndStayAsTheyAre) {
  const auto refused = [&](ErrorCode code, const std::string& says) {
    const std::string before = read_file(file_).value();
    const auto store = Store::open(file_);
    ASSERT_FALSE(store);
    EXPECT_EQ(store.error().code, code) << store.error().what;
    EXPECT_NE(store.error().what.find(says), std::string::npos) << store.error().what;
    EXPECT_NE(store.error().what.find(file_.string()), std::string::npos);
    EXPECT_FALSE(store.error().hint.empty());
    EXPECT_EQ(read_file(file_).value(), before);
  };
  std::ofstream(file_) << "this is no database, whatever its name says, and it is long enough to look at";
  refused(ErrorCode::kBadFile, "it is no SQLite database");

  fs::remove(file_);
  ASSERT_TRUE(Database::open(file_, OpenMode::kReadWrite, 0).value().execute("CREATE TABLE other(x)"));
  refused(ErrorCode::kBadFile, "a database of another program");

  fs::remove(file_);
  {
    Store store = open();
    put(store, made_up(1));
  }
  ASSERT_TRUE(Database::open(file_, OpenMode::kReadWrite, 0)
                  .value()
                  .execute("PRAGMA user_version = 99; PRAGMA journal_mode = DELETE"));
  refused(ErrorCode::kMismatch, "written by a newer mbbench; this one knows up to 4");
  EXPECT_TRUE(Store::open(file_, {.read_only = true})) << "its oldest reader allows reading";
  ASSERT_TRUE(Database::open(file_, OpenMode::kReadWrite, 0).value().execute("UPDATE meta SET oldest_reader = 99"));
  EXPECT_EQ(Store::open(file_, {.read_only = true}).error().code, ErrorCode::kMismatch);
}

TEST_F(StoreFile, DamagedFilesNeverCrash) {
  {
    Store store = open();
    put(store, made_up(1));
    put(store, made_up(2));
  }
  const std::string whole = read_file(file_).value();
  std::mt19937 random(13);
  int refused = 0;
  for (int round = 0; round < 150; ++round) {
    std::string bent = whole;
    if (round % 3 == 0) {
      bent.resize(random() % bent.size());
    } else {
      for (int flips = 0; flips < 200; ++flips) bent[random() % bent.size()] = static_cast<char>(random());
    }
    for (const char* side : {"-wal", "-shm"}) fs::remove(file_.string() + side);
    std::ofstream(file_, std::ios::binary | std::ios::trunc) << bent;
    auto store = Store::open(file_);
    bool sound = store.has_value();
    if (sound) {
      const auto runs = store->list_runs();
      sound = runs.has_value();
      if (sound) {
        for (const RunSummary& run : *runs) sound = store->load_run(run.id).has_value() && sound;
      }
      sound = store->list_series().has_value() && sound;
      sound = store->put_cell(made_up(1).cells[0]).has_value() && sound;
    }
    refused += sound ? 0 : 1;
  }
  EXPECT_GT(refused, 50) << "damage is noticed";
}

TEST_F(StoreFile, LockedMeansWaitThenSay) {
  Store store = open();
  put(store, made_up(1));
  const auto other = Database::open(file_, OpenMode::kReadWrite, 0).value();
  const auto lock = Transaction::begin(other).value();
  Store second = Store::open(file_, {.busy_timeout_ms = 20}).value();
  const Status status = second.put_run(made_up(2), "");
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(status.error().what.find("locked by another process"), std::string::npos);
  EXPECT_EQ(second.list_runs().value().size(), 1U) << "reading goes on";
}

TEST_F(StoreFile, AFullDiskLosesOnlyTheCell) {
  Store store = open();
  const StoredRun run = made_up(1);
  ASSERT_TRUE(store.put_run(run, ""));
  ASSERT_TRUE(store.put_cell(run.cells[0]));
  const std::string before = everything(store.load_run(run.id).value());
  SyntheticOptions large;
  large.layers = 400;
  Cell cell = make_synthetic_run(large).cells[1];
  cell.run = run.id;
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{fs::file_size(file_) + 100'000, limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status status = store.put_cell(cell);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kIo);
  EXPECT_FALSE(status.error().hint.empty());
  EXPECT_EQ(everything(store.load_run(run.id).value()), before);
  EXPECT_TRUE(store.put_cell(cell)) << "with space again, it goes on";
}

// Runs `read` where no file may grow, as on a full disk.
template <typename Read>
auto on_a_full_disk(const Read& read) {
  rlimit limit{};
  EXPECT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit none{0, limit.rlim_max};
  EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &none), 0);
  auto result = read();
  EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  return result;
}

TEST_F(StoreFile, AFullDiskIsReadAllTheSame) {
  const auto runs_in = [](const fs::path& file) {
    return on_a_full_disk([&]() -> Result<size_t> {
      MB_ASSIGN(const Store store, Store::open(file, {.read_only = true}));
      MB_ASSIGN(const auto runs, store.list_runs());
      return runs.size();
    });
  };
  const fs::path copy = folder_ / "copy.sqlite";
  {
    Store store = open();
    put(store, made_up(1));
    // As a writer leaves it that is killed: what it wrote last is in the log, whose index is lost.
    for (const char* part : {"", "-wal"}) fs::copy_file(file_.string() + part, copy.string() + part);
  }
  const auto whole = runs_in(file_);
  ASSERT_TRUE(whole) << whole.error().what;
  EXPECT_EQ(*whole, 1U);
  const auto cut_off = runs_in(copy);
  ASSERT_FALSE(cut_off) << "an answer without the log's would be a wrong one";
  EXPECT_NE(cut_off.error().what.find("copy.sqlite-shm must be written"), std::string::npos) << cut_off.error().what;
  EXPECT_FALSE(cut_off.error().hint.empty());
  EXPECT_EQ(Store::open(copy, {.read_only = true}).value().list_runs().value().size(), 1U) << "with room";
}

TEST_F(StoreFile, FoldersThatMayNotBeWritten) {
  {
    Store store = open();
    put(store, made_up(1));
  }
  ASSERT_EQ(::chmod(file_.c_str(), 0444), 0);
  ASSERT_EQ(::chmod(folder_.c_str(), 0555), 0);
  // Root may write everywhere: be somebody else for a moment.
  const bool root = ::geteuid() == 0;
  if (root) {
    ASSERT_EQ(::seteuid(65534), 0);
  }
  const auto created = Store::open(folder_ / "new.sqlite");
  auto opened = Store::open(file_);
  const Status written = opened ? opened->put_run(made_up(2), "") : Status(tl::unexpected<Error>(opened.error()));
  const auto reading = Store::open(file_, {.read_only = true});
  const auto runs = reading ? reading->list_runs() : tl::unexpected<Error>(reading.error());
  const auto bundle = write_synthetic_bundle(folder_);
  if (root) {
    ASSERT_EQ(::seteuid(0), 0);
  }
  ASSERT_EQ(::chmod(folder_.c_str(), 0755), 0);
  for (const Error* error : {&created.error(), &written.error(), &bundle.error()}) {
    EXPECT_EQ(error->code, ErrorCode::kIo) << error->what;
    EXPECT_FALSE(error->hint.empty()) << error->what;
  }
  ASSERT_TRUE(runs) << runs.error().what;
  EXPECT_EQ(runs->size(), 1U) << "reading works all the same";
  EXPECT_EQ(Store::open(folder_ / "absent", {.read_only = true}).error().code, ErrorCode::kNotFound);
}

TEST_F(StoreFile, MigrationsCopyFirst) {
  {
    Store store = open();
    put(store, made_up(1));
  }
  std::vector<Migration> migrations(store_migrations().begin(), store_migrations().end());
  migrations.push_back({"ALTER TABLE runs ADD COLUMN note TEXT NOT NULL DEFAULT ''", 1});
  {
    const auto database = Database::open(file_, OpenMode::kReadWrite, 0).value();
    ASSERT_TRUE(bring_up_to_date(database, migrations));
    EXPECT_EQ(database.integer("PRAGMA user_version").value(), 5);
    EXPECT_EQ(database.integer("SELECT count(*) FROM runs WHERE note = ''").value(), 1);
    ASSERT_TRUE(bring_up_to_date(database, migrations)) << "twice is once";
  }
  const fs::path copy = file_.string() + ".v4.bak";
  EXPECT_EQ(Store::open(copy).value().list_runs().value().size(), 1U);
  EXPECT_EQ(Store::open(file_, {.read_only = true}).value().list_runs().value().size(), 1U) << "additive";
  // A migration that fails leaves the version it found.
  migrations.push_back({"CREATE TABLE half(x); SELECT nonsense", 1});
  const auto database = Database::open(file_, OpenMode::kReadWrite, 0).value();
  EXPECT_FALSE(bring_up_to_date(database, migrations));
  EXPECT_EQ(database.integer("PRAGMA user_version").value(), 5);
  EXPECT_EQ(database.integer("SELECT count(*) FROM sqlite_schema WHERE name = 'half'").value(), 0);
}

TEST_F(StoreFile, BrokenCellsKeepNoNumber) {
  Store store = open();
  StoredRun run = made_up(1);
  ASSERT_TRUE(store.put_run(run, ""));
  run.cells[0].status = CellStatus::kBroken;
  EXPECT_FALSE(store.put_cell(run.cells[0]));
  run.cells[1].run = "r-unknown";
  EXPECT_EQ(store.put_cell(run.cells[1]).error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace mbb::baselines
