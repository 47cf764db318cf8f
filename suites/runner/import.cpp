// From read files to cells, a bundle and the store.
#include "suites/runner/import.h"

#include <fmt/core.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>

#include "analysis/exposure/breakdown.h"
#include "analysis/exposure/op_rows.h"
#include "analysis/metrics/cell_metrics.h"
#include "baselines/store/bundle.h"
#include "baselines/store/store.h"
#include "profiler/base/clock.h"
#include "profiler/base/env.h"
#include "profiler/base/file.h"
#include "profiler/base/log.h"
#include "profiler/base/text.h"
#include "profiler/host/captured.h"
#include "profiler/host/fingerprint.h"
#include "profiler/trace/merge_ranks.h"
#include "profiler/trace/trace_file.h"
#include "suites/export/export.h"
#include "suites/foreign/log_records.h"
#include "suites/runner/command_cell.h"
#include "suites/runner/runner.h"
#include "suites/runner/snapshot_map.h"

namespace mbb::suites {
namespace {

namespace fs = std::filesystem;

constexpr uintmax_t kLargestCopy = uintmax_t{64} << 20U;  // of a log that is kept beside its launch

// A name a cell may have, of a file's name without its endings.
std::string cell_name_of(const fs::path& file, std::set<std::string>& taken) {
  std::string name = file.filename().string();
  for (const char* ending : {".gz", ".log", ".out", ".txt", ".json", ".jsonl", ".sqlite", ".pickle", ".pt", ".trace"})
    if (name.size() > std::string(ending).size() && name.ends_with(ending))
      name.resize(name.size() - std::string(ending).size());
  for (char& c : name) {
    const bool good = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
                      c == '-' || c == '+' || c == '=' || c == '.';
    if (!good) c = '_';
  }
  if (name.empty() || name[0] == '.') name = "x" + name;
  name = name.substr(0, 100);
  std::string unique = name;
  for (int n = 2; !taken.insert(unique).second; ++n) unique = fmt::format("{}-{}", name, n);
  return unique;
}

bool same_bytes(const fs::path& one, const fs::path& other) {
  std::error_code error;
  if (fs::file_size(one, error) != fs::file_size(other, error) || error) return false;
  std::ifstream a(one, std::ios::binary), b(other, std::ios::binary);
  return std::equal(std::istreambuf_iterator<char>(a), {}, std::istreambuf_iterator<char>(b), {});
}

class Import {
 public:
  explicit Import(const ImportRequest& request) : request_(request) {}

  Result<ImportOutcome> run() {
    for (const ForeignFile& file : request_.files)
      if (file.kind == ForeignKind::kConfig) out_.settings.push_back({file.path, import_knobs(file.settings)});
    const bool only_configs = out_.settings.size() == request_.files.size();
    if (only_configs) return std::move(out_);
    MB_TRY(plan());
    MB_TRY(open_run());
    MB_ASSIGN(auto writer, baselines::BundleWriter::create_new(runs_dir() / "runs", out_.run));
    out_.bundle = writer.folder();
    for (const Planned& planned : planned_) MB_TRY(add_cell(writer, planned));
    out_.run.ended_unix_ns = wall_ns();
    out_.run.exit_status = import_status(out_.run);
    MB_TRY(writer.write_run(out_.run));
    keep_in_store();
    return std::move(out_);
  }

 private:
  struct Planned {
    std::string name;
    std::vector<const ForeignFile*> files;
  };

  fs::path runs_dir() const { return request_.settings.product.runs_dir; }

  // Evidence counts launches: one file is one launch, however often it is named.
  Status check_given_once() const {
    for (size_t i = 0; i < request_.files.size(); ++i)
      for (size_t k = 0; k < i; ++k) {
        const fs::path &one = request_.files[i].path, &other = request_.files[k].path;
        std::error_code error;
        if (fs::equivalent(one, other, error))
          return fail(ErrorCode::kBadArgument, fmt::format("{} is given twice", one.string()), "name each file once");
        const bool launches = !request_.cell.empty() && request_.files[i].kind == ForeignKind::kLog;
        if (launches && same_bytes(one, other))
          return fail(
              ErrorCode::kBadArgument,
              fmt::format("{} and {} are the same log, byte for byte: one launch", other.string(), one.string()),
              "--cell counts each log as a launch of its own");
      }
    return {};
  }

