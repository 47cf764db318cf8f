// mbbench gate and mbbench baseline: a night's launches against what was accepted, and the accepting.
#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "analysis/gate/gate_report.h"
#include "baselines/pins/pins.h"
#include "baselines/store/store.h"
#include "profiler/base/clock.h"
#include "profiler/base/env.h"
#include "profiler/base/file.h"
#include "profiler/base/log.h"
#include "profiler/base/text.h"
#include "suites/cli/command.h"
#include "suites/cli/print.h"
#include "suites/cli/run_page.h"
#include "suites/cli/settings_of.h"
#include "suites/runner/accept.h"
#include "suites/runner/bridge.h"
#include "suites/runner/gate.h"

namespace mbb::suites {
namespace {

using analysis::GateReport;
using baselines::Pin;

constexpr int64_t kDayNs = int64_t{24} * 3600 * 1'000'000'000;

Result<int64_t> number_option(const Parsed& parsed, const char* flag, int64_t otherwise, int64_t least, int64_t most) {
  const auto text = parsed.value(flag);
  if (!text) return otherwise;
  const auto number = parse_int(*text);
  if (number && *number >= least && *number <= most) return *number;
  return fail(ErrorCode::kBadArgument,
              fmt::format("{} {}: a number from {} to {}", flag, printable(*text), least, most));
}

Result<std::vector<baselines::Verdict>> fail_on(const Parsed& parsed) {
  std::vector<baselines::Verdict> verdicts;
  for (const std::string& list : parsed.values("--fail-on"))
    for (const auto word : split(list, ',')) {
      const auto verdict = baselines::parse_verdict(trim(word));
      if (!verdict) return fail(ErrorCode::kBadArgument, "--fail-on: " + verdict.error().what, verdict.error().hint);
      using baselines::Verdict;
      if (*verdict == Verdict::kSame || *verdict == Verdict::kFaster || *verdict == Verdict::kNew)
        return fail(ErrorCode::kBadArgument, fmt::format("--fail-on: '{}' is no failure", trim(word)),
                    "slower, broken, incomparable, inconclusive and unstable can fail a gate");
      verdicts.push_back(*verdict);
    }
  return verdicts;
}

Status export_to(const Parsed& parsed, const char* flag, const std::string& text) {
  const auto file = parsed.value(flag);
  return file ? write_file(*file, text) : Status{};
}

// Files first: whatever the exit status will be, they are there.
Status write_reports(const Parsed& parsed, const GateReport& report) {
  MB_TRY(export_to(parsed, "--junit-xml", analysis::gate_junit(report)));
  MB_TRY(export_to(parsed, "--export-markdown", analysis::gate_markdown(report)));
  MB_TRY(export_to(parsed, "--export-html", analysis::gate_html(report)));
  return export_to(parsed, "--export-json", analysis::gate_json(report));
}

// The night's cells, histories and timelines below its verdicts.
Status write_night(const Settings& settings, const std::string& run, const GateReport& report, const std::string& to) {
  MB_ASSIGN(const auto bundle, find_bundle(settings, run));
  MB_ASSIGN(const auto reader, baselines::BundleReader::open(bundle));
  MB_ASSIGN(const baselines::Run whole, reader.read_all());
  const analysis::Table table = analysis::gate_table(report);
  ExportSource source{whole, reader, ""};
  source.gate = &table;
  return write_page(settings, source, to);
}

Result<int> finish(const Parsed& parsed, const Settings& settings, const std::string& run, const GateReport& report,
                   const std::vector<baselines::Verdict>& only) {
  MB_TRY(write_reports(parsed, report));
  if (const auto to = parsed.value("--export-html"))
    if (const Status whole = write_night(settings, run, report, *to); !whole)
      log_warning("{} has the verdicts alone: {}", *to, whole.error().what);
  print_tables(parsed, {analysis::gate_table(report)});
  return analysis::gate_exit_status(report, only);
}

Result<GateRequest> request_of(const Parsed& parsed, const Settings& settings) {
  GateRequest request;
  MB_ASSIGN(request.pins, baselines::read_pins(settings.product.baselines_file));
  request.store_file = store_file(settings.product.runs_dir).string();
  MB_TRY(tell_products(request.store_file, declared_facts(settings.product.gate), roles_of(settings), request.pins));
  request.now_unix_ns = wall_ns();
  request.max_silent_nights = static_cast<int>(settings.product.gate.max_silent_nights);
  MB_ASSIGN(const int64_t launches, number_option(parsed, "--launches", 5, 1, 1000));
  request.confirm_launches = static_cast<int>(launches);
  return request;
}

// The report of a night without a judgement.
GateReport report_of_error(const std::string& suite, const std::string& what) {
  GateReport report;
  report.suite = suite;
  analysis::GateRow row{"*", analysis::kRunRow, "", "", {}};
  row.verdict.verdict = baselines::Verdict::kBroken;
  row.verdict.text = what;
  report.rows.push_back(std::move(row));
  return report;
}

// Leaves reports that say why, and its own exit status.
Result<int> finish_with(const Parsed& parsed, const std::string& suite, Error error) {
  if (const Status written = write_reports(parsed, report_of_error(suite, error.what)); !written)
    log_warning("{}", written.error().what);
  return tl::unexpected<Error>(std::move(error));
}

Result<int> stopped_in(const Parsed& parsed, const std::string& suite, const StopSignals& signals,
                       const std::string& what) {
  const std::string said = fmt::format("gate {}: {}: no verdict; run it again", suite, what);
  MB_TRY(write_reports(parsed, report_of_error(suite, said)));
  say(said + "\n");
  return signals.interrupted() ? kExitInterrupted : kExitStopped;
}

Result<int> bridge(const Parsed& parsed, const Settings& settings, const GateRequest& request, RunOptions options,
                   const StopSignals& signals) {
  const std::string named = *parsed.value("--bridge");
  if (named != "this") {
    if (!file_exists(named))
      return fail(ErrorCode::kBadArgument, fmt::format("--bridge {}: there is no such program", printable(named)),
                  "give the old product's mbbench, or `this` with the old product's gate.facts");
    options.program = std::filesystem::absolute(named).string();
  }
  if (parsed.positionals.empty())
    return fail(ErrorCode::kBadArgument, "--bridge: which suite?", "`mbbench list suites` lists them");
  MB_ASSIGN(const Suite suite, suite_of(parsed, settings, parsed.positionals[0]));
  const Result<Bridged> bridged = run_bridge(suite, request, options);
  if (!bridged && bridged.error().code == ErrorCode::kCancelled)
    return stopped_in(parsed, suite.name, signals, bridged.error().what);
  if (!bridged) return tl::unexpected<Error>(bridged.error());
  fmt::print("{} baselines have a bridge into this epoch\n", bridged->whole);
  if (bridged->begun > 0)
    fmt::print("{} have {} of {} bridge launches: run --bridge again, or with more --launches\n", bridged->begun,
               bridged->launches, analysis::kFewestBaselineLaunches);
  return 0;
}

// What would do nothing beside what else was asked for.
Status check_options(const Parsed& parsed) {
  if (parsed.value("--run") &&
      (!parsed.positionals.empty() || !parsed.values("--only").empty() || !parsed.values("--skip").empty()))
    return fail(ErrorCode::kBadArgument, "--run judges a whole run: SUITE, --only and --skip do nothing beside it");
  std::set<std::filesystem::path> files;
  for (const char* flag : {"--junit-xml", "--export-markdown", "--export-json", "--export-html"}) {
    const auto file = parsed.value(flag);
    std::error_code ignored;
    if (file &&
        !files.insert(std::filesystem::weakly_canonical(std::filesystem::absolute(*file, ignored), ignored)).second)
      return fail(ErrorCode::kBadArgument, fmt::format("{} is asked for two reports", printable(*file)),
                  "give each a file of its own");
  }
  if (!parsed.value("--bridge")) return {};
  for (const char* flag : {"--run", "--junit-xml", "--export-markdown", "--export-json", "--export-html", "--fail-on"})
    if (!parsed.values(flag).empty() || parsed.value(flag))
      return fail(ErrorCode::kBadArgument, fmt::format("--bridge judges nothing: {} does nothing beside it", flag),
                  "bridge first, then gate");
  return {};
}

// Of a gate on a suite: what it runs with, or why it cannot begin.
Result<RunOptions> options_of(const Parsed& parsed, const Settings& settings, const GateRequest& request,
                              const StopSignals& signals) {
  RunOptions options;
  options.command = kGateCommand;
  options.argv = parsed.argv;
  options.runs_dir = settings.product.runs_dir;
  options.roles = roles_of(settings);
  options.facts = declared_facts(settings.product.gate);
  options.launches = request.confirm_launches;
  options.quiet = parsed.flag("--quiet");
  options.stop = signals.flag();
  if (parsed.value("--run")) return options;
  MB_ASSIGN(const profiler::RoledFacts here, facts_here(options));
  MB_TRY(profiler::check_product(here.fingerprint, options.roles));
  return options;
}

// A run to judge: the fresh launches that confirmed one, and those of an old product, are no nights of their own.
Result<baselines::Run> night_called(const Settings& settings, const std::string& named) {
  MB_ASSIGN(baselines::Run run, find_run(settings, named));
  if (run.command == kConfirmCommand || run.command == kBridgeCommand)
    return fail(ErrorCode::kBadArgument,
                fmt::format("--run {}: run {} is a {}'s, no night", named, run.id, run.command),
                "name the gate's own run: its --export-json and `mbbench history` have it");
  return run;
}

// What a night cannot do without is tried before anything runs.
Status check_store(const std::string& file) {
  if (!file_exists(file)) return {};
  const auto store = baselines::Store::open(file);
  return store ? Status{} : tl::unexpected<Error>(store.error());
}

Result<int> gate(const Parsed& parsed) {
  const auto named = parsed.value("--run");
  std::string asked = named ? *named : parsed.positionals.empty() ? "" : parsed.positionals[0];
  MB_ASSIGN(const auto only, fail_on(parsed));
  if (asked.ends_with(".toml")) asked = std::filesystem::path(asked).stem();  // as the suite will call itself
  MB_TRY(check_options(parsed));
  const auto read = settings_of(parsed);
  if (!read) return finish_with(parsed, asked, read.error());
  const Settings& settings = *read;
  const auto request_or = request_of(parsed, settings);
  if (!request_or) return finish_with(parsed, asked, request_or.error());
  const GateRequest& request = *request_or;
  StopSignals signals;
  const auto options_or = options_of(parsed, settings, request, signals);
  if (!options_or) return finish_with(parsed, asked, options_or.error());
  const RunOptions& options = *options_or;
  if (parsed.value("--bridge")) return bridge(parsed, settings, request, options, signals);
  // Whoever kills this night, or a suite that does not load, leaves no report of an earlier one; and a place where none
  // can be written is known before anything runs.
  MB_TRY(write_reports(parsed, report_of_error(asked, "the gate has not come to its end")));
  if (named) {
    const auto run = night_called(settings, *named);
    if (!run) return finish_with(parsed, asked, run.error());
    const auto report = gate_run(*run, {}, request, options);
    return report ? finish(parsed, settings, *named, *report, only) : finish_with(parsed, run->suite, report.error());
  }
  if (parsed.positionals.empty())
    return fail(ErrorCode::kBadArgument, "gate needs a suite to run, or --run RUN to judge one that has run",
                "`mbbench list suites` lists them");
  const auto suite = suite_of(parsed, settings, parsed.positionals[0]);
  if (!suite) return finish_with(parsed, asked, suite.error());
  if (const Status store = check_store(request.store_file); !store) return finish_with(parsed, asked, store.error());
  auto outcome = start_run(*suite, options);
  if (!outcome) return finish_with(parsed, suite->name, outcome.error());
  if (outcome->stopped) return stopped_in(parsed, suite->name, signals, "stopped before all cells had run");
  const auto report = gate_run(outcome->run, *suite, request, options);
  if (!report && report.error().code == ErrorCode::kCancelled) {
    if (const Status kept =
            keep_verdicts({}, signals.interrupted() ? kExitInterrupted : kExitStopped, options.runs_dir, *outcome);
        !kept)
      log_warning("that it was stopped is not in the store: {}", kept.error().what);
    return stopped_in(parsed, suite->name, signals, report.error().what);
  }
  if (!report) return finish_with(parsed, suite->name, report.error());
  const int status = analysis::gate_exit_status(*report, only);
  if (const Status kept = keep_verdicts(*report, status, options.runs_dir, *outcome); !kept)
    log_warning("the verdicts are not in the store: {}", kept.error().what);
  return finish(parsed, settings, outcome->run.id, *report, only);
}

std::string author_of(const Parsed& parsed) {
  return parsed.value("--author").value_or(env_text("USER").value_or(""));
}

// The gate's run that a run is the confirmation of; any other run is its own night.
Result<baselines::Run> night_of(const Settings& settings, baselines::Run run) {
  if (run.command != kConfirmCommand) return run;
  MB_ASSIGN(const auto store, baselines::Store::open(store_file(settings.product.runs_dir), {.read_only = true}));
  MB_ASSIGN(const auto newest_first, store.list_runs());
  for (const baselines::RunSummary& s : newest_first) {
    const bool before = s.command == kGateCommand && s.suite == run.suite && s.created_unix_ns < run.created_unix_ns;
    if (!before || s.class_hash != run.fingerprint.class_hash || s.epoch != run.epoch) continue;
    MB_ASSIGN(auto night, store.load_run(s.id));
    // Another gate may have begun in between, of other cells.
    const bool has_all = std::all_of(run.cells.begin(), run.cells.end(), [&](const auto& again) {
      return std::any_of(night.cells.begin(), night.cells.end(),
                         [&](const auto& cell) { return cell.identity_hash == again.identity_hash; });
    });
    if (!has_all) continue;
    say(fmt::format("run {} only ran suspected cells of run {} again: accepting that night\n", run.id, s.id));
    return night;
  }
  return fail(ErrorCode::kNotFound,
              fmt::format("run {} only ran suspected cells of a gate again, whose own run is not in the store", run.id),
              "name a whole night: `mbbench list runs`");
}

Result<int> accept(const Parsed& parsed, const Settings& settings) {
  if (parsed.positionals.size() < 2)
    return fail(ErrorCode::kBadArgument, "baseline accept: which run?",
                "mbbench baseline accept @latest --reason TEXT");
  AcceptRequest request;
  MB_ASSIGN(baselines::Run named, find_run(settings, parsed.positionals[1]));
  MB_ASSIGN(request.run, night_of(settings, std::move(named)));
  for (const std::string& spec : parsed.values("--with")) {
    MB_ASSIGN(auto run, find_run(settings, spec));
    if (run.command == kConfirmCommand)
      return fail(ErrorCode::kBadArgument, fmt::format("--with {}: run {} confirmed a night and is none", spec, run.id),
                  "name the gate's own run: `mbbench list runs`");
    request.more.push_back(std::move(run));
  }
  MB_ASSIGN(const int64_t days, number_option(parsed, "--expires", 0, 0, 36500));
  request.only = parsed.values("--only");
  request.roles = roles_of(settings);
  request.facts = declared_facts(settings.product.gate);
  request.author = author_of(parsed);
  request.reason = parsed.value("--reason").value_or("");
  request.now_unix_ns = wall_ns();
  request.expires_unix_ns = days == 0 ? 0 : request.now_unix_ns + days * kDayNs;
  MB_ASSIGN(const Acceptance accepted, accept_runs(request));
  const std::string& file = settings.product.baselines_file;
  MB_TRY(baselines::append_pins(file, accepted.pins));
  for (const std::string& why : accepted.left_out) say(fmt::format("left out: {}\n", why));
  for (const std::string& what : accepted.contended)
    say(fmt::format("{}: a baseline of it hides what a product loses by as much; accept one that ran alone\n", what));
  fmt::print("{} baselines of run {} accepted into {}\n", accepted.pins.size(), request.run.id, file);
  if (!accepted.too_few.empty())
    say(fmt::format("{}: the gate judges from {} on; accept again with further nights (--with RUN)\n",
                    join(accepted.too_few, ", "), analysis::kFewestBaselineLaunches));
  if (accepted.one_launch_nights)
    say("nights of one launch each do not tell how launches differ, and the gate will not judge them: --launches 5\n");
  if (accepted.fewest_nights < analysis::kNightsOfThePromise)
    say(fmt::format(
        "of {} night{}: 1 % is found within 14 nights from {} baseline nights on; accept again with further "
        "nights (--with RUN)\n",
        accepted.fewest_nights, accepted.fewest_nights == 1 ? "" : "s", analysis::kNightsOfThePromise));
  return 0;
}

std::string state_of(const std::vector<Pin>& pins, const Pin& pin, int64_t now_unix_ns) {
  if (!pin.ended_by.empty()) return "ended by " + pin.ended_by;
  if (baselines::has_expired(pin, now_unix_ns)) return "expired";
  if (!baselines::stands(pins, pin, now_unix_ns)) return "superseded by a later one";
  return pin.expires_unix_ns == 0 ? "stands" : "until " + iso_time(pin.expires_unix_ns).substr(0, 10);
}

int list(const Parsed& parsed, const std::vector<Pin>& pins) {
  analysis::Table table{"baselines",
                        "",
                        {{"id", "baseline"},
                         {"suite", "suite"},
                         {"cell", "cell"},
                         {"metric", "metric"},
                         {"launches", "launches", analysis::Align::kRight},
                         {"accepted", "accepted (UTC)"},
                         {"author", "author"},
                         {"reason", "reason"},
                         {"state", "state"}},
                        {},
                        {}};
  for (const Pin& pin : pins) {
    size_t launches = 0;
    for (const auto& night : pin.nights) launches += night.size();
    table.rows.push_back({{{pin.id},
                           {pin.suite.empty() ? "-" : pin.suite},
                           {pin.cell},
                           {pin.metric},
                           {std::to_string(launches), static_cast<double>(launches)},
                           {iso_time(pin.accepted_unix_ns).substr(0, 16)},
                           {pin.author},
                           {pin.reason},
                           {state_of(pins, pin, wall_ns())}}});
  }
  print_tables(parsed, {table});
  return 0;
}

// What only `baseline accept` reads, and `expire` in part.
Status check_baseline_options(const Parsed& parsed) {
  const std::string& what = parsed.positionals[0];
  if (what == "list" && parsed.positionals.size() > 1)
    return fail(ErrorCode::kBadArgument, "baseline list: it lists all, and takes no run");
  std::vector<const char*> idle;
  if (what == "list") idle = {"--only", "--with", "--expires", "--reason", "--author"};
  if (what == "expire") idle = {"--only", "--with", "--expires"};
  for (const char* flag : idle)
    if (!parsed.values(flag).empty())
      return fail(ErrorCode::kBadArgument, fmt::format("baseline {}: {} does nothing beside it", what, flag));
  return {};
}

Result<int> baseline(const Parsed& parsed) {
  MB_ASSIGN(const Settings settings, settings_of(parsed));
  MB_TRY(check_baseline_options(parsed));
  const std::string& what = parsed.positionals[0];
  if (what == "accept") return accept(parsed, settings);
  if (what == "list") {
    MB_ASSIGN(const auto pins, baselines::read_pins(settings.product.baselines_file));
    return list(parsed, pins);
  }
  if (what != "expire")
    return fail(ErrorCode::kBadArgument, fmt::format("baseline '{}': accept, list or expire", printable(what)));
  if (parsed.positionals.size() < 2)
    return fail(ErrorCode::kBadArgument, "baseline expire: which baseline?", "`mbbench baseline list` lists them");
  MB_TRY(baselines::end_pin(settings.product.baselines_file, parsed.positionals[1], author_of(parsed),
                            parsed.value("--reason").value_or("")));
  fmt::print("baseline {} has ended\n", parsed.positionals[1]);
  return 0;
}

}  // namespace

Command gate_command() {
  return {"gate",
          "run a suite and judge it against accepted baselines; suspects run again before they are called slower",
          {{"SUITE", "a name of `mbbench list suites`, or a TOML file", false}},
          {{"--launches", "N", "fresh processes a cell, and again for suspects (default 5)", false, nullptr, "--run"},
           {"--bridge", "PROGRAM",
            "run the old product in a new environment, so that the gate can judge there again; `this`: of a trainer of "
            "your own, with the old product's gate.facts"},
           {.flag = "--run",
            .value = "RUN",
            .doc = "judge this run instead of running a suite; suspects stay unconfirmed",
            .settings_alone = true},
           {"--only", "CELL", "run only cells that match (repeats)", true},
           {"--skip", "CELL", "leave out cells that match (repeats)", true},
           {"--junit-xml", "FILE", "verdicts as JUnit XML"},
           {"--export-markdown", "FILE", "verdicts as a comment, with a marker to find the last one by"},
           {"--export-json", "FILE", "verdicts for machines"},
           {"--export-html", "FILE", "verdicts, cells, histories and timelines as one page that needs no network"},
           {"--fail-on", "VERDICTS",
            "only these, and a broken cell, make the exit status other than 0: slower,unstable,...", true},
           {"--quiet", nullptr, "no progress"},
           kJsonOption,
           kMarkdownOption},
          true,
          gate};
}

Command baseline_command() {
  return {"baseline",
          "accept a run as what the gate holds later ones against; list or end what was accepted",
          {{"WHAT", "accept | list | expire"}, {"RUN", "accept: a run; expire: a baseline's id", false}},
          {{"--reason", "TEXT", "why; needed"},
           {"--author", "NAME", "who; default $USER"},
           {"--only", "CELL", "accept only cells that match (repeats)", true},
           {"--with", "RUN", "accept: further nights of the same product and environment (repeats)", true},
           {"--expires", "DAYS", "the baseline ends after so many days; default never"},
           kJsonOption,
           kMarkdownOption},
          true,
          baseline};
}

}  // namespace mbb::suites
