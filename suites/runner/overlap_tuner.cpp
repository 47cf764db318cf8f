// Two runs of cells: candidates on the tuned shape, then the choice beside none and the defaults on the judged one.
#include "suites/runner/overlap_tuner.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

#include "analysis/exposure/site_times.h"
#include "analysis/gate/gate_report.h"
#include "baselines/store/bundle.h"
#include "profiler/base/text.h"
#include "profiler/trace/trace_file.h"
#include "trainer/run/layout.h"

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

// A method on all sites that can take it: a wgrad has only bulk, and bulk only sites with a wgrad.
KnobMap entries_of(std::string_view method, int sms, int splits) {
  KnobMap entries;
  for (const Group& group : groups())
    for (const std::string site : group.sites) {
      const bool takes = method == "bulk" ? group.sites.size() > 1 : method != kNone && !is_wgrad(site);
      entries[site + ".method"] = takes ? std::string(method) : kNone;
      if (!takes) continue;
      entries[site + ".num_sm"] = std::to_string(sms);
      if (sms < 2) entries[site + ".cga_size"] = "1";
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

// One number of SMs. Of many candidates one looks fast by chance: each is held to its share of the odds.
OverlapChoice choose_at(int sms, const std::vector<OverlapCandidate>& candidates, const OverlapTimes& times) {
  OverlapChoice choice{sms, {}, {}};
  const OverlapCandidate& none = candidates.front();
  for (const Group& group : groups()) {
    const auto& of_none = times.ns.at(none.name);
    const auto alone = of_none.find(group.name);
    if (alone == of_none.end()) continue;
    SiteChoice site{group.name, none.name, mean(alone->second), mean(alone->second), "nothing was timed against it"};
    const OverlapCandidate* taken = &none;
    for (const OverlapCandidate& candidate : candidates) {
      const bool splits = std::any_of(group.sites.begin(), group.sites.end(), [&](const std::string& s) {
        return candidate.entries.at(s + ".method") != kNone;
      });
      if (candidate.sms != sms || !splits) continue;
      const auto timed = times.ns.at(candidate.name).find(group.name);
      if (timed == times.ns.at(candidate.name).end()) continue;
      const double ns = mean(timed->second);
      const analysis::AbDecision against = analysis::ab_look(alone->second, timed->second, candidates.size());
      if (taken == &none) site.why = against.text;
      if (against.verdict != Verdict::kFaster || ns >= site.ns) continue;
      site.candidate = candidate.name, site.ns = ns, site.why = against.text;
      taken = &candidate;
    }
    take_entries(*taken, group, choice.entries);
    choice.sites.push_back(std::move(site));
  }
  return choice;
}

double sum_of(const OverlapChoice& choice, const OverlapTimes& times) {
  double sum = 0;
  for (const SiteChoice& site : choice.sites) sum += site.ns * times.calls.at(site.site);
  return sum;
}

Cell cell_of(const char* name, const Settings& settings, const Config& config) {
  return {.name = name, .config = config, .sources = settings.sources};
}

// Every cell of a run, all of which must be well.
Result<RunOutcome> run_cells(Suite suite, const RunOptions& options) {
  for (const Cell& cell : suite.cells) MB_TRY(trainer::resolve(cell.config));
  MB_ASSIGN(RunOutcome outcome, start_run(suite, options));
  if (outcome.stopped) return fail(ErrorCode::kUnavailable, "stopped");
  for (const baselines::Cell& cell : outcome.run.cells)
    if (cell.status != baselines::CellStatus::kOk)
      return fail(ErrorCode::kUnavailable, fmt::format("cell {}: {}", cell.name, cell.reason),
                  "nothing is chosen from a part of the candidates");
  return outcome;
}

Result<OverlapTimes> times_of(const RunOutcome& outcome) {
  OverlapTimes times;
  MB_ASSIGN(const auto bundle, baselines::BundleReader::open(outcome.bundle));
  for (const baselines::Cell& cell : outcome.run.cells)
    for (const baselines::Launch& launch : cell.launches) {
      if (launch.trace_files.empty())
        return fail(ErrorCode::kNotFound, fmt::format("cell {} has no trace", cell.name),
                    "profiling.profile_step_start and profile_step_end must leave steps between them");
      MB_ASSIGN(const profiler::Trace trace,
                profiler::read_trace(bundle.launch_file(cell.name, launch.index, launch.trace_files.front())));
      for (const analysis::SiteTime& site : analysis::site_times(trace)) {
        times.ns[cell.name][site.site].push_back(site.ns);
        times.calls[site.site] = static_cast<double>(site.calls);
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

}  // namespace

std::vector<OverlapCandidate> overlap_candidates(const Config& config, const std::vector<int>& sms) {
  std::vector<OverlapCandidate> all{{kNone, 0, entries_of(kNone, 0, 0)}};
  for (const int number : sms)
    for (const auto& [method, splits] :
         {std::pair{"bulk", 0}, {"pipeline", 2}, {"pipeline", 4}, {"ring_exchange", 0}}) {
      std::string name = fmt::format("{}{}-sm{}", method, splits > 0 ? std::to_string(splits) : "", number);
      std::replace(name.begin(), name.end(), '_', '-');
      OverlapCandidate candidate{std::move(name), number, entries_of(method, number, splits)};
      if (trainer::resolve(overlapped(config, candidate.entries))) all.push_back(std::move(candidate));
    }
  return all;
}

OverlapChoice choose_overlap(const std::vector<OverlapCandidate>& candidates, const OverlapTimes& times) {
  OverlapChoice best = choose_at(0, candidates, times);
  for (const OverlapCandidate& candidate : candidates) {
    if (candidate.sms == 0) continue;
    OverlapChoice choice = choose_at(candidate.sms, candidates, times);
    if (sum_of(choice, times) < sum_of(best, times)) best = std::move(choice);
  }
  return best;
}

Result<OverlapTuning> tune_overlap(const Settings& settings, const RunOptions& options,
                                   const OverlapTuneOptions& tuning) {
  const auto refuse = [](std::string what, std::string hint) {
    return fail(ErrorCode::kBadArgument, std::move(what), std::move(hint));
  };
  const Config& tuned = settings.config;
  MB_ASSIGN(const trainer::Layout layout, trainer::resolve(tuned));
  if (layout.tp < 2 || !layout.sequence_parallel)
    return refuse("there is no tensor-parallel collective to hide",
                  "give parallel.tensor_model_parallel_size of 2 or more, with sequence_parallel");
  if (tuning.judged.train.seq_length == tuned.train.seq_length &&
      tuning.judged.train.micro_batch_size == tuned.train.micro_batch_size)
    return refuse("a choice must be judged on another shape than it is tuned on",
                  "give --judge another train.seq_length or train.micro_batch_size");
  const auto candidates = overlap_candidates(tuned, tuning.sms);
  if (candidates.size() < 2) return refuse("no method of overlap fits this configuration", "see `mbbench explain`");

  Suite first{.name = "tune-overlap", .purpose = "methods of tensor-parallel overlap, all sites at once"};
  for (const OverlapCandidate& candidate : candidates)
    first.cells.push_back(cell_of(candidate.name.c_str(), settings, overlapped(tuned, candidate.entries)));
  MB_ASSIGN(const RunOutcome timed, run_cells(std::move(first), options));
  MB_ASSIGN(const OverlapTimes times, times_of(timed));
  if (times.ns.empty() || times.ns.at(kNone).empty())
    return fail(ErrorCode::kNotFound, "no GEMM site shows in the traces",
                "dense layers have them: qkv, proj, fc1, fc2");

  OverlapTuning done;
  done.choice = choose_overlap(candidates, times);
  Suite second{.name = "judge-overlap", .purpose = "the choice, on a shape it was not tuned on"};
  Config off = tuning.judged;
  off.tp_overlap.tp_comm_overlap = false;
  second.cells.push_back(cell_of(kNone, settings, off));
  second.cells.push_back(cell_of("defaults", settings, overlapped(tuning.judged, {})));
  second.cells.push_back(cell_of("choice", settings, overlapped(tuning.judged, done.choice.entries)));
  MB_ASSIGN(const RunOutcome judged, run_cells(std::move(second), options));
  const auto choice = steps_of(judged, "choice");
  done.over_none = analysis::ab_look(steps_of(judged, kNone), choice, 1);
  done.over_defaults = analysis::ab_look(steps_of(judged, "defaults"), choice, 1);
  done.worth_it = done.over_none.verdict == Verdict::kFaster && done.over_defaults.verdict != Verdict::kSlower;
  return done;
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
  table.footer.push_back("judged on another shape, beside no overlap: " + tuning.over_none.text);
  table.footer.push_back("judged on another shape, beside the defaults: " + tuning.over_defaults.text);
  return table;
}

std::string overlap_toml(const OverlapTuning& tuning) {
  std::string text =
      fmt::format("# beside no overlap: {}\n# beside the defaults: {}\n[overlap]\ntp_comm_overlap = true\n",
                  tuning.over_none.text, tuning.over_defaults.text);
  text += "[overlap.tp_comm_overlap_cfg]\n";
  for (const auto& [entry, value] : tuning.choice.entries) {
    const bool number = std::all_of(value.begin(), value.end(), [](char c) { return c >= '0' && c <= '9'; });
    text += number ? fmt::format("{} = {}\n", entry, value) : fmt::format("{} = \"{}\"\n", entry, value);
  }
  return text;
}

}  // namespace mbb::suites