  // What tells a log that names no model from another one; and that its steps were planned by nobody here.
  static baselines::KnobValue name_knob(const baselines::Cell& cell, bool identity) {
    return {"import.cell", cell.name, mbb::name(Layer::kCommandLine), "", 0, identity};
  }

  Status plan() {
    MB_TRY(check_given_once());
    std::set<std::string> taken;
    if (!request_.cell.empty()) {
      MB_TRY(baselines::check_cell_name(request_.cell));
      planned_.push_back({request_.cell, {}});
      taken.insert(request_.cell);
    }
    for (const ForeignFile& file : request_.files) {
      if (file.kind == ForeignKind::kConfig) continue;
      if (baselines::Cell scratch; !file.note.empty() && !take_class(file, scratch))
        return fail(ErrorCode::kBadFile,
                    fmt::format("{}: its \"mbbench\" note \"{}\" names no class of results", file.path.string(),
                                printable(file.note)),
                    "export it again with this version of mbbench");
      if (file.kind == ForeignKind::kLog && !request_.cell.empty())
        planned_.front().files.push_back(&file);
      else if (Planned* others = ranks_beside(file))
        others->files.push_back(&file);
      else
        planned_.push_back({cell_name_of(file.path, taken), {&file}});
    }
    std::erase_if(planned_, [](const Planned& planned) { return planned.files.empty(); });
    return {};
  }

  // The profiler writes a file a rank: the cell whose traces, of the same folder, world and time, are of other ranks.
  Planned* ranks_beside(const ForeignFile& file) {
    if (file.kind != ForeignKind::kKineto || file.rank < 0 || file.world_size < 2) return nullptr;
    const auto end_of = [](const ForeignFile& one) {
      int64_t end = 0;
      for (const profiler::StepWindow& window : one.trace->steps) end = std::max(end, window.end_ns);
      return one.zero_ns + end;
    };
    const auto beside = [&](const ForeignFile* other) {
      return other->kind == ForeignKind::kKineto && other->rank >= 0 && other->rank != file.rank &&
             other->world_size == file.world_size && other->note == file.note &&
             other->path.parent_path() == file.path.parent_path() && other->zero_ns < end_of(file) &&
             file.zero_ns < end_of(*other);
    };
    for (Planned& planned : planned_)
      if (!planned.files.empty() && std::all_of(planned.files.begin(), planned.files.end(), beside)) return &planned;
    return nullptr;
  }

  Status open_run() {
    baselines::Run& run = out_.run;
    run.created_unix_ns = wall_ns();
    run.command = "import";
    run.suite = "import";
    run.tag = request_.tag;
    const auto is_known = [](std::string_view knob) { return find_setting(knob).has_value(); };
    if (!request_.argv.empty())
      run.argv = profiler::capture_arguments({request_.argv.begin() + 1, request_.argv.end()}, is_known);
    // The machine that reads a log is not the one that wrote it: of the fingerprint only where the import ran, which is
    // no epoch of the log's. What the user declares is the log's.
    const GateSettings& gate = request_.settings.product.gate;
    MB_ASSIGN(auto roled,
              profiler::apply_roles(profiler::take_fingerprint(declared_facts(gate)), roles_of(request_.settings)));
    run.fingerprint = std::move(roled.fingerprint);
    for (const Planned& planned : planned_) run.planned_cells.push_back(planned.name);
    for (const ForeignFile& file : request_.files)  // one made-up cell marks the run
      if (const size_t at = file.note.find(kSyntheticNote); at != std::string::npos)
        run.synthetic = file.note.substr(at + std::string_view(kSyntheticNote).size());
    return make_dirs(runs_dir().string());
  }

