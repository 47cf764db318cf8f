// Expands the sweeps of a suite.
#include "suites/matrix/sweep_cells.h"

#include <fmt/format.h>

#include "profiler/base/text.h"
#include "suites/matrix/conditions.h"
#include "suites/matrix/toml_fields.h"

namespace mbb::suites {
namespace {

struct Axis {
  std::string name;
  const TomlNode* list = nullptr;
};

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
  return as_cell_name(std::move(label));
}

class Sweep {
 public:
  Sweep(CellMaker& maker, const TomlNode& table) : maker_(maker), file_(maker.file()), table_(table) {}

  Status add_cells() {
    MB_TRY(read_axes());
    if (const TomlNode* node = table_.find("where")) {
      MB_ASSIGN(where_, read_condition(file_, *node, "'where'"));
    }
    MB_ASSIGN(const Settings common, maker_.start(table_));
    std::vector<size_t> at(axes_.size(), 0);
    for (bool more = true; more;) {
      MB_TRY(add_combination(at, common));
      more = false;  // the last axis turns fastest
      for (size_t i = axes_.size(); i-- > 0 && !more;) {
        at[i] = (at[i] + 1) % axes_[i].list->items.size();
        more = at[i] != 0;
      }
    }
    return {};
  }

 private:
  Status read_axes() {
    const TomlNode* axes = table_.find("axes");
    if (axes == nullptr)
      return file_.error(table_.at, fmt::format("sweep '{}' has no axes", printable(table_.key)),
                         "add axes = { tp = [1, 2] }");
    MB_TRY(expect(file_, *axes, TomlKind::kTable, "'axes'"));
    if (axes->items.empty()) return file_.error(axes->at, "'axes' is empty", "add axes = { tp = [1, 2] }");
    MB_ASSIGN(const std::vector<FileValue> named, knobs_of(file_, *axes));
    size_t count = maker_.cells().size() < kMaxCells ? 1 : kMaxCells + 1;
    for (const FileValue& axis : named) {
      MB_TRY(expect(file_, *axis.node, TomlKind::kArray, fmt::format("axis '{}'", axis.name)));
      if (axis.node->items.empty())
        return file_.error(axis.node->at, fmt::format("axis '{}' has no values", axis.name));
      // Both factors stay far below the range of size_t: the product is checked at each step, the file is small.
      count *= axis.node->items.size();
      if (count > kMaxCells) return maker_.too_many(axis.node->at, count);
      axes_.push_back({axis.name, axis.node});
    }
    return {};
  }

  Status add_combination(const std::vector<size_t>& at, const Settings& common) {
    Settings settings = common;
    std::vector<std::string> labels;
    for (size_t i = 0; i < axes_.size(); ++i) {
      const TomlNode& value = axes_[i].list->items[at[i]];
      MB_TRY(set_from_file(settings, file_, {axes_[i].name, &value}, Layer::kSuite, false));
      MB_ASSIGN(const KnobData data, knob_data(file_, value));
      labels.push_back(axis_label(axes_[i].name, data));
    }
    MB_ASSIGN(Cell cell, maker_.make(join(labels, "-"), std::move(settings), table_));
    cell.sweep = table_.key;
    if (!good_cell_name(cell.name))
      return file_.error(table_.at, fmt::format("'{}' cannot name a cell", printable(cell.name)));
    if (where_) {
      MB_ASSIGN(const bool wanted, holds(*where_, cell, "'where'"));
      if (!wanted) return {};
    }
    if (const Status possible = maker_.resolves(cell); !possible) {
      maker_.drop(cell.name, possible.error().what);
      return {};
    }
    if (const std::string* same = maker_.same_configuration(cell)) {
      maker_.drop(cell.name, fmt::format("is the same configuration as cell '{}'", *same));
      return {};
    }
    return maker_.add(std::move(cell), table_.at, fmt::format("sweep '{}' makes", printable(table_.key)),
                      "rename that cell, or exclude the combination with where");
  }

  CellMaker& maker_;
  const TomlFile& file_;
  const TomlNode& table_;
  std::vector<Axis> axes_;
  std::optional<Condition> where_;
};

}  // namespace

Status add_sweeps(CellMaker& maker) {
  MB_ASSIGN(const auto sweeps, named_tables(maker.file(), "sweep"));
  for (const TomlNode* sweep : sweeps) {
    MB_TRY(check_keys(maker.file(), *sweep, {"axes", "set", "where", "yields", "command"}, "a [sweep.NAME]"));
    const size_t cells = maker.cells().size(), dropped = maker.dropped().size();
    MB_TRY(Sweep(maker, *sweep).add_cells());
    MB_TRY(maker.check_yield(*sweep, "sweep", cells, dropped));
  }
  return {};
}

}  // namespace mbb::suites
