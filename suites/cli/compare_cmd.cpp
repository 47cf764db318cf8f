// mbbench compare: two runs side by side.
#include <fmt/core.h>

#include <unistd.h>

#include "analysis/report/compare.h"
#include "analysis/report/program_diff.h"
#include "baselines/store/bundle.h"
#include "profiler/base/log.h"
#include "profiler/base/text.h"
#include "suites/cli/command.h"
#include "suites/cli/print.h"
#include "suites/cli/settings_of.h"

namespace mbb::suites {
namespace {

// The stored program of a cell: in its bundle, not in the store. Empty where the bundle is gone or kept none.
std::string program_of(const Settings& settings, const std::string& run, const std::string& cell) {
  const auto bundle = find_bundle(settings, run);
  if (!bundle) return {};
  const auto reader = baselines::BundleReader::open(*bundle);
  if (!reader) return {};
  auto stored = reader->read_cell(cell);
  return stored ? std::move(stored->program_json) : std::string();
}

Result<analysis::Table> program_changes(const Parsed& parsed, const Settings& settings,
                                        const analysis::CellPair& pair) {
  const std::string before = program_of(settings, parsed.positionals[0], pair.before->name);
  const std::string after = program_of(settings, parsed.positionals[1], pair.after->name);
  if (before.empty() || after.empty()) {
    analysis::Table none{.id = "program", .title = pair.after->name + ": what differs in the step program"};
    none.footer.push_back(
        fmt::format("The {} run's bundle holds no program of this cell.", before.empty() ? "old" : "new"));
    return none;
  }
  MB_ASSIGN(const analysis::ProgramDiff diff, analysis::program_diff(before, after));
  return analysis::program_table(diff, pair.after->name);
}

constexpr int kFound = 1, kNothingJudged = 2;

// --fail-on: whether the step of some pair changed that way beyond its interval. Pairs of unequal work, and without
// launches enough for an interval, say nothing; where there are no others nothing was judged.
Result<int> fail_on(const Parsed& parsed, const std::vector<analysis::CellPair>& pairs) {
  const auto change = parsed.value("--fail-on");
  if (!change) return 0;
  const auto only = parsed.value("--cell");
  bool judged = false;
  for (const analysis::CellPair& pair : pairs) {
    if (!pair.before || !pair.after || !pair.incomparable.empty() || (only && *only != pair.after->name)) continue;
    const baselines::Work &old_work = pair.before->work, &new_work = pair.after->work;
    const bool equal = old_work.tokens_per_step == new_work.tokens_per_step &&
                       old_work.flops_per_token_causal == new_work.flops_per_token_causal &&
                       pair.before->gpus == pair.after->gpus && pair.before->model == pair.after->model;
    const analysis::Estimate step = analysis::step_difference(*pair.before, *pair.after).relative;
    if (!equal || !step.has_interval()) continue;
    judged = true;
    if (*change == "slower" ? step.low > 0 : step.high < 0) return kFound;
  }
  if (judged) return 0;
  say("error: --fail-on: no pair of cells has equal work and launches enough for an interval\n"
      "  hint: two launches on each side, or more: --launches\n");
  return kNothingJudged;
}

Result<int> compare(const Parsed& parsed) {
  if (const auto change = parsed.value("--fail-on"); change && *change != "slower" && *change != "faster")
    return fail(ErrorCode::kBadArgument, fmt::format("--fail-on {}: slower or faster", printable(*change)));
  MB_ASSIGN(const Settings settings, settings_of(parsed));
  MB_ASSIGN(const baselines::Run before, find_run(settings, parsed.positionals[0]));
  MB_ASSIGN(const baselines::Run after, find_run(settings, parsed.positionals[1]));
  std::vector<analysis::Table> tables{analysis::compare_table(before, after)};
  const std::vector<analysis::CellPair> pairs = analysis::pair_cells(before, after);
  const auto only = parsed.value("--cell");
  bool met = false;
  for (const analysis::CellPair& pair : pairs) {
    const bool named = only && pair.after != nullptr && *only == pair.after->name;
    met |= named;
    if (!pair.before || !pair.after || !pair.incomparable.empty() || (only && !named)) continue;
    const bool whole = named || pairs.size() == 1;  // of one cell, everything
    if (whole || parsed.flag("--metrics")) tables.push_back(analysis::metrics_table(*pair.before, *pair.after));
    if (whole || parsed.flag("--ops")) tables.push_back(analysis::ops_table(*pair.before, *pair.after));
    if (!(whole || parsed.flag("--program")) || pair.before->program_hash == pair.after->program_hash) continue;
    MB_ASSIGN(analysis::Table program, program_changes(parsed, settings, pair));
    tables.push_back(std::move(program));
  }
  if (only && !met)
    return fail(ErrorCode::kNotFound, fmt::format("run {} has no cell '{}'", after.id, printable(*only)),
                "`mbbench show " + after.id + "` lists them");
  tables.push_back(analysis::facts_table(before, after));
  print_tables(parsed, tables);
  return fail_on(parsed, pairs);
}

}  // namespace

Command compare_command() {
  Command c{
      "compare",
      "two runs side by side: cells, differences, what changed",
      {{"OLD", "a run, as in `mbbench show`"}, {"NEW", "a run"}},
      {{"--ops", nullptr, "per-op differences of every cell, which sum to the step's; of projections, its parts"},
       {"--metrics", nullptr, "every metric of every cell on both sides"},
       {"--program", nullptr, "the ops in which the step programs of every cell differ"},
       {"--cell", "NAME", "all of that, of this cell"},
       {"--fail-on", "CHANGE", "exit status 1 when a cell's step is slower (or faster), 2 when none can be judged"},
       kJsonOption,
       kMarkdownOption},
      true,
      compare};
  c.settings_alone = true;
  return c;
}

}  // namespace mbb::suites
