// Series of the store, joined with the baselines file.
#include "suites/cli/histories_of.h"

#include <fmt/core.h>

#include <algorithm>

#include "baselines/pins/pins.h"
#include "profiler/base/clock.h"
#include "profiler/base/file.h"
#include "suites/runner/runner.h"

namespace mbb::suites {
namespace {

using baselines::SeriesSummary;

// Series that differ in machine or epoch only are one history.
std::vector<SeriesSummary> one_an_identity(std::vector<SeriesSummary> all) {
  std::vector<SeriesSummary> kept;
  for (SeriesSummary& series : all) {
    const auto same = std::find_if(kept.begin(), kept.end(), [&](const SeriesSummary& k) {
      return k.key.identity_hash == series.key.identity_hash && k.key.metric == series.key.metric;
    });
    if (same == kept.end())
      kept.push_back(std::move(series));
    else if (series.newest_unix_ns > same->newest_unix_ns)
      *same = std::move(series);
  }
  return kept;
}

}  // namespace

Result<std::vector<analysis::History>> histories_of(const Settings& settings, const WantedSeries& wanted) {
  const std::filesystem::path file = store_file(settings.product.runs_dir);
  if (!file_exists(file))
    return fail(ErrorCode::kNotFound, fmt::format("there is no store in {}", settings.product.runs_dir),
                "a series begins with the first run: `mbbench suite NAME` or `mbbench gate NAME`");
  MB_ASSIGN(const auto store, baselines::Store::open(file, {.read_only = true}));
  MB_ASSIGN(auto all, store.list_series());
  MB_ASSIGN(const auto pins, baselines::read_pins(settings.product.baselines_file));
  std::erase_if(all, [&](const SeriesSummary& series) { return !wanted(series); });
  const auto declared = declared_facts(settings.product.gate);
  const auto roles = roles_of(settings);
  std::vector<analysis::History> histories;
  for (const SeriesSummary& series : one_an_identity(std::move(all))) {
    MB_ASSIGN(auto points, store.history(series.key.identity_hash, series.key.metric));
    MB_TRY(baselines::name_products(store, declared, roles, points));
    analysis::History history = analysis::make_history(series, std::move(points), pins, wall_ns());
    if (!history.points.empty()) histories.push_back(std::move(history));
  }
  return histories;
}

}  // namespace mbb::suites
