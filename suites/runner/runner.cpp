// The parent's side: plan, launch, judge, finish, store.
#include "suites/runner/runner.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>

#include "analysis/metrics/planned_memory.h"
#include "analysis/report/suite_table.h"
#include "baselines/store/bundle.h"
#include "baselines/store/store.h"
#include "profiler/base/clock.h"
#include "profiler/base/env.h"
#include "profiler/base/file.h"
#include "profiler/base/log.h"
#include "profiler/base/text.h"
#include "profiler/host/captured.h"
#include "profiler/host/fingerprint.h"
#include "profiler/host/gpus.h"
#include "suites/runner/cell_inputs.h"
#include "suites/runner/cell_runner.h"
#include "suites/runner/claim_verdicts.h"
#include "suites/runner/equality.h"
#include "suites/runner/idle_notes.h"
#include "suites/runner/planned_metrics.h"
#include "suites/runner/planning.h"
#include "suites/runner/process.h"
#include "suites/runner/program_build.h"
#include "suites/runner/progress.h"
#include "suites/runner/published_beside.h"
#include "suites/runner/reason.h"
#include "suites/runner/recorded_gradients.h"
#include "suites/runner/routing_input.h"
#include "suites/runner/twin_run.h"
#include "trainer/comm/mpi/run_mpi_rank.h"
#include "trainer/models/hardware.h"
#include "trainer/run/knobs.h"

