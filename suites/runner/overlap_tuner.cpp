// Runs of cells: candidates on the tuned shape, then the choice beside none and the defaults on each judged one.
#include "suites/runner/overlap_tuner.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <utility>

#include "analysis/exposure/site_times.h"
#include "analysis/gate/gate_report.h"
#include "analysis/stats/stats.h"
#include "baselines/store/bundle.h"
#include "profiler/base/clock.h"
#include "profiler/base/log.h"
#include "profiler/base/text.h"
#include "profiler/trace/trace_file.h"
#include "trainer/run/layout.h"
#include "trainer/run/profile_window.h"

namespace mbb::suites {
namespace {

using baselines::Verdict;
using trainer::Config;

constexpr const char* kNone = "none";

// What is timed as one, and the sites of tp_comm_overlap_cfg in it.
struct Group {
  const char* name;
  std::vector<const char*> sites;
};
const std::array<Group, 8>& groups() {
  static const std::array<Group, 8> all{{{"qkv_fprop", {"qkv_fprop"}},
                                         {"qkv_bprop", {"qkv_dgrad", "qkv_wgrad"}},
                                         {"proj_fprop", {"proj_fprop"}},
                                         {"proj_bprop", {"proj_dgrad"}},
                                         {"fc1_fprop", {"fc1_fprop"}},
                                         {"fc1_bprop", {"fc1_dgrad", "fc1_wgrad"}},
                                         {"fc2_fprop", {"fc2_fprop"}},
                                         {"fc2_bprop", {"fc2_dgrad"}}}};
  return all;
}

bool is_wgrad(std::string_view site) {
  return site.ends_with("_wgrad");
}

// A method on all sites that can take it: a wgrad has only bulk, and bulk only sites with a wgrad. Without `sms` a ring
// goes by copy engines.
KnobMap entries_of(std::string_view method, int sms, int splits) {
  KnobMap entries;
  for (const Group& group : groups())
    for (const std::string site : group.sites) {
      const bool takes = method == "bulk" ? group.sites.size() > 1 : method != kNone && !is_wgrad(site);
      entries[site + ".method"] = takes ? std::string(method) : kNone;
      if (!takes) continue;
      if (sms > 0) entries[site + ".num_sm"] = std::to_string(sms);
      if (sms == 1) entries[site + ".cga_size"] = "1";
      if (splits > 0) entries[site + ".num_splits"] = std::to_string(splits);
    }
  return entries;
}

Config overlapped(Config config, const KnobMap& entries) {
  config.tp_overlap.tp_comm_overlap = true;
  config.tp_overlap.tp_comm_overlap_cfg = entries;
  return config;
}

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// The entries of `candidate` for a group's sites.
void take_entries(const OverlapCandidate& candidate, const Group& group, KnobMap& to) {
  for (const std::string site : group.sites)
    for (const auto& [entry, value] : candidate.entries)
      if (entry.starts_with(site + ".")) to[entry] = value;
}

std::vector<std::vector<double>> launches_of(const std::string& group, const OverlapTimes& times) {
  std::vector<std::vector<double>> all;
  for (const auto& [candidate, of_groups] : times)
    if (const auto timed = of_groups.find(group); timed != of_groups.end()) all.push_back(timed->second);
  return all;
}

Cell cell_of(const char* name, const Settings& settings, const Config& config) {
  return {.name = name, .config = config, .sources = settings.sources};
}

// A run of all cells; what became of each is in the outcome.
Result<RunOutcome> run_cells(const Suite& suite, const RunOptions& options) {
  MB_ASSIGN(RunOutcome outcome, start_run(suite, options));
  if (outcome.stopped) return fail(ErrorCode::kCancelled, "stopped");
  return outcome;
}

void tune_gemms(const Suite& suite, const OverlapTuneOptions& tuning) {
  if (!tuning.tune_gemms) return;
  std::vector<Config> configs;
  for (const Cell& cell : suite.cells) configs.push_back(cell.config);
  tuning.tune_gemms(configs);
}

std::string trouble_of(const baselines::Cell& cell) {
  return cell.reason.empty() ? std::string(baselines::name(cell.status)) : cell.reason;
}

Status must_be_ok(const RunOutcome& outcome, std::string_view name) {
  for (const baselines::Cell& cell : outcome.run.cells)
    if (cell.name == name && cell.status != baselines::CellStatus::kOk)
      return fail(ErrorCode::kUnavailable, fmt::format("cell {}: {}", cell.name, trouble_of(cell)),
                  "nothing can be held against it");
  return {};
}

// Says how long it will take, and ends the rounds at the limit.
class Rounds {
 public:
  Rounds(const OverlapTuneOptions& tuning, const RunOptions& options, size_t candidates)
      : tuning_(tuning), options_(options), candidates_(candidates) {
    if (!options.quiet)
      say(fmt::format("overlap: {} candidates x {} launches, then {} shapes x 3 x {} launches to judge the choice\n",
                      candidates, options.launches, tuning.shapes.size(), options.launches));
  }

