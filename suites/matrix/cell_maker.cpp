// Reads what all cells of a suite have in common, and keeps the list of them.
#include "suites/matrix/cell_maker.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "profiler/base/text.h"
#include "suites/matrix/toml_fields.h"
#include "trainer/models/model.h"
#include "trainer/run/knobs.h"

namespace mbb::suites {
namespace {

bool name_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
         c == '-' || c == '+';
}

std::string configuration_of(const Cell& cell) {
  return trainer::knobs().to_lines(cell.config) + (cell.command ? cell.command->run : "");
}

}  // namespace

bool good_cell_name(std::string_view name) {
  return !name.empty() && name.size() <= kCellNameLimit && name[0] != '.' &&
         std::all_of(name.begin(), name.end(), name_char);
}

std::string as_cell_name(std::string label) {
  std::replace_if(
      label.begin(), label.end(), [](char c) { return !name_char(c); }, '_');
  return label;
}

Status CellMaker::read_common() {
  text_ = file_.bytes;
  MB_TRY(read_bases());
  for (const char* key : {"model", "gpus"})
    if (const TomlNode* node = file_.root.find(key)) base_node_.items.push_back(*node);
  if (const TomlNode* base = file_.root.find("base")) {
    MB_TRY(expect(file_, *base, TomlKind::kTable, "'base'"));
    base_node_.items.insert(base_node_.items.end(), base->items.begin(), base->items.end());
  }
  MB_ASSIGN(base_, knobs_of(file_, base_node_));
  if (const TomlNode* command = file_.root.find("command")) {
    MB_ASSIGN(command_, read_command(file_, *command));
  }
  return {};
}

// Of this file, or of another, whose bytes the suite's text then holds too.
Status CellMaker::read_bases() {
  const TomlNode* list = file_.root.find("based_on");
  if (list == nullptr) return {};
  MB_TRY(expect(file_, *list, TomlKind::kArray, "'based_on'"));
  for (const TomlNode& entry : list->items) {
    MB_TRY(expect(file_, entry, TomlKind::kString, "a name in 'based_on'"));
    const TomlNode* own = file_.root.find("basis");
    const TomlFile* file = &file_;
    const TomlNode* table = own == nullptr ? nullptr : own->find(entry.text);
    if (table == nullptr) {
      auto other = find_basis(entry.text, file_.path, settings_);
      if (!other) return file_.error(entry.at, other.error().what, other.error().hint);
      file = basis_files_.emplace_back(std::make_unique<TomlFile>(std::move(*other))).get();
      const TomlNode* tables = file->root.find("basis");
      if (tables != nullptr) table = tables->find(entry.text);
      if (table == nullptr) return file->error({}, fmt::format("it has no table [basis.{}]", printable(entry.text)));
      text_ += (text_.ends_with('\n') ? "\n" : "\n\n") + file->bytes;
    }
    MB_TRY(expect(*file, *table, TomlKind::kTable, fmt::format("'basis.{}'", printable(entry.text))));
    MB_ASSIGN(std::vector<FileValue> values, knobs_of(*file, *table));
    bases_.push_back({file, std::move(values)});
  }
  return {};
}

Result<Settings> CellMaker::start(const TomlNode& table) const {
  Settings settings = settings_;
  for (const Basis& basis : bases_)
    for (const FileValue& value : basis.values)
      MB_TRY(set_from_file(settings, *basis.file, value, Layer::kSuite, false));
  for (const FileValue& value : base_) MB_TRY(set_from_file(settings, file_, value, Layer::kSuite, false));
  const TomlNode* set = table.find("set");
  if (set == nullptr) return settings;
  MB_TRY(expect(file_, *set, TomlKind::kTable, "'set'"));
  MB_ASSIGN(const std::vector<FileValue> values, knobs_of(file_, *set));
  for (const FileValue& value : values) MB_TRY(set_from_file(settings, file_, value, Layer::kSuite, false));
  return settings;
}

Result<Cell> CellMaker::make(std::string name, Settings settings, const TomlNode& table) const {
  MB_TRY(apply_command_line(settings));
  Cell cell;
  cell.name = std::move(name);
  cell.config = std::move(settings.config);
  cell.sources = std::move(settings.sources);
  cell.command = command_;
  if (const TomlNode* command = table.find("command")) {
    MB_ASSIGN(cell.command, read_command(file_, *command));
  }
  return cell;
}

Status CellMaker::resolves(const Cell& cell) const {
  const bool ours = !cell.command || trainer::find_model(cell.config.model.name).has_value();
  return resolves_ && ours ? resolves_(cell.config) : Status{};
}

const std::string* CellMaker::same_configuration(const Cell& cell) const {
  const auto found = configs_.find(configuration_of(cell));
  return found == configs_.end() ? nullptr : &found->second;
}

Status CellMaker::add(Cell cell, TomlPlace at, std::string_view whence, std::string_view hint) {
  const auto [earlier, is_new] = places_.emplace(cell.name, at);
  if (!is_new)
    return file_.error(at,
                       fmt::format("{} a cell '{}', a name taken at {}:{}", whence, cell.name, earlier->second.line,
                                   earlier->second.column),
                       std::string(hint));
  configs_.emplace(configuration_of(cell), cell.name);
  cells_.push_back(std::move(cell));
  if (cells_.size() > kMaxCells) return too_many(at, cells_.size());
  return {};
}

// Nothing is held to it where the command line changed what the file says.
Status CellMaker::check_yield(const TomlNode& table, std::string_view kind, size_t cells_before,
                              size_t dropped_before) const {
  MB_ASSIGN(const int64_t wanted, count_in(file_, table, "yields", -1));
  const auto found = static_cast<int64_t>(cells_.size() - cells_before);
  if (wanted < 0 || wanted == found || !settings_.command_line.empty()) return {};
  std::vector<std::string> lost;
  for (size_t i = dropped_before; i < dropped_.size(); ++i)
    lost.push_back(fmt::format("{} ({})", dropped_[i].name, dropped_[i].reason));
  return file_.error(
      table.find("yields")->at,
      fmt::format("{} '{}' makes {} cells, not the {} it yields", kind, printable(table.key), found, wanted),
      lost.empty() ? "correct 'yields'" : "no cell: " + join(lost, "; "), ErrorCode::kMismatch);
}

tl::unexpected<Error> CellMaker::too_many(TomlPlace at, size_t count) const {
  return file_.error(at, fmt::format("{} cells are more than the {} a suite may have", count, kMaxCells),
                     "narrow the axes, or split the suite");
}

}  // namespace mbb::suites
