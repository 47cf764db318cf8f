// How processes find each other before they have any connection: every rank tells rank 0 its address and is told all.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "profiler/base/error.h"
#include "trainer/comm/process_place.h"

namespace mbb::trainer {

struct Roll {
  std::vector<std::string> addresses;  // by rank, as Listener::address() gives them
  std::string secret;                  // that only these ranks know
};

// Gives `own` (this rank's address) and gets everybody's. Errors: kTimeout after limit_ms, on rank 0 with the ranks
// that are missing, elsewhere with where rank 0 was looked for; kRankFailed, soon, where rank 0 was and ended; kIo when
// rank 0's port is taken; kMismatch when two processes say they are one rank, or worlds differ in size. Rank 0 asks
// `meanwhile` a few times a second; its error ends the wait.
Result<Roll> call_roll(const ProcessPlace& place, const std::string& own, int64_t limit_ms,
                       const std::function<Status()>& meanwhile = {});

}  // namespace mbb::trainer
