// From finished runs to the baselines that are accepted of them: all that were asked for, or none.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "baselines/pins/pins.h"
#include "baselines/store/records.h"
#include "profiler/host/fact_roles.h"

namespace mbb::suites {

struct AcceptRequest {
  baselines::Run run;
  std::vector<baselines::Run> more;  // further nights of the same product in the same environment
  std::vector<std::string> only;     // patterns of cells; empty: every ok cell
  profiler::FactRoles roles;
  std::vector<profiler::HostFact> facts;  // declared by the user: the product is called by them
  std::string author;
  std::string reason;
  int64_t now_unix_ns = 0;
  int64_t expires_unix_ns = 0;  // 0: never
};

struct Acceptance {
  std::vector<baselines::Pin> pins;    // not written yet
  std::vector<std::string> left_out;   // "run r-2, cell b: why": nights of `more` that are no evidence of a cell
  std::vector<std::string> contended;  // "run r-1, cell b: another process uses GPU 0 ..."
  size_t fewest_nights = 0;            // of a cell; under kNightsOfThePromise the gate finds less
  bool one_launch_nights = false;      // of a cell, all nights: the spread of launches stays unknown
  std::vector<std::string> too_few;    // "cell a has 3 launches": fewer than the gate judges from
};

// Errors: a run none of whose facts is the product's (roles.fault), a run that is given twice or shares a launch with
// another (kBadArgument: evidence would count it twice), runs of different environments or products and a cell of `run`
// whose launches are no evidence (kMismatch), no ok cell (kNotFound).
Result<Acceptance> accept_runs(const AcceptRequest& request);

}  // namespace mbb::suites
