// The array of panels: add one with a file and a line here.
#include <array>

#include "viewer/panels/panel.h"

namespace mbb::viewer {

std::unique_ptr<Panel> make_runs_panel();
std::unique_ptr<Panel> make_run_panel();
std::unique_ptr<Panel> make_compare_panel();
std::unique_ptr<Panel> make_timeline_panel();
std::unique_ptr<Panel> make_memory_panel();
std::unique_ptr<Panel> make_history_panel();
std::unique_ptr<Panel> make_sweep_panel();
std::unique_ptr<Panel> make_ops_panel();
std::unique_ptr<Panel> make_program_panel();
std::unique_ptr<Panel> make_counts_panel();

namespace {

constexpr std::array kPanels = {
    PanelEntry{"runs", "Runs", "Every run of the store: search, filter by knob, choose A and B.", make_runs_panel},
    PanelEntry{"run", "Run", "One run: its cells, their metrics, and the step times of each launch.", make_run_panel},
    PanelEntry{"compare", "Compare",
               "A against B: cells, the step's difference op by op, step times, memory, settings.", make_compare_panel},
    PanelEntry{"timeline", "Timeline",
               "Ranks and streams over time; two runs aligned by step or op, differences marked.", make_timeline_panel},
    PanelEntry{"memory", "Memory", "Where every tensor lies over a step, what is alive at an instant, plan and seen.",
               make_memory_panel},
    PanelEntry{"history", "History", "One metric of one cell over runs, with intervals and verdicts.",
               make_history_panel},
    PanelEntry{"sweep", "Sweep", "The cells of a run as a matrix over two knobs; the best one marked.",
               make_sweep_panel},
    PanelEntry{"ops", "Ops", "Every op and kernel with time, rate and spread; A against B.", make_ops_panel},
    PanelEntry{"program", "Program", "What a step computes: a tree of ops with FLOPs, bytes and measured time.",
               make_program_panel},
    PanelEntry{"counts", "Counts", "What each launch counted: dropped records, failures, samples.", make_counts_panel},
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
