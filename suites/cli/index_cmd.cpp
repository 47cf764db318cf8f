// mbbench index, view, launch-cell, time-gpus: the store rebuilt from bundles; the viewer started; children of a cell.
#include <fmt/core.h>

#include "profiler/base/file.h"
#include "profiler/base/log.h"
#include "profiler/base/text.h"
#include "suites/cli/command.h"
#include "suites/cli/settings_of.h"
#include "suites/cli/sibling.h"
#include "suites/runner/child.h"
#include "suites/runner/command_canary.h"

namespace mbb::suites {
namespace {

Result<int> index(const Parsed& parsed) {
  MB_ASSIGN(const Settings settings, settings_of(parsed));
  const std::string folder = parsed.positionals.empty() ? settings.product.runs_dir : parsed.positionals[0];
  if (!is_folder(folder))
    return fail(ErrorCode::kNotFound, fmt::format("no folder {}", folder), "name a folder of bundles, or one bundle");
  MB_TRY(make_dirs(settings.product.runs_dir));
  MB_ASSIGN(auto store, baselines::Store::open(store_file(settings.product.runs_dir)));
  MB_ASSIGN(const auto report, store.index(folder));
  for (const Error& trouble : report.troubles) say(fmt::format("{}\n", format(trouble)));
  fmt::print("indexed {} runs, {} cells; {} unfinished, {} unreadable\n", report.runs, report.cells, report.unfinished,
             report.troubles.size());
  return report.troubles.empty() ? 0 : kExitBroken;
}

// The viewer is a program of its own beside this one, so that this one never links a window system.
Result<int> view(const Parsed& parsed) {
  // Where runs and baselines lie, and what a product is, is said by knobs, everything else by the viewer's own options.
  Parsed places{.argv = parsed.argv};
  std::vector<std::string> options;
  for (const std::string& word : parsed.knobs)
    (word.starts_with("runs_dir=") || word.starts_with("baselines_file=") || word.starts_with("gate.") ? places.knobs
                                                                                                       : options)
        .push_back(word);
  MB_ASSIGN(const Settings settings, settings_of(places));
  std::vector<std::string> arguments{"--store", store_file(settings.product.runs_dir).string(), "--baselines",
                                     settings.product.baselines_file};
  const profiler::FactRoles roles = roles_of(settings);
  for (const std::string& pattern : roles.product) arguments.insert(arguments.end(), {"--product", pattern});
  for (const std::string& pattern : roles.environment) arguments.insert(arguments.end(), {"--environment", pattern});
  arguments.insert(arguments.end(), options.begin(), options.end());
  return become("mbbench-view", arguments, "install libimgui-dev, libglfw3-dev and libopengl-dev, and build again");
}

Result<int> launch_cell(const Parsed& parsed) {
  return run_launch(parsed.positionals[0]);
}

Result<int> time_gpus_of(const Parsed& parsed) {
  const auto count = parse_int(parsed.positionals[0]);
  if (!count || *count < 1 || *count > 1024)
    return fail(ErrorCode::kBadArgument,
                fmt::format("{} {}: a number from 1 to 1024", kTimeGpusCommand, printable(parsed.positionals[0])));
  return say_canaries(static_cast<int>(*count));
}

}  // namespace

Command index_command() {
  Command c{"index",
            "rebuild the store from bundles",
            {{"DIR", "a folder of bundles, or one bundle (default: the runs folder)", false}},
            {},
            true,
            index};
  c.settings_alone = true;
  return c;
}
Command view_command() {
  return {.name = "view",
          .summary = "open the viewer (its options follow: --screenshot FILE, --panel NAME, ...)",
          .positionals = {},
          .options = {},
          .takes_knobs = true,
          .run = view,
          .own_help = false};
}
Command launch_cell_command() {
  return {kLaunchCommand,
          "one launch of a cell, started by the runner",
          {{"FOLDER", "its launch folder"}},
          {},
          false,
          launch_cell,
          true};
}
Command time_gpus_command() {
  return {kTimeGpusCommand,
          "fixed work on GPUs, started by the runner around a user's command",
          {{"COUNT", "of them"}},
          {},
          false,
          time_gpus_of,
          true};
}

}  // namespace mbb::suites