namespace mbb::suites {
namespace {

using baselines::CellStatus;

// One-rank cells run first: the others are compared with them.
std::vector<size_t> execution_order(const std::vector<baselines::Cell>& cells) {
  std::vector<size_t> order(cells.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  const auto later = [&](size_t i) { return cells[i].ranks != 1 ? 2 : trains_in_fp32(cells[i]) ? 0 : 1; };
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return later(a) < later(b); });
  return order;
}

// Fills a cell from its projection; what the engine cannot say is skipped with its words.
Status project_cell(const Cell& planned, baselines::Cell& cell, const Suite& suite, const RunOptions& options,
                    ProjectionBasis& basis) {
  const Planning planning;
  MB_ASSIGN(const trainer::Layout layout, trainer::resolve(planned.config));
  MB_ASSIGN(const trainer::StepPrograms programs, trainer::build_programs(layout));
  const bool blocks = std::any_of(suite.claims.begin(), suite.claims.end(), [&](const Claim& claim) {
    return claim.metric == "block_time" && (claim.a == cell.name || claim.b == cell.name);
  });
  const std::string hardware = hardware_of(suite, options);
  const Status projected = options.project({layout, programs, hardware, blocks}, cell, basis);
  if (!projected) {
    const bool unknown = projected.error().code == ErrorCode::kUnavailable;
    cell.status = unknown ? CellStatus::kSkipped : CellStatus::kBroken;
    cell.reason =
        fmt::format("needs {} GPU{}, this machine has {}; not projected: {}", cell.ranks, cell.ranks == 1 ? "" : "s",
                    profiler::list_gpus().gpus.size(), reason_of(projected.error()));
    cell.metrics.clear();
    return {};
  }
  if (planned.published.empty()) add_published_error(cell, published_rate(layout, hardware));
  analysis::add_planned_memory(cell);
  return add_planned_metrics(layout, programs, cell);
}

// The verdict on the twin of a cell that asks for GPUs. False when the run was stopped meanwhile.
Result<bool> judge_twin(const Cell& planned, baselines::Cell& cell, TwinRunner& twins) {
  if (cell.status != CellStatus::kOk || planned.config.host.device != trainer::Device::kCuda || planned.command)
    return true;
  const auto twin = twin_of(planned.config);
  if (!twin) {
    add_twin_verdict(cell, twin.error());
    return true;
  }
  if (twin->is_trivial()) return true;
  MB_ASSIGN(const auto end, twins.run(*twin));
  if (!end) return false;
  add_twin_verdict(cell, *twin, *end);
  return true;
}

// A cell of the run's manifest that the suite no longer has would be missing in silence.
Status check_manifest(const baselines::Run& run, const Suite& suite) {
  for (const std::string& planned : run.planned_cells) {
    const auto named = [&](const auto& cell) { return cell.name == planned; };
    if (std::any_of(suite.cells.begin(), suite.cells.end(), named)) continue;
    if (std::any_of(run.cells.begin(), run.cells.end(), named)) continue;
    return fail(ErrorCode::kMismatch,
                fmt::format("run {} planned a cell '{}', which its suite no longer makes", run.id, printable(planned)),
                "a knob or rule changed since: start a new run");
  }
  return {};
}

// Cells of one run answer one question: what is left must be configured, and projected, as what has finished was.
Status check_same_knobs(const baselines::Run& run, const Suite& suite, const RunOptions& options) {
  const std::string device = trainer::device_name_of(hardware_of(suite, options));
  for (const baselines::Cell& finished : run.cells) {
    if (finished.result_class == baselines::ResultClass::kProjected && finished.status == CellStatus::kOk &&
        finished.device != device)
      return fail(ErrorCode::kMismatch,
                  fmt::format("run {} projected its finished cell {} on {}, and would go on with {}", run.id,
                              finished.name, finished.device, device),
                  "resume it with the --hardware it was started with, or start a new run");
    const auto cell =
        std::find_if(suite.cells.begin(), suite.cells.end(), [&](const Cell& c) { return c.name == finished.name; });
    if (cell == suite.cells.end() || cell->command) continue;
    for (const KnobState& now : trainer::knobs().states(cell->config, cell->sources))
      for (const baselines::KnobValue& then : finished.knobs)
        if (then.key == now.knob->key && now.knob->identity && then.value != now.value)
          return fail(ErrorCode::kMismatch,
                      fmt::format("run {} has {} = {} in its finished cell {}, and would go on with {}", run.id,
                                  then.key, then.value, finished.name, now.value),
                      fmt::format("resume it with the knobs it was started with ({}={}), or start a new run", then.key,
                                  then.value));
  }
  return {};
}

// Nor by one program on one machine, as the run's record says. A run without a finished cell begins here.
Status check_same_product(baselines::Run& run, const RunOptions& options) {
  MB_ASSIGN(auto here, facts_here(options));
  if (run.cells.empty()) {
    run.fingerprint = std::move(here.fingerprint);
    run.epoch = here.epoch;
    return {};
  }
  std::vector<std::string> changed = profiler::changed_product(run.fingerprint, here.fingerprint, options.roles);
  for (std::string& fact : profiler::changed_environment(run.fingerprint, here.fingerprint, options.roles))
    changed.push_back(std::move(fact));
  if (changed.empty()) return {};
  return fail(ErrorCode::kMismatch,
              fmt::format("run {} has {} finished cell{} of another program or machine ({})", run.id, run.cells.size(),
                          run.cells.size() == 1 ? "" : "s", join(changed, ", ")),
              "cells of one run are of one product and environment: start a new run");
}

void keep_in_store(const RunOptions& options, const baselines::Run& run, const std::filesystem::path& bundle,
                   const baselines::Cell* cell) {
  const auto put = [&]() -> Status {
    MB_ASSIGN(auto store, baselines::Store::open(store_file(options.runs_dir)));
    MB_TRY(store.put_run(run, bundle));
    return cell ? store.put_cell(*cell) : Status{};
  };
  if (const Status stored = put(); !stored)
    log_warning("the store was not updated ({}); the bundle is whole, `mbbench index runs_dir={}` brings it in",
                stored.error().what, options.runs_dir.string());
}

// Claims are judged when all cells are there; cells that got a verdict are written again.
Status judge_claims_of(baselines::BundleWriter& writer, const Suite& suite, const RunOptions& options,
                       RunOutcome& outcome) {
  if (outcome.stopped) return {};
  for (const size_t changed : judge_claims(suite.claims, outcome.run.cells, outcome.basis.ratio_error)) {
    MB_TRY(writer.finish_cell(outcome.run.cells[changed]));
    keep_in_store(options, outcome.run, writer.folder(), &outcome.run.cells[changed]);
  }
  return {};
}

// The cells of a run, one after another or in turns.
class CellLoop {
 public:
  CellLoop(baselines::BundleWriter writer, RunOutcome outcome, const Suite& suite, const RunOptions& options)
      : writer_(std::move(writer)),
        outcome_(std::move(outcome)),
        suite_(suite),
        options_(options),
        cells_(describe_cells(suite, options)),
        left_(cells_.size()),
        progress_(cells_.size() - outcome_.run.cells.size(), options.quiet),
        runner_(writer_, options_, progress_),
        twins_(writer_.folder() / "twins", options_, [this](std::string_view line) { runner_.on_line(line); }) {}

