// Cells that share a note share its line.
#include "suites/runner/idle_notes.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "suites/project/projector.h"
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

// Of one cell: by its layout, and by its first launch.
std::vector<std::string> notes_of(const Cell& cell, const std::vector<baselines::Cell>& finished) {
  std::vector<std::string> notes;
  const auto layout = trainer::resolve(cell.config);
  if (!layout) return notes;  // the cell says why
  for (const trainer::IdleKnob& knob : layout->idle) notes.push_back(describe(knob));
  for (const baselines::Cell& done : finished) {
    if (done.name != cell.name || done.launches.empty()) continue;
    for (const auto& count : done.launches.front().counts) {
      if (!count.name.starts_with(kIdleCount)) continue;
      const std::string note = count.name.substr(std::string_view(kIdleCount).size());
      if (std::find(notes.begin(), notes.end(), note) == notes.end()) notes.push_back(note);
    }
  }
  return notes;
}

// The same, and what a projected time is as without.
std::vector<std::string> lines_of(const Cell& cell, const std::vector<baselines::Cell>& finished) {
  std::vector<std::string> lines;
  for (const std::string& note : notes_of(cell, finished)) lines.push_back(kIdleCount + note);
  for (const baselines::Cell& done : finished)
    if (done.name == cell.name && done.status == baselines::CellStatus::kOk &&
        done.result_class == baselines::ResultClass::kProjected)
      for (const std::string& knob : not_projected(cell.config))
        lines.push_back(fmt::format("not projected, the time is as without: {}", knob));
  return lines;
}

}  // namespace

std::vector<std::string> idle_notes(const Suite& suite, const std::vector<baselines::Cell>& finished) {
  std::vector<std::pair<std::string, std::vector<std::string>>> cells_by_note;
  for (const Cell& cell : suite.cells) {
    if (cell.skipped || cell.command) continue;
    for (const std::string& note : lines_of(cell, finished)) {
      auto found =
          std::find_if(cells_by_note.begin(), cells_by_note.end(), [&](const auto& e) { return e.first == note; });
      if (found == cells_by_note.end()) found = cells_by_note.insert(found, {note, {}});
      found->second.push_back(cell.name);
    }
  }
  std::vector<std::string> lines;
  for (const auto& [note, cells] : cells_by_note)
    lines.push_back(suite.cells.size() == 1 ? note + "." : fmt::format("{} in {}.", note, cells_text(cells)));
  return lines;
}

}  // namespace mbb::suites
