// A command of the program, declared as data: what it is called, which options it has, what runs.
//
// Knobs need no declaration: a command that takes_knobs hands every argument it does not know to the settings layers.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "profiler/base/error.h"

namespace mbb::suites {

struct OptionSpec {
  const char* flag;   // "--tag"
  const char* value;  // name of its value, "NAME"; nullptr for a plain flag
  const char* doc;
  bool repeats = false;           // may be given several times
  const char* with = nullptr;     // options of which one must be there too, "--timeline|--collectives"
  const char* against = nullptr;  // options beside which it would say nothing
  bool settings_alone = false;    // of knobs, too, only product settings may follow, as with a command's
};

struct PositionalSpec {
  const char* name;  // "SUITE"
  const char* doc;
  bool required = true;
};

// What the command line said.
struct Parsed {
  std::vector<std::string> argv;  // whole, for the record
  std::map<std::string, std::vector<std::string>> options;
  std::vector<std::string> positionals;
  std::vector<std::string> knobs;  // "tp=4", "--tp", "4"

  bool flag(const std::string& name) const { return options.contains(name); }
  std::optional<std::string> value(const std::string& name) const {
    const auto found = options.find(name);
    return found == options.end() || found->second.empty() ? std::nullopt : std::optional(found->second.back());
  }
  std::vector<std::string> values(const std::string& name) const {
    const auto found = options.find(name);
    return found == options.end() ? std::vector<std::string>{} : found->second;
  }
};

struct Command {
  const char* name;
  const char* summary;
  std::vector<PositionalSpec> positionals;
  std::vector<OptionSpec> options;
  bool takes_knobs = false;
  // The exit status, or an error that main prints (kBadArgument ends with 64, others with 4).
  Result<int> (*run)(const Parsed& parsed) = nullptr;
  bool hidden = false;
  bool settings_alone = false;  // what may follow are product settings alone; not of `gc` and `history`, which a
                                // nightly job gives the same words as `gate`
  bool own_help = true;         // false: --help is passed on too
  bool passes_on = false;       // the first word that it does not know and all after are another program's, --help too
};

// Exit statuses beyond verdicts (DESIGN.md, Trouble).
inline constexpr int kExitBroken = 4;
inline constexpr int kExitUsage = 64;
inline constexpr int kExitStopped = 75;
inline constexpr int kExitInterrupted = 130;

// One function a command, each in a file of its own; commands() is the visible list.
Command suite_command();
Command run_command();
Command list_command();
Command show_command();
Command compare_command();
Command explain_command();
Command project_command();
Command advise_command();
Command diagnose_command();
Command knobs_command();
Command config_command();
Command export_command();
Command import_command();
Command index_command();
Command doctor_command();
Command gate_command();
Command baseline_command();
Command history_command();
Command gc_command();
Command noise_command();
Command ab_command();
Command tune_command();
Command micro_command();
Command view_command();
Command help_command();
Command launch_cell_command();
Command time_gpus_command();

std::vector<Command> commands();

}  // namespace mbb::suites
