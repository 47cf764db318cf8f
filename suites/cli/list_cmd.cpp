// mbbench list: suites, models, hardware, knobs, runs, series.
#include <fmt/core.h>

#include <algorithm>
#include <filesystem>

#include "profiler/base/clock.h"
#include "profiler/base/file.h"
#include "profiler/base/knob_render.h"
#include "profiler/base/text.h"
#include "suites/cli/command.h"
#include "suites/cli/print.h"
#include "suites/cli/settings_of.h"
#include "suites/matrix/suite.h"
#include "suites/project/projector.h"
#include "trainer/models/flops.h"
#include "trainer/models/model.h"
#include "trainer/run/knobs.h"

namespace mbb::suites {
namespace {

using analysis::Align;
using analysis::Table;

Result<Table> suites_table(const Settings& settings) {
  Table table{"suites",
              "",
              {{"suite", "suite"},
               {"cells", "cells", Align::kRight},
               {"skipped", "named skips", Align::kRight},
               {"purpose", "purpose"}},
              {},
              {}};
  MB_ASSIGN(const auto entries, list_suites(settings));
  for (const SuiteEntry& entry : entries) {
    const auto suite = open_suite(entry.name, settings, {}, resolves);
    if (suite) {
      const auto skipped = std::count_if(suite->cells.begin(), suite->cells.end(),
                                         [](const Cell& cell) { return cell.skipped.has_value(); });
      table.rows.push_back({{{entry.name},
                             {std::to_string(suite->cells.size())},
                             {skipped > 0 ? std::to_string(skipped) : "-"},
                             {suite->purpose}}});
    } else
      table.rows.push_back({{{entry.name}}, suite.error().what});
  }
  return table;
}

Result<Table> models_table(const Settings&) {
  Table table{"models",
              "",
              {{"model", "model"},
               {"layers", "layers", Align::kRight},
               {"hidden", "hidden", Align::kRight},
               {"parameters", "parameters", Align::kRight},
               {"gflop_per_token", "GF/token @4096, causal", Align::kRight}},
              {},
              {}};
  for (const auto& m : trainer::all_models()) {
    const auto parameters = static_cast<double>(trainer::count_parameters(m).total());
    const double flops =
        trainer::flops_per_token(m, 4096, trainer::FlopsConvention::kCausal, m.is_encoder_decoder() ? 4096 : 0);
    table.rows.push_back({{{m.name},
                           {std::to_string(m.num_layers)},
                           {std::to_string(m.hidden_size)},
                           {format_count(parameters, ""), parameters},
                           {fmt::format("{:.2f}", flops / 1e9), flops / 1e9}}});
  }
  return table;
}

Result<baselines::Store> open_store(const Settings& settings) {
  const auto file = store_file(settings.product.runs_dir);
  if (!file_exists(file))
    return fail(ErrorCode::kNotFound, fmt::format("no runs yet: there is no {}", file.string()),
                "start with `mbbench suite quickstart`");
  return open_to_read(file);
}

Result<Table> runs_table(const Settings& settings) {
  Table table{"runs",
              "",
              {{"run", "run"},
               {"suite", "suite"},
               {"tag", "tag"},
               {"when", "when (UTC)"},
               {"cells", "cells"},
               {"state", "state"}},
              {},
              {}};
  MB_ASSIGN(const auto store, open_store(settings));
  MB_ASSIGN(const auto runs, store.list_runs());
  const std::filesystem::path bundles = std::filesystem::path(settings.product.runs_dir) / "runs";
  std::error_code error;
  if (runs.empty() && std::filesystem::exists(bundles, error) && !std::filesystem::is_empty(bundles, error))
    return fail(ErrorCode::kNotFound,
                fmt::format("the store {} holds no run, and bundles lie in {}",
                            store_file(settings.product.runs_dir).string(), bundles.string()),
                "`mbbench index` brings them in");
  for (const auto& run : runs) {
    const std::string unproven = run.cells_unproven > 0 ? fmt::format("{} unproven, ", run.cells_unproven) : "";
    const std::string cells = fmt::format("{} ok, {}{} skipped, {} broken, {} unstable of {}", run.cells_ok, unproven,
                                          run.cells_skipped, run.cells_broken, run.cells_unstable, run.cells_planned);
    const std::string state = !run.synthetic.empty()   ? "synthetic: " + run.synthetic
                              : run.ended_unix_ns == 0 ? "unfinished"
                                                       : fmt::format("exit {}", run.exit_status);
    table.rows.push_back(
        {{{run.id}, {run.suite}, {run.tag}, {iso_time(run.created_unix_ns).substr(0, 19)}, {cells}, {state}}});
  }
  return table;
}

Result<Table> series_table(const Settings& settings) {
  Table table{"series",
              "",
              {{"series", "series"},
               {"cell", "cell"},
               {"metric", "metric"},
               {"class", "class"},
               {"points", "points", Align::kRight}},
              {},
              {}};
  MB_ASSIGN(const auto store, open_store(settings));
  MB_ASSIGN(const auto series, store.list_series());
  for (const auto& s : series)
    table.rows.push_back(
        {{{s.key.identity_hash}, {s.cell}, {s.key.metric}, {s.class_label}, {std::to_string(s.points)}}});
  return table;
}

// Ceilings, and where op costs were measured: what a projection onto the card rests on.
Result<Table> hardware_table(const Settings&) {
  Table table{"hardware",
              "",
              {{"hardware", "hardware"},
               {"device", "device"},
               {"bf16", "bf16 TFLOP/s", Align::kRight, "TFLOP/s"},
               {"fp8", "fp8 TFLOP/s", Align::kRight, "TFLOP/s"},
               {"memory", "memory", Align::kRight, "bytes"},
               {"bandwidth", "memory TB/s", Align::kRight, "TB/s"},
               {"nvlink", "NVLink GB/s each way", Align::kRight, "GB/s"},
               {"domain", "domain", Align::kRight},
               {"costs", "op costs"}},
              {},
              {}};
  const auto number = [](double value, const char* form) {
    return value > 0 ? analysis::Value{fmt::format(fmt::runtime(form), value), value} : analysis::Value{"-"};
  };
  for (const trainer::Hardware& h : trainer::all_hardware()) {
    MB_ASSIGN(const trainer::CostTable costs, find_costs(h.key));
    table.rows.push_back({{{h.key},
                           {h.device_name},
                           number(h.bf16_tflops, "{:.0f}"),
                           number(h.fp8_tflops, "{:.0f}"),
                           {format_bytes(h.memory_bytes), h.memory_bytes},
                           number(h.memory_bytes_per_s * 1e-12, "{:.2f}"),
                           number(h.nvlink_bytes_per_s * 1e-9, "{:.0f}"),
                           {std::to_string(h.nvlink_domain_size), static_cast<double>(h.nvlink_domain_size)},
                           {costs.measured ? "measured " + costs.date : "ceilings only"}}});
  }
  table.footer.push_back(
      "Peaks are dense. \"ceilings only\": projections take the share of them that the H100's ops reach.");
  return table;
}

struct Kind {
  const char* name;
  Result<Table> (*table)(const Settings&);
};
constexpr Kind kKinds[] = {{"suites", suites_table},
                           {"models", models_table},
                           {"hardware", hardware_table},
                           {"runs", runs_table},
                           {"series", series_table}};

Result<int> list(const Parsed& parsed) {
  const std::string& what = parsed.positionals[0];
  MB_ASSIGN(const Settings settings, settings_of(parsed));
  if (what == "knobs") {
    fmt::print("{}", parsed.flag("--json") ? render_knobs_json(trainer::knobs()) : render_knobs_text(trainer::knobs()));
    return 0;
  }
  std::vector<std::string> names{"knobs"};
  for (const Kind& kind : kKinds) {
    names.push_back(kind.name);
    if (what != kind.name) continue;
    MB_ASSIGN(const Table table, kind.table(settings));
    print_tables(parsed, {table});
    return 0;
  }
  const auto near = nearest(what, names);
  return fail(ErrorCode::kBadArgument, fmt::format("nothing is listed as '{}'", printable(what)),
              near ? fmt::format("did you mean '{}'?", *near) : "one of: " + join(names, ", "));
}

}  // namespace

Command list_command() {
  return {"list",
          "list suites, models, hardware, knobs, runs or series",
          {{"WHAT", "suites | models | hardware | knobs | runs | series"}},
          {kJsonOption, kMarkdownOption},
          true,
          list};
}

}  // namespace mbb::suites
