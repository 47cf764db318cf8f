// Reads and expands suite files: see suite.h.
#include "suites/matrix/suite.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>

#include "profiler/base/hash.h"
#include "profiler/base/text.h"
#include "suites/matrix/cover.h"
#include "suites/matrix/expression.h"
#include "suites/matrix/knob_file.h"
#include "suites/matrix/toml_file.h"
#include "trainer/models/hardware.h"
#include "trainer/models/model.h"
#include "trainer/run/knobs.h"

namespace mbb::suites {
namespace {

constexpr size_t kNameLimit = 100;

int64_t data_parallel_size(const trainer::ParallelConfig& parallel) {
  const int64_t replica =
      parallel.tensor_model_parallel_size * parallel.context_parallel_size * parallel.pipeline_model_parallel_size;
  return parallel.gpus == 0 ? 1 : parallel.gpus / replica;
}

ExpressionValue value_of(std::string_view name, const Cell& cell) {
  if (name == "cell") return cell.name;
  if (name == "dp") return data_parallel_size(cell.config.parallel);
  const auto knob = trainer::knobs().find(name);
  MB_CHECK(knob.has_value(), fmt::format("condition with the unknown name {} was not refused", name));
  const KnobData data = (*knob)->get(&cell.config);
  if (const auto* flag = std::get_if<bool>(&data)) return *flag;
  if (const auto* integer = std::get_if<int64_t>(&data)) return *integer;
  if (const auto* number = std::get_if<double>(&data)) return *number;
  if (std::holds_alternative<KnobAuto>(data)) return KnobAuto{};
  return knob_text(data);
}

Status known_name(std::string_view name) {
  if (name == "cell" || name == "dp") return {};
  auto knob = trainer::knobs().find(name);
  if (!knob) return tl::unexpected<Error>(std::move(knob.error()));
  return {};
}

bool name_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
         c == '-' || c == '+';
}

bool good_name(std::string_view name) {
  return !name.empty() && name.size() <= kNameLimit && name[0] != '.' &&
         std::all_of(name.begin(), name.end(), name_char);
}

// A command may train a model that is none of ours: its mapping cannot be checked, and the command says what is wrong.
bool must_resolve(const Cell& cell) {
  return !cell.command || trainer::find_model(cell.config.model.name).has_value();
}

std::string configuration_of(const Cell& cell) {
  return trainer::knobs().to_lines(cell.config) + (cell.command ? cell.command->run : "");
}

// "tp4", "bf16", "sp" and "no-sp": how one value of an axis reads in a cell's name.
std::string axis_label(std::string_view axis, const KnobData& value) {
  const std::string_view bare = axis.substr(axis.rfind('.') == std::string_view::npos ? 0 : axis.rfind('.') + 1);
  std::string label = knob_text(value);
  if (const auto* flag = std::get_if<bool>(&value)) {
    label = fmt::format("{}{}", *flag ? "" : "no-", bare);
  } else if (label == "auto") {
    label = fmt::format("{}-auto", bare);
  } else if (!std::holds_alternative<std::string>(value)) {
    label = fmt::format("{}{}", bare, label);
  }
  std::replace_if(
      label.begin(), label.end(), [](char c) { return !name_char(c); }, '_');
  return label;
}

struct Axis {
  std::string name;
  const TomlNode* list = nullptr;
};

struct Condition {
  Expression expression;
  const TomlNode* node = nullptr;
};

struct SkipRule {
  Condition when;
  std::string reason;
};

struct Basis {
  const TomlFile* file = nullptr;
  const TomlNode* table = nullptr;
  std::vector<FileValue> values;
};

class Expander {
 public:
  Expander(const TomlFile& file, const Settings& settings, const SuiteFilter& filter, const Resolves& resolves)
      : file_(file), settings_(settings), filter_(filter), resolves_(resolves) {}

  Result<Suite> run() {
    suite_.path = file_.path;
    suite_.name = std::filesystem::path(file_.path).stem().string();
    suite_.text = file_.bytes;
    MB_TRY(check_top_level());
    MB_ASSIGN(suite_.purpose, text_in(file_.root, "purpose", true));
    MB_TRY(read_hardware());
    MB_TRY(read_bases());
    suite_.hash = hash_hex(suite_.text);
    MB_TRY(read_base());
    MB_ASSIGN(command_, command_of(file_.root));
    MB_TRY(read_skips());
    MB_TRY(add_cells());
    MB_TRY(add_sweeps());
    MB_TRY(add_covers());
    if (suite_.cells.empty())
      return file_.error({}, "the suite has no cell", "add a [[cell]] with a name, or a [sweep.NAME] with axes");
    MB_TRY(apply_skips());
    MB_TRY(add_claims());
    MB_TRY(apply_filter());
    return std::move(suite_);
  }

