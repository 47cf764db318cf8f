// Families, recipes, recompute, offload, fusions, packing and mappings together: every pair of values meets in some
// combination, and each combination trains like the plain one-rank program of its family, recipe and rows.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>
#include <set>

#include "profiler/base/text.h"
#include "trainer/models/small_families.h"
#include "trainer/program/verify.h"
#include "trainer/run/knobs.h"
#include "trainer/run/train.h"

namespace mbb::trainer {
namespace {

struct Value {
  std::string name;
  std::vector<std::string> settings;  // "key=value"
};
using Factor = std::vector<Value>;

std::vector<std::string> recipes() {
  std::vector<std::string> names;
  std::set<int64_t> seen;  // short names come after the recipe they stand for
  for (const Knob& knob : knobs().knobs())
    if (knob.key == "precision.recipe")
      for (const KnobChoice& choice : knob.choices)
        if (seen.insert(choice.value).second) names.push_back(choice.name);
  return names;
}

enum Place { kFamily, kRecipe, kRecompute, kOffload, kFusion, kPacking, kMapping, kPlaces };

const std::vector<Factor>& factors() {
  static const std::vector<Factor> all = [] {
    std::vector<Factor> f(kPlaces);
    for (const Small& family : kFamilies) f[kFamily].push_back({family.name, {}});
    for (const std::string& recipe : recipes()) f[kRecipe].push_back({recipe, {"recipe=" + recipe}});
    f[kRecompute] = {{"keep", {}},
                     {"core", {"recompute_granularity=selective"}},
                     {"norms", {"recompute_granularity=selective", "recompute_modules=layernorm"}},
                     {"full", {"recompute_granularity=full"}},
                     {"block", {"recompute_granularity=full", "recompute_method=block"}}};
    f[kOffload] = {{"here", {}},
                   {"away", {"cpu_offloading=true"}},
                   {"weights", {"cpu_offloading=true", "cpu_offloading_weights=true"}}};
    f[kFusion] = {{"plain", {}},
                  {"sums", {"residual_fusion=true"}},
                  {"biases", {"bias_dropout_fusion=true"}},
                  {"activation", {"bias_activation_fusion=true"}},
                  {"apart", {"gradient_accumulation_fusion=false"}},
                  {"rope", {"apply_rope_fusion=false"}},
                  {"unfused", {"attention_backend=unfused"}},
                  {"masked", {"attention_backend=unfused", "masked_softmax_fusion=false"}}};
    f[kPacking] = {{"stream", {}},
                   {"padded", {"sequences=uniform"}},
                   {"packed", {"sequences=uniform", "packed_sequence_size=32", "max_sequences=8", "mbs=1"}}};
    f[kMapping] = {{"one", {}}, {"tp2", {"tp=2"}}, {"pp2", {"pp=2"}}, {"dp2", {"gpus=2"}}};
    return f;
  }();
  return all;
}

using Row = std::vector<size_t>;  // a value of each factor

std::string name_of(const Row& row) {
  std::string text;
  for (size_t i = 0; i < row.size(); ++i) text += (i ? " " : "") + factors()[i][row[i]].name;
  return text;
}

Config config_for(const Row& row) {
  Config c = config_of(kFamilies[row[kFamily]]);
  c.train.global_batch_size = 4;
  c.train.train_iters = 2;
  KnobSources sources;
  for (size_t p = 0; p < kPlaces; ++p)
    for (const std::string& setting : factors()[p][row[p]].settings) {
      const size_t equals = setting.find('=');
      const Status set = knobs().set_text(c, sources, setting.substr(0, equals), setting.substr(equals + 1),
                                          {Layer::kCommandLine, "test", 0, 0});
      EXPECT_TRUE(set.has_value()) << setting;
    }
  return c;
}

struct Covering {
  std::vector<Row> rows;
  std::vector<std::string> refused;  // why a pair is in no row
};

// Rows in which every pair of values of two factors stands together, where any row with it resolves: each begins with
// an uncovered pair and takes, of fifty random completions that resolve, the one that covers most.
Covering covering(uint32_t seed) {
  std::mt19937 random(seed);
  using Pair = std::array<size_t, 4>;
  std::set<Pair> open;
  for (size_t a = 0; a < kPlaces; ++a)
    for (size_t b = a + 1; b < kPlaces; ++b)
      for (size_t x = 0; x < factors()[a].size(); ++x)
        for (size_t y = 0; y < factors()[b].size(); ++y) open.insert({a, x, b, y});
  const auto covers = [&](const Row& row) {
    std::vector<Pair> pairs;
    for (size_t a = 0; a < kPlaces; ++a)
      for (size_t b = a + 1; b < kPlaces; ++b)
        if (const Pair pair{a, row[a], b, row[b]}; open.contains(pair)) pairs.push_back(pair);
    return pairs;
  };
  Covering out;
  while (!open.empty()) {
    const Pair first = *open.begin();
    Row best;
    std::vector<Pair> most;
    std::string why;
    for (int i = 0; i < 50; ++i) {
      Row row(kPlaces);
      for (size_t p = 0; p < kPlaces; ++p) row[p] = random() % factors()[p].size();
      row[first[0]] = first[1];
      row[first[2]] = first[3];
      auto pairs = covers(row);
      if (pairs.size() <= most.size()) continue;
      if (const auto layout = resolve(config_for(row)); layout)
        best = row, most = std::move(pairs);
      else if (why.empty())
        why = layout.error().what;
    }
    open.erase(first);
    for (const Pair& pair : most) open.erase(pair);
    if (best.empty())
      out.refused.push_back(factors()[first[0]][first[1]].name + " with " + factors()[first[2]][first[3]].name + ": " +
                            why);
    else
      out.rows.push_back(best);
  }
  return out;
}

int32_t token(int64_t sample, size_t i) {
  return static_cast<int32_t>((static_cast<size_t>(sample) * 11 + i * i * 5 + i) % 64);
}

Result<std::vector<StepReport>> train_steps(const Config& config) {
  MB_ASSIGN(const Layout layout, resolve(config));
  MB_ASSIGN(const StepPrograms programs, build_programs(layout));
  const auto by_rank = programs.by_rank(layout.mesh);
  MB_TRY(verify_world(layout.mesh, by_rank));
  TrainOptions options;
  std::optional<SequenceDataset> rows;
  if (layout.has_sequences()) {
    std::vector<std::vector<int32_t>> documents;
    for (int64_t d = 0; d < 24; ++d) {
      documents.emplace_back();
      for (size_t i = 0; i < 3 + static_cast<size_t>(d * 5 % 11); ++i) documents.back().push_back(token(d, i));
    }
    MB_ASSIGN(auto source, make_in_memory("documents of a test", documents, 64));
    MB_ASSIGN(rows,
              SequenceDataset::open(std::move(source),
                                    {.lengths = SequenceLengths::kDocuments, .longest = layout.config.train.seq_length},
                                    {layout.sequence, layout.packed(), layout.config.packing.max_sequences}));
    options.sequences = &*rows;
  }
  const auto sample = [](int64_t index, std::span<int32_t> tokens) -> Status {
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = token(index, i);
    return {};
  };
  MB_ASSIGN(const TrainResult result, train(layout, programs, sample, options));
  return result.steps;
}

// How far rounding may move a loss; a gradient norm ten times as far.
double tolerance(const std::string& recipe) {
  if (recipe == "fp32") return 2e-5;
  return recipe == "bf16" ? 1e-2 : 4e-2;
}

TEST(Pairwise, EveryPairOfSettingsTrainsLikeThePlainProgram) {
  const uint32_t seed = 20261128;
  std::map<Row, Result<std::vector<StepReport>>> plain;
  size_t compared = 0;
  const Covering cover = covering(seed);
  for (const Row& row : cover.rows) {
    SCOPED_TRACE(name_of(row));
    const auto many = train_steps(config_for(row));
    if (!many) {  // a recipe may find shapes it cannot block when the program is built
      EXPECT_EQ(many.error().code, ErrorCode::kBadArgument) << format(many.error());
      EXPECT_NE(many.error().what.find('.'), std::string::npos) << many.error().what;
      continue;
    }
    Row base(kPlaces, 0);
    for (const Place place : {kFamily, kRecipe, kPacking}) base[place] = row[place];
    const auto one = plain.try_emplace(base, train_steps(config_for(base))).first->second;
    ASSERT_TRUE(one.has_value()) << format(one.error());
    ++compared;
    const double bound = tolerance(factors()[kRecipe][row[kRecipe]].name);
    for (size_t i = 0; i < one->size(); ++i) {
      EXPECT_NEAR((*many)[i].loss, (*one)[i].loss, bound * (*one)[i].loss) << "step " << i;
      EXPECT_NEAR((*many)[i].grad_norm, (*one)[i].grad_norm, 10 * bound * (*one)[i].grad_norm) << "step " << i;
      EXPECT_EQ((*many)[i].tokens, (*one)[i].tokens);
    }
  }
  EXPECT_GT(compared, 60U);
  // What cannot be is refused by the knob that forbids it.
  for (const std::string& why : cover.refused) {
    EXPECT_NE(why.find('.'), std::string::npos) << why;
    std::printf("refused: %s\n", why.c_str());
  }
}

}  // namespace
}  // namespace mbb::trainer
