// Settings of the product that are no knobs of a training run: where results go, where a user's own suites lie.
#pragma once

#include <string>

#include "profiler/base/knob_table.h"

namespace mbb::suites {

struct ProductSettings {
  std::string runs_dir = "./mbbench-runs";  // store and bundles
  std::string suites_dir;                   // own suite files, found by name before the shipped ones; empty = none
};

const KnobTable& product_settings();

// SETTINGS.md: these settings, where they are read from, and every environment variable the program listens to.
std::string render_settings_markdown();

}  // namespace mbb::suites