 private:
  Status check_top_level() const {
    const std::vector<std::string> keys = {"purpose", "based_on", "hardware", "model", "gpus",  "basis",  "base",
                                           "cell",    "sweep",    "cover",    "skip",  "claim", "command"};
    for (const TomlNode& entry : file_.root.items) {
      if (std::find(keys.begin(), keys.end(), entry.key) != keys.end()) continue;
      const bool knob = find_setting(entry.key).has_value();
      const auto near = nearest(entry.key, keys);
      return file_.error(entry.key_at, fmt::format("a suite has no key '{}'", printable(entry.key)),
                         knob   ? "knobs of every cell go into [base]"
                         : near ? fmt::format("did you mean '{}'?", *near)
                                : "a suite has " + join(keys, ", "));
    }
    return {};
  }

  Status check_keys(const TomlNode& table, const std::vector<std::string>& keys, const char* what) const {
    for (const TomlNode& entry : table.items) {
      if (std::find(keys.begin(), keys.end(), entry.key) != keys.end()) continue;
      const auto near = nearest(entry.key, keys);
      return file_.error(entry.key_at, fmt::format("{} has no key '{}'", what, printable(entry.key)),
                         near ? fmt::format("did you mean '{}'?", *near) : "it has " + join(keys, ", "));
    }
    return {};
  }

  Status expect(const TomlNode& node, TomlKind kind, std::string_view what) const {
    if (node.kind == kind) return {};
    return file_.error(node.at, fmt::format("{} must be {}, not {}", what, name(kind), name(node.kind)));
  }

  Result<std::string> text_in(const TomlNode& table, const char* key, bool needed) const {
    const TomlNode* node = table.find(key);
    if (node == nullptr && !needed) return std::string();
    if (node == nullptr)
      return file_.error(table.at, fmt::format("'{}' is missing", key), fmt::format("add {} = \"...\"", key));
    MB_TRY(expect(*node, TomlKind::kString, fmt::format("'{}'", key)));
    if (needed && trim(node->text).empty()) return file_.error(node->at, fmt::format("'{}' is empty", key));
    return node->text;
  }

  // Entries of an array of tables, or none.
  Result<std::vector<const TomlNode*>> tables(const char* key) const {
    std::vector<const TomlNode*> found;
    const TomlNode* list = file_.root.find(key);
    if (list == nullptr) return found;
    MB_TRY(expect(*list, TomlKind::kArray, fmt::format("'{}' (written [[{}]])", key, key)));
    for (const TomlNode& item : list->items) {
      MB_TRY(expect(item, TomlKind::kTable, fmt::format("'{}' (written [[{}]])", key, key)));
      found.push_back(&item);
    }
    return found;
  }

  Status read_hardware() {
    MB_ASSIGN(suite_.hardware, text_in(file_.root, "hardware", false));
    if (suite_.hardware.empty()) return {};
    const auto found = trainer::find_hardware(suite_.hardware);
    return found ? Status{} : file_.error(file_.root.find("hardware")->at, found.error().what, found.error().hint);
  }

  // The tables that `based_on` names: of this file, or of another, whose bytes the suite's text then holds too.
  Status read_bases() {
    const TomlNode* list = file_.root.find("based_on");
    if (list == nullptr) return {};
    MB_TRY(expect(*list, TomlKind::kArray, "'based_on'"));
    for (const TomlNode& entry : list->items) {
      MB_TRY(expect(entry, TomlKind::kString, "a name in 'based_on'"));
      const TomlNode* own = file_.root.find("basis");
      Basis basis{&file_, own == nullptr ? nullptr : own->find(entry.text), {}};
      if (basis.table == nullptr) {
        auto other = find_basis(entry.text, file_.path, settings_);
        if (!other) return file_.error(entry.at, other.error().what, other.error().hint);
        basis.file = basis_files_.emplace_back(std::make_unique<TomlFile>(std::move(*other))).get();
        const TomlNode* tables = basis.file->root.find("basis");
        if (tables != nullptr) basis.table = tables->find(entry.text);
        if (basis.table == nullptr)
          return basis.file->error({}, fmt::format("it has no table [basis.{}]", printable(entry.text)));
        suite_.text += (suite_.text.ends_with('\n') ? "\n" : "\n\n") + basis.file->bytes;
      }
      if (basis.table->kind != TomlKind::kTable)
        return basis.file->error(basis.table->at, fmt::format("'basis.{}' must be a table", printable(entry.text)));
      MB_ASSIGN(basis.values, knobs_of(*basis.file, *basis.table));
      bases_.push_back(std::move(basis));
    }
    return {};
  }

