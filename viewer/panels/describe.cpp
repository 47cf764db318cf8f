// Words and colours for records.
#include "viewer/panels/describe.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "analysis/metrics/cell_metrics.h"
#include "analysis/metrics/metrics.h"
#include "viewer/widgets/text.h"

namespace mbb::viewer {

using baselines::Cell;
using baselines::CellStatus;
using baselines::Metric;
using baselines::Run;
using baselines::RunSummary;
using baselines::Verdict;

Ink status_ink(CellStatus status) {
  switch (status) {
    case CellStatus::kOk: return Ink::kFaster;
    case CellStatus::kSkipped: return Ink::kMuted;
    case CellStatus::kBroken: return Ink::kSlower;
    case CellStatus::kUnstable: return Ink::kWarning;
  }
  return Ink::kMuted;
}

Ink verdict_ink(Verdict verdict) {
  switch (verdict) {
    case Verdict::kSlower:
    case Verdict::kBroken: return Ink::kSlower;
    case Verdict::kFaster: return Ink::kFaster;
    case Verdict::kSame:
    case Verdict::kNew: return Ink::kMuted;
    case Verdict::kInconclusive:
    case Verdict::kUnstable:
    case Verdict::kIncomparable: return Ink::kWarning;
  }
  return Ink::kMuted;
}

std::string status_text(CellStatus status) {
  static constexpr std::array kSigns = {"\xE2\x9C\x93", "\xE2\x80\x93", "\xE2\x9C\x97", "~"};
  return fmt::format("{} {}", kSigns[static_cast<std::size_t>(status)], name(status));
}

std::string verdict_text(Verdict verdict) {
  const char* sign = verdict == Verdict::kSlower   ? "\xE2\x96\xB2"
                     : verdict == Verdict::kFaster ? "\xE2\x96\xBC"
                                                   : "\xC2\xB7";
  return fmt::format("{} {}", sign, name(verdict));
}

bool is_loss(const baselines::NamedCount& count) {
  static constexpr std::array kWords = {"dropped",   "unattributed", "non_finite", "failed",
                                        "throttled", "lost",         "capture:"};
  return count.count > 0 && std::any_of(kWords.begin(), kWords.end(),
                                        [&](const char* word) { return count.name.find(word) != std::string::npos; });
}

std::string running_text(const Cell& cell) {
  if (cell.launches.empty()) return "\xE2\x96\xB8 starting";
  const baselines::Launch& last = cell.launches.back();
  std::string of;
  for (const baselines::KnobValue& knob : cell.knobs) {
    if (knob.key == "train.train_iters") of = " of " + clean(knob.value, 12);
  }
  return fmt::format("\xE2\x96\xB8 step {}{}, launch {}", last.steps.empty() ? 0 : last.steps.back().index + 1, of,
                     last.index + 1);
}

std::string run_state(const RunSummary& run, bool cut_off) {
  if (run.ended_unix_ns == 0) return cut_off ? "cut off" : "\xE2\x96\xB8 running";
  if (run.exit_status == 0) return "done";
  if (run.exit_status == 75) return "stopped";
  return fmt::format("exit {}", run.exit_status);
}

Ink run_state_ink(const RunSummary& run, bool cut_off) {
  if (run.ended_unix_ns == 0) return cut_off ? Ink::kWarning : Ink::kAccent;
  return run.exit_status == 0 ? Ink::kText : Ink::kWarning;
}

std::string run_title(const RunSummary& run) {
  return clean(run.suite.empty() ? run.command : run.suite, 80);
}

TableCell metric_cell(const Metric* metric) {
  if (metric == nullptr || !std::isfinite(metric->value)) return number_cell("-", std::nan(""), Ink::kFaint);
  const analysis::MetricInfo* info = analysis::find_metric(metric->name);
  TableCell cell = number_cell(
      info != nullptr ? analysis::format_value(*info, metric->value) : quantity_text(metric->value, metric->unit),
      metric->value);
  const char* plural = metric->launches == 1 ? ": not evidence" : "es";
  if (!std::isfinite(metric->low) || !std::isfinite(metric->high)) {
    cell.hover = fmt::format("{} launch{}", metric->launches, metric->launches == 1 ? plural : "es, no interval");
    return cell;
  }
  if (metric->value != 0) {
    cell.text += fmt::format(" \xC2\xB1{:.1f} %", std::fabs((metric->high - metric->low) / 2 / metric->value) * 100);
  }
  cell.hover =
      fmt::format("{} .. {}\n{}, {} launch{}", quantity_text(metric->low, metric->unit),
                  quantity_text(metric->high, metric->unit), clean(metric->interval, 80), metric->launches, plural);
  return cell;
}

std::string metric_meaning(std::string_view metric_name) {
  const analysis::MetricInfo* info = analysis::find_metric(metric_name);
  if (info == nullptr)
    return fmt::format("{}: stored by a version that knows this metric; this one does not.", clean(metric_name, 80));
  std::string text = info->definition;
  if (info->convention[0] != '\0') text += fmt::format("\n{}", info->convention);
  text += fmt::format("\n{} ({} is better)", info->id, name(info->better));
  return text;
}

std::string metric_title(std::string_view metric_name) {
  const analysis::MetricInfo* info = analysis::find_metric(metric_name);
  return info != nullptr ? std::string(info->title) : clean(metric_name, 40);
}

std::vector<std::string> metric_names(const Run& run) {
  std::vector<std::string> names;
  const auto has = [&](std::string_view wanted) {
    return std::any_of(run.cells.begin(), run.cells.end(),
                       [&](const Cell& cell) { return analysis::find(cell, wanted) != nullptr; });
  };
  for (const analysis::MetricInfo& info : analysis::metrics()) {
    if (has(info.id)) names.emplace_back(info.id);
  }
  for (const Cell& cell : run.cells) {
    for (const Metric& metric : cell.metrics) {
      if (std::find(names.begin(), names.end(), metric.name) == names.end()) names.push_back(metric.name);
    }
  }
  return names;
}

TableCell number_cell(std::string text, double order, Ink ink) {
  TableCell cell;
  cell.text = std::move(text);
  cell.order = order;
  cell.ink = ink;
  return cell;
}

TableCell text_cell(std::string_view raw, Ink ink) {
  TableCell cell;
  cell.text = clean(raw, 256);
  cell.ink = ink;
  return cell;
}

}  // namespace mbb::viewer
