// mbbench compare: two runs side by side.
#include <fmt/core.h>

#include <unistd.h>

#include "analysis/report/compare.h"
#include "profiler/base/text.h"
#include "suites/cli/command.h"
#include "suites/cli/print.h"
#include "suites/cli/settings_of.h"

namespace mbb::suites {
namespace {

Result<int> compare(const Parsed& parsed) {
  MB_ASSIGN(const Settings settings, settings_of(parsed));
  MB_ASSIGN(const baselines::Run before, find_run(settings, parsed.positionals[0]));
  MB_ASSIGN(const baselines::Run after, find_run(settings, parsed.positionals[1]));
  std::vector<analysis::Table> tables{analysis::compare_table(before, after)};
  for (const auto& pair : analysis::pair_cells(before, after)) {
    if (!pair.before || !pair.after || !pair.incomparable.empty()) continue;
    const auto only = parsed.value("--cell");
    if (only ? *only != pair.after->name : !parsed.flag("--ops")) continue;
    analysis::Table ops = analysis::ops_table(*pair.before, *pair.after);
    if (!ops.rows.empty()) tables.push_back(std::move(ops));
  }
  tables.push_back(analysis::facts_table(before, after));
  print_tables(parsed, tables);
  return 0;
}

}  // namespace

Command compare_command() {
  return {"compare",
          "two runs side by side: cells, differences, what changed",
          {{"OLD", "a run, as in `mbbench show`"}, {"NEW", "a run"}},
          {{"--ops", nullptr, "per-op differences of every cell, which sum to the step's"},
           {"--cell", "NAME", "per-op differences of this cell"},
           kJsonOption,
           kMarkdownOption},
          true,
          compare};
}

}  // namespace mbb::suites
