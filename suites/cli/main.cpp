// mbbench: parses the command line with CLI11, runs one command, turns errors into exit statuses.
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <system_error>

#include "profiler/base/log.h"
#include "profiler/base/text.h"
#include "profiler/host/fingerprint.h"
#include "suites/cli/command.h"
#include "suites/matrix/settings.h"

namespace {

using mbb::suites::Command;
using mbb::suites::Parsed;

// One CLI11 subcommand and where its answers land.
struct Entry {
  Command command;
  CLI::App* app = nullptr;
  std::map<std::string, std::vector<std::string>> values;
  std::map<std::string, bool> flags;
  std::map<std::string, std::string> positionals;
  std::vector<std::string> rest;  // of a repeating last positional
};

void declare(CLI::App& root, Entry& entry) {
  CLI::App* app = entry.app = root.add_subcommand(entry.command.name, entry.command.summary);
  if (entry.command.hidden) app->group("");
  for (const auto& p : entry.command.positionals) {
    auto* option = app->add_option(p.name, entry.positionals[p.name], p.doc);
    if (p.required) option->required();
  }
  for (const auto& o : entry.command.options) {
    if (o.value == nullptr)
      app->add_flag(o.flag, entry.flags[o.flag], o.doc);
    else
      app->add_option(o.flag, entry.values[o.flag], o.doc)
          ->type_name(o.value)
          ->expected(1)
          ->multi_option_policy(o.repeats ? CLI::MultiOptionPolicy::TakeAll : CLI::MultiOptionPolicy::Throw)
          ->allow_extra_args(false);
  }
  if (entry.command.passes_on) app->prefix_command();
  if (!entry.command.own_help) app->set_help_flag();
  if (entry.command.takes_knobs) {
    app->allow_extras();
    app->footer(
        entry.command.settings_alone
            ? "Settings may follow: runs_dir=DIR, --runs-dir DIR (`mbbench config` prints them all)."
            : "Any knob may follow: tp=4, --tp 4, parallel.tensor_model_parallel_size=4 (`mbbench knobs` lists them).");
  }
}

// Positionals that look like knobs ("tp=4") are knobs.
Parsed parsed_of(const Entry& entry, const std::vector<std::string>& argv) {
  Parsed parsed;
  parsed.argv = argv;
  parsed.knobs = entry.app->remaining();
  for (const auto& p : entry.command.positionals) {
    const std::string& value = entry.positionals.at(p.name);
    if (entry.app->count(p.name) == 0) continue;
    const bool is_knob = !p.required && entry.command.takes_knobs && value.find('=') != std::string::npos;
    (is_knob ? parsed.knobs : parsed.positionals).push_back(value);
  }
  for (const auto& [name, values] : entry.values)
    if (!values.empty()) parsed.options[name] = values;
  for (const auto& [name, set] : entry.flags)
    if (set) parsed.options[name] = {};
  return parsed;
}

// The first of a list such as "--timeline|--collectives" that was given; empty when none was.
std::string first_given(const Parsed& parsed, const char* list) {
  for (const std::string_view option : mbb::split(list == nullptr ? "" : list, '|'))
    if (parsed.flag(std::string(option))) return std::string(option);
  return "";
}

// No option is taken and does nothing.
mbb::Status check_company(const Command& command, const Parsed& parsed) {
  using mbb::ErrorCode;
  for (const auto& o : command.options) {
    if (!parsed.flag(o.flag)) continue;
    if (o.with != nullptr && first_given(parsed, o.with).empty()) {
      const std::vector<std::string_view> with = mbb::split(o.with, '|');
      return mbb::fail(ErrorCode::kBadArgument, fmt::format("{} without {}", o.flag, fmt::join(with, " or ")),
                       fmt::format("{}: {}", o.flag, o.doc));
    }
    if (const std::string other = first_given(parsed, o.against); !other.empty())
      return mbb::fail(ErrorCode::kBadArgument, fmt::format("{} with {}: it would do nothing", o.flag, other),
                       "leave one of them out");
  }
  const auto alone = std::find_if(command.options.begin(), command.options.end(),
                                  [&](const auto& o) { return o.settings_alone && parsed.flag(o.flag); });
  if (!command.settings_alone && alone == command.options.end()) return {};
  const std::string who = command.settings_alone ? command.name : fmt::format("{} {}", command.name, alone->flag);
  MB_ASSIGN(const auto arguments, mbb::suites::parse_arguments(parsed.knobs));
  for (const mbb::suites::Argument& argument : arguments)
    if (const auto found = mbb::suites::find_setting(argument.name); found && !found->is_product)
      return mbb::fail(ErrorCode::kBadArgument,
                       fmt::format("argument '{}': {} is a knob of a run, and {} runs nothing",
                                   mbb::printable(argument.typed), found->knob->key, who),
                       "give it where the run is made; what may follow here is a setting, as runs_dir=DIR");
  return {};
}

// A reader that closed the pipe (head, less) has seen what it wanted.
mbb::Result<int> run_command(const Entry& entry, const std::vector<std::string>& argv) {
  try {
    const Parsed parsed = parsed_of(entry, argv);
    MB_TRY(check_company(entry.command, parsed));
    return entry.command.run(parsed);
  } catch (const std::system_error& error) {  // what fmt::print throws when it cannot write
    if (error.code().value() == EPIPE) return 0;
    return mbb::fail(mbb::ErrorCode::kIo, std::string("writing the output: ") + error.what());
  }
}

int run(const Entry& entry, const std::vector<std::string>& argv) {
  auto status = run_command(entry, argv);
  errno = 0;
  if (std::fflush(stdout) != 0 && errno != EPIPE && status)
    status = mbb::fail(mbb::ErrorCode::kIo, fmt::format("writing the output: {}", std::strerror(errno)),
                       "what was printed is not complete");
  if (status) return *status;
  mbb::say(fmt::format("{}\n", mbb::format(status.error())));
  return status.error().code == mbb::ErrorCode::kBadArgument ? mbb::suites::kExitUsage : mbb::suites::kExitBroken;
}

int unknown(const std::string& word, const std::vector<std::unique_ptr<Entry>>& entries) {
  std::vector<std::string> names;
  for (const auto& entry : entries)
    if (!entry->command.hidden) names.emplace_back(entry->command.name);
  const auto near = mbb::nearest(word, names);
  const std::string hint = near ? fmt::format("did you mean '{}'?", *near) : "commands: " + mbb::join(names, ", ");
  mbb::say(fmt::format("error: no command is called '{}'\n  hint: {}\n", mbb::printable(word), hint));
  return mbb::suites::kExitUsage;
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  // A reader that closes the pipe early must not hide a command's own exit status: output is held until the end.
  static char buffer[size_t{4} << 20];
  if (isatty(STDOUT_FILENO) == 0) std::setvbuf(stdout, buffer, _IOFBF, sizeof(buffer));
  const std::vector<std::string> arguments(argv, argv + argc);
  if (const auto level = mbb::set_log_level_from_env(); !level) {
    mbb::say(fmt::format("{}\n", mbb::format(level.error())));
    return mbb::suites::kExitUsage;
  }
  CLI::App root("mbbench trains, measures and judges large-model training.", "mbbench");
  root.require_subcommand(1);
  std::string version = MBB_VERSION;
  for (const auto& fact : mbb::profiler::build_facts()) version += fmt::format("\n{} = {}", fact.key, fact.value);
  root.set_version_flag("--version", version);
  std::vector<std::unique_ptr<Entry>> entries;
  for (Command& command : mbb::suites::commands()) {
    entries.push_back(std::make_unique<Entry>());
    entries.back()->command = std::move(command);
    declare(root, *entries.back());
  }
  const auto is_named = [&](const auto& entry) { return argc > 1 && std::string_view(entry->command.name) == argv[1]; };
  if (argc > 1 && argv[1][0] != '-' && std::none_of(entries.begin(), entries.end(), is_named))
    return unknown(argv[1], entries);
  try {
    root.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return root.exit(error) == 0 ? 0 : mbb::suites::kExitUsage;
  }
  for (const auto& entry : entries)
    if (entry->app->parsed()) return run(*entry, arguments);
  return mbb::suites::kExitUsage;
}
