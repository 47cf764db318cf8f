// Ratios of two cells' metrics, and their verdicts.
#include "suites/runner/claim_verdicts.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "analysis/metrics/cell_metrics.h"
#include "analysis/metrics/metrics.h"
#include "profiler/base/check.h"

namespace mbb::suites {
namespace {

const baselines::Cell* find_cell(const std::vector<baselines::Cell>& cells, const std::string& name) {
  const auto found = std::find_if(cells.begin(), cells.end(), [&](const auto& cell) { return cell.name == name; });
  return found == cells.end() ? nullptr : &*found;
}

// Why a cell cannot stand for its side of a claim; empty when it can.
std::string lacks(const baselines::Cell* cell, const std::string& name, const std::string& metric) {
  if (cell == nullptr) return name + " is not in this run";
  if (cell->status != baselines::CellStatus::kOk)
    return fmt::format("{} is {}{}{}", name, baselines::name(cell->status), cell->reason.empty() ? "" : ": ",
                       cell->reason);
  const baselines::Metric* found = analysis::find(*cell, metric);
  if (found == nullptr || !(found->value > 0)) return fmt::format("{} has no {}", name, metric);
  return "";
}

ClaimAnswer answer_of(const Claim& claim, const ClaimResult& r) {
  const bool spread = std::isfinite(r.low) && std::isfinite(r.high);
  const bool one_inside = claim.low < 1 && claim.high > 1;
  if (r.ratio == 1 && !one_inside) return ClaimAnswer::kRefuted;  // the change that is claimed does nothing
  if (r.ratio >= claim.low && r.ratio <= claim.high) {
    if (!spread || one_inside || r.low > 1 || r.high < 1) return ClaimAnswer::kHolds;
    return ClaimAnswer::kUndecided;
  }
  if (spread && r.low < 1 && r.high > 1 && !one_inside) return ClaimAnswer::kUndecided;
  if (one_inside) return ClaimAnswer::kRefuted;
  return (r.ratio < 1) == (claim.high <= 1) ? ClaimAnswer::kDirectionOnly : ClaimAnswer::kRefuted;
}

// The knobs that tell two cells apart: "parallel.a = 16 and b = true"; at most three.
std::string differing_knobs(const baselines::Cell& a, const baselines::Cell& b) {
  std::string text;
  int count = 0;
  for (const baselines::KnobValue& knob : b.knobs) {
    const auto other = std::find_if(a.knobs.begin(), a.knobs.end(), [&](const auto& k) { return k.key == knob.key; });
    if (other == a.knobs.end() || other->value == knob.value) continue;
    if (++count > 3) return text + " and more";
    text += fmt::format("{}{} = {}", text.empty() ? "" : ", ", knob.key, knob.value);
  }
  return text.empty() ? "what tells the cells apart" : text;
}

// A claim held against two projections, whose ratio is known within [low, high]: no answer that this could turn.
void judge_projected(const Claim& claim, const baselines::Cell& a, const baselines::Cell& b, ClaimResult& r) {
  if (r.ratio == 1) {
    r.answer = ClaimAnswer::kNotTold;
    r.why = fmt::format("both cells project alike: {} is not modelled", differing_knobs(a, b));
    return;
  }
  r.answer = answer_of(claim, r);
  if (!std::isfinite(r.low) || !std::isfinite(r.high)) return;  // nothing is known of its error
  const bool one_inside = claim.low < 1 && claim.high > 1;
  const bool inside = r.low >= claim.low && r.high <= claim.high;
  const bool outside = r.high < claim.low || r.low > claim.high;
  const bool point_inside = r.ratio >= claim.low && r.ratio <= claim.high;
  const bool open = point_inside ? one_inside && !inside : !outside;
  if (!open && r.answer != ClaimAnswer::kUndecided) return;
  const bool on_its_side = !one_inside && (claim.high <= 1 ? r.high < 1 : r.low > 1);
  r.answer = on_its_side ? ClaimAnswer::kSizeNotTold : ClaimAnswer::kNotTold;
  r.why = fmt::format("two projections of one cost table tell ratios within {:.1f} %", 50 * (r.high - r.low) / r.ratio);
}

baselines::Verdict verdict_of(const Claim& claim, const ClaimResult& result) {
  switch (result.answer) {
    case ClaimAnswer::kHolds: return baselines::Verdict::kSame;
    case ClaimAnswer::kUndecided:
    case ClaimAnswer::kSizeNotTold:
    case ClaimAnswer::kNotTold: return baselines::Verdict::kInconclusive;
    case ClaimAnswer::kNotJudged: return baselines::Verdict::kIncomparable;
    case ClaimAnswer::kDirectionOnly:
    case ClaimAnswer::kRefuted: break;
  }
  const analysis::MetricInfo* info = analysis::find_metric(claim.metric);
  MB_CHECK(info != nullptr, "a claim of a metric that is not declared: " + claim.metric);
  const bool above = result.ratio >= claim.high;
  return above == (info->better == analysis::Better::kHigher) ? baselines::Verdict::kFaster
                                                              : baselines::Verdict::kSlower;
}

}  // namespace

const char* name(ClaimAnswer answer) {
  switch (answer) {
    case ClaimAnswer::kHolds: return "holds";
    case ClaimAnswer::kDirectionOnly: return "direction holds, size differs";
    case ClaimAnswer::kUndecided: return "undecided";
    case ClaimAnswer::kSizeNotTold: return "direction holds, size not told";
    case ClaimAnswer::kNotTold: return "not told";
    case ClaimAnswer::kRefuted: return "does not hold";
    case ClaimAnswer::kNotJudged: return "not judged";
  }
  return "not judged";
}

std::string range_text(const Claim& claim) {
  if (!std::isfinite(claim.high)) return fmt::format("above {:.2f}", claim.low);
  if (claim.low <= 0) return fmt::format("below {:.2f}", claim.high);
  return fmt::format("{:.2f} to {:.2f}", claim.low, claim.high);
}

ClaimResult judge_claim(const Claim& claim, const std::vector<baselines::Cell>& cells, double ratio_error) {
  ClaimResult result;
  const baselines::Cell* a = find_cell(cells, claim.a);
  const baselines::Cell* b = find_cell(cells, claim.b);
  for (const auto& [cell, side] : {std::pair{a, &claim.a}, std::pair{b, &claim.b}})
    if (result.why.empty()) result.why = lacks(cell, *side, claim.metric);
  if (!result.why.empty()) return result;
  if (a->result_class != b->result_class || a->device != b->device) {
    result.why = fmt::format("{} is {} and {} is {}", a->name, class_label(*a), b->name, class_label(*b));
    return result;
  }
  result.class_label = class_label(*b);
  const baselines::Metric& before = *analysis::find(*a, claim.metric);
  const baselines::Metric& after = *analysis::find(*b, claim.metric);
  result.ratio = after.value / before.value;
  const bool projected = b->result_class == baselines::ResultClass::kProjected && after.unit != "bytes";
  if (projected && ratio_error > 0) {
    // Two projections share most of their error, so that the ratio is known better than either. A ratio of shares of
    // the step (bubble) is taken to be known as well as one of times.
    result.low = result.ratio * std::exp(-ratio_error);
    result.high = result.ratio * std::exp(ratio_error);
  } else if (before.low > 0) {
    result.low = after.low / before.high;
    result.high = after.high / before.low;
  }
  if (projected)
    judge_projected(claim, *a, *b, result);
  else
    result.answer = answer_of(claim, result);
  return result;
}

std::vector<size_t> judge_claims(const std::vector<Claim>& claims, std::vector<baselines::Cell>& cells,
                                 double ratio_error) {
  std::vector<size_t> changed;
  for (const Claim& claim : claims) {
    const auto at = std::find_if(cells.begin(), cells.end(), [&](const auto& cell) { return cell.name == claim.b; });
    if (at == cells.end()) continue;
    const ClaimResult result = judge_claim(claim, cells, ratio_error);
    baselines::VerdictRow row;
    row.subject = "claim " + claim.name;
    row.against = claim.a;
    row.verdict = verdict_of(claim, result);
    if (result.answer == ClaimAnswer::kNotJudged) {
      row.text = "not judged: " + result.why;
    } else {
      row.change = result.ratio - 1;
      row.low = result.low - 1;
      row.high = result.high - 1;
      row.text = fmt::format("{} ({}): {} {:.3f}, said to be {}{}{}. {}", name(result.answer), result.class_label,
                             claim.metric, result.ratio, range_text(claim), result.why.empty() ? "" : "; ", result.why,
                             claim.says);
    }
    std::erase_if(at->verdicts, [&](const auto& old) { return old.subject == row.subject; });
    at->verdicts.push_back(std::move(row));
    const auto index = static_cast<size_t>(at - cells.begin());
    if (std::find(changed.begin(), changed.end(), index) == changed.end()) changed.push_back(index);
  }
  return changed;
}

}  // namespace mbb::suites
