// Pairs cells, lists what differs, and accounts for the change of the step op by op.
#include "analysis/report/compare.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include <fmt/core.h>

#include "analysis/exposure/op_rows.h"
#include "analysis/metrics/cell_metrics.h"
#include "analysis/metrics/metrics.h"
#include "analysis/report/op_groups.h"
#include "profiler/base/text.h"

namespace mbb::analysis {

namespace {

using baselines::Cell;
using baselines::CellStatus;
using baselines::Launch;
using baselines::Run;

constexpr const char* kUnset = "-";
constexpr const char* kNotAttributed = "not attributed";

bool has_numbers(const Cell& cell) {
  return cell.status == CellStatus::kOk || cell.status == CellStatus::kUnstable;
}

std::string why_incomparable(const Cell& before, const Cell& after) {
  for (const Cell* cell : {&before, &after})
    if (!has_numbers(*cell)) return fmt::format("{} is {}: {}", cell->name, name(cell->status), cell->reason);
  if (class_label(before) != class_label(after))
    return fmt::format("class {} against {}: result classes never mix", class_label(before), class_label(after));
  return {};  // other work is shown, not refused: comparing it is often the point
}

// Facts of one kind as key -> value.
using Facts = std::map<std::string, std::string>;

void add_changes(const std::string& kind, const std::string& cell, const Facts& before, const Facts& after,
                 std::vector<ChangedFact>& out) {
  Facts keys = before;
  keys.insert(after.begin(), after.end());
  for (const auto& [key, ignored] : keys) {
    const auto old_value = before.find(key);
    const auto new_value = after.find(key);
    const std::string from = old_value != before.end() ? old_value->second : kUnset;
    const std::string to = new_value != after.end() ? new_value->second : kUnset;
    if (from != to) out.push_back({kind + " " + key, cell, from, to});
  }
}

Facts knobs_of(const Cell& cell) {
  Facts facts;
  for (const auto& knob : cell.knobs) facts[knob.key] = knob.value;
  return facts;
}

Facts host_of(const Run& run) {
  Facts facts;
  for (const auto& fact : run.fingerprint.facts) facts[fact.key] = fact.value;
  return facts;
}

Facts environment_of(const Run& run) {
  Facts facts;
  for (const auto& one : run.environment) facts[one.name] = one.hashed ? "set, hash " + one.value : one.value;
  return facts;
}

Facts work_of(const Cell& cell) {
  return {{"model", cell.model},
          {"tokens per step", fmt::format("{}", cell.work.tokens_per_step)},
          {"FLOPs per token", format_exact(cell.work.flops_per_token_causal)},
          {"GPUs", fmt::format("{}", cell.gpus)},
          {"program", cell.program_hash},
          {"data", cell.data_hash.empty() ? kUnset : cell.data_hash}};
}

using OpSums = std::map<std::string, double>;  // grouped path -> ns per step

// Of a launch that traced steps, by rank class.
std::map<std::string, OpSums> ops_per_step(const Launch& launch) {
  std::map<std::string, OpSums> sums;
  const int64_t steps = op_steps(launch);
  if (steps <= 0) return sums;
  for (const auto& op : launch.ops)
    sums[op.rank_class][grouped_path(op.path)] += static_cast<double>(op.total_ns) / static_cast<double>(steps);
  return sums;
}

double busy_sum(const OpSums& ops) {
  double sum = 0;
  for (const auto& [path, ns] : ops) sum += path == kIdlePath ? 0.0 : ns;
  return sum;
}

// The step of one launch that its op rows account for; NaN where it has none. Ranks that share cores are accounted for
// by their replayed steps, which are the traced ones; a launch of which every step was traced by those.
double accounted_step_ns(const Cell& cell, const Launch& launch, StepClock clock) {
  if (clock == StepClock::kModelled) {
    std::vector<double> replayed;
    for (const auto& step : launch.steps)
      if (step.modelled_ns > 0) replayed.push_back(static_cast<double>(step.modelled_ns));
    return mean(replayed);
  }
  Cell alone = cell;
  alone.launches = {launch};
  const std::vector<double> medians = step_time(alone, clock).launch_medians;
  if (!medians.empty()) return medians.front();
  std::vector<double> traced;
  for (const auto& step : launch.steps)
    if ((step.flags & baselines::kStepProfiled) != 0 && step.wall_ns > 0)
      traced.push_back(static_cast<double>(step.wall_ns));
  return mean(traced);
}

bool has_modelled_steps(const Cell& cell) {
  return std::any_of(cell.launches.begin(), cell.launches.end(), [](const Launch& launch) {
    return std::any_of(launch.steps.begin(), launch.steps.end(), [](const auto& step) { return step.modelled_ns > 0; });
  });
}

// What a cell's launches say of one rank class: a step and its ops a launch.
struct Account {
  std::vector<double> steps;
  std::vector<OpSums> ops;
};

Account account_of(const Cell& cell, const std::string& rank_class, StepClock clock) {
  Account account;
  for (const Launch& launch : cell.launches) {
    auto sums = ops_per_step(launch);
    const auto found = sums.find(rank_class);
    const double step = found != sums.end() ? accounted_step_ns(cell, launch, clock) : baselines::kNotMeasured;
    if (!std::isfinite(step)) continue;
    account.steps.push_back(step);
    account.ops.push_back(std::move(found->second));
  }
  return account;
}

// The rank class with the longest ops that both cells traced; empty when there is none.
std::string common_class(const Cell& before, const Cell& after) {
  std::map<std::string, double> old_busy, new_busy;
  for (const auto& [cell, busy] : {std::pair(&before, &old_busy), std::pair(&after, &new_busy)})
    for (const Launch& launch : cell->launches)
      for (const auto& [of, ops] : ops_per_step(launch)) (*busy)[of] = std::max((*busy)[of], busy_sum(ops));
  std::string longest;
  double most = -1;
  for (const auto& [of, busy] : old_busy)
    if (new_busy.contains(of) && busy > most) longest = of, most = busy;
  return longest;
}

double at(const OpSums& ops, const std::string& path) {
  const auto found = ops.find(path);
  return found != ops.end() ? found->second : 0.0;
}

// One term of the account: its values by launch on either side.
OpChange change_of(const std::string& path, const std::vector<double>& before, const std::vector<double>& after) {
  OpChange change{.path = path, .before_ns = mean(before), .after_ns = mean(after)};
  const Estimate difference_ns = difference(before, after).absolute;
  change.low_ns = difference_ns.low;
  change.high_ns = difference_ns.high;
  return change;
}

std::vector<double> launch_medians(const Cell& cell) {
  Cell copy = cell;  // marks of warm-up are the runner's, not ours to move
  StepTime time = step_time(copy);
  if (time.launch_medians.empty())
    if (const auto* metric = find(cell, "step_time"); metric != nullptr) return {metric->value};
  return time.launch_medians;
}

std::string signed_ns(double ns) {
  return (ns > 0 ? "+" : "") + format_ns(ns);
}

std::string signed_percent(double fraction) {
  if (!std::isfinite(fraction)) return "-";
  return fmt::format("{:+.1f} %", 100.0 * fraction);
}

bool is_projected(const CellPair& pair) {
  const auto projected = [](const Cell* cell) {
    return cell != nullptr && cell->result_class == baselines::ResultClass::kProjected;
  };
  return projected(pair.before) || projected(pair.after);
}

// `projected`: nothing was launched. Both sides rest on one cost table, so that their intervals do not add up to one of
// the difference.
std::string interval_text(const Estimate& estimate, bool projected) {
  if (projected) return "projected: no launches";
  if (!estimate.has_interval()) return "one launch: not evidence";
  return fmt::format("{}..{}", signed_percent(estimate.low), signed_percent(estimate.high));
}

Tone tone_of(const Estimate& relative) {
  if (!relative.has_interval()) return Tone::kQuiet;
  return relative.low > 0.0 ? Tone::kBad : relative.high < 0.0 ? Tone::kGood : Tone::kPlain;
}

Value arrow(const Cell& before, const Cell& after, const char* metric) {
  const auto* from = find(before, metric);
  const auto* to = find(after, metric);
  const MetricInfo* info = find_metric(metric);
  if (info == nullptr || (from == nullptr && to == nullptr)) return {.text = kUnset};
  const auto shown = [&](const baselines::Metric* one) {
    return one != nullptr ? format_value(*info, one->value) : std::string(kUnset);
  };
  return {.text = shown(from) + " -> " + shown(to)};
}

// Why step times alone say nothing: what the two cells compute a step is not the same. Empty when it is.
std::string unequal_work(const Cell& before, const Cell& after) {
  std::vector<std::string> parts;
  const auto add = [&](const char* what, const std::string& from, const std::string& to) {
    if (from != to) parts.push_back(fmt::format("{} {} -> {}", what, from, to));
  };
  add("model", before.model, after.model);
  add("tokens a step", std::to_string(before.work.tokens_per_step), std::to_string(after.work.tokens_per_step));
  if (std::abs(before.work.flops_per_token_causal - after.work.flops_per_token_causal) >
      1e-9 * std::abs(before.work.flops_per_token_causal))
    add("FLOPs a token", format_count(before.work.flops_per_token_causal, "F"),
        format_count(after.work.flops_per_token_causal, "F"));
  add("GPUs", std::to_string(before.gpus), std::to_string(after.gpus));
  return join(parts, ", ");
}

// Whether the two trained on different data, as far as both say what they read.
bool data_differs(const Cell& before, const Cell& after) {
  return !before.data_hash.empty() && !after.data_hash.empty() && before.data_hash != after.data_hash;
}

// Tokens a second and GPU, by launch; empty where the tokens of a step are not known.
std::vector<double> launch_rates(const Cell& cell) {
  std::vector<double> rates;
  if (cell.work.tokens_per_step <= 0) return rates;
  for (const double ns : launch_medians(cell))
    if (ns > 0) rates.push_back(static_cast<double>(cell.work.tokens_per_step) * 1e9 / ns / std::max(1, cell.gpus));
  return rates;
}

// Rate old, new, relative change, interval: positive is faster.
void add_rates(Row& row, const CellPair& pair) {
  const Cell &before = *pair.before, &after = *pair.after;
  const std::vector<double> from = launch_rates(before), to = launch_rates(after);
  const MetricInfo* info = find_metric("tokens_per_second_per_gpu");
  if (from.empty() || to.empty()) {
    for (int i = 0; i < 4; ++i) row.values.push_back({.text = kUnset});
    return;
  }
  const Estimate relative = difference(from, to).relative;
  const Tone tone = !relative.has_interval() ? Tone::kQuiet
                    : relative.low > 0.0     ? Tone::kGood
                    : relative.high < 0.0    ? Tone::kBad
                                             : Tone::kPlain;
  row.values.push_back({.text = format_value(*info, mean(from)), .number = mean(from)});
  row.values.push_back({.text = format_value(*info, mean(to)), .number = mean(to)});
  row.values.push_back({.text = signed_percent(relative.value), .number = 100.0 * relative.value, .tone = tone});
  row.values.push_back({.text = interval_text(relative, is_projected(pair))});
}

Row compare_row(const CellPair& pair, bool rates) {
  Row row;
  if (pair.before == nullptr || pair.after == nullptr) {
    const bool gone = pair.after == nullptr;
    row.values = {{.text = gone ? pair.before->name : pair.after->name}};
    row.note = gone ? "only in the old run" : "only in the new run";
    return row;
  }
  const Cell& before = *pair.before;
  const Cell& after = *pair.after;
  row.values = {{.text = before.name == after.name ? before.name : before.name + " -> " + after.name}};
  if (!pair.incomparable.empty()) {
    row.note = "incomparable: " + pair.incomparable;
    return row;
  }
  if (rates) add_rates(row, pair);
  const Difference change = step_difference(before, after);
  const double from = mean(launch_medians(before));
  const double to = mean(launch_medians(after));
  row.values.push_back({.text = format_ns(from), .number = from});
  row.values.push_back({.text = format_ns(to), .number = to});
  row.values.push_back({.text = signed_ns(change.absolute.value), .number = change.absolute.value});
  row.values.push_back({.text = signed_percent(change.relative.value),
                        .number = 100.0 * change.relative.value,
                        .tone = tone_of(change.relative)});
  const bool timed = std::isfinite(change.relative.value);
  row.values.push_back({.text = timed ? interval_text(change.relative, is_projected(pair)) : "no step was timed"});
  row.values.push_back(arrow(before, after, "exposed_comm"));
  row.values.push_back(arrow(before, after, "bubble"));
  row.values.push_back(arrow(before, after, "peak_memory"));
  return row;
}

}  // namespace

std::vector<CellPair> pair_cells(const Run& before, const Run& after) {
  std::vector<CellPair> pairs;
  if (before.cells.size() == 1 && after.cells.size() == 1) {
    pairs.push_back({&before.cells[0], &after.cells[0], why_incomparable(before.cells[0], after.cells[0])});
    return pairs;
  }
  const auto named = [](const Run& run, const std::string& cell_name) -> const Cell* {
    for (const Cell& cell : run.cells)
      if (cell.name == cell_name) return &cell;
    return nullptr;
  };
  for (const Cell& cell : before.cells) {
    const Cell* other = named(after, cell.name);
    pairs.push_back({&cell, other, other != nullptr ? why_incomparable(cell, *other) : ""});
  }
  for (const Cell& cell : after.cells)
    if (named(before, cell.name) == nullptr) pairs.push_back({nullptr, &cell, ""});
  return pairs;
}

Difference step_difference(const Cell& before, const Cell& after) {
  return difference(launch_medians(before), launch_medians(after));
}

std::vector<ChangedFact> changed_facts(const Run& before, const Run& after) {
  std::vector<ChangedFact> out;
  for (const CellPair& pair : pair_cells(before, after)) {
    if (pair.before == nullptr || pair.after == nullptr) continue;
    add_changes("knob", pair.before->name, knobs_of(*pair.before), knobs_of(*pair.after), out);
    add_changes("work", pair.before->name, work_of(*pair.before), work_of(*pair.after), out);
  }
  add_changes("host", "", host_of(before), host_of(after), out);
  add_changes("environment", "", environment_of(before), environment_of(after), out);
  return out;
}

std::vector<OpChange> op_changes(const Cell& before, const Cell& after) {
  std::vector<OpChange> changes;
  const std::string rank_class = common_class(before, after);
  if (rank_class.empty()) return changes;
  const bool modelled = has_modelled_steps(before) && has_modelled_steps(after);
  const StepClock clock = modelled ? StepClock::kModelled : StepClock::kWall;
  const Account from = account_of(before, rank_class, clock), to = account_of(after, rank_class, clock);
  if (from.steps.empty() || to.steps.empty()) return changes;
  std::set<std::string> paths;
  for (const Account* account : {&from, &to})
    for (const OpSums& ops : account->ops)
      for (const auto& [path, ns] : ops) paths.insert(path);
  const auto column = [](const Account& account, const std::string& path) {
    std::vector<double> values;
    for (const OpSums& ops : account.ops) values.push_back(at(ops, path));
    return values;
  };
  const auto rest = [](const Account& account) {
    std::vector<double> values = account.steps;
    for (size_t i = 0; i < values.size(); ++i)
      for (const auto& [path, ns] : account.ops[i]) values[i] -= ns;
    return values;
  };
  for (const std::string& path : paths) changes.push_back(change_of(path, column(from, path), column(to, path)));
  std::stable_sort(changes.begin(), changes.end(), [](const OpChange& a, const OpChange& b) {
    return std::abs(a.change_ns()) > std::abs(b.change_ns());
  });
  changes.push_back(change_of(kNotAttributed, rest(from), rest(to)));
  return changes;
}

OpChange step_account(const Cell& before, const Cell& after) {
  const std::string rank_class = common_class(before, after);
  const bool modelled = has_modelled_steps(before) && has_modelled_steps(after);
  const StepClock clock = modelled ? StepClock::kModelled : StepClock::kWall;
  return change_of("sum", account_of(before, rank_class, clock).steps, account_of(after, rank_class, clock).steps);
}

Table compare_table(const Run& before, const Run& after) {
  Table table{.id = "compare", .title = before.id + " -> " + after.id, .columns = {}, .rows = {}, .footer = {}};
  const std::vector<CellPair> pairs = pair_cells(before, after);
  std::vector<std::string> unequal, other_data;
  for (const CellPair& pair : pairs) {
    if (pair.before == nullptr || pair.after == nullptr || !pair.incomparable.empty()) continue;
    const std::string why = unequal_work(*pair.before, *pair.after);
    if (!why.empty()) unequal.push_back(pair.after->name + ": " + why);
    if (data_differs(*pair.before, *pair.after)) other_data.push_back(pair.after->name);
  }
  table.columns = {{"cell", "cell"}};
  if (!unequal.empty())
    table.columns.insert(table.columns.end(), {{"rate_before", "tokens/s/GPU old", Align::kRight, "tokens/s"},
                                               {"rate_after", "new", Align::kRight, "tokens/s"},
                                               {"rate_change_pct", "faster by", Align::kRight, "%"},
                                               {"rate_interval", "95 % interval"}});
  const std::vector<Column> step_columns = {{"step_before", "step old", Align::kRight, "ns"},
                                            {"step_after", "step new", Align::kRight, "ns"},
                                            {"change", "change", Align::kRight, "ns"},
                                            {"change_pct", "relative", Align::kRight, "%"},
                                            {"interval", "95 % interval"},
                                            {"exposed_comm", "exposed comm"},
                                            {"bubble", "bubble"},
                                            {"peak_memory", "peak"}};
  table.columns.insert(table.columns.end(), step_columns.begin(), step_columns.end());
  size_t fewest = std::numeric_limits<size_t>::max();
  bool projected = false;
  for (const CellPair& pair : pairs) {
    table.rows.push_back(compare_row(pair, !unequal.empty()));
    if (pair.before == nullptr || pair.after == nullptr || !pair.incomparable.empty()) continue;
    projected |= is_projected(pair);
    if (is_projected(pair)) continue;
    fewest = std::min({fewest, launch_medians(*pair.before).size(), launch_medians(*pair.after).size()});
  }
  for (const std::string& why : unequal)
    table.footer.push_back(
        fmt::format("Unequal work, {}: judge tokens/s/GPU (positive is faster), not the step.", why));
  if (!other_data.empty())
    table.footer.push_back(
        fmt::format("Data differs, {}: losses, and what routing or packing makes of them, are not "
                    "comparable.",
                    join(other_data, ", ")));
  if (projected)
    table.footer.push_back(
        "projected: simulated from cost tables, not measured. What both sides share cancels in a difference, so that "
        "the "
        "intervals of the two say more than its own would.");
  if (fewest == 1)
    table.footer.push_back("One launch: not evidence. A difference needs at least two launches on each side.");
  if (fewest > 1 && fewest != std::numeric_limits<size_t>::max())
    table.footer.push_back(fmt::format(
        "Intervals cover 95 % (Welch) over at least {} launches on each side; positive is slower.", fewest));
  for (const Run* run : {&before, &after})
    if (!run->synthetic.empty()) table.footer.push_back("SYNTHETIC: " + run->id + ": " + run->synthetic);
  return table;
}

Table facts_table(const Run& before, const Run& after) {
  Table table{.id = "changed", .title = "what differs", .columns = {}, .rows = {}, .footer = {}};
  table.columns = {{"what", "what"}, {"cell", "cell"}, {"before", "old"}, {"after", "new"}};
  for (const ChangedFact& fact : changed_facts(before, after))
    table.rows.push_back({{{.text = fact.what}, {.text = fact.cell}, {.text = fact.before}, {.text = fact.after}}});
  const std::vector<CellPair> pairs = pair_cells(before, after);
  if (std::none_of(pairs.begin(), pairs.end(), [](const CellPair& pair) { return pair.before && pair.after; }))
    table.footer.push_back("No cell is in both runs: neither knobs nor work were compared.");
  else if (table.rows.empty())
    table.footer.push_back("Knobs, work, host and environment are equal.");
  return table;
}

namespace {

// Of projected steps, which have no ops: the parts that their metrics name, largest change first, and the rest of the
// step. Empty without two projected steps.
std::vector<OpChange> part_changes(const Cell& before, const Cell& after) {
  std::vector<OpChange> changes;
  const auto* from = find(before, "step_time");
  const auto* to = find(after, "step_time");
  if (!is_projected({&before, &after}) || from == nullptr || to == nullptr) return changes;
  OpChange rest{.path = "compute and waits", .before_ns = from->value, .after_ns = to->value};
  for (const char* id : {"exposed_comm_tp", "exposed_comm_cp", "exposed_comm_ep", "exposed_comm_pp", "exposed_comm_dp",
                         "exposed_copy", "bubble"}) {
    const auto ns = [&](const Cell& cell, double step) {
      const auto* share = find(cell, id);
      return share == nullptr ? 0.0 : share->value / 100 * step;
    };
    OpChange part{.path = std::string(find_metric(id)->title),
                  .before_ns = ns(before, from->value),
                  .after_ns = ns(after, to->value)};
    if (part.before_ns == 0 && part.after_ns == 0) continue;
    rest.before_ns -= part.before_ns;
    rest.after_ns -= part.after_ns;
    changes.push_back(std::move(part));
  }
  changes.push_back(std::move(rest));
  std::stable_sort(changes.begin(), changes.end(), [](const OpChange& a, const OpChange& b) {
    return std::abs(a.change_ns()) > std::abs(b.change_ns());
  });
  changes.push_back({.path = "sum", .before_ns = from->value, .after_ns = to->value});
  return changes;
}

}  // namespace

Table ops_table(const Cell& before, const Cell& after, size_t rows) {
  Table table{.id = "ops", .title = after.name + ": where the step changed", .columns = {}, .rows = {}, .footer = {}};
  table.columns = {{"op", "op"},
                   {"before", "old", Align::kRight, "ns"},
                   {"after", "new", Align::kRight, "ns"},
                   {"change", "change", Align::kRight, "ns"},
                   {"interval", "95 % interval"}};
  const auto add = [&](const OpChange& op) {
    const bool known = op.low_ns <= op.high_ns;
    table.rows.push_back({{{.text = op.path},
                           {.text = format_ns(op.before_ns), .number = op.before_ns},
                           {.text = format_ns(op.after_ns), .number = op.after_ns},
                           {.text = signed_ns(op.change_ns()), .number = op.change_ns()},
                           {.text = known ? signed_ns(op.low_ns) + ".." + signed_ns(op.high_ns) : kUnset}}});
  };
  const std::vector<OpChange> changes = op_changes(before, after);
  if (changes.empty()) {
    const std::vector<OpChange> parts = part_changes(before, after);
    for (const OpChange& part : parts) add(part);
    table.footer.push_back(
        parts.empty() ? "No op times on both sides for one rank class: profile_step_start and profile_step_end, or a "
                        "run on CPU ranks, time ops."
                      : "Parts of two projections: their ops were not timed, and what both get wrong alike cancels.");
    return table;
  }
  // Intervals of sums come from the launches, not from the intervals of their terms.
  OpChange others{.path = "other ops", .before_ns = 0, .after_ns = 0};
  for (size_t i = 0; i + 1 < changes.size(); ++i) {
    if (i < rows) {
      add(changes[i]);
    } else {
      others.before_ns += changes[i].before_ns;
      others.after_ns += changes[i].after_ns;
    }
  }
  if (changes.size() > rows + 1) add(others);
  add(changes.back());
  const OpChange sum = step_account(before, after);
  add(sum);
  if (has_modelled_steps(before) && has_modelled_steps(after))
    table.footer.push_back("Of the replayed step, with a processor for every rank, since ranks shared cores.");
  if (!(sum.low_ns <= sum.high_ns))
    table.footer.push_back("Intervals need two launches with traced steps on each side.");
  return table;
}

Table metrics_table(const Cell& before, const Cell& after) {
  Table table{.id = "metrics", .title = after.name + ": metrics", .columns = {}, .rows = {}, .footer = {}};
  table.columns = {{"metric", "metric"},
                   {"before", "old", Align::kRight},
                   {"after", "new", Align::kRight},
                   {"change_pct", "relative", Align::kRight, "%"},
                   {"better", "better"}};
  for (const MetricInfo& info : metrics()) {
    const auto* from = find(before, info.id);
    const auto* to = find(after, info.id);
    if (from == nullptr && to == nullptr) continue;
    const auto side = [&](const baselines::Metric* one) -> Value {
      if (one == nullptr) return {.text = kUnset};
      const std::string half = format_half_width(info, one->low, one->high);
      return {.text = format_value(info, one->value) + (half.empty() ? "" : " " + half), .number = one->value};
    };
    Value change{.text = kUnset};
    if (from != nullptr && to != nullptr && from->value > 0)
      change = {.text = signed_percent(to->value / from->value - 1.0),
                .number = 100.0 * (to->value / from->value - 1.0)};
    table.rows.push_back({{{.text = info.title}, side(from), side(to), change, {.text = name(info.better)}}});
  }
  return table;
}

}  // namespace mbb::analysis
