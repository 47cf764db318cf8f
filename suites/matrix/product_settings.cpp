// Records of the product's settings.
#include "suites/matrix/product_settings.h"

#include <fmt/format.h>

#include <algorithm>

#include "profiler/base/env.h"
#include "profiler/base/knob_render.h"
#include "profiler/base/text.h"

namespace mbb::suites {

const KnobTable& product_settings() {
  static const KnobTable table(
      {
          {.key = "runs_dir",
           .field = field(&ProductSettings::runs_dir),
           .doc = "Folder of the run bundles and the store; made when missing.",
           .path = true,
           .identity = false},
          {.key = "suites_dir",
           .field = field(&ProductSettings::suites_dir),
           .doc = "Folder of your own suite files, found by name before the shipped ones; empty = none.",
           .path = true,
           .identity = false},
          {.key = "baselines_file",
           .field = field(&ProductSettings::baselines_file),
           .doc = "Accepted baselines of the gate, one JSON line each; lines are only ever appended. Keep it under "
                  "version "
                  "control.",
           .path = true,
           .identity = false},
          {.key = "gate.max_silent_nights",
           .field = field(&ProductSettings::gate, &GateSettings::max_silent_nights),
           .range = at_least(1),
           .unit = "nights",
           .doc = "A cell with a baseline that has no verdict for so many nights, since it gives no number or the "
                  "baseline expired, fails the gate. A night is a UTC day; cells that --only or --skip left out count "
                  "in none.",
           .identity = false},
          {.key = "gate.product",
           .field = field(&ProductSettings::gate, &GateSettings::product),
           .doc = "Facts of a run (patterns, comma between; run.json of a bundle lists them) that are the product "
                  "under test: "
                  "they may change from night to night. Declared facts are product unless gate.environment claims "
                  "them.",
           .identity = false},
          {.key = "gate.environment",
           .field = field(&ProductSettings::gate, &GateSettings::environment),
           .doc = "Facts that are the environment: a change of one begins a new epoch, which has no verdict until the "
                  "old product has run in it (`mbbench gate --bridge`).",
           .identity = false},
          {.key = "gate.facts",
           .field = field(&ProductSettings::gate, &GateSettings::facts),
           .doc = "Facts that the program cannot see, as `image = \"nemo:25.09\"` under [gate.facts].",
           .identity = false},
          {.key = "gc.keep_days",
           .field = field(&ProductSettings::gc, &GcSettings::keep_days),
           .range = at_least(0),
           .unit = "days",
           .doc = "`mbbench gc` keeps the bundles of younger runs.",
           .identity = false},
          {.key = "gc.keep_runs",
           .field = field(&ProductSettings::gc, &GcSettings::keep_runs),
           .range = at_least(0),
           .unit = "runs",
           .doc = "`mbbench gc` keeps the bundles of so many newest runs of each suite, however old.",
           .identity = false},
      },
      ProductSettings{});
  return table;
}

profiler::FactRoles fact_roles(const GateSettings& gate) {
  const auto patterns = [](const std::string& list) {
    std::vector<std::string> all;
    for (const std::string_view one : split(list, ','))
      if (!trim(one).empty()) all.emplace_back(trim(one));
    return all;
  };
  profiler::FactRoles roles{patterns(gate.product), patterns(gate.environment)};
  for (const auto& [key, value] : gate.facts) {
    const auto claims = [&key = key](const std::string& p) { return glob_match(p, key); };
    if (std::none_of(roles.environment.begin(), roles.environment.end(), claims)) roles.product.push_back(key);
  }
  return roles;
}

std::vector<profiler::HostFact> declared_facts(const GateSettings& gate) {
  std::vector<profiler::HostFact> facts;
  for (const auto& [key, value] : gate.facts) facts.push_back({key, value});
  return facts;
}

std::string render_settings_markdown() {
  std::string page = render_knobs_markdown(product_settings(), "Settings of the product");
  page +=
      "\n## Layers\n\nA later layer wins, and every value keeps its source (`mbbench config --origin`). Knobs of a run "
      "are "
      "set in the same places by the same spellings.\n\n"
      "1. the default in the record\n"
      "2. `share/mbbench/mbbench.toml` of the installation\n"
      "3. `$XDG_CONFIG_HOME/mbbench/mbbench.toml`, else `~/.config/mbbench/mbbench.toml`\n"
      "4. `mbbench.toml` in the working directory or the nearest folder above it\n"
      "5. environment: `MBBENCH_<NAME>`, as `MBBENCH_RUNS_DIR`, `MBBENCH_TP`, `MBBENCH_TRAIN_SEED`\n"
      "6. the suite: `[base]`, then the cell\n"
      "7. the command line: `--name value`, `--name=value`, `name=value`; booleans also `--name` and `--no-name`\n\n"
      "A relative path in a file counts from that file's folder, elsewhere from the working directory.\n"
      "\n## Environment variables\n\nBeside `MBBENCH_<NAME>`, the program reads these and no others:\n\n"
      "| variable | meaning |\n|---|---|\n";
  for (const EnvVar& variable : env_vars()) page += fmt::format("| `{}` | {} |\n", variable.name, variable.meaning);
  return page;
}

}  // namespace mbb::suites
