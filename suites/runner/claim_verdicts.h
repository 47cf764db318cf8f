// Holds what guides say of two configurations against the rows of a run.
#pragma once

#include <vector>

#include "baselines/store/records.h"
#include "suites/matrix/claims.h"

namespace mbb::suites {

enum class ClaimAnswer {
  kHolds,          // the ratio lies in the claimed range
  kDirectionOnly,  // it lies on the claimed side of 1, outside the range
  kUndecided,      // its interval reaches across 1
  kRefuted,        // the other side of 1, or outside a range that holds 1
  kNotJudged,      // a cell has no such number, or the classes differ
};
const char* name(ClaimAnswer answer);  // "holds", "direction holds, size differs", ...

struct ClaimResult {
  ClaimAnswer answer = ClaimAnswer::kNotJudged;
  double ratio = baselines::kNotMeasured;  // b / a
  double low = baselines::kNotMeasured;    // of the ratio, from both intervals; NaN without them
  double high = baselines::kNotMeasured;
  std::string class_label;  // of both rows
  std::string why;          // not judged
};
ClaimResult judge_claim(const Claim& claim, const std::vector<baselines::Cell>& cells);

// "0.67 to 0.83", "above 1.00".
std::string range_text(const Claim& claim);

// Gives cell b of each claim a verdict row "claim NAME": same where it holds, slower or faster than claimed (for
// metrics where more is better: by worse and better), inconclusive where it is not decided. Returns the indices of
// cells that changed, each once.
std::vector<size_t> judge_claims(const std::vector<Claim>& claims, std::vector<baselines::Cell>& cells);

}  // namespace mbb::suites
