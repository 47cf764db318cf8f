// Turns verdicts into a table, a comment, JUnit and JSON.
#include "analysis/gate/gate_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>

#include "analysis/metrics/cell_metrics.h"
#include "analysis/metrics/metrics.h"
#include "analysis/report/html.h"
#include "analysis/stats/stats.h"
#include "profiler/base/text.h"

namespace mbb::analysis {
namespace {

using baselines::Verdict;

bool is_good(const baselines::Launch& launch) {
  return launch.exit_status == 0 && launch.signal == 0 && launch.reason.empty();
}

double peak_of(const baselines::Cell& cell, const baselines::Launch& launch) {
  int64_t peak = 0;
  for (const auto& map : launch.memory) peak = std::max(peak, map.peak_bytes);
  if (peak == 0)
    for (const auto& map : cell.memory) peak = std::max(peak, map.peak_bytes);
  return static_cast<double>(peak);
}

// Worst first: what a person must see on top.
int weight(Verdict verdict) {
  constexpr std::array kOrder{Verdict::kBroken,       Verdict::kSlower, Verdict::kIncomparable, Verdict::kUnstable,
                              Verdict::kInconclusive, Verdict::kFaster, Verdict::kNew,          Verdict::kSame};
  return static_cast<int>(std::find(kOrder.begin(), kOrder.end(), verdict) - kOrder.begin());
}

std::vector<GateRow> worst_first(const GateReport& report) {
  std::vector<GateRow> rows = report.rows;
  std::stable_sort(rows.begin(), rows.end(), [](const GateRow& a, const GateRow& b) {
    return weight(a.verdict.verdict) < weight(b.verdict.verdict);
  });
  return rows;
}

// Text from logs and users as text: neither a tag nor a comment of the file it stands in.
std::string escaped(const std::string& text, size_t limit) {
  std::string out = printable(text, limit);
  for (const auto& [from, to] :
       {std::pair{"&", "&amp;"}, std::pair{"<", "&lt;"}, std::pair{">", "&gt;"}, std::pair{"\"", "&quot;"}})
    out = replace_all(out, from, to);
  return out;
}

std::string xml(const std::string& text) {
  return escaped(text, 2000);
}

// One cell of a table, or one line.
std::string markdown(const std::string& text) {
  return replace_all(escaped(text, 400), "|", "\\|");
}

// What is known of them: a night that did not come to its end knows none.
std::string headline_facts(const GateReport& report) {
  std::string machine = report.host;
  if (!report.canaries.empty()) machine += (machine.empty() ? "" : ", ") + report.canaries;
  if (report.build.empty()) return machine;
  return fmt::format("{}{}product {}", machine, machine.empty() ? "" : "; ", report.build);
}

std::string number_or_null(double value) {
  return std::isfinite(value) ? fmt::format("{:.6g}", value) : "null";
}

// With --fail-on a red that is not known to have ended counts as slower, whatever the night came to.
bool stands_red(const GateRow& row) {
  const Verdict verdict = row.verdict.verdict;
  return !row.red_since.empty() && verdict != Verdict::kSame && verdict != Verdict::kFaster;
}

}  // namespace

std::vector<std::string> gated_metrics(const baselines::Cell& cell) {
  // A user's own command need not tell its memory or its loss.
  std::vector<std::string> metrics;
  const auto some_launch = [&](auto&& has) { return std::any_of(cell.launches.begin(), cell.launches.end(), has); };
  if (!cell.memory.empty() || some_launch([](const auto& launch) { return !launch.memory.empty(); }))
    metrics.emplace_back("peak_memory");
  if (some_launch([](const auto& launch) { return !launch.steps.empty() && std::isfinite(launch.steps.back().loss); }))
    metrics.emplace_back("last_loss");
  if (cell.numerics_only) return metrics;
  if (cell.result_class == baselines::ResultClass::kMeasured) metrics.insert(metrics.begin(), "step_time");
  if (cell.result_class == baselines::ResultClass::kFunctionalCpu && cell.ranks == 1)
    metrics.insert(metrics.begin(), std::string(cpu_metric(cell)));
  return metrics;
}

NightLaunches launch_values(const baselines::Cell& cell, const std::string& metric, std::int64_t steps) {
  baselines::Cell copy = cell;
  const StepTime time = step_time(copy);  // marks the warm-up
  if (metric == "step_time") return time.launch_medians;
  if (metric == "cpu_step_time" || metric == "cpu_step_ratio") return cpu_values(copy, metric).values;
  NightLaunches values;
  for (const baselines::Launch& launch : copy.launches) {
    if (!is_good(launch)) continue;
    if (metric == "last_loss") {
      if (launch.steps.empty()) continue;
      const auto ran = static_cast<std::int64_t>(launch.steps.size());
      const std::int64_t last = (steps > 0 ? std::min(steps, ran) : ran) - 1;
      // Not every trainer's objective is positive.
      if (const double loss = launch.steps[static_cast<size_t>(last)].loss; std::isfinite(loss)) values.push_back(loss);
      continue;
    }
    if (const double peak = peak_of(copy, launch); peak > 0) values.push_back(peak);
  }
  return values;
}

bool was_measured(const GateReport& report) {
  return std::any_of(report.rows.begin(), report.rows.end(), [](const GateRow& row) {
    return row.metric != kRunRow || row.verdict.verdict == Verdict::kUnstable;
  });
}

int gate_exit_status(const GateReport& report, const std::vector<Verdict>& fail_on) {
  const auto has = [&](Verdict verdict) {
    const bool counts = fail_on.empty() || verdict == Verdict::kBroken ||
                        std::find(fail_on.begin(), fail_on.end(), verdict) != fail_on.end();
    if (!counts) return false;
    return std::any_of(report.rows.begin(), report.rows.end(), [&](const GateRow& row) {
      return row.verdict.verdict == verdict || (verdict == Verdict::kSlower && !fail_on.empty() && stands_red(row));
    });
  };
  if (!was_measured(report) || has(Verdict::kBroken)) return 4;
  if (has(Verdict::kSlower)) return 1;
  if (has(Verdict::kIncomparable)) return 3;
  return has(Verdict::kInconclusive) || has(Verdict::kUnstable) ? 2 : 0;
}

std::string gate_headline(const GateReport& report) {
  std::string text;
  for (const Verdict verdict : {Verdict::kBroken, Verdict::kSlower, Verdict::kIncomparable, Verdict::kUnstable,
                                Verdict::kInconclusive, Verdict::kFaster, Verdict::kNew, Verdict::kSame}) {
    const auto count = std::count_if(report.rows.begin(), report.rows.end(),
                                     [&](const GateRow& row) { return row.verdict.verdict == verdict; });
    if (count > 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, name(verdict));
  }
  return text.empty() ? "nothing was judged" : text;
}

Table gate_table(const GateReport& report) {
  Table table{
      "gate",
      fmt::format("gate {}: {}", report.suite, gate_headline(report)),
      {{"cell", "cell"}, {"metric", "metric"}, {"verdict", "verdict"}, {"against", "baseline"}, {"text", "evidence"}},
      {},
      {}};
  for (const GateRow& row : worst_first(report)) {
    const Verdict v = row.verdict.verdict;
    const Tone tone = v == Verdict::kSlower || v == Verdict::kBroken ? Tone::kBad
                      : v == Verdict::kFaster                        ? Tone::kGood
                      : v == Verdict::kSame || v == Verdict::kNew    ? Tone::kPlain
                                                                     : Tone::kWarning;
    table.rows.push_back({{{row.cell},
                           {row.metric},
                           {name(v), std::numeric_limits<double>::quiet_NaN(), tone},
                           {row.against.empty() ? "-" : row.against},
                           {row.verdict.text}}});
  }
  table.footer = report.warnings;
  if (const std::string facts = headline_facts(report); !facts.empty()) table.footer.push_back(facts);
  return table;
}

std::string gate_markdown(const GateReport& report, size_t limit) {
  std::string text =
      fmt::format("{}\n### mbbench gate, {}: {}\n\n", kGateMarker, markdown(report.suite), gate_headline(report));
  if (!report.run.empty()) text += fmt::format("{}; run {}\n\n", markdown(headline_facts(report)), report.run);
  text += "| verdict | cell | metric | evidence | baseline |\n|---|---|---|---|---|\n";
  constexpr std::string_view kCut = "\n(cut: the whole list is in the gate's JSON)\n";
  // Verdicts first, whatever warnings there are; of these as many as there is room for.
  bool whole = true;
  const auto add = [&](const std::string& line) {
    whole = whole && text.size() + line.size() + kCut.size() <= limit;
    if (whole) text += line;
  };
  for (const GateRow& row : worst_first(report)) {
    const std::string bold = row.verdict.verdict == Verdict::kSlower ? "**" : "";
    add(fmt::format("| {}{}{} | {} | {} | {} | {} |\n", bold, name(row.verdict.verdict), bold, markdown(row.cell),
                    markdown(row.metric), markdown(row.verdict.text), markdown(row.against)));
  }
  if (!report.warnings.empty()) add("\n");
  for (const std::string& warning : report.warnings) add(fmt::format("> {}\n", markdown(warning)));
  return whole ? text : text + std::string(kCut);
}

std::string gate_junit(const GateReport& report) {
  std::string cases;
  int failures = 0, errors = 0, skipped = 0;
  for (const GateRow& row : report.rows) {
    cases +=
        fmt::format("  <testcase classname=\"{}\" name=\"{}\">\n", xml(report.suite + "." + row.cell), xml(row.metric));
    const std::string said = xml(row.verdict.text);
    switch (row.verdict.verdict) {
      case Verdict::kSlower:
        ++failures;
        cases += fmt::format("    <failure message=\"slower\">{}</failure>\n", said);
        break;
      case Verdict::kBroken:
        ++errors;
        cases += fmt::format("    <error message=\"broken\">{}</error>\n", said);
        break;
      case Verdict::kSame:
      case Verdict::kFaster: cases += fmt::format("    <system-out>{}</system-out>\n", said); break;
      default: ++skipped; cases += fmt::format("    <skipped message=\"{}: {}\"/>\n", name(row.verdict.verdict), said);
    }
    cases += "  </testcase>\n";
  }
  return fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"{}\" tests=\"{}\" failures=\"{}\" errors=\"{}\" "
      "skipped=\"{}\">\n{}</testsuite>\n",
      xml("mbbench gate " + report.suite), report.rows.size(), failures, errors, skipped, cases);
}

