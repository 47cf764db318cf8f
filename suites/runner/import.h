// Files of other tools as a run of ours: a cell a file, or one cell whose launches are the logs.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "baselines/store/records.h"
#include "suites/foreign/foreign_file.h"
#include "suites/foreign/foreign_knobs.h"
#include "suites/matrix/settings.h"

namespace mbb::suites {

struct ImportRequest {
  std::vector<ForeignFile> files;
  Settings settings;   // with the knobs of the command line, which stand over what a file says
  std::string cell;    // logs are launches of one cell of this name; empty: a cell each
  std::string device;  // they ran on; empty: as the log says, else unknown
  std::string tag;
  std::vector<std::string> argv;
};

// What became of the settings that came with one log, or stood in one configuration.
struct ImportedSettings {
  std::filesystem::path file;
  ImportedKnobs knobs;
};

struct ImportOutcome {
  baselines::Run run;  // empty id where there were configurations alone: nothing was stored
  std::filesystem::path bundle;
  std::vector<ImportedSettings> settings;
};

// 4 where a cell is broken, 2 where one is unstable, else 0. An imported trace or snapshot has no step times: only what
// contradicts itself is broken.
int import_status(const baselines::Run& run);

// Writes the bundle and the store. A configuration among the files is that of the logs in its folder.
Result<ImportOutcome> import_files(const ImportRequest& request);

}  // namespace mbb::suites
