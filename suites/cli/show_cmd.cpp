// mbbench show: one run, its table, verdicts, memory and host; one cell of it in detail.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>

#include "analysis/exposure/breakdown.h"
#include "analysis/exposure/collectives.h"
#include "analysis/exposure/gemm_slowdown.h"
#include "analysis/metrics/cell_metrics.h"
#include "analysis/metrics/metrics.h"
#include "analysis/report/scaling_table.h"
#include "analysis/report/suite_table.h"
#include "analysis/report/timeline.h"
#include "baselines/store/bundle.h"
#include "profiler/base/clock.h"
#include "profiler/base/text.h"
#include "profiler/trace/trace_file.h"
#include "suites/cli/command.h"
#include "suites/cli/launch_tables.h"
#include "suites/cli/print.h"
#include "suites/cli/settings_of.h"

namespace mbb::suites {
namespace {

using analysis::Align;
using analysis::Table;

// Of one cell, or of all where none is named.
Table verdicts_table(const baselines::Run& run, const std::string& only = "") {
  Table table{"verdicts",
              "verdicts",
              {{"cell", "cell"}, {"subject", "subject"}, {"verdict", "verdict"}, {"text", "why"}},
              {},
              {}};
  for (const auto& cell : run.cells)
    for (const auto& v : cell.verdicts)
      if (only.empty() || cell.name == only)
        table.rows.push_back({{{cell.name}, {v.subject}, {baselines::name(v.verdict)}, {v.text}}});
  return table;
}

// What the cell is and became, before its numbers.
Table cell_table(const baselines::Cell& cell) {
  Table table{"cell", "cell", {{"what", "what"}, {"value", "value"}}, {}, {}};
  const auto add = [&](const char* what, const std::string& value) {
    if (!value.empty()) table.rows.push_back({{{what}, {value}}});
  };
  add("status", baselines::name(cell.status));
  add("why", cell.reason);
  add("class", class_label(cell));
  add("model", cell.model);
  add("series", cell.identity_hash);
  add("program", cell.program_hash);
  add("data", cell.data_hash);
  return table;
}

// Categories of a rank class: the plan's bytes, and those that the first launch with a recorded history saw at its
// peak. Either column sums to its total.
Table memory_table(const baselines::Cell& cell) {
  Table table{"memory",
              "memory at the peak",
              {{"rank_class", "rank class"}, {"category", "category"}, {"bytes", "planned", Align::kRight}},
              {},
              {}};
  const std::vector<baselines::MemoryMap>* seen = nullptr;
  for (const auto& launch : cell.launches)
    if (seen == nullptr && !launch.memory.empty()) seen = &launch.memory;
  if (seen != nullptr) table.columns.push_back({"seen", "seen", Align::kRight});
  const auto bytes = [](int64_t value) {
    if (value < 0) return analysis::Value{"-"};
    return analysis::Value{format_bytes(static_cast<double>(value)), static_cast<double>(value)};
  };
  std::vector<std::string> classes;
  for (const auto* maps : {&cell.memory, seen})
    for (size_t i = 0; maps != nullptr && i < maps->size(); ++i)
      if (std::find(classes.begin(), classes.end(), (*maps)[i].rank_class) == classes.end())
        classes.push_back((*maps)[i].rank_class);
  const auto map_of = [](const std::vector<baselines::MemoryMap>* maps, const std::string& rank_class) {
    const baselines::MemoryMap* found = nullptr;
    for (size_t i = 0; maps != nullptr && i < maps->size(); ++i)
      if ((*maps)[i].rank_class == rank_class) found = &(*maps)[i];
    return found;
  };
  for (const std::string& rank_class : classes) {
    const baselines::MemoryMap *plan = map_of(&cell.memory, rank_class), *met = map_of(seen, rank_class);
    std::vector<baselines::CategoryBytes> rows;
    if (plan != nullptr) rows = plan->categories;
    for (auto& row : rows) row.measured_bytes = -1;
    for (size_t i = 0; met != nullptr && i < met->categories.size(); ++i) {
      const auto& one = met->categories[i];
      const auto same =
          std::find_if(rows.begin(), rows.end(), [&](const auto& r) { return r.category == one.category; });
      if (same != rows.end())
        same->measured_bytes = one.measured_bytes;
      else
        rows.push_back({one.category, -1, one.measured_bytes});
    }
    rows.push_back({"total", plan != nullptr ? plan->peak_bytes : -1, met != nullptr ? met->peak_bytes : -1});
    for (const auto& row : rows) {
      analysis::Row line{{{rank_class}, {row.category}, bytes(row.planned_bytes)}, {}};
      if (seen != nullptr) line.values.push_back(bytes(row.measured_bytes));
      table.rows.push_back(std::move(line));
    }
  }
  return table;
}

Table metrics_table(const baselines::Cell& cell) {
  Table table{"metrics",
              "metrics",
              {{"metric", "metric"},
               {"value", "value", Align::kRight},
               {"interval", "interval", Align::kRight},
               {"covers", "covers"}},
              {},
              {}};
  for (const auto& m : cell.metrics) {
    const auto* info = analysis::find_metric(m.name);
    if (!info) continue;
    table.rows.push_back({{{info->title},
                           {analysis::format_value(*info, m.value), m.value},
                           {analysis::format_half_width(*info, m.low, m.high)},
                           {m.interval}}});
  }
  return table;
}

Table ops_table(const baselines::Cell& cell, size_t rows) {
  Table table{"ops",
              "ops, longest first (per launch and rank class)",
              {{"op", "op"},
               {"rank_class", "rank class"},
               {"stream", "stream"},
               {"calls", "calls", Align::kRight},
               {"time", "time", Align::kRight},
               {"gflops", "GFLOP/s", Align::kRight},
               {"gbs", "GB/s", Align::kRight}},
              {},
              {}};
  if (cell.launches.empty()) return table;
  auto ops = cell.launches.front().ops;
  std::stable_sort(ops.begin(), ops.end(), [](const auto& a, const auto& b) { return a.total_ns > b.total_ns; });
  for (size_t i = 0; i < std::min(rows, ops.size()); ++i) {
    const auto& op = ops[i];
    const auto ns = static_cast<double>(std::max<int64_t>(1, op.total_ns));
    table.rows.push_back({{{op.path},
                           {op.rank_class},
                           {op.stream},
                           {std::to_string(op.calls)},
                           {format_ns(ns), ns},
                           {op.flops > 0 ? fmt::format("{:.2f}", op.flops / ns) : "-"},
                           {op.bytes > 0 ? fmt::format("{:.2f}", static_cast<double>(op.bytes) / ns) : "-"}}});
  }
  if (ops.size() > rows) table.footer.push_back(fmt::format("{} more; --rows shows them", ops.size() - rows));
  return table;
}

// Days and cost at each cell's rate, where the tokens of the training are said.
Result<Table> cost_table(const Parsed& parsed, const baselines::Run& run) {
  Table table{"cost", "a whole training", {{"cell", "cell"}, {"class", "class"}}, {}, {}};
  const auto number = [&](const char* option) -> Result<double> {
    const auto text = parsed.value(option);
    if (!text) return 0.0;
    std::string_view digits = *text;
    double scale = 1;
    constexpr std::pair<char, double> kSuffixes[] = {{'k', 1e3}, {'M', 1e6}, {'B', 1e9}, {'G', 1e9}, {'T', 1e12}};
    for (const auto& [suffix, value] : kSuffixes)
      if (digits.ends_with(suffix)) scale = value, digits.remove_suffix(1);
    const auto value = parse_double(digits);
    if (!value || !(*value > 0))
      return fail(ErrorCode::kBadArgument, fmt::format("{} {}: a number above 0, as 15T", option, printable(*text)));
    return *value * scale;
  };
  analysis::TrainingPlan plan;
  MB_ASSIGN(plan.tokens, number("--train-tokens"));
  MB_ASSIGN(plan.price_gpu_hour, number("--price"));
  if (plan.price_gpu_hour > 0 && !(plan.tokens > 0))
    return fail(ErrorCode::kBadArgument, "--price without --train-tokens", "say how many tokens the training takes");
  if (!(plan.tokens > 0)) return table;
  for (const char* id : {"days_to_train", "cost_to_train"}) {
    if (std::string_view(id) == "cost_to_train" && !(plan.price_gpu_hour > 0)) continue;
    const analysis::MetricInfo* info = analysis::find_metric(id);
    table.columns.push_back({info->id, info->title, Align::kRight, info->unit});
  }
  for (const baselines::Cell& cell : run.cells) {
    analysis::Row row{{{cell.name}, {class_label(cell)}}, {}};
    if (cell.result_class == baselines::ResultClass::kFunctionalCpu || cell.numerics_only)
      row.note = "its time says nothing of a GPU";
    else
      for (const baselines::Metric& metric : analysis::training_cost(cell, plan))
        row.values.push_back({fmt::format("{:.1f}", metric.value), metric.value});
    if (row.values.size() == 2 && row.note.empty()) row.note = "no tokens per second";
    table.rows.push_back(std::move(row));
  }
  table.footer.push_back(
      fmt::format("{:.3g} tokens{}; no time lost to restarts, evaluation or checkpoints.", plan.tokens,
                  plan.price_gpu_hour > 0 ? fmt::format(", {} a GPU-hour", plan.price_gpu_hour) : ""));
  return table;
}

// What must not pass in silence: dropped records, unattributed kernels, bindings, what could not be sampled.
Table counts_table(const baselines::Cell& cell) {
  Table table{"counts", "counts of the first launch", {{"what", "what"}, {"count", "count", Align::kRight}}, {}, {}};
  if (cell.launches.empty()) return table;
  for (const auto& c : cell.launches.front().counts) table.rows.push_back({{{c.name}, {std::to_string(c.count)}}});
  return table;
}

Table knobs_table(const baselines::Cell& cell) {
  Table table{"knobs", "knobs", {{"knob", "knob"}, {"value", "value"}, {"source", "source"}}, {}, {}};
  for (const auto& k : cell.knobs)
    table.rows.push_back(
        {{{k.key}, {k.value}, {k.line > 0 ? fmt::format("{} {}:{}", k.source, k.file, k.line) : k.source}}});
  return table;
}

// The trace of the named cell, or of the first that has one if none is named.
struct Traced {
  const baselines::Cell* cell = nullptr;
  profiler::Trace trace;
};
Result<Traced> traced_cell(const Parsed& parsed, const Settings& settings, const baselines::Run& run,
                           const std::string& wanted) {
  MB_ASSIGN(const std::filesystem::path bundle, find_bundle(settings, parsed.positionals[0]));
  MB_ASSIGN(const auto reader, baselines::BundleReader::open(bundle));
  for (const baselines::Cell& cell : run.cells) {
    if (!wanted.empty() && cell.name != wanted) continue;
    for (const baselines::Launch& launch : cell.launches) {
      if (launch.trace_files.empty()) continue;
      MB_ASSIGN(profiler::Trace trace,
                profiler::read_trace(reader.launch_file(cell.name, launch.index, launch.trace_files.front())));
      return Traced{&cell, std::move(trace)};
    }
  }
  return fail(ErrorCode::kNotFound,
              fmt::format("run {} holds no trace{}", run.id, wanted.empty() ? "" : " of " + wanted),
              "profile some steps: profiling.profile_step_start below profiling.profile_step_end");
}

Result<int> show_timeline(const Parsed& parsed, const Settings& settings, const baselines::Run& run) {
  analysis::TimelineOptions options;
  if (const auto step = parsed.value("--step")) {
    const auto number = parse_int(*step);
    if (!number || *number < 0 || *number > INT32_MAX)
      return fail(ErrorCode::kBadArgument, fmt::format("--step {} is no step", printable(*step)));
    options.step = static_cast<int32_t>(*number);
  }
  MB_ASSIGN(const Traced traced, traced_cell(parsed, settings, run, parsed.value("--cell").value_or("")));
  MB_ASSIGN(const std::string text, analysis::timeline_text(traced.trace, options));
  fmt::print("{}  {}\n{}", traced.cell->name, class_label(*traced.cell), text);
  return 0;
}

// What products lose to collectives beside them; `beside` is a cell that is asked for what the first lacks.
// Mean over ranks and traced steps.
double compute_ns(const profiler::Trace& trace) {
  const auto steps = analysis::break_down(trace, {.per_op = false});
  int64_t all = 0;
  for (const analysis::StepTimes& step : steps) all += step.breakdown.compute_ns;
  return steps.empty() ? 0 : static_cast<double>(all) / static_cast<double>(steps.size());
}

Table slowdown_table(const Traced& traced, const Traced* beside) {
  Table table{"gemm_slowdown",
              fmt::format("GEMMs of {} beside collectives, what costs most first", traced.cell->name),
              {{"site", "site"},
               {"alone", "alone", Align::kRight},
               {"partly", "partly", Align::kRight},
               {"beside", "beside", Align::kRight},
               {"alone_time", "time alone", Align::kRight, "ns"},
               {"beside_time", "time beside", Align::kRight, "ns"},
               {"slowdown", "slower", Align::kRight, "%"},
               {"cost", "cost of a step", Align::kRight, "ns"}},
              {},
              {}};
  const auto shown = [](double value, std::string text) {
    return std::isnan(value) ? analysis::Value{"-"} : analysis::Value{std::move(text), value};
  };
  double cost = 0;
  int64_t unknown = 0;
  bool elsewhere = false;
  for (const analysis::GemmSlowdown& row :
       analysis::gemm_slowdowns(traced.trace, analysis::gemm_paths(traced.cell->launches.front()),
                                beside != nullptr ? &beside->trace : nullptr)) {
    const std::string alone = format_ns(row.alone_ns) + (row.alone == 0 ? "*" : "");
    const std::string next = format_ns(row.beside_ns) + (row.beside == 0 ? "*" : "");
    if (std::isnan(row.cost_ns))
      ++unknown;
    else
      cost += row.cost_ns;
    elsewhere = elsewhere || row.elsewhere;
    table.rows.push_back({{{row.site},
                           {std::to_string(row.alone)},
                           {std::to_string(row.partly)},
                           {std::to_string(row.beside)},
                           shown(row.alone_ns, alone),
                           shown(row.beside_ns, next),
                           shown(row.slowdown, fmt::format("{:+.1f} %", 100 * row.slowdown)),
                           shown(row.cost_ns, format_ns(row.cost_ns))}});
    table.rows.back().values[6].number *= 100;
  }
  table.footer.push_back(
      fmt::format("in all {} of a rank's step. alone, partly, beside: calls of which a collective "
                  "runs beside less than a tenth, up to half, more; times are means.",
                  format_ns(cost)));
  if (unknown > 0)
    table.footer.push_back(fmt::format("not in it: {} sites that have no call alone {}", unknown,
                                       beside != nullptr ? "in either cell" : "(--beside names a cell that has)"));
  const double own = compute_ns(traced.trace);
  std::string compute = fmt::format("all compute of a rank's step, at the clock it had: {}", format_ns(own));
  if (beside != nullptr) {
    const double others = compute_ns(beside->trace);
    compute +=
        fmt::format(", of cell {} {} ({:+.1f} %)", beside->cell->name, format_ns(others), 100 * (own / others - 1));
  }
  table.footer.push_back(std::move(compute));
  if (elsewhere) table.footer.push_back("*: of cell " + beside->cell->name);
  return table;
}

// Every site that communicates: who waits for whom apart from what the wires take.
Result<int> show_collectives(const Parsed& parsed, const Settings& settings, const baselines::Run& run) {
  MB_ASSIGN(const Traced traced, traced_cell(parsed, settings, run, parsed.value("--cell").value_or("")));
  std::optional<Traced> beside;
  if (const auto other = parsed.value("--beside")) {
    MB_ASSIGN(beside, traced_cell(parsed, settings, run, *other));
  }
  Table table{"collectives",
              fmt::format("collectives of {}, most time first ({})", traced.cell->name, class_label(*traced.cell)),
              {{"site", "site"},
               {"kind", "kind"},
               {"calls", "calls", Align::kRight},
               {"members", "members", Align::kRight},
               {"wait", "wait", Align::kRight},
               {"largest_wait", "largest", Align::kRight},
               {"transfer", "transfer", Align::kRight},
               {"hidden", "hidden", Align::kRight, "%"}},
              {},
              {}};
  const auto time = [](double ns) { return analysis::Value{format_ns(ns), ns}; };
  for (const analysis::CollectiveRow& row : analysis::collectives(traced.trace)) {
    const double hidden = row.transfer_ns > 0 ? 100 * row.hidden_ns / row.transfer_ns : 0;
    table.rows.push_back({{{row.site},
                           {profiler::name(row.kind)},
                           {std::to_string(row.calls)},
                           {std::to_string(row.members)},
                           time(row.wait_ns),
                           time(static_cast<double>(row.largest_wait_ns)),
                           time(row.transfer_ns),
                           {fmt::format("{:.1f} %", hidden), hidden}}});
  }
  if (table.rows.empty())
    table.footer.push_back(
        "The trace has no collective of known ranks (one rank's trace of another tool names none): nothing can be told "
        "apart into wait and transfer.");
  table.footer.push_back(
      "wait: until the last member starts; transfer: from then on; means over ranks and calls of the traced steps. "
      "hidden: of the transfer, under compute of the same rank.");
  print_tables(parsed, {table, slowdown_table(traced, beside ? &*beside : nullptr)});
  return 0;
}

Result<int> show(const Parsed& parsed) {
  MB_ASSIGN(const Settings settings, settings_of(parsed));
  MB_ASSIGN(const baselines::Run run, find_run(settings, parsed.positionals[0]));
  if (parsed.flag("--timeline")) return show_timeline(parsed, settings, run);
  if (parsed.flag("--collectives")) return show_collectives(parsed, settings, run);
  if (!parsed.flag("--json") && !parsed.flag("--markdown")) {
    fmt::print("{}  {}  {}\n", run.id, run.suite, iso_time(run.created_unix_ns).substr(0, 19));
    if (!run.synthetic.empty()) fmt::print("SYNTHETIC: {}\n", run.synthetic);
  }
  std::vector<Table> tables{analysis::suite_table(run)};
  if (const auto name = parsed.value("--cell")) {
    const auto cell = std::find_if(run.cells.begin(), run.cells.end(), [&](const auto& c) { return c.name == *name; });
    if (cell == run.cells.end()) {
      std::vector<std::string> names;
      for (const auto& c : run.cells) names.push_back(c.name);
      const auto near = nearest(*name, names);
      return fail(ErrorCode::kNotFound, fmt::format("run {} has no finished cell '{}'", run.id, printable(*name)),
                  near ? fmt::format("did you mean '{}'?", *near) : "its cells: " + join(names, ", "));
    }
    MB_ASSIGN(const size_t rows, rows_of(parsed, 15));
    tables = {cell_table(*cell),   verdicts_table(run, *name), metrics_table(*cell), ops_table(*cell, rows),
              memory_table(*cell), counts_table(*cell),        knobs_table(*cell)};
    std::erase_if(tables, [](const Table& table) { return table.rows.empty(); });  // a log has no ops and no plan
  } else {
    if (auto scaling = analysis::scaling_table(run)) tables.push_back(*std::move(scaling));
    if (const Table verdicts = verdicts_table(run); !verdicts.rows.empty()) tables.push_back(verdicts);
  }
  const std::string only = parsed.value("--cell").value_or("");
  if (Table captures = capture_table(run, only); !captures.rows.empty()) tables.push_back(std::move(captures));
  MB_ASSIGN(Table sampled, telemetry_of(settings, parsed.positionals[0], run, only));
  if (!sampled.rows.empty() || !sampled.footer.empty()) tables.push_back(std::move(sampled));
  MB_ASSIGN(const Table cost, cost_table(parsed, run));
  if (!cost.rows.empty()) tables.push_back(cost);
  print_tables(parsed, tables);
  return 0;
}

}  // namespace

Command show_command() {
  Command c{"show",
            "print a run, or one cell of it",
            {{"RUN", "@latest, @2, @tag, id, prefix of an id, or bundle folder"}},
            {{"--cell", "NAME", "metrics, ops, memory, counts and knobs of one cell"},
             {"--timeline", nullptr, "one traced step as text, a line a stream", false, nullptr,
              "--collectives|--json|--markdown"},
             {"--collectives", nullptr,
              "of a traced cell: each collective's wait for its last member, and its transfer; what GEMMs beside lose"},
             {"--beside", "NAME", "with --collectives: the cell that says how long GEMMs take alone, or beside one",
              false, "--collectives"},
             {"--step", "N", "with --timeline: which step (default: the first traced)", false, "--timeline"},
             {"--rows", "N", "with --cell: ops to print (default 15)", false, "--cell"},
             {"--train-tokens", "N", "days that a training on so many tokens takes at each cell's rate: 15T"},
             {"--price", "P", "of a GPU-hour, for the cost of those"},
             kJsonOption,
             kMarkdownOption},
            true,
            show};
  c.settings_alone = true;
  return c;
}

}  // namespace mbb::suites
