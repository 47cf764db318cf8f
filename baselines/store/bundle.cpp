// A run as one self-contained folder: writing it so that a kill loses at most a cell, and reading it with suspicion.
#include "baselines/store/bundle.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>
#include <thread>
#include <utility>

#include "baselines/store/checksums.h"
#include "baselines/store/record_text.h"
#include "profiler/base/file.h"

namespace mbb::baselines {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kRunIdsAMinute = 0x10000;  // what four hexadecimal digits tell apart
constexpr const char* kRunFile = "run.json";
constexpr const char* kConfigFile = "config.json";
constexpr const char* kProgramFile = "program.json";
constexpr const char* kResultFile = "result.json";
constexpr const char* kLaunchFile = "launch.json";
constexpr const char* kStepsFile = "steps.csv";
constexpr const char* kLiveStepsFile = "steps.live.csv";
constexpr const char* kOpsFile = "ops.csv";
constexpr const char* kMemoryFile = "memory.json";
constexpr const char* kLockFile = ".lock";

fs::path cell_path(const fs::path& bundle, const std::string& cell) {
  return bundle / "cells" / cell;
}

fs::path launch_path(const fs::path& bundle, const std::string& cell, int index) {
  return cell_path(bundle, cell) / "launches" / std::to_string(index);
}

Result<int> lock_bundle(const fs::path& folder) {
  const fs::path file = folder / kLockFile;
  const int fd = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) {
    return fail(ErrorCode::kIo, fmt::format("creating {}: {}", file.string(), std::strerror(errno)),
                "a bundle can only be continued in a folder that may be written");
  }
  // A writer that was killed a moment ago may leave a child that is about to end and still holds the lock.
  int error = 0;
  for (int attempt = 0; attempt < 20; ++attempt) {
    if (::flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
    error = errno;
    if (error != EWOULDBLOCK) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  // A file system without locks: go on, the user keeps writers apart.
  if (error != EWOULDBLOCK) return fd;
  ::close(fd);
  return fail(ErrorCode::kUnavailable, fmt::format("bundle {} is being written by another process", folder.string()),
              "wait until it ends, or stop it");
}

Status remove_tree(const fs::path& folder) {
  std::error_code error;
  // A launch whose parent was killed a moment ago may still be writing here: it dies with its parent, so try again.
  for (int attempt = 0; attempt < 20; ++attempt) {
    fs::remove_all(folder, error);
    if (!error) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  if (error) return fail(ErrorCode::kIo, fmt::format("removing {}: {}", folder.string(), error.message()));
  return {};
}

// Leftovers of atomic writes that a kill cut off.
Status remove_temporaries(const fs::path& folder) {
  std::vector<fs::path> leftovers;
  std::error_code error;
  fs::recursive_directory_iterator entries(folder, error);
  for (; !error && entries != fs::recursive_directory_iterator(); entries.increment(error)) {
    if (entries->path().filename().string().find(kTemporarySuffix) != std::string::npos) {
      leftovers.push_back(entries->path());
    }
  }
  if (error) return fail(ErrorCode::kIo, fmt::format("listing {}: {}", folder.string(), error.message()));
  for (const fs::path& leftover : leftovers) MB_TRY(remove_tree(leftover));
  return {};
}

Status check_trace_file(const std::string& file) {
  const fs::path path(file);
  const bool inside = !file.empty() && !path.is_absolute() &&
                      std::none_of(path.begin(), path.end(), [](const fs::path& part) { return part == ".."; });
  if (inside) return {};
  return fail(ErrorCode::kBadFile, fmt::format("trace file \"{}\" lies outside its launch", file));
}

Status write_config(const fs::path& folder, const Cell& cell) {
  MB_TRY(write_file(folder / kConfigFile, cell_config_text(cell), Flush::kLater));
  if (cell.program_json.empty()) return {};
  return write_file(folder / kProgramFile, cell.program_json, Flush::kLater);
}

// Parses a file's text, putting its path before the trouble.
template <typename Parse>
auto parse_file(const fs::path& path, Parse parse) -> decltype(parse(std::string())) {
  MB_ASSIGN(const std::string text, read_file(path));
  auto parsed = parse(text);
  if (!parsed) return tl::unexpected<Error>(std::move(parsed.error()).during(path.string()));
  return parsed;
}

bool is_number(const std::string& text) {
  return !text.empty() && text.size() < 9 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

Result<std::vector<int>> launch_indices(const fs::path& cell_folder) {
  std::vector<int> indices;
  std::error_code error;
  const fs::path launches = cell_folder / "launches";
  if (!fs::exists(launches, error)) return indices;
  fs::directory_iterator entries(launches, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    const std::string name = entries->path().filename().string();
    if (is_number(name)) indices.push_back(std::stoi(name));
  }
  if (error) return fail(ErrorCode::kIo, fmt::format("listing {}: {}", launches.string(), error.message()));
  std::sort(indices.begin(), indices.end());
  return indices;
}

// A launch whose process died before it wrote its result is a launch all the same.
Status record_lost_launches(const fs::path& cell_folder) {
  MB_ASSIGN(const auto indices, launch_indices(cell_folder));
  for (const int index : indices) {
    const fs::path folder = cell_folder / "launches" / std::to_string(index);
    std::error_code error;
    if (fs::exists(folder / kLaunchFile, error)) continue;
    Launch lost;
    lost.index = index;
    lost.reason = "left no result";
    MB_TRY(write_launch(folder, lost));
  }
  return {};
}

Status check_cell(const Cell& cell, const std::string& run_id) {
  MB_TRY(check_cell_name(cell.name));
  if (cell.run == run_id) return {};
  return fail(ErrorCode::kBadArgument,
              fmt::format("cell {} says it is of run {}, and is written into run {}", cell.name, cell.run, run_id));
}

// Makes the folder; false when it was there.
Result<bool> claim_folder(const fs::path& folder) {
  std::error_code error;
  if (fs::create_directory(folder, error)) return true;
  if (!error) return false;
  return fail(ErrorCode::kIo, fmt::format("creating {}: {}", folder.string(), error.message()),
              "choose a folder that may be written");
}

CellEntry entry_of(const fs::path& bundle, const std::string& name) {
  CellEntry entry{name, CellState::kFinished, {}};
  const Status verified = verify_checksums(cell_path(bundle, name), {kConfigFile, kResultFile});
  if (verified) return entry;
  entry.trouble = Error(verified.error()).during("cell " + name);
  // A missing cell folder and a missing checksum file both mean: not finished.
  entry.state = verified.error().code == ErrorCode::kNotFound ? CellState::kUnfinished : CellState::kDamaged;
  return entry;
}

}  // namespace

Result<BundleWriter> BundleWriter::create(const fs::path& parent, const Run& run) {
  if (Status named = check_cell_name(run.id); !named) {
    return fail(ErrorCode::kBadArgument, fmt::format("run id \"{}\" cannot name a folder", run.id), named.error().hint);
  }
  MB_TRY(make_dirs(parent));
  MB_ASSIGN(const bool made, claim_folder(parent / run.id));
  if (!made) {
    return fail(ErrorCode::kBadArgument, fmt::format("run {} is already there: {}", run.id, (parent / run.id).string()),
                "continue it with --resume, or use another id");
  }
  return begin(parent, run);
}

Result<BundleWriter> BundleWriter::create_new(const fs::path& parent, Run& run, std::uint64_t nonce) {
  MB_TRY(make_dirs(parent));
  for (std::uint64_t last = nonce + kRunIdsAMinute; nonce != last; ++nonce) {
    run.id = new_run_id(run.created_unix_ns, nonce);
    MB_ASSIGN(const bool made, claim_folder(parent / run.id));
    if (made) return begin(parent, run);
  }
  return fail(ErrorCode::kBadArgument, fmt::format("{} holds a run under every id of this minute", parent.string()),
              "wait a minute, or choose another runs_dir");
}

// Of a folder that is ours already.
Result<BundleWriter> BundleWriter::begin(const fs::path& parent, const Run& run) {
  const fs::path folder = parent / run.id;
  MB_ASSIGN(const int lock, lock_bundle(folder));
  BundleWriter writer(folder, run.id, lock);
  MB_TRY(make_dirs(folder / "cells"));
  MB_TRY(writer.write_run(run));
  MB_TRY(sync_folder(parent));
  return writer;
}

Result<BundleWriter> BundleWriter::reopen(const fs::path& folder) {
  MB_ASSIGN(const BundleReader reader, BundleReader::open(folder));
  MB_ASSIGN(const int lock, lock_bundle(folder));
  BundleWriter writer(folder, reader.run().id, lock);
  MB_TRY(remove_temporaries(folder));
  MB_TRY(make_dirs(folder / "cells"));
  return writer;
}

BundleWriter::BundleWriter(BundleWriter&& other) noexcept
    : folder_(std::move(other.folder_)), run_id_(std::move(other.run_id_)), lock_(std::exchange(other.lock_, -1)) {}

BundleWriter& BundleWriter::operator=(BundleWriter&& other) noexcept {
  std::swap(folder_, other.folder_);
  std::swap(run_id_, other.run_id_);
  std::swap(lock_, other.lock_);
  return *this;
}

BundleWriter::~BundleWriter() {
  if (lock_ >= 0) ::close(lock_);
}

Status BundleWriter::write_run(const Run& run) {
  if (run.id != run_id_) {
    return fail(ErrorCode::kBadArgument,
                fmt::format("run {} does not belong in bundle {} of run {}", run.id, folder_.string(), run_id_));
  }
  return write_file(folder_ / kRunFile, run_text(run, kBundleVersion));
}

Status BundleWriter::begin_cell(const Cell& cell) {
  MB_TRY(check_cell(cell, run_id_));
  const fs::path folder = cell_path(folder_, cell.name);
  // The checksums go first: were we killed between the two, the rest would still be seen as unfinished.
  MB_TRY(remove_tree(folder / kChecksumFile));
  MB_TRY(remove_tree(folder));
  MB_TRY(make_dirs(folder / "launches"));
  return write_config(folder, cell);
}

Result<fs::path> BundleWriter::launch_folder(const std::string& cell, int index) {
  MB_TRY(check_cell_name(cell));
  fs::path folder = launch_path(folder_, cell, index);
  MB_TRY(make_dirs(folder));
  return folder;
}

Status BundleWriter::finish_cell(const Cell& cell) {
  MB_TRY(check_cell(cell, run_id_));
  if (cell.status == CellStatus::kBroken && !cell.metrics.empty()) {
    return fail(ErrorCode::kBadArgument,
                fmt::format("cell {} is broken and carries {} metrics", cell.name, cell.metrics.size()),
                "no number is kept for a wrong computation: clear them");
  }
  const fs::path folder = cell_path(folder_, cell.name);
  MB_TRY(remove_tree(folder / kChecksumFile));
  MB_TRY(make_dirs(folder / "launches"));
  MB_TRY(write_config(folder, cell));
  for (const Launch& launch : cell.launches) {
    MB_ASSIGN(const fs::path launch_at, launch_folder(cell.name, launch.index));
    MB_TRY(write_launch(launch_at, launch));
  }
  MB_TRY(record_lost_launches(folder));
  MB_TRY(write_file(folder / kResultFile, cell_result_text(cell), Flush::kLater));
  return write_checksums(folder);
}

Status write_launch(const fs::path& launch_folder, const Launch& launch) {
  for (const std::string& file : launch.trace_files) MB_TRY(check_trace_file(file));
  MB_TRY(make_dirs(launch_folder));
  MB_TRY(write_file(launch_folder / kStepsFile, steps_text(launch.steps), Flush::kLater));
  MB_TRY(write_file(launch_folder / kOpsFile, ops_text(launch.ops), Flush::kLater));
  MB_TRY(write_file(launch_folder / kMemoryFile, memory_text(launch.memory), Flush::kLater));
  MB_TRY(write_file(launch_folder / kLaunchFile, launch_text(launch), Flush::kLater));
  return remove_tree(launch_folder / kLiveStepsFile);
}

Result<Launch> read_launch(const fs::path& launch_folder) {
  MB_ASSIGN(Launch launch, parse_file(launch_folder / kLaunchFile, parse_launch));
  MB_ASSIGN(launch.steps, parse_file(launch_folder / kStepsFile, parse_steps));
  MB_ASSIGN(launch.ops, parse_file(launch_folder / kOpsFile, parse_ops));
  MB_ASSIGN(launch.memory, parse_file(launch_folder / kMemoryFile, parse_memory));
  for (const std::string& file : launch.trace_files) MB_TRY(check_trace_file(file));
  return launch;
}

Result<LiveSteps> LiveSteps::create(const fs::path& launch_folder) {
  const fs::path path = launch_folder / kLiveStepsFile;
  std::FILE* file = std::fopen(path.c_str(), "we");
  if (file == nullptr) return fail(ErrorCode::kIo, fmt::format("creating {}: {}", path.string(), std::strerror(errno)));
  return LiveSteps(file);
}

Status LiveSteps::add(const Step& step) {
  std::string text = steps_text({step});
  // The header once, before the first step.
  if (std::ftell(file_.get()) > 0) text.erase(0, text.find('\n') + 1);
  // One write a step, so that a reader meets a half line only at the end.
  if (std::fwrite(text.data(), 1, text.size(), file_.get()) != text.size() || std::fflush(file_.get()) != 0)
    return fail(ErrorCode::kIo, fmt::format("writing {}: {}", kLiveStepsFile, std::strerror(errno)));
  return {};
}

Result<BundleReader> BundleReader::open(const fs::path& folder) {
  const auto read_run = [](const std::string& text) { return parse_run(text, kBundleVersion); };
  Result<Run> run = parse_file(folder / kRunFile, read_run);
  if (!run && run.error().code == ErrorCode::kNotFound) {
    return fail(ErrorCode::kNotFound, fmt::format("{} is no bundle: it holds no {}", folder.string(), kRunFile),
                "name the folder of one run");
  }
  if (!run) return tl::unexpected<Error>(std::move(run.error()));
  for (const std::string& planned : run->planned_cells) {
    if (Status named = check_cell_name(planned); !named) {
      return tl::unexpected<Error>(Error(named.error()).during((folder / kRunFile).string()));
    }
  }
  return BundleReader(folder, std::move(*run));
}

Result<std::vector<CellEntry>> BundleReader::cells() const {
  std::vector<std::string> names = run_.planned_cells;
  std::vector<std::string> others;
  std::error_code error;
  fs::directory_iterator entries(folder_ / "cells", error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    std::string name = entries->path().filename().string();
    if (check_cell_name(name) && std::find(names.begin(), names.end(), name) == names.end()) others.push_back(name);
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    return fail(ErrorCode::kIo, fmt::format("listing {}: {}", (folder_ / "cells").string(), error.message()));
  }
  std::sort(others.begin(), others.end());
  names.insert(names.end(), others.begin(), others.end());
  std::vector<CellEntry> result;
  for (const std::string& name : names) result.push_back(entry_of(folder_, name));
  return result;
}

Result<Cell> BundleReader::read_cell(const std::string& name) const {
  MB_TRY(check_cell_name(name));
  const CellEntry entry = entry_of(folder_, name);
  if (entry.state == CellState::kUnfinished) {
    return fail(ErrorCode::kNotFound, fmt::format("cell {} of {} is not finished", name, folder_.string()),
                "complete the run with --resume");
  }
  if (entry.state == CellState::kDamaged) return tl::unexpected<Error>(Error(entry.trouble).during(folder_.string()));
  const fs::path folder = cell_path(folder_, name);
  MB_ASSIGN(const std::string config, read_file(folder / kConfigFile));
  const auto parse = [&config](const std::string& result) { return parse_cell(config, result); };
  MB_ASSIGN(Cell cell, parse_file(folder / kResultFile, parse));
  if (cell.name != name || cell.run != run_.id) {
    return fail(ErrorCode::kBadFile, fmt::format("{}: it is cell {} of run {}, in the place of cell {} of run {}",
                                                 (folder / kConfigFile).string(), cell.name, cell.run, name, run_.id));
  }
  std::error_code error;
  if (fs::exists(folder / kProgramFile, error)) {
    MB_ASSIGN(cell.program_json, read_file(folder / kProgramFile));
  }
  MB_ASSIGN(const auto indices, launch_indices(folder));
  for (const int index : indices) {
    MB_ASSIGN(Launch launch, read_launch(launch_path(folder_, name, index)));
    if (launch.index != index) {
      return fail(ErrorCode::kBadFile,
                  fmt::format("cell {}: launch {} says it is launch {}", name, index, launch.index));
    }
    cell.launches.push_back(std::move(launch));
  }
  return cell;
}

Result<Cell> BundleReader::read_begun(const std::string& name) const {
  MB_TRY(check_cell_name(name));
  const fs::path folder = cell_path(folder_, name);
  // What came of it is not known yet: the least that a result may say.
  const auto parse = [](const std::string& config) { return parse_cell(config, R"({"status":"ok"})"); };
  MB_ASSIGN(Cell cell, parse_file(folder / kConfigFile, parse));
  std::error_code error;
  if (fs::exists(folder / kProgramFile, error)) {
    MB_ASSIGN(cell.program_json, read_file(folder / kProgramFile));
  }
  MB_ASSIGN(const auto indices, launch_indices(folder));
  for (const int index : indices) {
    const fs::path at = launch_path(folder_, name, index);
    Result<Launch> ended = read_launch(at);
    if (ended.has_value()) {
      cell.launches.push_back(std::move(*ended));
      continue;
    }
    Launch running;
    running.index = index;
    Result<std::string> text = read_file(at / kLiveStepsFile);
    if (text.has_value()) {
      text->erase(text->rfind('\n') + 1);  // a line that is being written
      if (!text->empty()) {
        MB_ASSIGN(running.steps, parse_steps(*text));
      }
    }
    cell.launches.push_back(std::move(running));
  }
  return cell;
}

bool BundleReader::being_written() const {
  const int fd = ::open((folder_ / kLockFile).c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  // Held for an instant only; a writer that comes in it tries again.
  const bool held = ::flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(fd);
  return held;
}

Result<Run> BundleReader::read_all() const {
  Run run = run_;
  MB_ASSIGN(const auto entries, cells());
  for (const CellEntry& entry : entries) {
    if (entry.state == CellState::kUnfinished) continue;
    MB_ASSIGN(Cell cell, read_cell(entry.name));
    run.cells.push_back(std::move(cell));
  }
  return run;
}

fs::path BundleReader::launch_file(const std::string& cell, int launch, const std::string& file) const {
  return launch_path(folder_, cell, launch) / file;
}

bool looks_like_bundle(const fs::path& folder) {
  std::error_code error;
  return fs::is_regular_file(folder / kRunFile, error);
}

}  // namespace mbb::baselines
