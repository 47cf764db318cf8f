// Pairs cells, lists what differs, and accounts for the change of the step op by op.
#include "analysis/report/compare.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include <fmt/core.h>

#include "analysis/exposure/op_rows.h"
#include "analysis/metrics/cell_metrics.h"
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
          {"program", cell.program_hash}};
}

// "layers.3.mlp.fc1.fwd" -> "layers.*.mlp.fc1.fwd"
std::string grouped(const std::string& path) {
  std::vector<std::string> parts;
  for (const std::string_view part : split(path, '.')) {
    const bool number =
        !part.empty() && std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    parts.push_back(number ? "*" : std::string(part));
  }
  return join(parts, ".");
}

// ns per step by rank class, then by grouped path; over all launches.
std::map<std::string, std::map<std::string, double>> ops_per_step(const Cell& cell) {
  std::map<std::string, std::map<std::string, double>> sums;
  int64_t steps = 0;
  for (const Launch& launch : cell.launches) {
    if (launch.ops.empty() || op_steps(launch) <= 0) continue;
    steps += op_steps(launch);
    for (const auto& op : launch.ops) sums[op.rank_class][grouped(op.path)] += static_cast<double>(op.total_ns);
  }
  for (auto& [of, ops] : sums)
    for (auto& [path, ns] : ops) ns /= static_cast<double>(steps);
  return sums;
}

double busy_sum(const std::map<std::string, double>& ops) {
  double sum = 0;
  for (const auto& [path, ns] : ops) sum += path == kIdlePath ? 0.0 : ns;
  return sum;
}

// The step time that op rows account for.
double accounted_step_ns(const Cell& cell, bool modelled) {
  const auto* metric = find(cell, modelled ? "modelled_step_time" : "step_time");
  return metric != nullptr ? metric->value : baselines::kNotMeasured;
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
  return fmt::format("{:+.1f} %", 100.0 * fraction);
}

std::string interval_text(const Estimate& estimate) {
  if (!estimate.has_interval()) return "one launch: not evidence";
  return fmt::format("{}..{}", signed_percent(estimate.low), signed_percent(estimate.high));
}

Tone tone_of(const Estimate& relative) {
  if (!relative.has_interval()) return Tone::kQuiet;
  return relative.low > 0.0 ? Tone::kBad : relative.high < 0.0 ? Tone::kGood : Tone::kPlain;
}

Value arrow(const Cell& before, const Cell& after, const char* metric, const char* format_unit) {
  const auto* from = find(before, metric);
  const auto* to = find(after, metric);
  if (from == nullptr && to == nullptr) return {.text = kUnset};
  const auto shown = [&](const baselines::Metric* one) {
    if (one == nullptr) return std::string(kUnset);
    return *format_unit == '%' ? fmt::format("{:.1f}", one->value) : format_bytes(one->value);
  };
  return {.text = fmt::format("{} -> {}{}", shown(from), shown(to), *format_unit == '%' ? " %" : "")};
}