  Status read_base() {
    base_node_ = TomlNode{};
    for (const char* key : {"model", "gpus"})
      if (const TomlNode* node = file_.root.find(key)) base_node_.items.push_back(*node);
    if (const TomlNode* base = file_.root.find("base")) {
      MB_TRY(expect(*base, TomlKind::kTable, "'base'"));
      base_node_.items.insert(base_node_.items.end(), base->items.begin(), base->items.end());
    }
    MB_ASSIGN(base_, knobs_of(file_, base_node_));
    return {};
  }

  // The command of a cell or sweep, else the suite's.
  Result<std::optional<CommandSpec>> command_of(const TomlNode& table) const {
    const TomlNode* node = table.find("command");
    if (node == nullptr) return command_;
    MB_ASSIGN(CommandSpec command, read_command(file_, *node));
    return std::optional(std::move(command));
  }

  Result<Condition> condition(const TomlNode& node, std::string_view what) const {
    MB_TRY(expect(node, TomlKind::kString, what));
    auto parsed = Expression::parse(node.text, known_name);
    if (!parsed) return expression_error(node, what, parsed.error());
    return Condition{std::move(*parsed), &node};
  }

  tl::unexpected<Error> expression_error(const TomlNode& node, std::string_view what,
                                         const ExpressionError& error) const {
    return file_.error(file_.inside(node, error.offset), fmt::format("in {}: {}", what, error.what), error.hint);
  }

  Result<bool> holds(const Condition& condition, const Cell& cell, std::string_view what) const {
    const auto value = condition.expression.evaluate([&](std::string_view name) { return value_of(name, cell); });
    if (value) return *value;
    return expression_error(*condition.node, fmt::format("{}, for cell '{}'", what, cell.name), value.error());
  }

  Status read_skips() {
    MB_ASSIGN(const auto rules, tables("skip"));
    for (const TomlNode* rule : rules) {
      MB_TRY(check_keys(*rule, {"when", "reason"}, "[[skip]]"));
      MB_ASSIGN(std::string reason, text_in(*rule, "reason", true));
      MB_TRY(text_in(*rule, "when", true));
      MB_ASSIGN(Condition when, condition(*rule->find("when"), "'when'"));
      skips_.push_back({std::move(when), std::move(reason)});
    }
    return {};
  }

  // Settings, base and `set`, without the command line.
  Result<Settings> start(const TomlNode& table) const {
    Settings settings = settings_;
    for (const Basis& basis : bases_)
      for (const FileValue& value : basis.values)
        MB_TRY(set_from_file(settings, *basis.file, value, Layer::kSuite, false));
    for (const FileValue& value : base_) MB_TRY(set_from_file(settings, file_, value, Layer::kSuite, false));
    const TomlNode* set = table.find("set");
    if (set == nullptr) return settings;
    MB_TRY(expect(*set, TomlKind::kTable, "'set'"));
    MB_ASSIGN(const std::vector<FileValue> values, knobs_of(file_, *set));
    for (const FileValue& value : values) MB_TRY(set_from_file(settings, file_, value, Layer::kSuite, false));
    return settings;
  }

  static Cell make_cell(std::string name, Settings settings) {
    Cell cell;
    cell.name = std::move(name);
    cell.config = std::move(settings.config);
    cell.sources = std::move(settings.sources);
    return cell;
  }

