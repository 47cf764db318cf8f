// Cells that share a note share its line.
#include "suites/runner/idle_notes.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "trainer/run/layout.h"

namespace mbb::suites {
namespace {

constexpr size_t kCellsNamed = 4;

std::string cells_text(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kCellsNamed); ++i) text += (i > 0 ? ", " : "") + names[i];
  if (names.size() > kCellsNamed) text += fmt::format(" and {} more", names.size() - kCellsNamed);
  return text;
}

}  // namespace

std::vector<std::string> idle_notes(const Suite& suite) {
  std::vector<std::pair<std::string, std::vector<std::string>>> cells_by_note;
  for (const Cell& cell : suite.cells) {
    if (cell.skipped || cell.command) continue;
    const auto layout = trainer::resolve(cell.config);
    if (!layout) continue;  // the cell says why
    for (const trainer::IdleKnob& knob : layout->idle) {
      const std::string note = describe(knob);
      auto found =
          std::find_if(cells_by_note.begin(), cells_by_note.end(), [&](const auto& e) { return e.first == note; });
      if (found == cells_by_note.end()) found = cells_by_note.insert(found, {note, {}});
      found->second.push_back(cell.name);
    }
  }
  std::vector<std::string> lines;
  for (const auto& [note, cells] : cells_by_note)
    lines.push_back(suite.cells.size() == 1 ? fmt::format("no effect: {}.", note)
                                            : fmt::format("no effect: {} in {}.", note, cells_text(cells)));
  return lines;
}

}  // namespace mbb::suites