  Result<RunOutcome> run() {
    std::set<std::string> finished;
    for (const baselines::Cell& cell : outcome_.run.cells) finished.insert(cell.name);
    std::vector<size_t> order = execution_order(cells_);
    std::erase_if(order, [&](size_t i) { return finished.contains(cells_[i].name); });
    for (baselines::Cell& cell : cells_) cell.run = outcome_.run.id;
    keep_in_store(options_, outcome_.run, writer_.folder(), nullptr);
    // Of a run that goes on: where the store could not be written then, or was lost since.
    for (const baselines::Cell& cell : outcome_.run.cells)
      keep_in_store(options_, outcome_.run, writer_.folder(), &cell);
    if (options_.interleave) MB_TRY(launch_in_turns(order));
    for (const size_t i : order) {
      if (stopped()) break;
      if (!options_.interleave) {
        MB_TRY(begin(i));
        for (int launch = 0; launch < options_.launches; ++launch) MB_TRY(this->launch(i, launch));
      }
      MB_TRY(finish(i));
    }
    return close();
  }

 private:
  bool stopped() {
    if ((options_.stop && options_.stop->load()) || runner_.stopped()) outcome_.stopped = true;
    return outcome_.stopped;
  }

  Status launch_in_turns(std::vector<size_t> order) {
    for (const size_t i : order) MB_TRY(begin(i));
    for (int launch = 0; launch < options_.launches; ++launch) {
      if (launch > 0 && !stopped() && options_.next_round && !options_.next_round(launch)) break;
      for (const size_t i : order) MB_TRY(this->launch(i, launch));
      std::reverse(order.begin(), order.end());
    }
    return {};
  }

  Status begin(size_t i) {
    baselines::Cell& cell = cells_[i];
    if (options_.require_measured && cell.status == CellStatus::kOk &&
        cell.result_class != baselines::ResultClass::kMeasured) {
      cell.status = CellStatus::kSkipped;
      cell.reason = fmt::format("needs {} GPU{}; this machine offers {}", cell.gpus, cell.gpus == 1 ? "" : "s",
                                class_label(cell));
    }
    progress_.begin_cell(cell.name);
    return writer_.begin_cell(cell);
  }

  Status launch(size_t i, int index) {
    if (stopped() || cells_[i].result_class == baselines::ResultClass::kProjected) return {};
    if (options_.interleave) progress_.begin_cell(cells_[i].name);
    if (!suite_.cells[i].command)
      MB_TRY(give_routing(writer_, suite_.cells[i].config, cells_[i], index, {&outcome_.run.cells, &cells_}));
    return runner_.launch(suite_.cells[i], cells_[i], index, left_[i]);
  }

  // Settles, judges and keeps a cell whose launches are over.
  Status finish(size_t i) {
    baselines::Cell& cell = cells_[i];
    if (stopped()) return {};
    if (cell.status == CellStatus::kOk && cell.result_class == baselines::ResultClass::kProjected)
      MB_TRY(project_cell(suite_.cells[i], cell, suite_, options_, outcome_.basis));
    else
      MB_TRY(runner_.settle(suite_.cells[i], cell, left_[i]));
    left_[i] = {};
    if (options_.twins) {
      MB_ASSIGN(const bool went_on, judge_twin(suite_.cells[i], cell, twins_));
      outcome_.stopped = !went_on;
    }
    if (outcome_.stopped) return {};
    MB_TRY(judge(i));
    if (cell.status == CellStatus::kBroken) cell.metrics.clear();
    MB_TRY(writer_.finish_cell(cell));
    keep_in_store(options_, outcome_.run, writer_.folder(), &cell);
    if (options_.interleave) progress_.begin_cell(cell.name);  // another cell's launch was the last
    const std::string word = analysis::status_word(cell);
    // The reason of a run's only cell stands right below.
    const bool said = cell.status == CellStatus::kOk || options_.command == "run";
    progress_.end_cell(said ? word : fmt::format("{}: {}", word, cell.reason));
    outcome_.run.cells.push_back(std::move(cell));
    return {};
  }

  // Of another trainer neither data nor seeds are known, so that its losses are held against nothing; a projection has
  // none.
  Status judge(size_t i) {
    if (suite_.cells[i].command || cells_[i].result_class == baselines::ResultClass::kProjected) return {};
    baselines::Cell& cell = cells_[i];
    judge_losses(cell, outcome_.run.cells);
    MB_TRY(judge_recorded_gradients(writer_, cell, outcome_.run.cells));
    if (const auto layout = trainer::resolve(suite_.cells[i].config))
      judge_learning(cell, entropy_of(suite_.cells[i].config, layout->model.vocab_size));
    return {};
  }

  Result<RunOutcome> close() {
    std::sort(outcome_.run.cells.begin(), outcome_.run.cells.end(),
              [](const auto& a, const auto& b) { return a.index < b.index; });
    MB_TRY(judge_claims_of(writer_, suite_, options_, outcome_));
    outcome_.run.ended_unix_ns = outcome_.stopped ? 0 : wall_ns();
    outcome_.run.exit_status = exit_status(outcome_, options_.require_measured);
    outcome_.notes = idle_notes(suite_, outcome_.run.cells);
    MB_TRY(writer_.write_run(outcome_.run));
    keep_in_store(options_, outcome_.run, writer_.folder(), nullptr);
    return std::move(outcome_);
  }

