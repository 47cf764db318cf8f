// From another trainer's settings to our knobs: by name where Megatron's name is ours, by a table of rules elsewhere.
// What no rule takes is listed, never dropped.
#pragma once

#include <string>
#include <vector>

#include "profiler/base/knob_table.h"
#include "suites/foreign/training_log.h"
#include "trainer/run/config.h"

namespace mbb::suites {

struct ImportedKnob {
  std::string key;    // ours, "parallel.tensor_model_parallel_size"
  std::string value;  // as ours is written
  ForeignSetting from;
};

struct RefusedSetting {
  ForeignSetting from;
  std::string reason;
};

struct ImportedKnobs {
  std::vector<ImportedKnob> knobs;
  std::vector<ForeignSetting> not_understood;  // in the file's order; unset ones ("null", "None", "[]") too
  std::vector<RefusedSetting> refused;         // ours has such a knob and does not take the value
  std::string model_note;                      // how the model was found by its shape
  std::string no_model_note;                   // where none was: what stands in its place
  std::string gpus_note;                       // what the suite file takes for GPUs that are not said
};

ImportedKnobs import_knobs(const std::vector<ForeignSetting>& settings);

// Sets them in a configuration, their source being `file`.
Status apply_imported(const ImportedKnobs& imported, const std::string& file, trainer::Config& config,
                      KnobSources& sources);

// The knobs as a suite file of one cell. It asks for GPUs: those the settings say, else one replica of the model.
std::string imported_toml(const ImportedKnobs& imported, const std::string& from);

// True for values that say nothing: "null", "None", "~", "", "[]", "{}".
bool is_unset(std::string_view value);

}  // namespace mbb::suites
