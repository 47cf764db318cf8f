// Expands the covers of a suite.
#include "suites/matrix/cover_cells.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "profiler/base/text.h"
#include "suites/matrix/conditions.h"
#include "suites/matrix/cover.h"
#include "suites/matrix/toml_fields.h"

namespace mbb::suites {
namespace {

// One axis of a cover: names and the knobs each sets.
struct NamedAxis {
  std::string name;
  std::vector<const TomlNode*> values;
};

class CoverCells {
 public:
  CoverCells(CellMaker& maker, const TomlNode& table, const SuiteFilter& filter)
      : maker_(maker), file_(maker.file()), table_(table), filter_(filter) {}

  Status add_cells() {
    MB_TRY(read_axes());
    MB_ASSIGN(const std::vector<const TomlNode*> seeds, reference_seeds());
    if (const TomlNode* node = table_.find("where")) {
      MB_ASSIGN(where_, read_condition(file_, *node, "'where'"));
    }
    MB_ASSIGN(const int64_t total, count_in(file_, table_, "total", 0));
    MB_ASSIGN(const int64_t seed, count_in(file_, table_, "seed", 1));
    MB_ASSIGN(common_, maker_.start(table_));
    Status trouble;
    const auto allowed = [&](const Combination& at) {
      const Result<bool> may = is_allowed(at);
      if (!may && trouble) trouble = tl::unexpected<Error>(may.error());
      return may.value_or(false);
    };
    std::vector<Combination> wanted;
    if (table_.find("reference") != nullptr) {
      MB_ASSIGN(const auto fixed, reference());
      for (Combination& c : reference_combinations(fixed))
        if (allowed(c)) wanted.push_back(std::move(c));
    }
    std::vector<size_t> sizes;
    for (const NamedAxis& axis : axes_) sizes.push_back(axis.values.size());
    const Cover found = cover_pairs(sizes, allowed, filter_.total.value_or(static_cast<size_t>(total)),
                                    filter_.seed.value_or(static_cast<uint64_t>(seed)));
    MB_TRY(trouble);
    const size_t references = wanted.size();
    wanted.insert(wanted.end(), found.combinations.begin(), found.combinations.end());
    for (size_t i = 0; i < wanted.size(); ++i) {
      MB_TRY(add(wanted[i], nullptr));
      if (i >= references) continue;
      for (const TomlNode* other : seeds) MB_TRY(add(wanted[i], other));
    }
    for (const Cover::Pair& pair : found.uncovered)
      maker_.drop(fmt::format("{} with {}", axes_[pair.axis_a].values[pair.value_a]->key,
                              axes_[pair.axis_b].values[pair.value_b]->key),
                  "no combination of them is allowed");
    return {};
  }

 private:
  Status read_axes() {
    const TomlNode* axes = table_.find("axes");
    if (axes == nullptr || axes->kind != TomlKind::kTable || axes->items.size() < 2)
      return file_.error(table_.at, fmt::format("cover '{}' needs two axes or more", printable(table_.key)),
                         "add axes.AXIS.VALUE = { knobs }");
    for (const TomlNode& axis : axes->items) {
      MB_TRY(expect(file_, axis, TomlKind::kTable, fmt::format("axis '{}'", printable(axis.key))));
      axes_.push_back({axis.key, {}});
      for (const TomlNode& value : axis.items) {
        MB_TRY(
            expect(file_, value, TomlKind::kTable, fmt::format("'{}.{}'", printable(axis.key), printable(value.key))));
        if (!good_cell_name(value.key))
          return file_.error(value.key_at, fmt::format("'{}' cannot be part of a cell's name", printable(value.key)));
        axes_.back().values.push_back(&value);
      }
      if (axis.items.empty()) return file_.error(axis.at, fmt::format("axis '{}' has no values", printable(axis.key)));
    }
    return {};
  }

  // `seed`: of `reference_seeds`, or nothing.
  Result<Cell> cell_of(const Combination& at, const TomlNode* seed) const {
    Settings settings = common_;
    std::vector<std::string> labels;
    for (size_t i = 0; i < axes_.size(); ++i) {
      const TomlNode& value = *axes_[i].values[at[i]];
      MB_ASSIGN(const std::vector<FileValue> knobs, knobs_of(file_, value));
      for (const FileValue& knob : knobs) MB_TRY(set_from_file(settings, file_, knob, Layer::kSuite, false));
      labels.push_back(value.key);
    }
    if (seed != nullptr) {
      MB_TRY(set_from_file(settings, file_, {"train.seed", seed}, Layer::kSuite, false));
      labels.push_back(fmt::format("seed{}", seed->integer));
    }
    MB_ASSIGN(Cell cell, maker_.make(join(labels, "-"), std::move(settings), table_));
    cell.sweep = table_.key;
    if (!good_cell_name(cell.name))
      return file_.error(table_.at, fmt::format("'{}' cannot name a cell", printable(cell.name)));
    return cell;
  }