  Status add_cells() {
    MB_ASSIGN(const auto cells, tables("cell"));
    if (cells.size() > kMaxCells) return too_many(cells[kMaxCells]->at, cells.size());
    for (const TomlNode* table : cells) {
      MB_TRY(check_keys(*table, {"name", "set", "published", "command"}, "[[cell]]"));
      MB_ASSIGN(std::string cell_name, text_in(*table, "name", true));
      const TomlNode* name_node = table->find("name");
      if (!good_name(cell_name))
        return file_.error(
            name_node->at, fmt::format("'{}' cannot name a cell", printable(cell_name)),
            fmt::format("letters, digits and . _ + - , at most {}, not beginning with a dot", kNameLimit));
      const auto [earlier, is_new] = places_.emplace(cell_name, name_node->at);
      if (!is_new)
        return file_.error(name_node->at, fmt::format("the cell name '{}' is taken by the cell at {}:{}", cell_name,
                                                      earlier->second.line, earlier->second.column));
      MB_ASSIGN(Settings settings, start(*table));
      MB_TRY(apply_command_line(settings));
      Cell cell = make_cell(std::move(cell_name), std::move(settings));
      MB_ASSIGN(cell.published, text_in(*table, "published", false));
      MB_ASSIGN(cell.command, command_of(*table));
      configs_.emplace(configuration_of(cell), cell.name);
      suite_.cells.push_back(std::move(cell));
    }
    return {};
  }

  tl::unexpected<Error> too_many(TomlPlace at, size_t count) const {
    return file_.error(at, fmt::format("{} cells are more than the {} a suite may have", count, kMaxCells),
                       "narrow the axes, or split the suite");
  }

  Status add_sweeps() {
    const TomlNode* sweeps = file_.root.find("sweep");
    if (sweeps == nullptr) return {};
    MB_TRY(expect(*sweeps, TomlKind::kTable, "'sweep' (written [sweep.NAME])"));
    for (const TomlNode& sweep : sweeps->items) {
      MB_TRY(expect(sweep, TomlKind::kTable, fmt::format("'sweep.{}'", printable(sweep.key))));
      MB_TRY(check_keys(sweep, {"axes", "set", "where", "yields", "command"}, "a [sweep.NAME]"));
      const size_t cells = suite_.cells.size(), dropped = suite_.dropped.size();
      MB_TRY(add_sweep(sweep));
      MB_TRY(check_yield(sweep, "sweep", cells, dropped));
    }
    return {};
  }

  // Whether a sweep or cover made as many cells as it says, where nothing else changed what it says.
  Status check_yield(const TomlNode& table, const char* kind, size_t cells_before, size_t dropped_before) const {
    MB_ASSIGN(const int64_t wanted, count_in(table, "yields", -1));
    const auto found = static_cast<int64_t>(suite_.cells.size() - cells_before);
    if (wanted < 0 || wanted == found || !settings_.command_line.empty() || filter_.total || filter_.seed) return {};
    std::vector<std::string> lost;
    for (size_t i = dropped_before; i < suite_.dropped.size(); ++i)
      lost.push_back(fmt::format("{} ({})", suite_.dropped[i].name, suite_.dropped[i].reason));
    return file_.error(
        table.find("yields")->at,
        fmt::format("{} '{}' makes {} cells, not the {} it yields", kind, printable(table.key), found, wanted),
        lost.empty() ? "correct 'yields'" : "no cell: " + join(lost, "; "), ErrorCode::kMismatch);
  }

  Result<std::vector<Axis>> axes_of(const TomlNode& sweep) const {
    const TomlNode* axes = sweep.find("axes");
    if (axes == nullptr)
      return file_.error(sweep.at, fmt::format("sweep '{}' has no axes", printable(sweep.key)),
                         "add axes = { tp = [1, 2] }");
    MB_TRY(expect(*axes, TomlKind::kTable, "'axes'"));
    if (axes->items.empty()) return file_.error(axes->at, "'axes' is empty", "add axes = { tp = [1, 2] }");
    MB_ASSIGN(const std::vector<FileValue> named, knobs_of(file_, *axes));
    std::vector<Axis> found;
    size_t count = suite_.cells.size() < kMaxCells ? 1 : kMaxCells + 1;
    for (const FileValue& axis : named) {
      MB_TRY(expect(*axis.node, TomlKind::kArray, fmt::format("axis '{}'", axis.name)));
      if (axis.node->items.empty())
        return file_.error(axis.node->at, fmt::format("axis '{}' has no values", axis.name));
      // Both factors stay far below the range of size_t: the product is checked at each step, the file is small.
      count *= axis.node->items.size();
      if (count > kMaxCells) return too_many(axis.node->at, count);
      found.push_back({axis.name, axis.node});
    }
    return found;
  }

