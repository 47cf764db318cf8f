// mbbench suite: runs the cells of a suite and prints its table. mbbench run is the same with one cell.
#include <fmt/core.h>

#include <algorithm>
#include <optional>

#include "analysis/report/suite_table.h"
#include "baselines/store/bundle.h"
#include "profiler/base/file.h"
#include "profiler/base/log.h"
#include "profiler/base/text.h"
#include "suites/cli/command.h"
#include "suites/cli/print.h"
#include "suites/cli/settings_of.h"
#include "suites/cli/suite_plan.h"
#include "suites/foreign/training_log.h"
#include "suites/matrix/suite.h"
#include "suites/project/cell_projector.h"
#include "suites/runner/cell_inputs.h"
#include "suites/runner/equality.h"
#include "suites/runner/runner.h"
#include "trainer/comm/mpi/run_mpi_rank.h"
#include "trainer/run/knobs.h"
#include "trainer/run/layout.h"

namespace mbb::suites {
namespace {

using baselines::CellStatus;

// What the runs of this command are called in their record: the ones that can be resumed.
constexpr const char* kSuiteCommand = "suite";

constexpr double kGpuIntervalPct = 0.5;

Result<RunOptions> run_options(const Parsed& parsed, const Settings& settings, const StopSignals& signals,
                               const char* command) {
  RunOptions options;
  options.command = command;
  options.argv = parsed.argv;
  options.runs_dir = settings.product.runs_dir;
  options.roles = roles_of(settings);
  options.facts = declared_facts(settings.product.gate);
  MB_ASSIGN(options.tag, tag_of(parsed));
  options.require_measured = parsed.value("--require") == "measured";
  options.quiet = parsed.flag("--quiet");
  options.allow_clock_changes = parsed.flag("--allow-clock-changes");
  options.stop = signals.flag();
  if (const auto required = parsed.value("--require"); required && *required != "measured")
    return fail(ErrorCode::kBadArgument,
                fmt::format("--require {}: the only class that can be required is 'measured'", printable(*required)));
  if (const auto text = parsed.value("--launches")) {
    const auto launches = parse_int(*text);
    if (!launches || *launches < 1 || *launches > 1000)
      return fail(ErrorCode::kBadArgument, fmt::format("--launches {}: a number from 1 to 1000", printable(*text)));
    options.launches = static_cast<int>(*launches);
  }
  if (const auto text = parsed.value("--steady-steps")) {
    const auto steps = parse_int(*text);
    if (!steps || *steps < 1)
      return fail(ErrorCode::kBadArgument, fmt::format("--steady-steps {}: a number from 1 on", printable(*text)));
    options.steady_steps = *steps;
  }
  if (const auto text = parsed.value("--interval")) {
    const auto percent = parse_double(*text);
    if (!percent || !(*percent > 0) || *percent > 100)
      return fail(ErrorCode::kBadArgument, fmt::format("--interval {}: percent, above 0", printable(*text)));
    options.interval_pct = *percent;
  }
  // Of a suite's cells on GPUs train_iters is the most they run.
  if (std::string_view(command) == kSuiteCommand) options.gpu_interval_pct = kGpuIntervalPct;
  options.interleave = parsed.flag("--interleave");
  options.twins = !parsed.flag("--no-twins");
  options.project = cell_projector();
  if (parsed.flag("--hardware")) {
    MB_ASSIGN(options.hardware, card_of(parsed, ""));
  }
  return options;
}

// Claims as the run's verdicts hold them.
analysis::Table claims_table(const baselines::Run& run) {
  using analysis::Align;
  analysis::Table table{
      "claims",
      "claims",
      {{"claim", "claim"}, {"cells", "cells"}, {"ratio", "ratio", Align::kRight}, {"answer", "answer"}},
      {},
      {}};
  constexpr std::string_view kPrefix = "claim ";
  for (const baselines::Cell& cell : run.cells)
    for (const baselines::VerdictRow& row : cell.verdicts) {
      if (!row.subject.starts_with(kPrefix)) continue;
      const double ratio = 1 + row.change;
      table.rows.push_back({{{row.subject.substr(kPrefix.size())},
                             {fmt::format("{} over {}", cell.name, row.against)},
                             {ratio == ratio ? fmt::format("{:.3f}", ratio) : "-", ratio},
                             {row.text}}});
    }
  return table;
}

// Why a run's only cell did not run is an error, whole; its row has no more of it than fits there.
std::string for_a_row(const std::string& reason) {
  constexpr size_t kLongest = 400;  // a row cuts what is longer
  return reason.size() > kLongest ? reason.substr(0, reason.find("; ")) : reason;
}

int finish(const Parsed& parsed, const RunOutcome& outcome, const RunOptions& options, const StopSignals& signals) {
  analysis::Table table = analysis::suite_table(outcome.run);
  const bool alone = options.command == "run";
  if (alone && !parsed.flag("--json"))
    for (size_t i = 0; i < outcome.run.cells.size(); ++i)
      if (outcome.run.cells[i].status == CellStatus::kSkipped) table.rows[i].note = for_a_row(table.rows[i].note);
  table.footer.insert(table.footer.end(), outcome.basis.lines.begin(), outcome.basis.lines.end());
  table.footer.insert(table.footer.end(), outcome.notes.begin(), outcome.notes.end());
  std::vector<analysis::Table> tables{std::move(table)};
  if (const analysis::Table claims = claims_table(outcome.run); !claims.rows.empty()) tables.push_back(claims);
  print_tables(parsed, tables);
  if (!outcome.stopped)
    for (const std::string& missing : missing_results(outcome.run)) say(fmt::format("error: {}\n", missing));
  if (!outcome.stopped && alone)
    for (const baselines::Cell& cell : outcome.run.cells)
      if (cell.status == CellStatus::kSkipped) say(fmt::format("error: nothing ran: {}\n", cell.reason));
  if (!parsed.flag("--json")) fmt::print("run {}  {}\n", outcome.run.id, outcome.bundle.string());
  if (outcome.stopped && signals.interrupted()) return kExitInterrupted;
  return exit_status(outcome, options.require_measured);
}

// The newest run of this suite that has no end, or the one that is named.
Result<std::filesystem::path> unfinished_run(const Settings& settings, const std::string& suite,
                                             const std::string& named) {
  const std::filesystem::path folder = std::filesystem::path(settings.product.runs_dir) / "runs";
  if (!named.empty()) {
    if (baselines::looks_like_bundle(named)) return std::filesystem::path(named);
    if (baselines::looks_like_bundle(folder / named)) return folder / named;
    return fail(ErrorCode::kNotFound, fmt::format("no run '{}' in {}", printable(named), folder.string()),
                "`mbbench list runs` lists them");
  }
  std::filesystem::path found;
  int64_t newest = 0;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    if (!baselines::looks_like_bundle(entry.path())) continue;
    const auto reader = baselines::BundleReader::open(entry.path());
    if (!reader || reader->run().suite != suite || reader->run().ended_unix_ns != 0) continue;
    if (reader->run().command != kSuiteCommand) continue;
    if (reader->run().created_unix_ns < newest) continue;
    newest = reader->run().created_unix_ns;
    found = entry.path();
  }
  if (found.empty())
    return fail(ErrorCode::kNotFound, fmt::format("no unfinished run of suite '{}' in {}", suite, folder.string()),
                "start one without --resume");
  return found;
}

// Where a suite's file lies, from which its relative paths count; of a shipped one no file.
Result<std::string> file_of(const std::filesystem::path& named, const std::string& name, const Settings& settings) {
  if (named.extension() == ".toml" || named.has_parent_path()) return (named.parent_path() / (name + ".toml")).string();
  MB_ASSIGN(const auto suites, list_suites(settings));
  for (const SuiteEntry& suite : suites)
    if (suite.name == name) return suite.path;
  return name + ".toml";
}

Result<RunOutcome> resume(const Parsed& parsed, const Settings& settings, const SuiteFilter& filter,
                          const RunOptions& options) {
  const std::filesystem::path named(parsed.positionals[0]);
  // "llama3.1-405b-fp8" has no extension; "dir/mine.toml" has.
  const std::string name = named.extension() == ".toml" ? named.stem().string() : named.filename().string();
  MB_ASSIGN(const auto bundle, unfinished_run(settings, name, parsed.value("--run").value_or("")));
  MB_ASSIGN(const auto reader, baselines::BundleReader::open(bundle));
  // Launches of a gate, `ab` or `noise` are evidence of one session.
  if (reader.run().command != kSuiteCommand)
    return fail(ErrorCode::kBadArgument,
                fmt::format("run {} is of `mbbench {}`, whose launches belong to one session", reader.run().id,
                            printable(reader.run().command)),
                "start that command again");
  MB_ASSIGN(const std::string file, file_of(named, name, settings));
  MB_ASSIGN(const Suite suite, parse_suite(reader.run().spec, file, settings, filter, resolves));
  return resume_run(bundle, suite, options);
}

// A number an option gives, or nothing without it.
Result<std::optional<uint64_t>> number_of(const Parsed& parsed, const char* option) {
  const auto text = parsed.value(option);
  if (!text) return std::optional<uint64_t>();
  const auto value = parse_int(*text);
  if (!value || *value < 0)
    return fail(ErrorCode::kBadArgument, fmt::format("{} {}: a number from 0 on", option, printable(*text)));
  return std::optional(static_cast<uint64_t>(*value));
}

Result<SuiteFilter> filter_of(const Parsed& parsed) {
  SuiteFilter filter{parsed.values("--only"), parsed.values("--skip")};
  MB_ASSIGN(filter.seed, number_of(parsed, "--seed"));
  MB_ASSIGN(const auto total, number_of(parsed, "--combinations"));
  if (total) filter.total = static_cast<size_t>(*total);
  MB_ASSIGN(const auto most, number_of(parsed, "--max-cells"));
  if (most) filter.max_cells = static_cast<size_t>(*most);
  return filter;
}

// The command that runs a broken cell again, with the cells it is compared with.
void print_replays(const Parsed& parsed, const RunOutcome& outcome) {
  std::string same = fmt::format("mbbench suite {}", parsed.positionals[0]);
  for (const char* option : {"--seed", "--combinations"})
    if (const auto value = parsed.value(option)) same += fmt::format(" {} {}", option, *value);
  for (const std::string& knob : parsed.knobs) same += " " + knob;
  for (const baselines::Cell& cell : outcome.run.cells) {
    if (cell.status != CellStatus::kBroken) continue;
    std::string command = same;
    const References with = references_of(cell, outcome.run.cells);
    std::vector<const baselines::Cell*> references{with.exact, with.rounded};
    for (const References::Pair& pair : with.other_seeds)
      references.insert(references.end(), {pair.exact, pair.rounded});
    for (const baselines::Cell* reference : references)
      if (reference != nullptr && reference != &cell) command += fmt::format(" --only {}", reference->name);
    fmt::print("replay  {} --only {}\n", command, cell.name);
  }
}

Result<int> run_suite(const Parsed& parsed) {
  MB_ASSIGN(const Settings settings, settings_of(parsed));
  MB_ASSIGN(const SuiteFilter filter, filter_of(parsed));
  StopSignals signals;
  MB_ASSIGN(const RunOptions options, run_options(parsed, settings, signals, kSuiteCommand));
  if (parsed.flag("--resume")) {
    MB_ASSIGN(const RunOutcome outcome, resume(parsed, settings, filter, options));
    return finish(parsed, outcome, options, signals);
  }
  MB_ASSIGN(const Suite suite, suite_of(settings, parsed.positionals[0], filter));
  if (parsed.flag("--dry-run")) {
    MB_ASSIGN(const SuitePlan plan, plan_of_suite(suite, options));
    print_tables(parsed, {plan.table});
    return plan.broken > 0 ? kExitBroken : 0;
  }
  MB_ASSIGN(const RunOutcome outcome, start_run(suite, options));
  const int status = finish(parsed, outcome, options, signals);
  if (!parsed.flag("--json")) print_replays(parsed, outcome);
  return status;
}

// The user's own command, where one is given.
Result<std::optional<CommandSpec>> command_option(const Parsed& parsed) {
  const auto run = parsed.value("--command");
  if (!run) return std::optional<CommandSpec>();
  CommandSpec spec;
  spec.run = *run;
  spec.log = parsed.value("--log").value_or(kAutoFormat);
  spec.log_file = parsed.value("--log-file").value_or("");
  MB_TRY(check_command(spec));
  return std::optional(std::move(spec));
}

// Under an MPI launcher its processes are the ranks.
Status take_launcher(Settings& settings, const trainer::ProcessPlace& place) {
  const Source source{Layer::kEnvironment, "the launcher's number of processes"};
  if (settings.config.parallel.gpus == 0)
    MB_TRY(trainer::knobs().set_text(settings.config, settings.sources, "parallel.gpus", std::to_string(place.size),
                                     source));
  MB_ASSIGN(const trainer::Layout layout, layout_of(settings));
  if (layout.mesh.world_size() == place.size) return {};
  return fail(ErrorCode::kBadArgument,
              fmt::format("the launcher started {} processes, and parallel.gpus = {} asks for {} ranks", place.size,
                          settings.config.parallel.gpus, layout.mesh.world_size()),
              fmt::format("start {} processes, or leave parallel.gpus at 0", layout.mesh.world_size()));
}

Result<int> run_one(const Parsed& parsed) {
  MB_ASSIGN(Settings settings, settings_of(parsed));
  MB_ASSIGN(const auto command, command_option(parsed));
  MB_ASSIGN(const auto place, trainer::process_place());
  if (place && command)
    return fail(ErrorCode::kBadArgument, "--command under a launcher, whose processes would each start it",
                "leave the launcher out; the command may begin with mpirun itself");
  if (place) MB_TRY(take_launcher(settings, *place));
  if (!command) MB_TRY(layout_of(settings));
  StopSignals signals;
  MB_ASSIGN(const RunOptions options, run_options(parsed, settings, signals, "run"));
  if (place && !command) MB_TRY(check_inputs(settings.config));  // all of its processes refuse alike
  if (place && place->rank > 0) return follow_run(settings.config, options);
  Suite suite;
  suite.name = "run";
  suite.purpose = "one configuration";
  suite.cells.push_back({.name = "run", .config = settings.config, .sources = settings.sources});
  suite.cells.back().command = command;
  MB_ASSIGN(const RunOutcome outcome, start_run(suite, options));
  return finish(parsed, outcome, options, signals);
}

const std::vector<OptionSpec> kRunOptions{
    {"--tag", "NAME", "find the run later as @NAME"},
    {"--launches", "N", "fresh processes a cell (default 1)"},
    {"--steady-steps", "N", "end a launch once it has timed so many steady steps"},
    {"--interval", "PCT", "end a launch once its median is known within +-PCT % (a suite's cells on GPUs: 0.5)"},
    {"--interleave", nullptr, "launches of all cells in turns, against drift"},
    {"--require", "CLASS", "'measured': skip what this machine cannot measure"},
    {"--hardware", "H", "project cells whose GPUs are not here on this"},
    {"--no-twins", nullptr, "do not train the twins of cells that ask for GPUs"},
    {"--allow-clock-changes", nullptr, "host.vboost may move the boost slider"},
    {"--quiet", nullptr, "no progress"},
    kJsonOption,
    kMarkdownOption};

}  // namespace