  Result<bool> is_allowed(const Combination& at) const {
    MB_ASSIGN(const Cell cell, cell_of(at, nullptr));
    if (where_) {
      MB_ASSIGN(const bool wanted, holds(*where_, cell, "'where'"));
      if (!wanted) return false;
    }
    return maker_.resolves(cell).has_value();
  }

  // A cell of the combination unless one of the same configuration is there.
  Status add(const Combination& at, const TomlNode* seed) {
    MB_ASSIGN(Cell cell, cell_of(at, seed));
    if (maker_.same_configuration(cell) != nullptr) return {};
    return maker_.add(std::move(cell), table_.at, fmt::format("cover '{}' makes", printable(table_.key)),
                      "call a value of one of its axes otherwise");
  }

  // Index into each axis that `reference` fixes, or nothing for the axes it leaves open.
  Result<std::vector<std::optional<size_t>>> reference() const {
    std::vector<std::optional<size_t>> fixed(axes_.size());
    const TomlNode* reference = table_.find("reference");
    MB_TRY(expect(file_, *reference, TomlKind::kTable, "'reference'"));
    for (const TomlNode& entry : reference->items) {
      MB_TRY(expect(file_, entry, TomlKind::kString, fmt::format("'reference.{}'", printable(entry.key))));
      bool known = false;
      for (size_t a = 0; a < axes_.size(); ++a) {
        if (axes_[a].name != entry.key) continue;
        for (size_t v = 0; v < axes_[a].values.size(); ++v) {
          if (axes_[a].values[v]->key != entry.text) continue;
          fixed[a] = v;
          known = true;
        }
      }
      if (!known)
        return file_.error(entry.at,
                           fmt::format("no axis '{}' has a value '{}'", printable(entry.key), printable(entry.text)));
    }
    return fixed;
  }

  std::vector<Combination> reference_combinations(const std::vector<std::optional<size_t>>& fixed) const {
    std::vector<Combination> all{Combination(axes_.size(), 0)};
    for (size_t a = 0; a < axes_.size(); ++a) {
      std::vector<Combination> next;
      for (const Combination& c : all)
        for (size_t v = 0; v < axes_[a].values.size(); ++v) {
          if (fixed[a] && *fixed[a] != v) continue;
          next.push_back(c);
          next.back()[a] = v;
        }
      all = std::move(next);
    }
    return all;
  }

  // `reference_seeds`, which `reference` cells are trained from besides their own.
  Result<std::vector<const TomlNode*>> reference_seeds() const {
    std::vector<const TomlNode*> seeds;
    const TomlNode* list = table_.find("reference_seeds");
    if (list == nullptr) return seeds;
    MB_TRY(expect(file_, *list, TomlKind::kArray, "'reference_seeds'"));
    if (table_.find("reference") == nullptr)
      return file_.error(list->at, "'reference_seeds' without 'reference'", "say which cells are references");
    for (const TomlNode& seed : list->items) {
      MB_TRY(expect(file_, seed, TomlKind::kInteger, "each of 'reference_seeds'"));
      seeds.push_back(&seed);
    }
    return seeds;
  }

  CellMaker& maker_;
  const TomlFile& file_;
  const TomlNode& table_;
  const SuiteFilter& filter_;
  Settings common_;
  std::vector<NamedAxis> axes_;
  std::optional<Condition> where_;
};

}  // namespace

Status add_covers(CellMaker& maker, const SuiteFilter& filter) {
  MB_ASSIGN(const auto covers, named_tables(maker.file(), "cover"));
  if (covers.empty() && (filter.seed || filter.total))
    return fail(ErrorCode::kBadArgument,
                fmt::format("suite {} has no [cover] whose combinations {} could change",
                            std::filesystem::path(maker.file().path).stem().string(),
                            filter.seed ? "--seed" : "--combinations"),
                filter.seed ? "to train from another seed: train.seed=S" : "leave it out");
  for (const TomlNode* cover : covers) {
    MB_TRY(check_keys(maker.file(), *cover,
                      {"axes", "set", "where", "total", "seed", "reference", "reference_seeds", "yields"},
                      "a [cover.NAME]"));
    const size_t cells = maker.cells().size(), dropped = maker.dropped().size();
    MB_TRY(CoverCells(maker, *cover, filter).add_cells());
    if (!filter.total && !filter.seed) MB_TRY(maker.check_yield(*cover, "cover", cells, dropped));
  }
  return {};
}

}  // namespace mbb::suites
