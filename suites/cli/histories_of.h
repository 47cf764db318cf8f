// Histories of the store's series, for the commands that show them.
#pragma once

#include <functional>
#include <vector>

#include "analysis/report/history.h"
#include "suites/matrix/settings.h"

namespace mbb::suites {

using WantedSeries = std::function<bool(const baselines::SeriesSummary& series)>;

// One history a cell identity and metric, whatever machines and epochs it ran on; without those that have no night.
// kNotFound when there is no store yet.
Result<std::vector<analysis::History>> histories_of(const Settings& settings, const WantedSeries& wanted);

}  // namespace mbb::suites
