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
#include "trainer/run/training_data.h"

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
                  {"swiglu", {"swiglu_fusion=true"}},
                  {"loss", {"cross_entropy_loss_fusion=true"}},
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

// Of the block recipes.
int64_t block_of(const std::string& recipe) {
  if (recipe == "fp8_blockwise") return 128;
  return recipe == "mxfp8" ? 32 : recipe == "nvfp4" ? 16 : 0;
}

// Sizes that divide into blocks wherever `ways` tensor-parallel ranks cut them, and as many tokens a micro-batch.
void make_blockable(Config& c, int64_t block, int64_t ways) {
  const int64_t unit = block * ways;
  c.model.hidden_size = c.model.ffn_hidden_size = unit;
  if (c.model.moe_ffn_hidden_size > 0) c.model.moe_ffn_hidden_size = unit;
  if (c.parallel.moe_expert_capacity_factor > 0) c.parallel.moe_expert_capacity_factor = 0.5;  // rows as many as tokens
  if (c.model.moe_shared_expert_intermediate_size > 0) c.model.moe_shared_expert_intermediate_size = unit;
  if (c.model.kv_lora_rank > 0) {
    c.model.q_lora_rank = c.model.kv_lora_rank = c.model.qk_pos_emb_head_dim = block;
    c.model.qk_head_dim = c.model.v_head_dim = block / 2;
  } else {
    c.model.kv_channels = unit / c.model.num_attention_heads;
  }
  c.train.seq_length = unit;
  if (c.train.encoder_seq_length > 0) c.train.encoder_seq_length = unit;
  c.train.micro_batch_size = 1;
  c.train.global_batch_size = 2;
  if (c.packing.packed_sequence_size > 0) c.packing.packed_sequence_size = unit;
}

// How many tensor-parallel ranks the sizes are made for.
int64_t ways_of(const Row& row) {
  return factors()[kMapping][row[kMapping]].name == "tp2" ? 2 : 1;
}

Config config_for(const Row& row, int64_t ways) {
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
  // Where an encoder's part of a row ends is known of one row at a time.
  if (c.model.encoder_num_layers > 0) c.train.micro_batch_size = 1;
  if (const int64_t block = block_of(factors()[kRecipe][row[kRecipe]].name); block > 0) make_blockable(c, block, ways);
  return c;
}

struct Covering {
  std::vector<Row> rows;
  size_t pairs = 0;                  // that stand in some row
  std::vector<std::string> refused;  // why a pair is in no row
};

// Rows in which every pair of values of two factors stands together, where any row with it resolves: each begins with
// an uncovered pair and takes, of fifty random completions that resolve, the one that covers most.
Covering make_covering(uint32_t seed) {
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
  out.pairs = open.size();
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
      if (const auto layout = resolve(config_for(row, ways_of(row))); layout)
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
  out.pairs -= out.refused.size();
  return out;
}

const Covering& covering() {
  static const Covering made = make_covering(20261128);
  return made;
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
    SequenceCuts cuts{.lengths = SequenceLengths::kDocuments, .longest = layout.config.train.seq_length};
    if (layout.model.is_encoder_decoder()) cuts.longest_encoder = cuts.longest;
    MB_ASSIGN(rows, SequenceDataset::open(std::move(source), cuts, row_options(layout)));
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

// What cannot be is refused by the knob that forbids it; everything else stands in a row that trains below.
TEST(Pairwise, EveryPairThatIsNotRefusedIsInSomeRow) {
  const Covering& cover = covering();
  std::printf("[          ] %zu pairs train, in %zu rows; %zu are refused:\n", cover.pairs, cover.rows.size(),
              cover.refused.size());
  for (const std::string& why : cover.refused) {
    EXPECT_NE(why.find('.'), std::string::npos) << why;
    std::printf("[          ]   %s\n", why.c_str());
    if (why.find("fusion.swiglu_fusion") != std::string::npos) continue;  // one op gates and quantizes there
    for (const std::string& recipe : recipes())
      EXPECT_EQ(why.find(recipe), std::string::npos) << why << ": a recipe that meets no value of some factor";
  }
  EXPECT_GT(cover.pairs, 10 * cover.refused.size());
}

class PairwiseRows : public testing::TestWithParam<size_t> {};  // of a recipe

TEST_P(PairwiseRows, TrainLikeThePlainProgram) {
  using Plain = std::pair<Row, int64_t>;
  std::map<Plain, Result<std::vector<StepReport>>> plain;
  size_t compared = 0;
  const double bound = tolerance(factors()[kRecipe][GetParam()].name);
  for (const Row& row : covering().rows) {
    if (row[kRecipe] != GetParam()) continue;
    SCOPED_TRACE(name_of(row));
    const int64_t ways = ways_of(row);
    const auto many = train_steps(config_for(row, ways));
    ASSERT_TRUE(many.has_value()) << format(many.error());
    Row base(kPlaces, 0);
    for (const Place place : {kFamily, kRecipe, kPacking}) base[place] = row[place];
    auto known = plain.find({base, ways});
    if (known == plain.end()) known = plain.emplace(Plain{base, ways}, train_steps(config_for(base, ways))).first;
    const auto& one = known->second;
    ASSERT_TRUE(one.has_value()) << format(one.error());
    ++compared;
    for (size_t i = 0; i < one->size(); ++i) {
      EXPECT_NEAR((*many)[i].loss, (*one)[i].loss, bound * (*one)[i].loss) << "step " << i;
      EXPECT_NEAR((*many)[i].grad_norm, (*one)[i].grad_norm, 10 * bound * (*one)[i].grad_norm) << "step " << i;
      EXPECT_EQ((*many)[i].tokens, (*one)[i].tokens);
    }
  }
  EXPECT_GE(compared, std::size(kFamilies)) << "every family meets every recipe";
}

INSTANTIATE_TEST_SUITE_P(Recipes, PairwiseRows, testing::Range(size_t{0}, recipes().size()),
                         [](const auto& test) { return recipes()[test.param]; });

}  // namespace
}  // namespace mbb::trainer
