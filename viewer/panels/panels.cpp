// The array of panels: add one with a file and a line here.
#include <array>

#include "viewer/panels/panel.h"

namespace mbb::viewer {

std::unique_ptr<Panel> make_runs_panel();
std::unique_ptr<Panel> make_run_panel();
std::unique_ptr<Panel> make_timeline_panel();

namespace {

constexpr std::array kPanels = {
    PanelEntry{"runs", "Runs", "Every run of the store: search, filter by knob, choose A and B.", make_runs_panel},
    PanelEntry{"run", "Run", "One run: its cells, their metrics, and the step times of each launch.", make_run_panel},
    PanelEntry{"timeline", "Timeline",
               "Ranks and streams over time; two runs aligned by step or op, differences marked.", make_timeline_panel},
};

}  // namespace

std::span<const PanelEntry> panels() {
  return kPanels;
}

const PanelEntry* find_panel(std::string_view name) {
  for (const PanelEntry& entry : kPanels) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

}  // namespace mbb::viewer