  Status add_sweep(const TomlNode& sweep) {
    MB_ASSIGN(const std::vector<Axis> axes, axes_of(sweep));
    std::optional<Condition> where;
    if (const TomlNode* node = sweep.find("where")) {
      MB_ASSIGN(where, condition(*node, "'where'"));
    }
    MB_ASSIGN(const Settings common, start(sweep));
    std::vector<size_t> at(axes.size(), 0);
    for (bool more = true; more;) {
      MB_TRY(add_combination(sweep, axes, at, common, where));
      if (suite_.cells.size() > kMaxCells) return too_many(sweep.at, suite_.cells.size());
      more = false;  // the last axis turns fastest
      for (size_t i = axes.size(); i-- > 0 && !more;) {
        at[i] = (at[i] + 1) % axes[i].list->items.size();
        more = at[i] != 0;
      }
    }
    return {};
  }

  Status add_combination(const TomlNode& sweep, const std::vector<Axis>& axes, const std::vector<size_t>& at,
                         const Settings& common, const std::optional<Condition>& where) {
    Settings settings = common;
    std::vector<std::string> labels;
    for (size_t i = 0; i < axes.size(); ++i) {
      const TomlNode& value = axes[i].list->items[at[i]];
      MB_TRY(set_from_file(settings, file_, {axes[i].name, &value}, Layer::kSuite, false));
      MB_ASSIGN(const KnobData data, knob_data(file_, value));
      labels.push_back(axis_label(axes[i].name, data));
    }
    MB_TRY(apply_command_line(settings));
    Cell cell = make_cell(join(labels, "-"), std::move(settings));
    cell.sweep = sweep.key;
    MB_ASSIGN(cell.command, command_of(sweep));
    if (!good_name(cell.name))
      return file_.error(sweep.at, fmt::format("'{}' cannot name a cell", printable(cell.name)));
    if (where) {
      MB_ASSIGN(const bool wanted, holds(*where, cell, "'where'"));
      if (!wanted) return {};
    }
    if (resolves_ && must_resolve(cell)) {
      if (const Status status = resolves_(cell.config); !status) {
        suite_.dropped.push_back({cell.name, status.error().what});
        return {};
      }
    }
    const auto [same, is_new] = configs_.emplace(configuration_of(cell), cell.name);
    if (!is_new) {
      suite_.dropped.push_back({cell.name, fmt::format("is the same configuration as cell '{}'", same->second)});
      return {};
    }
    const auto [earlier, name_is_new] = places_.emplace(cell.name, sweep.at);
    if (!name_is_new)
      return file_.error(sweep.at,
                         fmt::format("sweep '{}' makes a cell '{}', a name taken at {}:{}", printable(sweep.key),
                                     cell.name, earlier->second.line, earlier->second.column),
                         "rename that cell, or exclude the combination with where");
    suite_.cells.push_back(std::move(cell));
    return {};
  }

  // One axis of a cover: names and the knobs each sets.
  struct NamedAxis {
    std::string name;
    std::vector<const TomlNode*> values;
  };

  Status add_covers() {
    const TomlNode* covers = file_.root.find("cover");
    if (covers == nullptr) return {};
    MB_TRY(expect(*covers, TomlKind::kTable, "'cover' (written [cover.NAME])"));
    for (const TomlNode& cover : covers->items) {
      MB_TRY(expect(cover, TomlKind::kTable, fmt::format("'cover.{}'", printable(cover.key))));
      MB_TRY(check_keys(cover, {"axes", "set", "where", "total", "seed", "reference", "reference_seeds", "yields"},
                        "a [cover.NAME]"));
      const size_t cells = suite_.cells.size(), dropped = suite_.dropped.size();
      MB_TRY(add_cover(cover));
      MB_TRY(check_yield(cover, "cover", cells, dropped));
    }
    return {};
  }

