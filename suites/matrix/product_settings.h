// Settings of the product that are no knobs of a training run: where results go, where a user's own suites lie.
#pragma once

#include <cstdint>
#include <string>

#include "profiler/base/knob_table.h"

namespace mbb::suites {

struct ProductSettings {
  std::string runs_dir = "./mbbench-runs";  // store and bundles
  std::string suites_dir;                   // own suite files, found by name before the shipped ones; empty = none
  std::string baselines_file = "./mbbench-baselines.jsonl";  // accepted baselines; kept under version control
  int64_t max_silent_nights = 3;                             // a gated cell without a number for so long fails the gate
};

const KnobTable& product_settings();

// SETTINGS.md: these settings, where they are read from, and every environment variable the program listens to.
std::string render_settings_markdown();

}  // namespace mbb::suites
