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
  kSizeNotTold,    // projections tell the side of 1, and their ratio's error reaches across the range's edge
  kNotTold,        // projections do not tell: both are the same, or the ratio's error reaches across what is claimed
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
  std::string why;          // not judged, not told
};
// ratio_error: of projected rows, relative, of the ratio of two (ProjectionBasis); 0: the rows' own intervals, as if
// their errors had nothing in common. What the plan says (bytes) is exact.
ClaimResult judge_claim(const Claim& claim, const std::vector<baselines::Cell>& cells, double ratio_error = 0);

// "0.67 to 0.83", "above 1.00".
std::string range_text(const Claim& claim);

// Gives cell b of each claim a verdict row "claim NAME": same where it holds, slower or faster than claimed (for
// metrics where more is better: by worse and better), inconclusive where it is not decided or not told. Returns the
// indices of cells that changed, each once.
std::vector<size_t> judge_claims(const std::vector<Claim>& claims, std::vector<baselines::Cell>& cells,
                                 double ratio_error = 0);

}  // namespace mbb::suites
