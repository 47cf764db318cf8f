// mbbench export: a stored run as files that other tools open.
#include <fmt/core.h>

#include <algorithm>
#include <optional>

#include "analysis/gate/gate_report.h"
#include "baselines/pins/pins.h"
#include "profiler/base/file.h"
#include "profiler/base/text.h"
#include "suites/cli/command.h"
#include "suites/cli/histories_of.h"
#include "suites/cli/settings_of.h"
#include "suites/export/export.h"

namespace mbb::suites {
namespace {

using Export = Result<std::vector<std::string>> (*)(const ExportSource&, const std::filesystem::path&);

struct Format {
  const char* name;
  const char* ending;  // of the default output: a folder without one
  Export write;
};

constexpr Format kFormats[] = {
    {"kineto", "-kineto", export_kineto}, {"memory", "-memory", export_memory}, {"csv", "-csv", export_csv},
    {"json", ".json", export_json},       {"html", ".html", export_html},
};

// The run that a page's timelines are held against.
struct Other {
  baselines::BundleReader reader;
  baselines::Run run;
};

Result<Other> open_other(const std::filesystem::path& bundle) {
  MB_ASSIGN(auto reader, baselines::BundleReader::open(bundle));
  MB_ASSIGN(auto run, reader.read_all());
  return Other{std::move(reader), std::move(run)};
}

// --against, else the first run of the baseline that a verdict names, as far as its bundle is still there.
Result<std::optional<Other>> other_run(const Parsed& parsed, const Settings& settings, const baselines::Run& run) {
  if (const auto named = parsed.value("--against")) {
    MB_ASSIGN(const std::filesystem::path bundle, find_bundle(settings, *named));
    MB_ASSIGN(auto other, open_other(bundle));
    return std::optional(std::move(other));
  }
  MB_ASSIGN(const auto pins, baselines::read_pins(settings.product.baselines_file));
  for (const auto& cell : run.cells)
    for (const auto& verdict : cell.verdicts)
      for (const auto& pin : pins) {
        if (pin.id != verdict.against || pin.runs.empty()) continue;
        const auto bundle = std::filesystem::path(settings.product.runs_dir) / "runs" / pin.runs.front();
        if (!baselines::looks_like_bundle(bundle)) continue;
        MB_ASSIGN(auto other, open_other(bundle));
        return std::optional(std::move(other));
      }
  return std::optional<Other>();
}

// Of the run's cells, by what the gate judges; none where there is no store.
std::vector<analysis::History> histories(const Settings& settings, const baselines::Run& run) {
  auto found = histories_of(settings, [&](const baselines::SeriesSummary& series) {
    return std::any_of(run.cells.begin(), run.cells.end(), [&](const baselines::Cell& cell) {
      const auto gated = analysis::gated_metrics(cell);
      return cell.identity_hash == series.key.identity_hash &&
             std::find(gated.begin(), gated.end(), series.key.metric) != gated.end();
    });
  });
  return found ? std::move(*found) : std::vector<analysis::History>{};
}

Result<int> export_run(const Parsed& parsed) {
  MB_ASSIGN(const Settings settings, settings_of(parsed));
  const std::string wanted = parsed.value("--format").value_or("");
  const auto format =
      std::find_if(std::begin(kFormats), std::end(kFormats), [&](const Format& f) { return wanted == f.name; });
  if (format == std::end(kFormats))
    return fail(ErrorCode::kBadArgument,
                wanted.empty() ? "export needs --format" : fmt::format("no export format '{}'", printable(wanted)),
                "one of kineto, memory, csv, json, html");
  MB_ASSIGN(const std::filesystem::path bundle, find_bundle(settings, parsed.positionals[0]));
  MB_ASSIGN(const auto reader, baselines::BundleReader::open(bundle));
  MB_ASSIGN(const baselines::Run run, reader.read_all());
  ExportSource source{run, reader, parsed.value("--cell").value_or("")};
  const bool has = source.cell.empty() || std::any_of(run.cells.begin(), run.cells.end(),
                                                      [&](const auto& c) { return c.name == source.cell; });
  if (!has)
    return fail(ErrorCode::kNotFound, fmt::format("run {} has no finished cell '{}'", run.id, printable(source.cell)));
  std::optional<Other> other;
  std::optional<ExportSource> above;
  if (wanted == "html") {
    MB_ASSIGN(other, other_run(parsed, settings, run));
    if (other) source.against = &above.emplace(ExportSource{other->run, other->reader, source.cell});
    source.histories = histories(settings, run);
    source.product = profiler::product_text(run.fingerprint, declared_facts(settings.product.gate), roles_of(settings));
  }
  const std::filesystem::path to = parsed.value("--output").value_or(run.id + format->ending);
  MB_ASSIGN(const auto files, format->write(source, to));
  for (const std::string& file : files) fmt::print("{}\n", file);
  return 0;
}

}  // namespace

Command export_command() {
  return {"export",
          "write a run for other tools: HTA and Perfetto, memory_viz, spreadsheets, scripts",
          {{"RUN", "@latest, @2, @tag, id, prefix of an id, or bundle folder"}},
          {{"--format", "NAME", "kineto, memory, csv, json or html"},
           {"--output", "PATH", "folder to write to, for json and html a file (default: named after the run)"},
           {"--cell", "NAME", "only this cell"},
           {"--against", "RUN", "html: the run to stand above in timelines; default: its baseline's"}},
          true,
          export_run};
}

}  // namespace mbb::suites
