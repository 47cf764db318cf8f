// Which bundles of a runs folder may go, by policy, and why each other one stays. The store keeps the numbers of a run
// whose bundle is gone: steps, metrics, verdicts; traces and program texts go with it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "baselines/pins/pins.h"
#include "baselines/store/records.h"
#include "profiler/base/error.h"

namespace mbb::baselines {

struct GcPolicy {
  std::int64_t keep_days = 30;
  std::int64_t keep_runs = 20;  // newest of each suite
};

struct StoredBundle {
  std::filesystem::path folder;
  Run run;                 // without cells; only the folder's name as id when it cannot be read
  std::string unreadable;  // why
  std::int64_t bytes = 0;
  bool being_written = false;  // by a run that goes on
};

struct GcDecision {
  StoredBundle bundle;
  bool removes = false;
  std::string reason;
};

// Every bundle folder below `runs_dir`/runs, newest first.
Result<std::vector<StoredBundle>> list_bundles(const std::filesystem::path& runs_dir);

// Pure. Never removed: what a baseline in `pins` rests on (ended and expired ones too), bridges between epochs, tagged
// runs, bundles that cannot be read, runs that go on.
std::vector<GcDecision> plan_gc(std::vector<StoredBundle> bundles, const std::vector<Pin>& pins, const GcPolicy& policy,
                                std::int64_t now_unix_ns);

// Removes what the plan says; a folder that is no bundle any more, or that a run has begun to write
// again, is an error.
Status carry_out(const std::vector<GcDecision>& plan);

}  // namespace mbb::baselines
