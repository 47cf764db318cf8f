// How a suite's tables become cells: the layers of knobs under each of them, and the list in which every cell has a
// name of its own. Sweeps and covers make theirs with it (sweep_cells.h, cover_cells.h).
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "profiler/base/error.h"
#include "suites/matrix/command_spec.h"
#include "suites/matrix/knob_file.h"
#include "suites/matrix/settings.h"
#include "suites/matrix/suite.h"
#include "suites/matrix/toml_file.h"

namespace mbb::suites {

inline constexpr size_t kCellNameLimit = 100;
bool good_cell_name(std::string_view name);
// `label` with what a name may not have replaced.
std::string as_cell_name(std::string label);

class CellMaker {
 public:
  // All must outlive it.
  CellMaker(const TomlFile& file, const Settings& settings, const Resolves& resolves)
      : file_(file), settings_(settings), resolves_(resolves) {}

  // What every cell of the file has: `based_on`, [base] with `model` and `gpus`, [command]. First of all.
  Status read_common();
  // Bytes of the files that `based_on` took tables from, after the suite's own.
  const std::string& text() const { return text_; }

  // Settings, bases, [base] and the table's `set`; the command line comes last, in make().
  Result<Settings> start(const TomlNode& table) const;
  // A cell of these settings under the command line, with the command of `table`, else the suite's.
  Result<Cell> make(std::string name, Settings settings, const TomlNode& table) const;
  // Whether it can be laid out. A command may train a model that is none of ours: its mapping cannot be checked, and
  // the command says what is wrong.
  Status resolves(const Cell& cell) const;

  // The cell that has this configuration already, or null.
  const std::string* same_configuration(const Cell& cell) const;
  // Adds it; its name must be new. `whence` ("sweep 'tp' makes") and `hint` are of the error when it is not.
  Status add(Cell cell, TomlPlace at, std::string_view whence, std::string_view hint);
  void drop(std::string name, std::string reason) { dropped_.push_back({std::move(name), std::move(reason)}); }

  // Whether a sweep or cover made as many cells as its `yields` says, since there were so many of them.
  Status check_yield(const TomlNode& table, std::string_view kind, size_t cells_before, size_t dropped_before) const;
  tl::unexpected<Error> too_many(TomlPlace at, size_t count) const;

  const TomlFile& file() const { return file_; }
  const Settings& settings() const { return settings_; }
  std::vector<Cell>& cells() { return cells_; }
  std::vector<DroppedCell>& dropped() { return dropped_; }

 private:
  struct Basis {
    const TomlFile* file = nullptr;
    std::vector<FileValue> values;
  };
  Status read_bases();

  const TomlFile& file_;
  const Settings& settings_;
  const Resolves& resolves_;
  std::string text_;
  TomlNode base_node_;
  std::vector<FileValue> base_;
  std::vector<std::unique_ptr<TomlFile>> basis_files_;
  std::vector<Basis> bases_;
  std::optional<CommandSpec> command_;  // of every cell
  std::vector<Cell> cells_;
  std::vector<DroppedCell> dropped_;
  std::map<std::string, TomlPlace> places_;     // of cell names
  std::map<std::string, std::string> configs_;  // configuration -> cell name
};

}  // namespace mbb::suites
