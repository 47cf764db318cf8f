// Builds the suite table from cells' stored metrics.
#include "analysis/report/suite_table.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include <fmt/core.h>

#include "analysis/gate/canary.h"
#include "analysis/metrics/cell_metrics.h"
#include "analysis/metrics/metrics.h"
#include "analysis/stats/distributions.h"
#include "baselines/store/unproven.h"
#include "profiler/base/check.h"

namespace mbb::analysis {

namespace {

using baselines::Cell;
using baselines::CellStatus;
using baselines::Metric;
using baselines::ResultClass;

using Columns = std::vector<const char*>;
// Rates by GPU where a cell is about GPUs; of ranks that share cores they would say nothing.
const Columns kOfCpu = {"step_time", "tokens_per_second", "exposed_comm", "bubble", "peak_memory"};
const Columns kOfGpus = {
    "step_time",  "tokens_per_second_per_gpu", "tflops_per_gpu_causal", "mfu_bf16", "exposed_comm", "bubble",
    "peak_memory"};

const MetricInfo& info_of(const char* id) {
  const MetricInfo* info = find_metric(id);
  MB_CHECK(info != nullptr, std::string("metric not declared: ") + id);
  return *info;
}

using baselines::is_unproven;
constexpr const char* kUnproven = "unproven";

Value status_value(const Cell& cell) {
  const CellStatus status = cell.status;
  const Tone tone = is_unproven(cell)                ? Tone::kWarning
                    : status == CellStatus::kOk      ? Tone::kGood
                    : status == CellStatus::kBroken  ? Tone::kBad
                    : status == CellStatus::kSkipped ? Tone::kQuiet
                                                     : Tone::kWarning;
  return {.text = status_word(cell), .tone = tone};
}

Value metric_value(const Cell& cell, const char* id) {
  const Metric* metric = find(cell, id);
  if (metric == nullptr) return {.text = "-"};
  const MetricInfo& info = info_of(id);
  std::string text = format_value(info, metric->value);
  if (std::string_view(id) == "step_time") {
    const std::string half = format_half_width(info, metric->low, metric->high);
    if (!half.empty()) text += " " + half;
  }
  return {.text = text, .number = metric->value};
}

// "ok", "broken", "-": of the verdict on the cell's twin.
Value twin_value(const Cell& cell) {
  for (const baselines::VerdictRow& row : cell.verdicts) {
    if (row.subject != "twin") continue;
    if (row.verdict == baselines::Verdict::kSame) return {.text = "ok", .tone = Tone::kGood};
    if (row.verdict == baselines::Verdict::kBroken) return {.text = "broken", .tone = Tone::kBad};
    return {.text = name(row.verdict), .tone = Tone::kWarning};
  }
  return {.text = "-"};
}

bool has_twin(const Cell& cell) {
  return std::any_of(cell.verdicts.begin(), cell.verdicts.end(), [](const auto& row) { return row.subject == "twin"; });
}

Row row_of(const Cell& cell, const Columns& shown, bool twins, bool published) {
  Row row;
  row.values = {{.text = cell.name}, status_value(cell), {.text = class_label(cell)}};
  if (cell.status == CellStatus::kSkipped || cell.status == CellStatus::kBroken) {
    row.note = cell.reason;
    return row;
  }
  for (const char* id : shown) row.values.push_back(metric_value(cell, id));
  if (twins) row.values.push_back(twin_value(cell));
  if (published) row.values.push_back({.text = cell.published.empty() ? "-" : cell.published});
  row.note = cell.reason;
  return row;
}

bool has_numbers(const Cell& cell) {
  return cell.status == CellStatus::kOk || cell.status == CellStatus::kUnstable;
}

std::string counts_line(const std::vector<Cell>& cells) {
  std::string line;
  for (const CellStatus status : {CellStatus::kOk, CellStatus::kUnstable, CellStatus::kSkipped, CellStatus::kBroken}) {
    const auto count =
        std::count_if(cells.begin(), cells.end(), [&](const Cell& c) { return c.status == status && !is_unproven(c); });
    const bool always = status == CellStatus::kOk || status == CellStatus::kBroken;
    if (count > 0 || always) line += fmt::format("{}{} {}", line.empty() ? "" : ", ", count, name(status));
    const auto unproven = std::count_if(cells.begin(), cells.end(), is_unproven);
    if (status == CellStatus::kOk && unproven > 0) line += fmt::format(", {} {}", unproven, kUnproven);
  }
  return line + ".";
}

std::vector<std::string> contention_lines(const std::vector<Cell>& cells) {
  std::vector<std::string> lines;
  for (const Cell& cell : cells)
    if (const Contention shared = contention(cell); shared.by > 0)
      lines.push_back(cell.name + ": " + text(shared) + ".");
  return lines;
}

// What the intervals cover, once per kind of interval.
std::vector<std::string> evidence_lines(const std::vector<Cell>& cells) {
  int fewest = 0;
  int most = 0;
  bool single = false;
  for (const Cell& cell : cells) {
    const Metric* step = has_numbers(cell) ? find(cell, "step_time") : nullptr;
    if (step == nullptr) continue;
    if (cell.result_class == ResultClass::kProjected) continue;
    single |= step->launches < 2;
    if (step->launches < 2) continue;
    fewest = fewest == 0 ? step->launches : std::min(fewest, step->launches);
    most = std::max(most, step->launches);
  }
  std::vector<std::string> lines;
  if (most > 0) {
    const std::string count = fewest == most ? fmt::format("{}", most) : fmt::format("{} to {}", fewest, most);
    lines.push_back(
        fmt::format("Step: median of a launch's steady steps, mean over launches; ± covers 95 % over {} "
                    "launches a cell, launch sigma {:.2f} %.",
                    count, 100.0 * pooled_launch_sigma(cells)));
  }
  if (single)
    lines.push_back(
        "One launch: not evidence. ± of such a cell covers 95 % over the steps of that launch, not the next launch.");
  return lines;
}

// Cells whose one launch timed too few steps, once per reason.
std::vector<std::string> too_few_lines(const std::vector<Cell>& cells) {
  std::map<std::string, std::string> names;  // by reason
  for (const Cell& cell : cells) {
    const Metric* step = has_numbers(cell) ? find(cell, "step_time") : nullptr;
    if (step == nullptr || !step->interval.starts_with(kNoInterval)) continue;
    std::string& list = names[step->interval];
    list += (list.empty() ? "" : ", ") + cell.name;
  }
  std::vector<std::string> lines;
  for (const auto& [reason, list] : names) lines.push_back(fmt::format("{}: {}.", list, reason));
  return lines;
}

// What ± of projected rows covers, in the words of the first one.
std::string projected_line(const std::vector<Cell>& cells) {
  std::string line = "projected: simulated from cost tables, not measured";
  for (const Cell& cell : cells) {
    const Metric* step = has_numbers(cell) ? find(cell, "step_time") : nullptr;
    if (cell.result_class != ResultClass::kProjected || step == nullptr || step->interval.empty()) continue;
    return line + fmt::format("; ± covers {}.", step->interval);
  }
  return line + ".";
}

// The error of the projected rows that have the same step published beside them; empty without such a row.
std::string published_line(const std::vector<Cell>& cells) {
  std::vector<double> sizes;
  const Cell* worst = nullptr;
  double most = 0;
  int longer = 0, inside = 0;
  for (const Cell& cell : cells) {
    const bool projected = has_numbers(cell) && cell.result_class == ResultClass::kProjected;
    const Metric* error = projected ? find(cell, "published_error") : nullptr;
    if (error == nullptr) continue;
    sizes.push_back(std::abs(error->value));
    if (worst == nullptr || sizes.back() > std::abs(most)) worst = &cell, most = error->value;
    longer += error->value > 0 ? 1 : 0;
    inside += error->low <= 0 && error->high >= 0 ? 1 : 0;
  }
  if (worst == nullptr) return "";
  std::sort(sizes.begin(), sizes.end());
  const double median = (sizes[(sizes.size() - 1) / 2] + sizes[sizes.size() / 2]) / 2;
  return fmt::format(
      "Of these rows {} {} a published step of that mapping: the projected step is off by {:.1f} % (median), at worst "
      "{:+.1f} % ({}), too long in {}; {} of {} published steps lie inside the row's ±.",
      sizes.size(), sizes.size() == 1 ? "has" : "have", median, most, worst->name, longer, inside, sizes.size());
}

std::vector<std::string> class_lines(const std::vector<Cell>& cells) {
  std::set<ResultClass> seen;
  bool numerics_only = false;
  for (const Cell& cell : cells) {
    if (!has_numbers(cell)) continue;
    seen.insert(cell.result_class);
    numerics_only |= cell.numerics_only;
  }
  std::vector<std::string> lines;
  if (seen.contains(ResultClass::kFunctionalCpu))
    lines.push_back(
        "functional/cpu: the numerics are right, the times say nothing about a GPU; exposed comm and bubble are "
        "replayed with a processor for every rank.");
  if (seen.contains(ResultClass::kGhost)) lines.push_back("ghost: one rank is real, its peers are emulated.");
  if (seen.contains(ResultClass::kProjected)) lines.push_back(projected_line(cells));
  if (std::string line = published_line(cells); !line.empty()) lines.push_back(std::move(line));
  if (std::any_of(cells.begin(), cells.end(), has_twin))
    lines.push_back(
        "twin: the cell's structure in small, trained by CPU ranks, equals one rank (`mbbench show` says how small).");
  if (std::any_of(cells.begin(), cells.end(), is_unproven))
    lines.push_back(
        "unproven: it ran, and its losses were compared with nothing, which takes a one-rank cell of the same model, "
        "data and batch in the same run (and one in fp32 for lower precision): a suite may have one, `run` has none.");
  if (numerics_only)
    lines.push_back("numerics-only: the device lacks the recipe and emulates it; never in a performance series.");
  return lines;
}

}  // namespace

double pooled_launch_sigma(const std::vector<Cell>& cells) {
  double squares = 0.0;
  double degrees = 0.0;
  for (const Cell& cell : cells) {
    const Metric* step = has_numbers(cell) ? find(cell, "step_time") : nullptr;
    if (step == nullptr || step->launches < 2 || !(step->low <= step->high)) continue;
    const double n = step->launches;
    const double half = 0.5 * (step->high - step->low);
    const double sigma = half * std::sqrt(n) / student_t_two_sided(kLevel, n - 1.0) / step->value;
    squares += (n - 1.0) * sigma * sigma;
    degrees += n - 1.0;
  }
  return degrees > 0.0 ? std::sqrt(squares / degrees) : baselines::kNotMeasured;
}

std::string status_word(const Cell& cell) {
  return is_unproven(cell) ? kUnproven : name(cell.status);
}

Table suite_table(const std::vector<Cell>& cells) {
  Table table;
  table.id = "suite";
  table.columns = {{"cell", "cell"}, {"status", "status"}, {"class", "class"}};
  const bool gpus = std::any_of(cells.begin(), cells.end(),
                                [](const Cell& c) { return c.result_class != ResultClass::kFunctionalCpu; });
  const bool twins = std::any_of(cells.begin(), cells.end(), has_twin);
  const Columns& shown = gpus ? kOfGpus : kOfCpu;
  for (const char* id : shown) table.columns.push_back({id, info_of(id).title, Align::kRight, info_of(id).unit});
  if (twins) table.columns.push_back({"twin", "twin"});
  const bool published = std::any_of(cells.begin(), cells.end(), [](const Cell& c) { return !c.published.empty(); });
  if (published) table.columns.push_back({"published", "published"});
  for (const Cell& cell : cells) table.rows.push_back(row_of(cell, shown, twins, published));
  table.footer = {counts_line(cells)};
  for (const auto& lines : {contention_lines(cells), evidence_lines(cells), too_few_lines(cells), class_lines(cells)})
    table.footer.insert(table.footer.end(), lines.begin(), lines.end());
  return table;
}

Table suite_table(const baselines::Run& run) {
  Table table = suite_table(run.cells);
  table.title = fmt::format("{} {}", run.suite.empty() ? run.command : run.suite, run.id);
  if (!run.tag.empty()) table.title += fmt::format(" @{}", run.tag);
  if (!run.synthetic.empty()) table.footer.push_back("SYNTHETIC: " + run.synthetic);
  size_t missing = 0;
  for (const std::string& planned : run.planned_cells) {
    const bool done =
        std::any_of(run.cells.begin(), run.cells.end(), [&](const Cell& cell) { return cell.name == planned; });
    if (done) continue;
    ++missing;
    table.rows.push_back({{{.text = planned}, {.text = "missing", .tone = Tone::kWarning}}, "not run yet"});
  }
  if (missing > 0)
    table.footer.push_back(fmt::format("{} planned cell{} missing: {}.", missing, missing == 1 ? " is" : "s are",
                                       run.command == "suite" ? "`mbbench suite SUITE --resume` goes on"
                                                              : fmt::format("start `mbbench {}` again", run.command)));
  return table;
}

}  // namespace mbb::analysis