  // The configuration of a log: a file's in its folder, what it prints itself, then the command line.
  Result<Cell> configured(const std::string& cell_name, const ForeignFile& file) {
    Cell cell;
    cell.name = cell_name;
    cell.config = request_.settings.config;
    cell.sources = request_.settings.sources;
    std::vector<const ImportedSettings*> from;
    for (const ImportedSettings& one : out_.settings)
      if (one.file.parent_path() == file.path.parent_path()) from.push_back(&one);
    ImportedSettings own{file.path, import_knobs(file.log.settings)};
    if (!file.log.settings.empty()) from.push_back(&own);
    for (const ImportedSettings* one : from)
      MB_TRY(apply_imported(one->knobs, one->file.string(), cell.config, cell.sources));
    Settings over{.config = cell.config,
                  .sources = cell.sources,
                  .product = request_.settings.product,
                  .product_sources = request_.settings.product_sources,
                  .command_line = request_.settings.command_line,
                  .home = request_.settings.home};
    MB_TRY(apply_command_line(over));
    cell.config = over.config;
    cell.sources = over.sources;
    if (!file.log.settings.empty()) own_.push_back(std::move(own));
    return cell;
  }

  Status add_cell(baselines::BundleWriter& writer, const Planned& planned) {
    baselines::Cell cell;
    cell.run = out_.run.id;
    cell.name = planned.name;
    cell.index = static_cast<int>(out_.run.cells.size());
    const std::string& said = planned.files.front()->device;
    cell.device = !request_.device.empty() ? request_.device : said.empty() ? kUnknownDevice : said;
    cell.result_class = baselines::ResultClass::kMeasured;
    MB_TRY(writer.begin_cell(cell));
    const ForeignFile& first = *planned.files.front();
    if (first.kind == ForeignKind::kLog) MB_TRY(add_logs(writer, planned, cell));
    if (first.trace) MB_TRY(add_trace(writer, planned, cell));
    if (first.snapshot) MB_TRY(add_snapshot(writer, first, cell));
    classify(cell, first);
    if (cell.status == baselines::CellStatus::kBroken) cell.metrics.clear();
    MB_TRY(writer.finish_cell(cell));
    out_.run.cells.push_back(std::move(cell));
    for (ImportedSettings& own : own_) out_.settings.push_back(std::move(own));
    own_.clear();
    return {};
  }

  // Every rank of what another tool recorded was real; where nothing names the device it stays unknown, and MFU with
  // it. What we exported keeps the class it had: a projection does not come back as a measurement.
  void classify(baselines::Cell& cell, const ForeignFile& file) const {
    if (!file.note.empty())
      take_class(file, cell);
    else if (file.kind != ForeignKind::kLog)  // of a log the GPUs may not be known: settle_command() says
      cell.devices = std::max(1, cell.gpus);
    cell.identity_hash = baselines::identity_hash(cell);
  }

  static bool take_class(const ForeignFile& file, baselines::Cell& cell) {
    return baselines::take_class_label(file.note.substr(0, file.note.find(kSyntheticNote)), cell);
  }

  Status add_logs(baselines::BundleWriter& writer, const Planned& planned, baselines::Cell& cell) {
    MB_ASSIGN(const Cell configured_cell, configured(planned.name, *planned.files.front()));
    for (const KnobState& state : knob_states(configured_cell.config, configured_cell.sources))
      if (state.source.layer != Layer::kDefault)
        cell.knobs.push_back({state.knob->key, state.value, mbb::name(state.source.layer), state.source.place,
                              state.source.line, splits_series(state)});
    const bool modelled = configured_cell.sources.contains("model.name");
    cell.knobs.push_back(name_knob(cell, !modelled));
    cell.model = modelled ? configured_cell.config.model.name : "not said";
    cell.gpus = cell.ranks = static_cast<int>(gpus_of(configured_cell.config));
    std::vector<TrainingLog> logs;
    for (const ForeignFile* file : planned.files) {
      const int index = static_cast<int>(logs.size());
      MB_ASSIGN(const fs::path folder, writer.launch_folder(cell.name, index));
      std::error_code error;
      if (fs::file_size(file->path, error) <= kLargestCopy && !error)
        fs::copy_file(file->path, folder / file->path.filename(), error);
      baselines::Launch launch = launch_of(file->log, log_context(configured_cell, file->log, cell.gpus));
      launch.index = index;
      cell.launches.push_back(std::move(launch));
      logs.push_back(file->log);
    }
    cell.loss_checksum = cell.launches.front().loss_checksum;
    settle_command(configured_cell, cell, logs);
    return {};
  }

