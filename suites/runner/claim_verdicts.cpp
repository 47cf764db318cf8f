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

baselines::Verdict verdict_of(const Claim& claim, const ClaimResult& result) {
  switch (result.answer) {
    case ClaimAnswer::kHolds: return baselines::Verdict::kSame;
    case ClaimAnswer::kUndecided: return baselines::Verdict::kInconclusive;
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

ClaimResult judge_claim(const Claim& claim, const std::vector<baselines::Cell>& cells) {
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
  // A projection's interval is of errors that both sides share: the ratio's own is not known.
  if (b->result_class != baselines::ResultClass::kProjected && before.low > 0) {
    result.low = after.low / before.high;
    result.high = after.high / before.low;
  }
  result.answer = answer_of(claim, result);
  return result;
}

std::vector<size_t> judge_claims(const std::vector<Claim>& claims, std::vector<baselines::Cell>& cells) {
  std::vector<size_t> changed;
  for (const Claim& claim : claims) {
    const auto at = std::find_if(cells.begin(), cells.end(), [&](const auto& cell) { return cell.name == claim.b; });
    if (at == cells.end()) continue;
    const ClaimResult result = judge_claim(claim, cells);
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
      row.text = fmt::format("{} ({}): {} {:.3f}, said to be {}. {}", name(result.answer), result.class_label,
                             claim.metric, result.ratio, range_text(claim), claim.says);
    }
    std::erase_if(at->verdicts, [&](const auto& old) { return old.subject == row.subject; });
    at->verdicts.push_back(std::move(row));
    const auto index = static_cast<size_t>(at - cells.begin());
    if (std::find(changed.begin(), changed.end(), index) == changed.end()) changed.push_back(index);
  }
  return changed;
}

}  // namespace mbb::suites
