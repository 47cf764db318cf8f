// A run as one self-contained folder: what people copy, attach and archive, and what the store is rebuilt from.
//
//   run.json                          the run but for its cells, with a checksum of itself
//   cells/<cell>/config.json          what was asked: class, model, knobs, work
//   cells/<cell>/program.json         each rank class's explain output
//   cells/<cell>/launches/<n>/        launch.json, steps.csv, ops.csv, memory.json, traces; while it runs,
//   steps.live.csv cells/<cell>/result.json          status, metrics, verdicts, the memory plan cells/<cell>/checksums
//   written last, in one rename: a cell is finished if and only if it verifies
//
// A process killed at any moment leaves a readable bundle that lacks at most the cell it was running. Every writer
// makes whole files by rename. One process writes a bundle at a time; children of a cell write only into their launch
// folder.
#pragma once

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "baselines/store/records.h"

namespace mbb::baselines {

constexpr int kBundleVersion = 1;

class BundleWriter {
 public:
  // Makes `parent`/<run.id> and writes its run.json. A run of that id that is already there is an error.
  static Result<BundleWriter> create(const std::filesystem::path& parent, const Run& run);
  // The same for a run that has no id yet: run.id becomes new_run_id() of its time and `nonce`, or of the next nonces
  // while a folder of that name is there, so that runs begun in one minute, by several processes too, never share one.
  static Result<BundleWriter> create_new(const std::filesystem::path& parent, Run& run,
                                         std::uint64_t nonce = fresh_nonce());
  // Opens a bundle to go on (`--resume`); removes the remains of writes that were cut off, keeps finished cells.
  static Result<BundleWriter> reopen(const std::filesystem::path& folder);

  BundleWriter(BundleWriter&&) noexcept;
  BundleWriter& operator=(BundleWriter&&) noexcept;
  ~BundleWriter();

  const std::filesystem::path& folder() const { return folder_; }

  // Replaces run.json: end time, exit status, planned cells. `run.cells` is not looked at.
  Status write_run(const Run& run);

  // Starts a cell afresh: removes what an earlier attempt left, writes config.json and program.json.
  Status begin_cell(const Cell& cell);

  // Where launch `index` of a cell writes; creates it.
  Result<std::filesystem::path> launch_folder(const std::string& cell, int index);

  // Writes the cell as given, its launches included, then its checksums. Files that launches left beside (traces) are
  // kept and checksummed; a launch folder that is not in cell.launches and holds no launch.json is recorded as a launch
  // that left no result. A broken cell must carry no metrics: no number is kept for a wrong computation.
  Status finish_cell(const Cell& cell);

 private:
  static Result<BundleWriter> begin(const std::filesystem::path& parent, const Run& run);
  BundleWriter(std::filesystem::path folder, std::string run_id, int lock)
      : folder_(std::move(folder)), run_id_(std::move(run_id)), lock_(lock) {}
  std::filesystem::path folder_;
  std::string run_id_;
  int lock_ = -1;  // held with flock: the kernel releases it however we end
};

// What a cell's process tree writes, and its parent reads, in a launch folder.
Status write_launch(const std::filesystem::path& launch_folder, const Launch& launch);
Result<Launch> read_launch(const std::filesystem::path& launch_folder);

// The steps of a launch that is going on, a line each as they end, for whoever watches. Not flushed to the disk:
// write_launch() replaces the file by what counts.
class LiveSteps {
 public:
  static Result<LiveSteps> create(const std::filesystem::path& launch_folder);
  Status add(const Step& step);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  explicit LiveSteps(std::FILE* file) : file_(file) {}
  std::unique_ptr<std::FILE, Close> file_;
};

enum class CellState {
  kFinished,
  kUnfinished,  // no checksums: it was running, or its writer was killed
  kDamaged,     // checksums are there and do not verify
};

struct CellEntry {
  std::string name;
  CellState state = CellState::kUnfinished;
  Error trouble;  // for kDamaged: the file and what is wrong with it
};

class BundleReader {
 public:
  // Reads and verifies run.json.
  static Result<BundleReader> open(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const { return folder_; }
  const Run& run() const { return run_; }  // without cells

  // Every cell folder, planned order first, each verified against its checksums.
  Result<std::vector<CellEntry>> cells() const;

  // One finished cell, verified. An unfinished one is kNotFound, a damaged one kBadFile.
  Result<Cell> read_cell(const std::string& name) const;

  // An unfinished cell as far as it has got: what was asked, its program, the launches that ended and, last, the one
  // that runs with the steps it has done. kNotFound when it has not begun.
  Result<Cell> read_begun(const std::string& name) const;

  // Whether a process holds this bundle's writer lock now: an unfinished run without one was cut off.
  bool being_written() const;

  // The run with its finished cells; a damaged cell is an error, an unfinished one is left out.
  Result<Run> read_all() const;

  // A file of a cell, such as a trace: <folder>/cells/<cell>/launches/<n>/<file>.
  std::filesystem::path launch_file(const std::string& cell, int launch, const std::string& file) const;

 private:
  BundleReader(std::filesystem::path folder, Run run) : folder_(std::move(folder)), run_(std::move(run)) {}
  std::filesystem::path folder_;
  Run run_;
};

// True when `folder` holds a run.json: enough to tell a bundle folder from another argument.
bool looks_like_bundle(const std::filesystem::path& folder);

}  // namespace mbb::baselines