  Result<std::vector<NamedAxis>> named_axes(const TomlNode& cover) const {
    const TomlNode* axes = cover.find("axes");
    if (axes == nullptr || axes->kind != TomlKind::kTable || axes->items.size() < 2)
      return file_.error(cover.at, fmt::format("cover '{}' needs two axes or more", printable(cover.key)),
                         "add axes.AXIS.VALUE = { knobs }");
    std::vector<NamedAxis> found;
    for (const TomlNode& axis : axes->items) {
      MB_TRY(expect(axis, TomlKind::kTable, fmt::format("axis '{}'", printable(axis.key))));
      found.push_back({axis.key, {}});
      for (const TomlNode& value : axis.items) {
        MB_TRY(expect(value, TomlKind::kTable, fmt::format("'{}.{}'", printable(axis.key), printable(value.key))));
        if (!good_name(value.key))
          return file_.error(value.key_at, fmt::format("'{}' cannot be part of a cell's name", printable(value.key)));
        found.back().values.push_back(&value);
      }
      if (axis.items.empty()) return file_.error(axis.at, fmt::format("axis '{}' has no values", printable(axis.key)));
    }
    return found;
  }

  Result<int64_t> count_in(const TomlNode& table, const char* key, int64_t otherwise) const {
    const TomlNode* node = table.find(key);
    if (node == nullptr) return otherwise;
    MB_TRY(expect(*node, TomlKind::kInteger, fmt::format("'{}'", key)));
    if (node->integer < 0) return file_.error(node->at, fmt::format("'{}' is negative", key));
    return node->integer;
  }

  // `seed`: of `reference_seeds`, or nothing.
  Result<Cell> named_combination(const Settings& common, const std::vector<NamedAxis>& axes, const Combination& at,
                                 const TomlNode& cover, const TomlNode* seed = nullptr) const {
    Settings settings = common;
    std::vector<std::string> labels;
    for (size_t i = 0; i < axes.size(); ++i) {
      const TomlNode& value = *axes[i].values[at[i]];
      MB_ASSIGN(const std::vector<FileValue> knobs, knobs_of(file_, value));
      for (const FileValue& knob : knobs) MB_TRY(set_from_file(settings, file_, knob, Layer::kSuite, false));
      labels.push_back(value.key);
    }
    if (seed != nullptr) {
      MB_TRY(set_from_file(settings, file_, {"train.seed", seed}, Layer::kSuite, false));
      labels.push_back(fmt::format("seed{}", seed->integer));
    }
    MB_TRY(apply_command_line(settings));
    Cell cell = make_cell(join(labels, "-"), std::move(settings));
    cell.sweep = cover.key;
    cell.command = command_;
    if (!good_name(cell.name))
      return file_.error(cover.at, fmt::format("'{}' cannot name a cell", printable(cell.name)));
    return cell;
  }

  // Index into each axis that `reference` fixes, or nothing for the axes it leaves open.
  Result<std::vector<std::optional<size_t>>> reference_of(const TomlNode& cover,
                                                          const std::vector<NamedAxis>& axes) const {
    std::vector<std::optional<size_t>> fixed(axes.size());
    const TomlNode* reference = cover.find("reference");
    MB_TRY(expect(*reference, TomlKind::kTable, "'reference'"));
    for (const TomlNode& entry : reference->items) {
      MB_TRY(expect(entry, TomlKind::kString, fmt::format("'reference.{}'", printable(entry.key))));
      for (size_t a = 0; a < axes.size(); ++a)
        for (size_t v = 0; v < axes[a].values.size(); ++v)
          if (axes[a].name == entry.key && axes[a].values[v]->key == entry.text) fixed[a] = v;
      const bool known = std::any_of(axes.begin(), axes.end(), [&](const NamedAxis& axis) {
        return axis.name == entry.key && fixed[static_cast<size_t>(&axis - axes.data())].has_value();
      });
      if (!known)
        return file_.error(entry.at,
                           fmt::format("no axis '{}' has a value '{}'", printable(entry.key), printable(entry.text)));
    }
    return fixed;
  }

  std::vector<Combination> reference_combinations(const std::vector<NamedAxis>& axes,
                                                  const std::vector<std::optional<size_t>>& fixed) const {
    std::vector<Combination> all{Combination(axes.size(), 0)};
    for (size_t a = 0; a < axes.size(); ++a) {
      std::vector<Combination> next;
      for (const Combination& c : all)
        for (size_t v = 0; v < axes[a].values.size(); ++v) {
          if (fixed[a] && *fixed[a] != v) continue;
          next.push_back(c);
          next.back()[a] = v;
        }
      all = std::move(next);
    }
    return all;
  }

