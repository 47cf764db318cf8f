// Reads and expands suite files: see suite.h.
#include "suites/matrix/suite.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "profiler/base/hash.h"
#include "profiler/base/text.h"
#include "suites/matrix/cell_maker.h"
#include "suites/matrix/conditions.h"
#include "suites/matrix/cover_cells.h"
#include "suites/matrix/sweep_cells.h"
#include "suites/matrix/toml_fields.h"
#include "suites/matrix/toml_file.h"
#include "trainer/models/hardware.h"

namespace mbb::suites {
namespace {

Status check_top_level(const TomlFile& file) {
  const std::vector<std::string> keys = {"purpose", "based_on", "hardware", "model", "gpus",  "basis",  "base",
                                         "cell",    "sweep",    "cover",    "skip",  "claim", "command"};
  for (const TomlNode& entry : file.root.items) {
    if (std::find(keys.begin(), keys.end(), entry.key) != keys.end()) continue;
    const auto near = nearest(entry.key, keys);
    return file.error(entry.key_at, fmt::format("a suite has no key '{}'", printable(entry.key)),
                      find_setting(entry.key) ? "knobs of every cell go into [base]"
                      : near                  ? fmt::format("did you mean '{}'?", *near)
                                              : "a suite has " + join(keys, ", "));
  }
  return {};
}

Result<std::string> read_hardware(const TomlFile& file) {
  MB_ASSIGN(std::string hardware, text_if_any(file, file.root, "hardware"));
  if (hardware.empty()) return hardware;
  const auto found = trainer::find_hardware(hardware);
  if (!found) return file.error(file.root.find("hardware")->at, found.error().what, found.error().hint);
  return hardware;
}

Status add_cells(CellMaker& maker) {
  const TomlFile& file = maker.file();
  MB_ASSIGN(const auto cells, tables_in_array(file, "cell"));
  if (cells.size() > kMaxCells) return maker.too_many(cells[kMaxCells]->at, cells.size());
  for (const TomlNode* table : cells) {
    MB_TRY(check_keys(file, *table, {"name", "set", "published", "command"}, "[[cell]]"));
    MB_ASSIGN(std::string cell_name, needed_text(file, *table, "name"));
    const TomlPlace at = table->find("name")->at;
    if (!good_cell_name(cell_name))
      return file.error(
          at, fmt::format("'{}' cannot name a cell", printable(cell_name)),
          fmt::format("letters, digits and . _ + - , at most {}, not beginning with a dot", kCellNameLimit));
    MB_ASSIGN(Settings settings, maker.start(*table));
    MB_ASSIGN(Cell cell, maker.make(std::move(cell_name), std::move(settings), *table));
    MB_ASSIGN(cell.published, text_if_any(file, *table, "published"));
    MB_TRY(maker.add(std::move(cell), at, "here is", "rename one of them"));
  }
  return {};
}

// Which cells of a suite are wanted, by the words of --only and --skip.
class Wanted {
 public:
  Wanted(const SuiteFilter& filter, const std::vector<Cell>& cells) : filter_(filter) {
    for (const Cell& cell : cells) names_.push_back(cell.name);
  }

  bool only_names(const Cell& cell) const { return matches_any(filter_.only, cell.name); }
  bool leaves_out(const Cell& cell) const {
    return (!filter_.only.empty() && !matches_any(filter_.only, cell.name)) || matches_any(filter_.skip, cell.name);
  }

  // Every pattern means some cell.
  Status check(const std::string& suite) const {
    for (const auto* patterns : {&filter_.only, &filter_.skip}) {
      for (const std::string& pattern : *patterns) {
        const bool any = std::any_of(names_.begin(), names_.end(),
                                     [&](const std::string& name) { return cell_matches(pattern, name); });
        if (!any) return no_match(suite, patterns == &filter_.only ? "--only" : "--skip", pattern);
      }
    }
    return {};
  }

 private:
  // A cell's whole name means that cell alone; other words match parts of names.
  bool matches_any(const std::vector<std::string>& patterns, const std::string& name) const {
    return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& p) {
      const bool is_a_name = std::find(names_.begin(), names_.end(), p) != names_.end();
      return is_a_name ? p == name : cell_matches(p, name);
    });
  }

  Status no_match(const std::string& suite, const char* option, const std::string& pattern) const {
    constexpr size_t kShown = 12;
    std::vector<std::string> shown = names_;
    const size_t more = shown.size() > kShown ? shown.size() - kShown : 0;
    shown.resize(shown.size() - more);
    return fail(ErrorCode::kBadArgument,
                fmt::format("suite {}: no cell matches {} '{}'", suite, option, printable(pattern)),
                fmt::format("its cells: {}{}", join(shown, ", "), more > 0 ? fmt::format(" and {} more", more) : ""));
  }