Command suite_command() {
  Command c{"suite",
            "run the cells of a suite and print its table",
            {{"SUITE", "a name of `mbbench list suites`, or a TOML file"}},
            kRunOptions,
            true,
            run_suite};
  c.options.push_back({"--only", "CELL", "run only cells that match (repeats; * and ? match)", true});
  c.options.push_back({"--skip", "CELL", "leave out cells that match (repeats)", true});
  c.options.push_back({"--seed", "S", "draw the combinations of a cover by this seed, instead of the suite's"});
  c.options.push_back({"--combinations", "N", "so many combinations of a cover, instead of the suite's total"});
  c.options.push_back({"--max-cells", "N", "refuse a suite of more cells (default 4096)"});
  c.options.push_back({"--resume", nullptr, "go on with the newest unfinished run of this suite"});
  c.options.push_back({"--run", "RUN", "with --resume: this run, by id or bundle folder", false, "--resume"});
  c.options.push_back({"--dry-run", nullptr, "print the plan and stop (exit status 4 where a cell would be broken)",
                       false, nullptr, "--resume"});
  for (OptionSpec& option : c.options)
    if (option.flag == std::string_view("--tag")) option.against = "--resume";  // the run has its own
  return c;
}

Command run_command() {
  Command c{"run", "train one configuration", {}, kRunOptions, true, run_one};
  c.options.push_back(
      {"--command", "TEMPLATE", "launch this instead of the built-in trainer ({gpus}, {run_dir}, {tp}, ...)"});
  c.options.push_back({"--log", "FORMAT", "how the command's output is read (default auto)", false, "--command"});
  c.options.push_back(
      {"--log-file", "FILE", "a file the command writes, read instead of its output", false, "--command"});
  return c;
}

}  // namespace mbb::suites