  bool begins(int done) {
    const double elapsed_s = static_cast<double>(watch_.elapsed_ns()) * 1e-9;
    if (done == 1 && !options_.quiet) {
      const double launch_s = elapsed_s / static_cast<double>(candidates_);
      say(fmt::format("overlap: {:.0f} s a launch: about {:.0f} s for the other rounds, {:.0f} s to judge\n", launch_s,
                      elapsed_s * (options_.launches - 1),
                      launch_s * 3.0 * options_.launches * static_cast<double>(tuning_.shapes.size())));
    }
    if (options_.next_round && !options_.next_round(done)) return false;
    return tuning_.seconds == 0 || elapsed_s < tuning_.seconds;
  }

 private:
  const OverlapTuneOptions& tuning_;
  const RunOptions& options_;
  size_t candidates_;
  Stopwatch watch_;
};

Result<OverlapTimes> times_of(const RunOutcome& outcome) {
  OverlapTimes times;
  MB_ASSIGN(const auto bundle, baselines::BundleReader::open(outcome.bundle));
  for (const baselines::Cell& cell : outcome.run.cells) {
    if (cell.status != baselines::CellStatus::kOk) continue;
    for (const baselines::Launch& launch : cell.launches) {
      if (launch.trace_files.empty())
        return fail(ErrorCode::kNotFound, fmt::format("cell {} has no trace", cell.name),
                    "profiling.profile_step_start and profile_step_end must leave steps between them");
      MB_ASSIGN(const profiler::Trace trace,
                profiler::read_trace(bundle.launch_file(cell.name, launch.index, launch.trace_files.front())));
      for (const analysis::SiteTime& site : analysis::site_times(trace)) times[cell.name][site.site].push_back(site.ns);
    }
  }
  return times;
}

std::vector<double> steps_of(const RunOutcome& outcome, std::string_view name) {
  for (const baselines::Cell& cell : outcome.run.cells) {
    if (cell.name == name) return analysis::launch_values(cell, "step_time");
  }
  return {};
}

// A launch whose steps are too few to judge is worth nothing, and each candidate would end so.
Status check_steps(const Config& config, int ranks) {
  MB_ASSIGN(const trainer::ProfileWindow window, trainer::profile_window(config, ranks));
  const int64_t profiled = window.end - window.first, timed = config.train.train_iters - profiled;
  constexpr auto kFewest = static_cast<int64_t>(analysis::kFewestSteps);
  if (window.empty())
    return fail(ErrorCode::kBadArgument, "no step is profiled, and sites are timed in profiled steps",
                "make profiling.profile_step_end greater than profiling.profile_step_start");
  if (timed >= kFewest) return {};
  return fail(ErrorCode::kBadArgument,
              fmt::format("{} steps of which {} are profiled leave {} to time, and a launch needs {}",
                          config.train.train_iters, profiled, timed, kFewest),
              fmt::format("raise train.train_iters to {} or more", profiled + kFewest));
}

Status check(const Config& tuned, const OverlapTuneOptions& tuning) {
  MB_ASSIGN(const trainer::Layout layout, trainer::resolve(tuned));
  if (layout.tp < 2 || !layout.sequence_parallel)
    return fail(ErrorCode::kBadArgument, "there is no tensor-parallel collective to hide",
                "give parallel.tensor_model_parallel_size of 2 or more, with sequence_parallel");
  MB_TRY(check_steps(tuned, layout.mesh.world_size()));
  for (const OverlapShape& shape : tuning.shapes)
    if (shape.config.train.seq_length == tuned.train.seq_length &&
        shape.config.train.micro_batch_size == tuned.train.micro_batch_size)
      return fail(ErrorCode::kBadArgument, "a choice must be judged on another shape than it is tuned on",
                  "give --judge another train.seq_length or train.micro_batch_size");
  if (tuning.gpus_here >= 0 && tuning.gpus_here < layout.mesh.world_size())
    return fail(ErrorCode::kUnavailable,
                fmt::format("{} GPUs are needed to time overlap on, and {} are here", layout.mesh.world_size(),
                            tuning.gpus_here),
                "`mbbench doctor` says what is missing");
  return {};
}

// The choice must be surely faster on every shape, so that many shapes are no odds in its favour; but one of them makes
// it slower than the defaults by chance.
Result<OverlapJudgement> judge_on(const OverlapShape& shape, const Settings& settings, const RunOptions& options,
                                  const OverlapChoice& choice, const OverlapTuneOptions& tuning) {
  Suite suite{.name = "judge-overlap", .purpose = "the choice, on a shape it was not tuned on: " + shape.name};
  Config off = shape.config;
  off.tp_overlap.tp_comm_overlap = false;
  const Config chosen = overlapped(shape.config, choice.entries), defaults = overlapped(shape.config, {});
  for (const Config* config : {&std::as_const(off), &chosen}) MB_TRY(trainer::resolve(*config));
  suite.cells.push_back(cell_of(kNone, settings, off));
  suite.cells.push_back(cell_of("choice", settings, chosen));
  if (trainer::resolve(defaults)) suite.cells.push_back(cell_of("defaults", settings, defaults));
  tune_gemms(suite, tuning);
  MB_ASSIGN(const RunOutcome judged, run_cells(suite, options));
  for (const char* name : {kNone, "choice"}) MB_TRY(must_be_ok(judged, name));
  OverlapJudgement to{shape.name, {}, {}};
  const auto none = steps_of(judged, kNone), of_choice = steps_of(judged, "choice"),
             of_defaults = steps_of(judged, "defaults");
  const analysis::AbOptions alike{.shared = analysis::spread_within({none, of_choice, of_defaults})};
  to.over_none = analysis::ab_look(none, of_choice, 1, alike);
  if (!of_defaults.empty())
    to.over_defaults = analysis::ab_look(of_defaults, of_choice, tuning.shapes.size(), alike);
  else
    to.over_defaults.text = "the defaults do not run";
  return to;
}

std::vector<std::string> judged_lines(const OverlapTuning& tuning) {
  std::vector<std::string> lines;
  for (const OverlapJudgement& judged : tuning.judgements) {
    lines.push_back(fmt::format("on {}, beside no overlap: {}", judged.shape, judged.over_none.text));
    lines.push_back(fmt::format("on {}, beside the defaults: {}", judged.shape, judged.over_defaults.text));
  }
  if (!tuning.unjudged.empty()) lines.push_back(tuning.unjudged);
  return lines;
}

}  // namespace

std::vector<OverlapCandidate> overlap_candidates(const Config& config, const std::vector<int>& sms) {
  std::vector<OverlapCandidate> all{{kNone, entries_of(kNone, 0, 0)}};
  OverlapCandidate copied{"ring-exchange-ce", entries_of("ring_exchange", 0, 0)};
  if (trainer::resolve(overlapped(config, copied.entries))) all.push_back(std::move(copied));
  for (const int number : sms)
    for (const auto& [method, splits] :
         {std::pair{"bulk", 0}, {"pipeline", 2}, {"pipeline", 4}, {"ring_exchange", 0}}) {
      std::string name = fmt::format("{}{}-sm{}", method, splits > 0 ? std::to_string(splits) : "", number);
      std::replace(name.begin(), name.end(), '_', '-');
      OverlapCandidate candidate{std::move(name), entries_of(method, number, splits)};
      if (trainer::resolve(overlapped(config, candidate.entries))) all.push_back(std::move(candidate));
    }
  return all;
}

// Of many candidates one looks fast by chance: each is held to its share of the odds. How far launches of a site lie
// apart all candidates say together, or few launches of many would show nothing.
OverlapChoice choose_overlap(const std::vector<OverlapCandidate>& candidates, const OverlapTimes& times) {
  OverlapChoice choice;
  const OverlapCandidate& none = candidates.front();
  const auto& of_none = times.at(none.name);
  for (const Group& group : groups()) {
    const auto alone = of_none.find(group.name);
    if (alone == of_none.end()) continue;
    SiteChoice site{group.name, none.name, mean(alone->second), mean(alone->second), "nothing was timed against it"};
    const OverlapCandidate* taken = &none;
    const analysis::AbOptions alike{.shared = analysis::spread_within(launches_of(group.name, times))};
    double fastest = std::numeric_limits<double>::infinity();  // of what is not taken, for the reason
    for (const OverlapCandidate& candidate : candidates) {
      const bool overlaps = std::any_of(group.sites.begin(), group.sites.end(), [&](const std::string& s) {
        return candidate.entries.at(s + ".method") != kNone;
      });
      const auto timed = times.at(candidate.name).find(group.name);
      if (!overlaps || timed == times.at(candidate.name).end()) continue;
      const double ns = mean(timed->second);
      const analysis::AbDecision against = analysis::ab_look(alone->second, timed->second, candidates.size(), alike);
      if (taken == &none && ns < fastest) fastest = ns, site.why = candidate.name + ": " + against.text;
      if (against.verdict != Verdict::kFaster || ns >= site.ns) continue;
      site.candidate = candidate.name, site.ns = ns, site.why = against.text;
      taken = &candidate;
    }
    take_entries(*taken, group, choice.entries);
    choice.sites.push_back(std::move(site));
  }
  return choice;
}

bool OverlapChoice::overlaps() const {
  return std::any_of(sites.begin(), sites.end(), [](const SiteChoice& site) { return site.candidate != kNone; });
}

Result<std::vector<OverlapShape>> other_shapes(const Config& tuned) {
  Config half = tuned;
  half.train.seq_length /= 2;
  if (const auto fits = trainer::resolve(half); !fits)
    return fail(ErrorCode::kBadArgument, "half the sequence to judge the choice on: " + fits.error().what,
                "name another shape: --judge micro_batch_size=2");
  std::vector<OverlapShape> shapes{{fmt::format("seq_length={}", half.train.seq_length), half}};
  Config twice = half;
  twice.train.micro_batch_size *= 2;
  if (trainer::resolve(twice))
    shapes.push_back({fmt::format("{},micro_batch_size={}", shapes[0].name, twice.train.micro_batch_size), twice});
  return shapes;
}

std::vector<LeftOut> leave_out(const baselines::Run& timed, std::vector<OverlapCandidate>& candidates) {
  std::vector<LeftOut> out;
  for (const baselines::Cell& cell : timed.cells) {
    if (cell.status == baselines::CellStatus::kOk) continue;
    out.push_back({cell.name, trouble_of(cell)});
    std::erase_if(candidates, [&](const OverlapCandidate& candidate) { return candidate.name == cell.name; });
  }
  return out;
}

bool OverlapTuning::is_worth_it() const {
  return unjudged.empty() && !judgements.empty() &&
         std::all_of(judgements.begin(), judgements.end(), [](const OverlapJudgement& judged) {
           return judged.over_none.verdict == Verdict::kFaster && judged.over_defaults.verdict != Verdict::kSlower;
         });
}

Result<OverlapTuning> choose_overlap(const Settings& settings, const RunOptions& options,
                                     const OverlapTuneOptions& tuning) {
  MB_TRY(check(settings.config, tuning));
  auto candidates = overlap_candidates(settings.config, tuning.sms);
  if (candidates.size() < 2)
    return fail(ErrorCode::kBadArgument, "no method of overlap fits this configuration", "see `mbbench explain`");
  Suite suite{.name = "tune-overlap", .purpose = "methods of tensor-parallel overlap, all sites at once"};
  for (const OverlapCandidate& candidate : candidates)
    suite.cells.push_back(cell_of(candidate.name.c_str(), settings, overlapped(settings.config, candidate.entries)));
  tune_gemms(suite, tuning);
  Rounds rounds(tuning, options, candidates.size());
  RunOptions in_rounds = options;
  in_rounds.interleave = true;
  in_rounds.next_round = [&](int done) { return rounds.begins(done); };
  MB_ASSIGN(const RunOutcome timed, run_cells(suite, in_rounds));
  MB_TRY(must_be_ok(timed, kNone));

  OverlapTuning done;
  done.planned_rounds = options.launches;
  for (const baselines::Cell& cell : timed.run.cells)
    if (cell.name == kNone) done.rounds = static_cast<int>(cell.launches.size());
  done.left_out = leave_out(timed.run, candidates);
  if (candidates.size() < 2)
    return fail(ErrorCode::kUnavailable, fmt::format("no candidate ran to a clean end; {}: {}",
                                                     done.left_out[0].candidate, done.left_out[0].why));
  if (done.rounds < 2)
    return fail(ErrorCode::kTimeout,
                fmt::format("{} of {} rounds of launches began within {:.0f} s, and one has no noise to compare with",
                            done.rounds, done.planned_rounds, tuning.seconds),
                "give --seconds more, or --sms fewer");
  MB_ASSIGN(const OverlapTimes times, times_of(timed));
  if (!times.contains(kNone))
    return fail(ErrorCode::kNotFound, "no GEMM site shows in the traces",
                "dense layers have them: qkv, proj, fc1, fc2");
  done.choice = choose_overlap(candidates, times);
  done.unjudged = done.choice.overlaps() ? "not judged yet" : "no site overlaps";
  return done;
}

Status judge_overlap(const Settings& settings, const RunOptions& options, const OverlapTuneOptions& tuning,
                     OverlapTuning& done) {
  done.unjudged = "not judged yet";
  RunOptions in_turns = options;
  in_turns.interleave = true;
  for (const OverlapShape& shape : tuning.shapes) {
    const auto judged = judge_on(shape, settings, in_turns, done.choice, tuning);
    if (!judged) {
      done.unjudged = fmt::format("not judged on {}: {}", shape.name, judged.error().what);
      return tl::unexpected(judged.error());
    }
    done.judgements.push_back(*judged);
  }
  done.unjudged.clear();
  return {};
}

analysis::Table overlap_table(const OverlapTuning& tuning) {
  using analysis::Align;
  analysis::Table table{"overlap",
                        "tensor-parallel overlap, by GEMM site",
                        {{"site", "site"},
                         {"choice", "choice"},
                         {"none", "whole collectives", Align::kRight, "ns"},
                         {"chosen", "chosen", Align::kRight, "ns"},
                         {"why", "beside whole collectives"}},
                        {},
                        {}};
  for (const SiteChoice& site : tuning.choice.sites)
    table.rows.push_back({{{site.site},
                           {site.candidate},
                           {format_ns(site.none_ns), site.none_ns},
                           {format_ns(site.ns), site.ns},
                           {site.why}}});
  table.footer.push_back(fmt::format("from {} of {} rounds of launches", tuning.rounds, tuning.planned_rounds));
  for (const LeftOut& out : tuning.left_out)
    table.footer.push_back(fmt::format("left out: {}, {}", out.candidate, out.why));
  for (const std::string& line : judged_lines(tuning)) table.footer.push_back(line);
  return table;
}

std::string overlap_toml(const OverlapTuning& tuning) {
  std::string text = fmt::format("# from {} of {} rounds of launches\n", tuning.rounds, tuning.planned_rounds);
  for (const std::string& line : judged_lines(tuning)) text += "# " + line + "\n";
  for (const SiteChoice& site : tuning.choice.sites)
    text += fmt::format("# {}: {}, {} for {}: {}\n", site.site, site.candidate, format_ns(site.ns),
                        format_ns(site.none_ns), site.why);
  text += "[overlap]\ntp_comm_overlap = true\n[overlap.tp_comm_overlap_cfg]\n";
  for (const auto& [entry, value] : tuning.choice.entries) {
    const bool number = std::all_of(value.begin(), value.end(), [](char c) { return c >= '0' && c <= '9'; });
    text += number ? fmt::format("{} = {}\n", entry, value) : fmt::format("{} = \"{}\"\n", entry, value);
  }
  return text;
}

}  // namespace mbb::suites