  baselines::BundleWriter writer_;
  RunOutcome outcome_;
  const Suite& suite_;
  const RunOptions& options_;
  std::vector<baselines::Cell> cells_;
  std::vector<CellRunner::Left> left_;
  Progress progress_;
  CellRunner runner_;
  TwinRunner twins_;
};

Result<RunOutcome> run_cells(baselines::BundleWriter writer, RunOutcome outcome, const Suite& suite,
                             const RunOptions& options) {
  return CellLoop(std::move(writer), std::move(outcome), suite, options).run();
}

}  // namespace

std::filesystem::path store_file(const std::filesystem::path& runs_dir) {
  return runs_dir / "mbbench.sqlite";
}

namespace {

// The processes of an MPI launcher are the ranks of one launch.
Status check_launcher(const RunOptions& options) {
  MB_ASSIGN(const auto place, trainer::process_place());
  if (!place || (options.command == "run" && options.launches == 1)) return {};
  return fail(
      ErrorCode::kBadArgument,
      fmt::format("a launcher started {} processes, which are the ranks of one launch, and {} starts launches of "
                  "its own",
                  place->size, options.launches > 1 ? "--launches" : "`" + options.command + "`"),
      "under a launcher use `mbbench run` with one launch; leave it out where ranks may be threads");
}

}  // namespace

Result<profiler::RoledFacts> facts_here(const RunOptions& options) {
  MB_ASSIGN(auto roled, profiler::apply_roles(profiler::take_fingerprint(options.facts), options.roles));
  if (options.program.empty()) return roled;
  MB_ASSIGN(auto theirs, with_build_of(options.program, std::move(roled.fingerprint)));  // its build, not ours
  return profiler::apply_roles(std::move(theirs), options.roles);
}

Result<RunOutcome> start_run(const Suite& suite, const RunOptions& options) {
  MB_TRY(own_program());  // its launches start it: before anything is written
  MB_TRY(check_launcher(options));
  MB_TRY(check_inputs(suite));
  RunOutcome outcome;
  baselines::Run& run = outcome.run;
  run.created_unix_ns = wall_ns();
  run.command = options.command;
  run.suite = suite.name;
  run.spec = suite.text;
  run.tag = options.tag;
  const auto is_known = [](std::string_view name) { return find_setting(name).has_value(); };
  // Patterns of cells, too, which the run's record names anyway: the gate asks what was left out (is_left_out()).
  const auto is_known_word = [&](std::string_view name) { return name == "only" || name == "skip" || is_known(name); };
  run.argv = profiler::capture_arguments({options.argv.begin() + 1, options.argv.end()}, is_known_word);
  run.environment = profiler::capture_environment(env_all(), is_known);
  MB_ASSIGN(auto roled, facts_here(options));
  run.fingerprint = std::move(roled.fingerprint);
  run.epoch = roled.epoch;
  for (const Cell& cell : suite.cells) run.planned_cells.push_back(cell.name);
  MB_TRY(make_dirs(options.runs_dir));
  MB_ASSIGN(auto writer, baselines::BundleWriter::create_new(options.runs_dir / "runs", run));
  outcome.bundle = writer.folder();
  return run_cells(std::move(writer), std::move(outcome), suite, options);
}

Result<RunOutcome> resume_run(const std::filesystem::path& bundle, const Suite& suite, const RunOptions& options) {
  MB_TRY(own_program());  // its launches start it: before anything is written
  MB_TRY(check_launcher(options));
  MB_TRY(check_inputs(suite));
  MB_ASSIGN(auto writer, baselines::BundleWriter::reopen(bundle));
  MB_ASSIGN(const auto reader, baselines::BundleReader::open(bundle));
  RunOutcome outcome;
  outcome.bundle = bundle;
  outcome.run = reader.run();
  MB_ASSIGN(const auto entries, reader.cells());
  for (const auto& entry : entries) {
    if (entry.state != baselines::CellState::kFinished) continue;
    MB_ASSIGN(auto cell, reader.read_cell(entry.name));
    outcome.run.cells.push_back(std::move(cell));
  }
  MB_TRY(check_manifest(outcome.run, suite));
  MB_TRY(check_same_knobs(outcome.run, suite, options));
  MB_TRY(check_same_product(outcome.run, options));
  return run_cells(std::move(writer), std::move(outcome), suite, options);
}

}  // namespace mbb::suites
