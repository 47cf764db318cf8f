// Records of the product's settings.
#include "suites/matrix/product_settings.h"

#include <fmt/format.h>

#include "profiler/base/env.h"
#include "profiler/base/knob_render.h"

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
          {.key = "max_silent_nights",
           .field = field(&ProductSettings::max_silent_nights),
           .unit = "nights",
           .doc = "A cell with a baseline that gives no number for so many nights fails the gate.",
           .identity = false},
      },
      ProductSettings{});
  return table;
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
