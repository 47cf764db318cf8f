// A run's page with all that the store and the baselines file have of it, for the commands that write one.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "suites/export/export.h"
#include "suites/matrix/settings.h"

namespace mbb::suites {

// `against` names the run whose timelines stand above; without, it is the first run of a baseline that a verdict names,
// as far as its bundle is still there.
Status write_page(const Settings& settings, ExportSource source, const std::filesystem::path& to,
                  const std::optional<std::string>& against = std::nullopt);

}  // namespace mbb::suites
