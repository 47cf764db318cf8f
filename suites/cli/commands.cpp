// The list of commands, in the order of help.
#include "suites/cli/command.h"

namespace mbb::suites {

std::vector<Command> commands() {
  return {suite_command(),       run_command(),      explain_command(),  project_command(), advise_command(),
          list_command(),        show_command(),     diagnose_command(), compare_command(), gate_command(),
          baseline_command(),    history_command(),  gc_command(),       noise_command(),   ab_command(),
          export_command(),      import_command(),   view_command(),     knobs_command(),   config_command(),
          index_command(),       doctor_command(),   tune_command(),     micro_command(),   help_command(),
          launch_cell_command(), time_gpus_command()};
}

}  // namespace mbb::suites