  // `reference_seeds`, which `reference` cells are trained from besides their own.
  Result<std::vector<const TomlNode*>> reference_seeds(const TomlNode& cover) const {
    std::vector<const TomlNode*> seeds;
    const TomlNode* list = cover.find("reference_seeds");
    if (list == nullptr) return seeds;
    MB_TRY(expect(*list, TomlKind::kArray, "'reference_seeds'"));
    if (cover.find("reference") == nullptr)
      return file_.error(list->at, "'reference_seeds' without 'reference'", "say which cells are references");
    for (const TomlNode& seed : list->items) {
      MB_TRY(expect(seed, TomlKind::kInteger, "each of 'reference_seeds'"));
      seeds.push_back(&seed);
    }
    return seeds;
  }

  // Adds a cell unless one of the same configuration is there.
  Status add_combination(Cell cell, const TomlNode& cover) {
    const auto [same, is_new] = configs_.emplace(configuration_of(cell), cell.name);
    if (!is_new) return {};
    const auto [earlier, name_is_new] = places_.emplace(cell.name, cover.at);
    if (!name_is_new)
      return file_.error(cover.at,
                         fmt::format("cover '{}' makes a cell '{}', a name taken at {}:{}", printable(cover.key),
                                     cell.name, earlier->second.line, earlier->second.column),
                         "call a value of one of its axes otherwise");
    suite_.cells.push_back(std::move(cell));
    if (suite_.cells.size() > kMaxCells) return too_many(cover.at, suite_.cells.size());
    return {};
  }

  Status add_cover(const TomlNode& cover) {
    MB_ASSIGN(const std::vector<NamedAxis> axes, named_axes(cover));
    MB_ASSIGN(const std::vector<const TomlNode*> seeds, reference_seeds(cover));
    std::optional<Condition> where;
    if (const TomlNode* node = cover.find("where")) {
      MB_ASSIGN(where, condition(*node, "'where'"));
    }
    MB_ASSIGN(const int64_t total, count_in(cover, "total", 0));
    MB_ASSIGN(const int64_t seed, count_in(cover, "seed", 1));
    MB_ASSIGN(const Settings common, start(cover));
    Status trouble;
    const auto allowed = [&](const Combination& at) {
      auto cell = named_combination(common, axes, at, cover);
      if (!cell) {
        if (trouble) trouble = tl::unexpected<Error>(cell.error());
        return false;
      }
      if (where) {
        const auto wanted = holds(*where, *cell, "'where'");
        if (!wanted && trouble) trouble = tl::unexpected<Error>(wanted.error());
        if (!wanted || !*wanted) return false;
      }
      return !resolves_ || resolves_(cell->config).has_value();
    };
    std::vector<Combination> wanted;
    if (cover.find("reference") != nullptr) {
      MB_ASSIGN(const auto fixed, reference_of(cover, axes));
      for (Combination& c : reference_combinations(axes, fixed))
        if (allowed(c)) wanted.push_back(std::move(c));
    }
    std::vector<size_t> sizes;
    for (const NamedAxis& axis : axes) sizes.push_back(axis.values.size());
    const Cover found = cover_pairs(sizes, allowed, filter_.total.value_or(static_cast<size_t>(total)),
                                    filter_.seed.value_or(static_cast<uint64_t>(seed)));
    MB_TRY(trouble);
    const size_t references = wanted.size();
    wanted.insert(wanted.end(), found.combinations.begin(), found.combinations.end());
    for (size_t i = 0; i < wanted.size(); ++i) {
      MB_ASSIGN(Cell cell, named_combination(common, axes, wanted[i], cover));
      MB_TRY(add_combination(std::move(cell), cover));
      if (i >= references) continue;
      for (const TomlNode* other : seeds) {
        MB_ASSIGN(Cell again, named_combination(common, axes, wanted[i], cover, other));
        MB_TRY(add_combination(std::move(again), cover));
      }
    }
    for (const Cover::Pair& pair : found.uncovered)
      suite_.dropped.push_back({fmt::format("{} with {}", axes[pair.axis_a].values[pair.value_a]->key,
                                            axes[pair.axis_b].values[pair.value_b]->key),
                                "no combination of them is allowed"});
    return {};
  }