  const SuiteFilter& filter_;
  std::vector<std::string> names_;
};

struct SkipRule {
  Condition when;
  std::string reason;
};

Result<std::vector<SkipRule>> read_skips(const TomlFile& file) {
  std::vector<SkipRule> rules;
  MB_ASSIGN(const auto tables, tables_in_array(file, "skip"));
  for (const TomlNode* table : tables) {
    MB_TRY(check_keys(file, *table, {"when", "reason"}, "[[skip]]"));
    MB_ASSIGN(std::string reason, needed_text(file, *table, "reason"));
    MB_TRY(needed_text(file, *table, "when"));
    MB_ASSIGN(Condition when, read_condition(file, *table->find("when"), "'when'"));
    rules.push_back({std::move(when), std::move(reason)});
  }
  return rules;
}

// The first rule that holds; a cell that --only names runs all the same.
Status apply_skips(const std::vector<SkipRule>& rules, const Wanted& wanted, std::vector<Cell>& cells) {
  for (Cell& cell : cells) {
    for (const SkipRule& rule : rules) {
      MB_ASSIGN(const bool skip, holds(rule.when, cell, "'when'"));
      if (!skip || wanted.only_names(cell)) continue;
      cell.skipped = Skipped{rule.reason};
      break;
    }
  }
  return {};
}

Status apply_filter(const SuiteFilter& filter, const Wanted& wanted, Suite& suite) {
  MB_TRY(wanted.check(suite.name));
  std::erase_if(suite.cells, [&](const Cell& cell) { return wanted.leaves_out(cell); });
  if (suite.cells.empty())
    return fail(ErrorCode::kBadArgument, fmt::format("suite {}: --only and --skip leave no cell", suite.name));
  if (suite.cells.size() > filter.max_cells)
    return fail(ErrorCode::kBadArgument,
                fmt::format("suite {}: {} cells are more than --max-cells {}", suite.name, suite.cells.size(),
                            filter.max_cells),
                "raise it, or narrow the suite with --only and --skip");
  const auto left = [&](const std::string& name) {
    return std::any_of(suite.cells.begin(), suite.cells.end(), [&](const Cell& c) { return c.name == name; });
  };
  std::erase_if(suite.claims, [&](const Claim& claim) { return !left(claim.a) || !left(claim.b); });
  return {};
}

Result<Suite> read_suite(const TomlFile& file, const Settings& settings, const SuiteFilter& filter,
                         const Resolves& resolves) {
  Suite suite;
  suite.path = file.path;
  suite.name = std::filesystem::path(file.path).stem().string();
  MB_TRY(check_top_level(file));
  MB_ASSIGN(suite.purpose, needed_text(file, file.root, "purpose"));
  MB_ASSIGN(suite.hardware, read_hardware(file));
  CellMaker maker(file, settings, resolves);
  MB_TRY(maker.read_common());
  suite.text = maker.text();
  suite.hash = hash_hex(suite.text);
  MB_ASSIGN(const std::vector<SkipRule> skips, read_skips(file));
  MB_TRY(add_cells(maker));
  MB_TRY(add_sweeps(maker));
  MB_TRY(add_covers(maker, filter));
  suite.cells = std::move(maker.cells());
  suite.dropped = std::move(maker.dropped());
  if (suite.cells.empty())
    return file.error({}, "the suite has no cell", "add a [[cell]] with a name, or a [sweep.NAME] with axes");
  const Wanted wanted(filter, suite.cells);
  MB_TRY(apply_skips(skips, wanted, suite.cells));
  std::vector<std::string> names;
  for (const Cell& cell : suite.cells) names.push_back(cell.name);
  MB_ASSIGN(suite.claims, read_claims(file, names));
  MB_TRY(apply_filter(filter, wanted, suite));
  return suite;
}

}  // namespace

bool cell_matches(std::string_view pattern, std::string_view cell) {
  if (pattern.find_first_of("*?") != std::string_view::npos) return glob_match(pattern, cell);
  return !pattern.empty() && cell.find(pattern) != std::string_view::npos;
}

Result<Suite> parse_suite(std::string bytes, const std::string& path, const Settings& settings,
                          const SuiteFilter& filter, const Resolves& resolves) {
  MB_ASSIGN(const TomlFile file, parse_toml(std::move(bytes), path));
  return read_suite(file, settings, filter, resolves);
}

Result<Suite> load_suite(const std::string& path, const Settings& settings, const SuiteFilter& filter,
                         const Resolves& resolves) {
  MB_ASSIGN(const TomlFile file, read_toml(path));
  return read_suite(file, settings, filter, resolves);
}

}  // namespace mbb::suites
