// What a page shows beside the run itself.
#include "suites/cli/run_page.h"

#include <algorithm>

#include "analysis/gate/gate_report.h"
#include "baselines/pins/pins.h"
#include "suites/cli/histories_of.h"
#include "suites/cli/settings_of.h"

namespace mbb::suites {
namespace {

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

// `against`, else the first run of the baseline that a verdict names, as far as its bundle is still there.
Result<std::optional<Other>> other_run(const Settings& settings, const baselines::Run& run,
                                       const std::optional<std::string>& against) {
  if (against) {
    MB_ASSIGN(const std::filesystem::path bundle, find_bundle(settings, *against));
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

}  // namespace

Status write_page(const Settings& settings, ExportSource source, const std::filesystem::path& to,
                  const std::optional<std::string>& against) {
  MB_ASSIGN(const auto other, other_run(settings, source.run, against));
  std::optional<ExportSource> above;
  if (other) source.against = &above.emplace(ExportSource{other->run, other->reader, source.cell});
  source.histories = histories(settings, source.run);
  source.product =
      profiler::product_text(source.run.fingerprint, declared_facts(settings.product.gate), roles_of(settings));
  return export_html(source, to);
}

}  // namespace mbb::suites
