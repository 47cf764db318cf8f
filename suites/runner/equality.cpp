// Compares losses step by step with the one-rank cell.
#include "suites/runner/equality.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace mbb::suites {
namespace {

const baselines::KnobValue* find_knob(const baselines::Cell& cell, std::string_view key) {
  for (const auto& knob : cell.knobs)
    if (knob.key == key) return &knob;
  return nullptr;
}

bool is_reference(const baselines::Cell& cell) {
  const auto* recipe = find_knob(cell, "precision.recipe");
  return cell.ranks == 1 && cell.status == baselines::CellStatus::kOk && recipe && recipe->value == "fp32" &&
         !cell.launches.empty();
}

struct Deviation {
  double relative = 0;
  int64_t step = 0;
};

Deviation largest_deviation(const std::vector<baselines::Step>& a, const std::vector<baselines::Step>& b) {
  Deviation worst;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double relative = std::abs(a[i].loss - b[i].loss) / std::abs(b[i].loss);
    if (relative > worst.relative || std::isnan(relative)) worst = {relative, a[i].index};
  }
  return worst;
}

void break_cell(baselines::Cell& cell, std::string reason) {
  cell.status = baselines::CellStatus::kBroken;
  cell.reason = std::move(reason);
  cell.metrics.clear();
}

}  // namespace

namespace {

// Knobs that say how the work is mapped and run, not what it is.
bool changes_nothing(std::string_view key) {
  for (const std::string_view prefix :
       {"parallel.", "host.", "debug.", "fusion.", "memory.recompute_", "memory.cpu_offloading"})
    if (key.starts_with(prefix)) return true;
  return key == "train.micro_batch_size" || key == "memory.limit_gib";
}

}  // namespace

std::string work_key(const baselines::Cell& cell) {
  std::string key = cell.model;
  for (const auto& knob : cell.knobs) {
    if (!changes_nothing(knob.key)) key += "\n" + knob.key + "=" + knob.value;
  }
  return key;
}

void judge_losses(baselines::Cell& cell, const std::vector<baselines::Cell>& finished) {
  if (cell.status != baselines::CellStatus::kOk || cell.launches.empty()) return;
  const std::string key = work_key(cell);
  const auto reference = std::find_if(finished.begin(), finished.end(), [&](const baselines::Cell& other) {
    return is_reference(other) && other.device == cell.device && work_key(other) == key;
  });
  if (reference == finished.end()) return;
  baselines::VerdictRow row;
  row.subject = "loss";
  row.against = reference->name;
  for (const baselines::Launch& launch : cell.launches) {
    const auto& expected = reference->launches.front().steps;
    const Deviation worst = largest_deviation(launch.steps, expected);
    row.change = std::max(std::isnan(row.change) ? 0.0 : row.change, worst.relative);
    if (launch.steps.size() != expected.size()) {
      break_cell(cell, fmt::format("{} steps where {} has {}", launch.steps.size(), reference->name, expected.size()));
    } else if (!(worst.relative <= kLossTolerance)) {
      break_cell(cell, fmt::format("loss of step {} differs from {} by {:.2e} (limit {:.0e} relative)", worst.step,
                                   reference->name, worst.relative, kLossTolerance));
    }
  }
  const bool equal = cell.status == baselines::CellStatus::kOk;
  row.verdict = equal ? baselines::Verdict::kSame : baselines::Verdict::kBroken;
  row.text = equal ? fmt::format("losses equal {} within {:.1e} relative at every step", reference->name, row.change)
                   : cell.reason;
  cell.verdicts.push_back(std::move(row));
}

void judge_learning(baselines::Cell& cell, double unigram_entropy) {
  if (cell.status != baselines::CellStatus::kOk || cell.launches.empty() || cell.launches.front().steps.empty()) return;
  const auto& steps = cell.launches.front().steps;
  const size_t count = std::min<size_t>(5, steps.size());
  double loss = 0;
  for (size_t i = steps.size() - count; i < steps.size(); ++i) loss += steps[i].loss / static_cast<double>(count);
  const bool below = loss < unigram_entropy;
  baselines::VerdictRow row;
  row.subject = "learning";
  row.verdict = below ? baselines::Verdict::kSame : baselines::Verdict::kInconclusive;
  row.against = "unigram entropy";
  row.change = loss / unigram_entropy - 1;
  row.text = fmt::format("last loss {:.3f} is {} the data's unigram entropy {:.3f}", loss,
                         below ? "below" : "not below", unigram_entropy);
  cell.verdicts.push_back(std::move(row));
}

}  // namespace mbb::suites