  Status add_trace(baselines::BundleWriter& writer, const Planned& planned, baselines::Cell& cell) {
    MB_ASSIGN(const fs::path folder, writer.launch_folder(cell.name, 0));
    std::vector<profiler::RankTrace> parts;
    int64_t left_out = 0;
    for (const ForeignFile* file : planned.files) {
      parts.push_back({&*file->trace, file->zero_ns});
      left_out += file->left_out;
    }
    MB_ASSIGN(const profiler::Trace trace, profiler::merge_ranks(parts));
    baselines::Launch launch;
    std::vector<analysis::StepBreakdown> breakdowns;
    const std::vector<analysis::StepTimes> times = analysis::break_down(trace);
    for (const analysis::StepTimes& step : times) breakdowns.push_back(step.breakdown);
    analysis::fill_op_rows(launch, trace, times, [](int32_t rank) { return fmt::format("rank{}", rank); });
    if (left_out > 0) launch.counts.push_back({"records left out (malformed)", left_out});
    launch.trace_files.push_back("trace.mbt");
    MB_TRY(profiler::write_trace(folder / "trace.mbt", trace));
    std::set<int32_t> ranks;
    for (const profiler::StepWindow& window : trace.steps) ranks.insert(window.rank);
    cell.gpus = cell.ranks = std::max(1, static_cast<int>(ranks.size()));
    cell.model = "not said";
    cell.knobs.push_back(name_knob(cell, true));
    cell.launches.push_back(std::move(launch));
    analysis::fill_trace_metrics(cell, breakdowns);
    return {};
  }

  Status add_snapshot(baselines::BundleWriter& writer, const ForeignFile& file, baselines::Cell& cell) {
    MB_TRY(writer.launch_folder(cell.name, 0));
    baselines::Launch launch;
    launch.memory = snapshot_maps(*file.snapshot);
    cell.model = "not said";
    cell.knobs.push_back(name_knob(cell, true));
    cell.gpus = cell.ranks = std::max(1, static_cast<int>(launch.memory.size()));
    cell.launches.push_back(std::move(launch));
    analysis::fill_trace_metrics(cell, {});
    return {};
  }

  void keep_in_store() const {
    const auto put = [&]() -> Status {
      MB_ASSIGN(auto store, baselines::Store::open(store_file(runs_dir())));
      MB_TRY(store.put_run(out_.run, out_.bundle));
      for (const baselines::Cell& cell : out_.run.cells) MB_TRY(store.put_cell(cell));
      return {};
    };
    if (const Status stored = put(); !stored)
      log_warning("the store was not updated ({}); the bundle is whole, `mbbench index runs_dir={}` brings it in",
                  stored.error().what, runs_dir().string());
  }

  const ImportRequest& request_;
  ImportOutcome out_;
  std::vector<Planned> planned_;
  std::vector<ImportedSettings> own_;  // of the logs of the cell at hand
};

}  // namespace

int import_status(const baselines::Run& run) {
  int status = 0;
  for (const baselines::Cell& cell : run.cells) {
    if (cell.status == baselines::CellStatus::kBroken) return 4;
    if (cell.status == baselines::CellStatus::kUnstable) status = 2;
  }
  return status;
}

Result<ImportOutcome> import_files(const ImportRequest& request) {
  return Import(request).run();
}

}  // namespace mbb::suites