  // A cell's whole name means that cell alone; other words match parts of names.
  bool is_a_name(const std::string& pattern) const {
    return std::any_of(suite_.cells.begin(), suite_.cells.end(),
                       [&](const Cell& cell) { return cell.name == pattern; });
  }
  bool matches_any(const std::vector<std::string>& patterns, const Cell& cell) const {
    return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& p) {
      return is_a_name(p) ? p == cell.name : cell_matches(p, cell.name);
    });
  }

  Status apply_skips() {
    for (Cell& cell : suite_.cells) {
      for (const SkipRule& rule : skips_) {
        MB_ASSIGN(const bool skip, holds(rule.when, cell, "'when'"));
        if (!skip || matches_any(filter_.only, cell)) continue;
        cell.skipped = Skipped{rule.reason};
        break;
      }
    }
    return {};
  }

  Status add_claims() {
    std::vector<std::string> names;
    for (const Cell& cell : suite_.cells) names.push_back(cell.name);
    MB_ASSIGN(suite_.claims, read_claims(file_, names));
    return {};
  }

  Status apply_filter() {
    for (const auto* patterns : {&filter_.only, &filter_.skip}) {
      for (const std::string& pattern : *patterns) {
        const bool any = std::any_of(suite_.cells.begin(), suite_.cells.end(),
                                     [&](const Cell& cell) { return cell_matches(pattern, cell.name); });
        if (!any) return no_match(patterns == &filter_.only ? "--only" : "--skip", pattern);
      }
    }
    std::erase_if(suite_.cells, [&](const Cell& cell) {
      return (!filter_.only.empty() && !matches_any(filter_.only, cell)) || matches_any(filter_.skip, cell);
    });
    if (suite_.cells.empty())
      return fail(ErrorCode::kBadArgument, fmt::format("suite {}: --only and --skip leave no cell", suite_.name));
    if (suite_.cells.size() > filter_.max_cells)
      return fail(ErrorCode::kBadArgument,
                  fmt::format("suite {}: {} cells are more than --max-cells {}", suite_.name, suite_.cells.size(),
                              filter_.max_cells),
                  "raise it, or narrow the suite with --only and --skip");
    const auto left = [&](const std::string& name) {
      return std::any_of(suite_.cells.begin(), suite_.cells.end(), [&](const Cell& c) { return c.name == name; });
    };
    std::erase_if(suite_.claims, [&](const Claim& claim) { return !left(claim.a) || !left(claim.b); });
    return {};
  }

  tl::unexpected<Error> no_match(const char* option, const std::string& pattern) const {
    constexpr size_t kShown = 12;
    std::vector<std::string> names;
    for (const Cell& cell : suite_.cells) names.push_back(cell.name);
    const size_t more = names.size() > kShown ? names.size() - kShown : 0;
    names.resize(names.size() - more);
    return fail(ErrorCode::kNotFound,
                fmt::format("suite {}: no cell matches {} '{}'", suite_.name, option, printable(pattern)),
                fmt::format("its cells: {}{}", join(names, ", "), more > 0 ? fmt::format(" and {} more", more) : ""));
  }

  const TomlFile& file_;
  const Settings& settings_;
  const SuiteFilter& filter_;
  const Resolves& resolves_;
  Suite suite_;
  TomlNode base_node_;
  std::vector<FileValue> base_;
  std::vector<std::unique_ptr<TomlFile>> basis_files_;
  std::vector<Basis> bases_;
  std::optional<CommandSpec> command_;  // of every cell
  std::vector<SkipRule> skips_;
  std::map<std::string, TomlPlace> places_;     // of cell names
  std::map<std::string, std::string> configs_;  // configuration -> cell name
};

}  // namespace

bool cell_matches(std::string_view pattern, std::string_view cell) {
  if (pattern.find_first_of("*?") != std::string_view::npos) return glob_match(pattern, cell);
  return !pattern.empty() && cell.find(pattern) != std::string_view::npos;
}

Result<Suite> parse_suite(std::string bytes, const std::string& path, const Settings& settings,
                          const SuiteFilter& filter, const Resolves& resolves) {
  MB_ASSIGN(const TomlFile file, parse_toml(std::move(bytes), path));
  return Expander(file, settings, filter, resolves).run();
}

Result<Suite> load_suite(const std::string& path, const Settings& settings, const SuiteFilter& filter,
                         const Resolves& resolves) {
  MB_ASSIGN(const TomlFile file, read_toml(path));
  return Expander(file, settings, filter, resolves).run();
}

}  // namespace mbb::suites
