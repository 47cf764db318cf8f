// A cell that launches the user's own training command instead of the built-in trainer, as a suite declares it.
//
//   [command]                       of every cell; or command = { ... } in a [[cell]] or [sweep.NAME]
//   run = "torchrun --nproc-per-node {gpus_per_node} train.py --tp {tp} --out {run_dir}"
//   log = "megatron-lm"             how what it prints is read: auto, or a format of suites/foreign
//   log_file = "{run_dir}/log.json" a file it writes, read instead of what it prints
//   device = "h100-sxm"             where it runs, by our name or the driver's, when the log does not say and this
//                                   machine is not it
//   gpus_per_node = 8   silence_limit_s = 600   time_limit_s = 0 (none)
//
// `run` goes to /bin/sh. In braces: gpus, nodes, gpus_per_node, run_dir, cell, launch, and any knob by any spelling
// ({tp}, {train.seq_length}, {knob.lr}). Values are quoted for the shell where they need it; ${NAME} stays the shell's;
// {{ and }} are braces. Secrets belong into the environment, which is not stored, never into `run`, which is.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "profiler/base/error.h"
#include "suites/matrix/toml_file.h"

namespace mbb::suites {

struct CommandSpec {
  std::string run;
  std::string log = "auto";
  std::string log_file;
  std::string device;
  int64_t gpus_per_node = 8;
  int64_t silence_limit_s = 600;
  int64_t time_limit_s = 0;
  std::string file;  // that declares it, and the line of `run`; empty on the command line
  int line = 0;
};

// Keys, types, values and the names in braces are checked; errors carry file:line:column.
Result<CommandSpec> read_command(const TomlFile& file, const TomlNode& table);

// The rules that read_command checks, for a command from elsewhere.
Status check_command(const CommandSpec& spec);

// `text` with every {name} replaced by `value_of(name)`, quoted for the shell when `quote`. Errors name the brace and,
// for an unknown name, the nearest one.
using NameValue = std::function<Result<std::string>(std::string_view name)>;
Result<std::string> expand_template(std::string_view text, const NameValue& value_of, bool quote = true);

// Names that are no knobs: "gpus", "nodes", ...
bool is_command_name(std::string_view name);

// `value` as one word of a POSIX shell.
std::string shell_word(std::string_view value);

}  // namespace mbb::suites
