// A suite file: what to run, as data, expanded into cells that each hold a complete configuration.
//
//   purpose = "..."                       one sentence, needed
//   based_on = ["h100"]                   tables of knobs that stand before [base]: [basis.h100] of this file, or of
//                                         basis/h100.toml beside it, in suites_dir, or shipped
//   hardware = "h100-sxm"                 what cells are projected on where the machine lacks their GPUs
//   model = "llama3-70b"   gpus = 64      short for the same in [base]
//   [base]                                knobs of every cell
//   [[cell]]  name, set = { knobs }, published = "text"
//   [sweep.NAME]  axes = { knob = [values], ... }, set = { knobs }, where = "condition", yields = N cells
//   [[skip]]  when = "condition", reason = "text"
//   [command]  of every cell, or command = { ... } of a [[cell]] or sweep: the user's own training command, see
//       command_spec.h
//   [cover.NAME]  axes.AXIS.VALUE = { knobs }, set, where, yields as of a sweep; total = N, seed = S
//       combinations in which every two values of two axes meet, and random ones up to `total`
//       reference = { AXIS = "VALUE", ... }: besides, every combination of the axes it does not name
//       reference_seeds = [S, ...]: those again, trained from each of these train.seed, as CELL-seedS
//   [[claim]]  what is said of two cells: claims.h
//
// Order of layers: settings < basis < [base] < cell, sweep or cover `set` < axes < command line. Conditions read knobs
// by any spelling, `dp` (the data-parallel size) and `cell` (the name of the cell).
//
// `yields` is a sweep's or cover's manifest: how many cells it makes. Another count is an error that names the
// combinations without a cell, so that none is lost to a rule unseen. A command line that sets knobs changes what
// combinations are, and is not held to it.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "profiler/base/error.h"
#include "profiler/base/knob_table.h"
#include "suites/matrix/claims.h"
#include "suites/matrix/command_spec.h"
#include "suites/matrix/settings.h"
#include "trainer/run/config.h"

namespace mbb::suites {

inline constexpr size_t kMaxCells = 4096;

struct Cell {
  std::string name;  // letters, digits and ._+- ; unique in the suite; usable as a folder name
  trainer::Config config;
  KnobSources sources;
  std::string published;                    // what others report for it; may be empty
  std::string sweep;                        // the sweep or cover it comes from; empty for a [[cell]]
  std::optional<Skipped> skipped;           // by a [[skip]]
  std::optional<CommandSpec> command = {};  // instead of the built-in trainer
};

// A combination of a sweep that is no cell, and why: it does not resolve, or equals another cell. Of a cover: a pair of
// values that meet in no combination that was tried.
struct DroppedCell {
  std::string name;
  std::string reason;
};

struct Suite {
  std::string name;  // the file's name without .toml
  std::string path;
  std::string purpose;
  std::string hardware;  // a key of trainer::all_hardware(); empty: not said
  std::string hash;      // of `text`
  // The file's bytes and the basis tables it took from elsewhere: a bundle keeps them, so that it can be resumed and
  // replayed alone.
  std::string text;
  std::vector<Cell> cells;
  std::vector<Claim> claims;  // those whose cells are there
  std::vector<DroppedCell> dropped;
};

struct SuiteFilter {
  std::vector<std::string> only;  // patterns; a cell named here runs even where a [[skip]] holds
  std::vector<std::string> skip;  // patterns; these cells are left out
  // Of every cover, instead of the file's.
  std::optional<uint64_t> seed = {};
  std::optional<size_t> total = {};
  size_t max_cells = kMaxCells;  // more, after `only` and `skip`, are an error
};
// A pattern with * or ? matches the whole name, any other a part of it.
bool cell_matches(std::string_view pattern, std::string_view cell);

// Whether a configuration can be laid out at all; combinations of a sweep that cannot are dropped with the error.
using Resolves = std::function<Status(const trainer::Config&)>;

Result<Suite> load_suite(const std::string& path, const Settings& settings, const SuiteFilter& filter,
                         const Resolves& resolves);
Result<Suite> parse_suite(std::string bytes, const std::string& path, const Settings& settings,
                          const SuiteFilter& filter, const Resolves& resolves);

// The file that holds [basis.NAME], for a suite at `path`. Error with the nearest name.
Result<TomlFile> find_basis(const std::string& name, const std::string& path, const Settings& settings);

// A suite that can be named: one of the user's folder, or one shipped inside the program.
struct SuiteEntry {
  std::string name;
  std::string path;   // for a shipped one "shipped/NAME.toml", which is no file
  std::string bytes;  // of a shipped one
  bool shipped = false;
};
// The user's own first, then the shipped ones they do not hide; by name.
Result<std::vector<SuiteEntry>> list_suites(const Settings& settings);
// A name from list_suites, or a file when it has a '/' or ends in .toml. Error with the nearest name.
Result<Suite> open_suite(const std::string& name_or_file, const Settings& settings, const SuiteFilter& filter,
                         const Resolves& resolves);

}  // namespace mbb::suites
