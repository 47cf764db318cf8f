// Compares losses step by step with the one-rank cell.
#include "suites/runner/equality.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "analysis/stats/distributions.h"
#include "trainer/models/hf_config.h"
#include "trainer/models/model.h"
#include "trainer/run/knob_effect.h"

namespace mbb::suites {
namespace {

const baselines::KnobValue* find_knob(const baselines::Cell& cell, std::string_view key) {
  for (const auto& knob : cell.knobs)
    if (knob.key == key) return &knob;
  return nullptr;
}

constexpr std::string_view kSeed = "train.seed";

std::string value_of(const baselines::Cell& cell, std::string_view key) {
  const auto* knob = find_knob(cell, key);
  return knob ? knob->value : "";
}

// Whether the size of a micro-batch is a part of the work: experts are balanced, and drop tokens, in each by itself.
bool by_micro_batch(const baselines::Cell& cell) {
  const std::string experts = value_of(cell, "model.num_experts");
  if (!experts.empty() && experts != "0") return true;
  const std::string name = value_of(cell, "model.name");
  const auto model = trainer::resolve_model(name.empty() ? cell.model : name);  // a file is there while cells run
  return model && model->is_moe();
}

// Context parallelism rounds the lengths of sequences up to its pieces (Layout::sequence_unit): other packs, other
// work.
bool by_context(const baselines::Cell& cell) {
  const std::string sequences = value_of(cell, "packing.sequences");
  return !sequences.empty() && sequences != "stream";
}

std::string recipe_of(const baselines::Cell& cell) {
  return value_of(cell, "precision.recipe");
}

// Steps too uneven to be timed have losses all the same.
bool has_losses(const baselines::Cell& cell) {
  return (cell.status == baselines::CellStatus::kOk || cell.status == baselines::CellStatus::kUnstable) &&
         !cell.launches.empty();
}

bool is_reference(const baselines::Cell& cell) {
  return cell.ranks == 1 && has_losses(cell);
}

struct Deviation {
  double relative = 0;
  int64_t step = 0;
};

double unscaled(int64_t) {
  return 1;
}

// In units of `unit` at each step.
Deviation largest_deviation(const std::vector<baselines::Step>& a, const std::vector<baselines::Step>& b,
                            double (*unit)(int64_t step) = unscaled) {
  Deviation worst;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double relative = std::abs(a[i].loss - b[i].loss) / std::abs(b[i].loss) / unit(b[i].index);
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

double loss_tolerance(int64_t step) {
  return kLossTolerance * std::max(1.0, static_cast<double>(step) / static_cast<double>(kRoundingSteps));
}

std::string work_key(const baselines::Cell& cell, bool precision, bool seed) {
  std::string key = cell.model;
  const bool keeps_micro_batch = by_micro_batch(cell), keeps_context = by_context(cell);
  for (const auto& knob : cell.knobs) {
    const bool kept = (keeps_micro_batch && knob.key == "train.micro_batch_size") ||
                      (keeps_context && knob.key == "parallel.context_parallel_size");
    const trainer::KnobEffect effect = kept ? trainer::KnobEffect::kWork : trainer::effect_of(knob.key);
    if (effect == trainer::KnobEffect::kHow || (!precision && effect == trainer::KnobEffect::kRounding)) continue;
    if (!seed && knob.key == kSeed) continue;
    key += "\n" + knob.key + "=" + knob.value;
  }
  return key;
}

namespace {

// Pairs of one-rank cells that did `cell`'s work from other seeds, in fp32 and in its recipe.
std::vector<References::Pair> other_seeds_of(const baselines::Cell& cell,
                                             const std::vector<baselines::Cell>& finished) {
  const std::string rounded_key = work_key(cell, true, false), exact_key = work_key(cell, false, false);
  const std::string recipe = recipe_of(cell), seed = value_of(cell, kSeed);
  std::map<std::string, References::Pair> by_seed;
  for (const baselines::Cell& other : finished) {
    if (!is_reference(other) || other.device != cell.device || other.model != cell.model) continue;
    const std::string theirs = value_of(other, kSeed);
    if (theirs == seed) continue;
    const std::string in = recipe_of(other);
    if (in == recipe && work_key(other, true, false) == rounded_key) by_seed[theirs].rounded = &other;
    if (in == "fp32" && work_key(other, false, false) == exact_key) by_seed[theirs].exact = &other;
  }
  std::vector<References::Pair> pairs;
  for (const auto& [of, pair] : by_seed)
    if (pair.exact != nullptr && pair.rounded != nullptr) pairs.push_back(pair);
  return pairs;
}

}  // namespace

bool trains_in_fp32(const baselines::Cell& cell) {
  return recipe_of(cell) == "fp32";
}

const baselines::Cell* exact_reference_of(const baselines::Cell& cell, const std::vector<baselines::Cell>& finished) {
  const bool exact = recipe_of(cell) == "fp32";
  const std::string key = work_key(cell, exact);
  for (const baselines::Cell& other : finished)
    if (is_reference(other) && other.device == cell.device && recipe_of(other) == "fp32" &&
        work_key(other, exact) == key)
      return &other;
  return nullptr;
}

References references_of(const baselines::Cell& cell, const std::vector<baselines::Cell>& finished) {
  References found;
  const bool exact = recipe_of(cell) == "fp32";
  found.exact = exact_reference_of(cell, finished);
  for (const baselines::Cell& other : finished)
    if (!exact && found.rounded == nullptr && is_reference(other) && other.device == cell.device &&
        work_key(other) == work_key(cell))
      found.rounded = &other;
  // What one rank's rounding does is not known: the first one-rank cell of a precision is compared with nothing.
  if (!exact && found.rounded == nullptr) found.exact = nullptr;
  if (!exact && found.exact != nullptr) found.other_seeds = other_seeds_of(cell, finished);
  return found;
}

namespace {

// What is left in the mean of so many token losses when each is rounded to bf16: one rank may come nearer by chance.
double rounded_mean(int64_t tokens) {
  return tokens > 0 ? 0x1p-9 / std::sqrt(static_cast<double>(tokens)) : 0;
}

// What one rank's rounding does, over all its steps and seeds: the most that a loss is off, and the most that one cell
// in ten thousand would be off by chance. Every step has tokens of its own, so that their mean losses are off by draws
// of one distribution around zero; its width is known from as many values.
struct Rounding {
  double most = 0;
  double by_chance = 0;
};
Rounding rounding_of(const References& with) {
  std::vector<References::Pair> pairs = with.other_seeds;
  pairs.push_back({with.exact, with.rounded});
  Rounding found;
  double squares = 0, values = 0;
  for (const References::Pair& pair : pairs) {
    const auto& rounded = pair.rounded->launches.front().steps;
    const auto& exact = pair.exact->launches.front().steps;
    found.most = std::max(found.most, largest_deviation(rounded, exact).relative);
    for (size_t i = 0; i < std::min(rounded.size(), exact.size()); ++i, ++values)
      squares += std::pow((rounded[i].loss - exact[i].loss) / exact[i].loss, 2);
  }
  if (with.other_seeds.empty() || values == 0) return found;
  const auto steps = static_cast<double>(with.exact->launches.front().steps.size());
  const double level = 1e-4 / (2 * steps);  // either side, any step
  found.by_chance = analysis::student_t_quantile(1 - level, values) * std::sqrt(squares / values);
  return found;
}

// Lower precision: the largest difference from fp32 over all steps, of the cell and of one rank over its seeds.
void judge_rounded(baselines::Cell& cell, const References& with, baselines::VerdictRow& row) {
  const auto& exact = with.exact->launches.front().steps;
  const auto [one, by_chance] = rounding_of(with);
  const std::string seeds = with.other_seeds.empty() ? "" : fmt::format(" over {} seeds", with.other_seeds.size() + 1);
  for (const baselines::Launch& launch : cell.launches) {
    const Deviation mine = largest_deviation(launch.steps, exact);
    row.change = std::max(std::isnan(row.change) ? 0.0 : row.change, mine.relative);
    if (launch.steps.size() != exact.size())
      break_cell(cell, fmt::format("{} steps where {} has {}", launch.steps.size(), with.exact->name, exact.size()));
    else if (!(mine.relative <= std::max({2 * one, by_chance, rounded_mean(exact.front().tokens)})))
      break_cell(cell, fmt::format("loss of step {} differs from {} by {:.2e}, more than twice the {:.2e} of {}{}",
                                   mine.step, with.exact->name, mine.relative, one, with.rounded->name, seeds));
  }
  row.text = fmt::format("losses are within {:.1e} of {}, one rank's in this precision within {:.1e}{}", row.change,
                         with.exact->name, one, seeds);
}

void judge_exact(baselines::Cell& cell, const baselines::Cell& reference, baselines::VerdictRow& row) {
  for (const baselines::Launch& launch : cell.launches) {
    const auto& expected = reference.launches.front().steps;
    const Deviation largest = largest_deviation(launch.steps, expected);
    row.change = std::max(std::isnan(row.change) ? 0.0 : row.change, largest.relative);
    const Deviation worst = largest_deviation(launch.steps, expected, loss_tolerance);
    if (launch.steps.size() != expected.size()) {
      break_cell(cell, fmt::format("{} steps where {} has {}", launch.steps.size(), reference.name, expected.size()));
    } else if (!(worst.relative <= 1)) {
      const double limit = loss_tolerance(worst.step);
      break_cell(cell, fmt::format("loss of step {} differs from {} by {:.2e} (limit {:.1e} relative)", worst.step,
                                   reference.name, worst.relative * limit, limit));
    }
  }
  row.text = fmt::format("losses equal {} within {:.1e} relative at every step", reference.name, row.change);
}

}  // namespace

void judge_losses(baselines::Cell& cell, const std::vector<baselines::Cell>& finished) {
  if (!has_losses(cell)) return;
  const References with = references_of(cell, finished);
  const bool exact = recipe_of(cell) == "fp32";
  baselines::VerdictRow row;
  if (with.exact == nullptr || (!exact && with.rounded == nullptr)) {
    if (cell.ranks == 1) return;  // what others are compared with
    row.subject = "loss";
    row.verdict = baselines::Verdict::kIncomparable;
    row.text = fmt::format("nothing was proven: no one-rank cell{} that is ok does the same work",
                           exact ? "" : " of this precision, or none in fp32,");
    cell.verdicts.push_back(std::move(row));
    return;
  }
  row.subject = "loss";
  row.against = with.exact->name;
  if (exact)
    judge_exact(cell, *with.exact, row);
  else
    judge_rounded(cell, with, row);
  const bool equal = cell.status != baselines::CellStatus::kBroken;
  row.verdict = equal ? baselines::Verdict::kSame : baselines::Verdict::kBroken;
  if (!equal) row.text = cell.reason;
  cell.verdicts.push_back(std::move(row));
}

void judge_learning(baselines::Cell& cell, double unigram_entropy) {
  if (cell.status != baselines::CellStatus::kOk || cell.launches.empty() || cell.launches.front().steps.empty()) return;
  if (std::isnan(unigram_entropy)) return;  // tokens that teach nothing, or that nobody can count
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
  row.text = fmt::format("mean loss of the last {} steps, {:.3f}, is {} the data's unigram entropy {:.3f}", count, loss,
                         below ? "below" : "not below", unigram_entropy);
  cell.verdicts.push_back(std::move(row));
}

}  // namespace mbb::suites
