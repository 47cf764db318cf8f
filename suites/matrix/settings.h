// Settings in layers: built-in < installation < user < project < environment, then (in a suite) base and cell, then the
// command line. Every value keeps its source. Trainer knobs and product settings are read together, by name.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "profiler/base/error.h"
#include "profiler/base/knob_table.h"
#include "suites/matrix/product_settings.h"
#include "trainer/run/config.h"

namespace mbb::suites {

// One `name = value` of a command line, not yet looked up.
struct Argument {
  std::string name;
  std::string value;
  std::string typed;  // as the user wrote it, for messages
};

// Knob settings among a command's arguments: `--tp 4`, `--tp=4`, `tp=4`, `parallel.tp=4`, and for booleans `--flag` and
// `--no-flag`. Anything else is an error that says which argument.
Result<std::vector<Argument>> parse_arguments(const std::vector<std::string>& arguments);

// Files and variables that settings come from; an empty path means that there is no such file.
struct SettingsPlaces {
  std::string shipped_file;  // share/mbbench/mbbench.toml of the installation
  std::string user_file;     // $XDG_CONFIG_HOME/mbbench/mbbench.toml, else ~/.config/mbbench/mbbench.toml
  std::string project_file;  // mbbench.toml in `folder` or the nearest folder above it
  std::string home;          // for "~/" in paths
  std::vector<std::pair<std::string, std::string>> environment;  // MBBENCH_<KEY> -> value
};

// Of this process, as seen from `folder` (usually "."). Only files that exist are named.
SettingsPlaces find_places(const std::string& folder);

struct Settings {
  trainer::Config config;
  KnobSources sources;
  ProductSettings product;
  KnobSources product_sources;
  std::vector<Argument> command_line;  // applied already; a suite applies them again over its own values
  std::string home;
};

// All layers, command line last.
Result<Settings> read_settings(const SettingsPlaces& places, std::vector<Argument> command_line);

// Applies settings.command_line over what is there now.
Status apply_command_line(Settings& settings);

// The roles of facts as the settings give them; roles that cannot be are a bad file when one gave them.
profiler::FactRoles roles_of(const Settings& settings);

// Every value with its origin: `mbbench config --origin`.
std::string render_origins_text(const Settings& settings);
std::string render_origins_json(const Settings& settings);

// The trainer's values with their sources, in the table's order: what a stored cell keeps.
std::vector<KnobState> knob_states(const trainer::Config& config, const KnobSources& sources);

// Whether a knob's value makes the cell another series: not at its default, so that a program with one knob more goes
// on with the series, and the baselines, of the one before.
bool splits_series(const KnobState& state);

// "key=value" of the knobs that differ from their defaults, one a line: what a program of another day, whose knobs are
// others, reads.
std::string changed_lines(const trainer::Config& config);

// Looks a name up as a trainer knob or, failing that, as a product setting; error with the nearest name of either.
struct FoundSetting {
  const Knob* knob = nullptr;
  bool is_product = false;
};
Result<FoundSetting> find_setting(std::string_view name);

}  // namespace mbb::suites