std::string gate_json(const GateReport& report) {
  std::string rows;
  for (const GateRow& row : report.rows) {
    const SeriesVerdict& v = row.verdict;
    rows += fmt::format(
        "{}\n  {{\"cell\": {}, \"metric\": {}, \"class\": {}, \"baseline\": {}, \"verdict\": {}, \"change\": {}, "
        "\"low\": "
        "{}, \"high\": {}, \"at_most\": {}, \"detectable\": {}, \"night_sigma\": {}, \"nights\": {}, \"launches\": {}, "
        "\"red_since\": {}, "
        "\"text\": "
        "{}}}",
        rows.empty() ? "" : ",", json_quote(row.cell), json_quote(row.metric), json_quote(row.class_label),
        json_quote(row.against), json_quote(name(v.verdict)), number_or_null(v.change), number_or_null(v.low),
        number_or_null(v.high), number_or_null(v.at_most), number_or_null(v.detectable), number_or_null(v.night_sigma),
        v.nights, v.launches, row.red_since.empty() ? "null" : json_quote(row.red_since), json_quote(v.text));
  }
  std::string warnings;
  for (const std::string& w : report.warnings) warnings += (warnings.empty() ? "" : ", ") + json_quote(w);
  return fmt::format(
      "{{\"suite\": {}, \"run\": {}, \"build\": {}, \"host\": {}, \"epoch\": {}, \"canaries\": {}, \"headline\": {}, "
      "\"warnings\": [{}], "
      "\"rows\": "
      "[{}\n]}}\n",
      json_quote(report.suite), json_quote(report.run), json_quote(report.build), json_quote(report.host),
      json_quote(report.epoch), json_quote(report.canaries), json_quote(gate_headline(report)), warnings, rows);
}

std::string gate_html(const GateReport& report) {
  HtmlPage page("mbbench: " + report.suite);
  page.heading("Verdicts");
  page.table(gate_table(report));
  return page.finish();
}

}  // namespace mbb::analysis
