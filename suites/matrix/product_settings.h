// Settings of the product that are no knobs of a training run: where results go, where a user's own suites lie.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "profiler/base/knob_table.h"
#include "profiler/host/fact_roles.h"

namespace mbb::suites {

struct GateSettings {
  int64_t max_silent_nights = 3;  // a gated cell without a verdict for so long fails the gate
  std::string product = "build.commit,build.checks";
  std::string environment = "cpu.*,gpu.*,kernel.*,library.*,memory.*,numa.*,os.*";
  KnobMap facts;  // declared by the user: an image, a framework's commit
};

// What `mbbench gc` keeps beside the evidence of baselines.
struct GcSettings {
  int64_t keep_days = 30;
  int64_t keep_runs = 20;
};

struct ProductSettings {
  GateSettings gate;
  GcSettings gc;
  std::string runs_dir = "./mbbench-runs";  // store and bundles
  std::string suites_dir;                   // own suite files, found by name before the shipped ones; empty = none
  std::string baselines_file = "./mbbench-baselines.jsonl";  // accepted baselines; kept under version control
};

const KnobTable& product_settings();

// Patterns of `gate.product` and `gate.environment`; the declared facts belong to the product unless a pattern says
// otherwise.
profiler::FactRoles fact_roles(const GateSettings& gate);
std::vector<profiler::HostFact> declared_facts(const GateSettings& gate);

// SETTINGS.md: these settings, where they are read from, and every environment variable the program listens to.
std::string render_settings_markdown();

}  // namespace mbb::suites