Row compare_row(const CellPair& pair) {
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
  const Difference change = step_difference(before, after);
  const double from = mean(launch_medians(before));
  const double to = mean(launch_medians(after));
  row.values.push_back({.text = format_ns(from), .number = from});
  row.values.push_back({.text = format_ns(to), .number = to});
  row.values.push_back({.text = signed_ns(change.absolute.value), .number = change.absolute.value});
  row.values.push_back({.text = signed_percent(change.relative.value),
                        .number = 100.0 * change.relative.value,
                        .tone = tone_of(change.relative)});
  row.values.push_back({.text = interval_text(change.relative)});
  row.values.push_back(arrow(before, after, "exposed_comm", "%"));
  row.values.push_back(arrow(before, after, "bubble", "%"));
  row.values.push_back(arrow(before, after, "peak_memory", "bytes"));
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
  const auto old_ops = ops_per_step(before);
  const auto new_ops = ops_per_step(after);
  const std::map<std::string, double>* from = nullptr;
  const std::map<std::string, double>* to = nullptr;
  for (const auto& [of, ops] : old_ops) {
    const auto same = new_ops.find(of);
    if (same == new_ops.end() || (from != nullptr && busy_sum(ops) <= busy_sum(*from))) continue;
    from = &ops;
    to = &same->second;
  }
  std::vector<OpChange> changes;
  if (from == nullptr) return changes;
  std::map<std::string, OpChange> by_path;
  for (const auto& [path, ns] : *from) by_path[path].before_ns = ns;
  for (const auto& [path, ns] : *to) by_path[path].after_ns = ns;
  OpChange rest{.path = kNotAttributed, .before_ns = 0, .after_ns = 0};
  const bool modelled = std::isfinite(accounted_step_ns(before, true)) && std::isfinite(accounted_step_ns(after, true));
  rest.before_ns = accounted_step_ns(before, modelled);
  rest.after_ns = accounted_step_ns(after, modelled);
  for (auto& [path, change] : by_path) {
    change.path = path;
    rest.before_ns -= change.before_ns;
    rest.after_ns -= change.after_ns;
    changes.push_back(change);
  }
  std::stable_sort(changes.begin(), changes.end(), [](const OpChange& a, const OpChange& b) {
    return std::abs(a.change_ns()) > std::abs(b.change_ns());
  });
  changes.push_back(rest);
  return changes;
}

Table compare_table(const Run& before, const Run& after) {
  Table table{.id = "compare", .title = before.id + " -> " + after.id, .columns = {}, .rows = {}, .footer = {}};
  table.columns = {{"cell", "cell"},
                   {"step_before", "step old", Align::kRight, "ns"},
                   {"step_after", "step new", Align::kRight, "ns"},
                   {"change", "change", Align::kRight, "ns"},
                   {"change_pct", "relative", Align::kRight, "%"},
                   {"interval", "95 % interval"},
                   {"exposed_comm", "exposed comm"},
                   {"bubble", "bubble"},
                   {"peak_memory", "peak"}};
  size_t fewest = std::numeric_limits<size_t>::max();
  for (const CellPair& pair : pair_cells(before, after)) {
    table.rows.push_back(compare_row(pair));
    if (pair.before == nullptr || pair.after == nullptr || !pair.incomparable.empty()) continue;
    fewest = std::min({fewest, launch_medians(*pair.before).size(), launch_medians(*pair.after).size()});
  }
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
  if (table.rows.empty()) table.footer.push_back("Knobs, work, host and environment are equal.");
  return table;
}

Table ops_table(const Cell& before, const Cell& after, size_t rows) {
  Table table{.id = "ops", .title = after.name + ": where the step changed", .columns = {}, .rows = {}, .footer = {}};
  table.columns = {{"op", "op"},
                   {"before", "old", Align::kRight, "ns"},
                   {"after", "new", Align::kRight, "ns"},
                   {"change", "change", Align::kRight, "ns"}};
  const auto add = [&](const OpChange& op) {
    table.rows.push_back({{{.text = op.path},
                           {.text = format_ns(op.before_ns), .number = op.before_ns},
                           {.text = format_ns(op.after_ns), .number = op.after_ns},
                           {.text = signed_ns(op.change_ns()), .number = op.change_ns()}}});
  };
  const std::vector<OpChange> changes = op_changes(before, after);
  if (changes.empty()) {
    table.footer.push_back("No op times on both sides for one rank class.");
    return table;
  }
  OpChange others{.path = "other ops", .before_ns = 0, .after_ns = 0};
  OpChange total{.path = "sum", .before_ns = 0, .after_ns = 0};
  for (size_t i = 0; i < changes.size(); ++i) {
    total.before_ns += changes[i].before_ns;
    total.after_ns += changes[i].after_ns;
    if (i + 1 == changes.size()) continue;
    if (i < rows) {
      add(changes[i]);
    } else {
      others.before_ns += changes[i].before_ns;
      others.after_ns += changes[i].after_ns;
    }
  }
  if (changes.size() > rows + 1) add(others);
  add(changes.back());
  add(total);
  return table;
}

}  // namespace mbb::analysis
