// What the ops add up to, against the closed formulas of NUMERICS (sections 2, 4, 5, 6 and 7).
#include <map>

#include "trainer/models/flops.h"
#include "trainer/models/small_families.h"
#include "trainer/program/explain.h"
#include "trainer/program/sample_programs_test.h"
#include "trainer/program/token_flops.h"

namespace mbb::trainer {
namespace {

// A model whose sizes keep every bucket and shard free of padding.
Config formula_model(int tp, int pp, int dp, int vpp = 1) {
  Config config = mapped(tp, pp, dp, 8);
  config.parallel.virtual_pipeline_model_parallel_size = vpp;
  config.model.hidden_size = 256;
  config.model.num_attention_heads = 8;
  config.model.num_query_groups = 4;
  config.model.kv_channels = 64;
  config.model.ffn_hidden_size = 768;
  config.model.vocab_size = 1024;
  config.train.seq_length = 128;
  config.train.micro_batch_size = 2;
  config.train.global_batch_size = int64_t{2} * dp * (vpp > 1 ? 8 : 6);
  config.precision.recipe = Recipe::kBf16;
  return config;
}

const CommRow* row_of(const ClassRow& row, GroupKind group) {
  for (const CommRow& comm : row.comm)
    if (comm.group == group) return &comm;
  return nullptr;
}

double wire_of(const ClassRow& row, GroupKind group) {
  const CommRow* found = row_of(row, group);
  return found ? found->wire_bytes : 0;
}

// All chunks of a stage together.
Chunk whole_stage(const Layout& l, int stage) {
  Chunk whole;
  for (const Chunk& chunk : l.stages[static_cast<size_t>(stage)]) {
    whole.num_layers += chunk.num_layers;
    whole.embedding = whole.embedding || chunk.embedding;
    whole.head = whole.head || chunk.head;
  }
  return whole;
}

// Parameters of one rank of a stage.
double parameters_of(const Layout& l, int stage) {
  const Chunk chunk = whole_stage(l, stage);
  const auto h = static_cast<double>(l.model.hidden_size);
  const auto q = static_cast<double>(l.model.query_size());
  const auto kv = static_cast<double>(l.model.kv_size());
  const auto f = static_cast<double>(l.model.ffn_hidden_size);
  const auto v = static_cast<double>(l.vocab);
  const double layer = (h * (q + 2 * kv) + q * h + 3 * h * f) / l.tp + 2 * h;
  return static_cast<double>(chunk.num_layers) * layer + (chunk.embedding ? v * h / l.tp : 0) +
         (chunk.head ? v * h / l.tp + h : 0);
}

struct Sizes {
  int tp, pp, dp;
  int vpp = 1;
};
constexpr std::array kMappings{Sizes{1, 1, 1},    Sizes{2, 1, 1},    Sizes{1, 2, 1},   Sizes{1, 1, 2},
                               Sizes{2, 2, 2},    Sizes{4, 2, 2},    Sizes{2, 4, 1},   Sizes{4, 8, 4},
                               Sizes{1, 2, 1, 4}, Sizes{2, 2, 2, 2}, Sizes{1, 4, 1, 2}};

TEST(ExplainCosts, FlopsOfTheOpsEqualTheClosedForm) {
  for (const auto& [tp, pp, dp, vpp] : kMappings) {
    const Built b = build(formula_model(tp, pp, dp, vpp));
    SCOPED_TRACE(mapping_of(b));
    const Explain e = explain(b.layout, b.programs);
    const ModelFlops closed = model_flops(
        b.layout.model, BatchLengths::uniform(b.layout.sequence, b.layout.global_batch), FlopsConvention::kCausal);
    EXPECT_EQ(e.model_flops, closed.total());
    EXPECT_EQ(e.closed_form_flops, closed.total());
    // Forward, dgrad and wgrad are a third each of the linear layers; the attention core has one backward op.
    double by_role[kRoles] = {};
    for (const ClassRow& row : e.classes)
      for (size_t r = 0; r < kRoles; ++r) by_role[r] += row.model_flops_by_role[r] * static_cast<double>(row.gpus);
    EXPECT_EQ(by_role[static_cast<size_t>(Role::kNone)], closed.attention_core);
    for (Role role : {Role::kFprop, Role::kDgrad, Role::kWgrad})
      EXPECT_EQ(by_role[static_cast<size_t>(role)], (closed.total() - closed.attention_core) / 3) << name(role);
  }
}

TEST(ExplainCosts, FlopsPerTokenOfLlama370bAreTheKnown449) {
  Config config;
  config.model.name = "llama3-70b";
  config.model.make_vocab_size_divisible_by = 1;
  config.precision.recipe = Recipe::kBf16;
  config.train.seq_length = 8192;
  config.train.global_batch_size = 32;
  config.parallel.tensor_model_parallel_size = 4;
  config.parallel.pipeline_model_parallel_size = 8;
  config.parallel.gpus = 64;
  const Built b = build(config);
  const Explain e = explain(b.layout, b.programs);
  EXPECT_NEAR(e.flops_per_token / 1e9, 449.22, 0.005);
  EXPECT_DOUBLE_EQ(e.model_flops / static_cast<double>(e.tokens), e.flops_per_token);
}

TEST(ExplainCosts, TensorParallelBytes) {
  for (const auto& [tp, pp, dp, vpp] : kMappings) {
    const Built b = build(formula_model(tp, pp, dp, vpp));
    SCOPED_TRACE(mapping_of(b));
    const Layout& l = b.layout;
    const Explain e = explain(l, b.programs);
    for (int stage = 0; stage < pp; ++stage) {
      const Chunk chunk = whole_stage(l, stage);
      const auto tokens = static_cast<double>(l.sequence * l.micro_batch);
      const double x = 2 * tokens * static_cast<double>(l.model.hidden_size);
      const double part = static_cast<double>(tp - 1) / tp;
      const auto layers = static_cast<double>(chunk.num_layers);
      // A layer: 4 forward, 4 backward, 2 gathers again. Embedding: scattered, its gradient gathered. Head: gathered,
      // scattered, gathered again, and the loss all-reduces a maximum and two sums a token.
      double exchanges = 10 * layers + (chunk.embedding ? 2 : 0) + (chunk.head ? 3 : 0);
      double a_micro_batch = exchanges * part * x + (chunk.head ? 3 * 2 * part * 4 * tokens : 0);
      const double norms = 2 * layers + (chunk.head ? 1 : 0);
      const double norm_gradients = 2 * part * 4 * norms * static_cast<double>(l.model.hidden_size);
      EXPECT_EQ(wire_of(e.classes[static_cast<size_t>(stage)], GroupKind::kTp),
                l.micro_batches * a_micro_batch + (tp > 1 ? norm_gradients : 0))
          << "stage " << stage;
    }
  }
}

// Without sequence parallelism a layer is bracketed by an identity forward and an all-reduce backward, and the other
// way.
TEST(ExplainCosts, WithoutSequenceParallelismAllReducesCarryTheSameBytes) {
  Config config = formula_model(2, 1, 1);
  const double scattered = wire_of(explain(build(config).layout, build(config).programs).classes[0], GroupKind::kTp);
  config.parallel.sequence_parallel = false;
  const Built b = build(config);
  const Explain e = explain(b.layout, b.programs);
  EXPECT_TRUE(to_text(e, {.ops = true}).has_value());
  // 2 all-reduces of twice the bytes each way a layer instead of 8 halves; what is gathered again is not.
  EXPECT_GT(wire_of(e.classes[0], GroupKind::kTp), 0.7 * scattered);
  EXPECT_LT(wire_of(e.classes[0], GroupKind::kTp), scattered);
}

TEST(ExplainCosts, PipelineBytes) {
  for (const auto& [tp, pp, dp, vpp] : kMappings) {
    const Built b = build(formula_model(tp, pp, dp, vpp));
    SCOPED_TRACE(mapping_of(b));
    const Layout& l = b.layout;
    const Explain e = explain(l, b.programs);
    for (int stage = 0; stage < pp; ++stage) {
      const double message = 2.0 * static_cast<double>(l.sequence * l.micro_batch * l.model.hidden_size) / tp;
      // Each chunk but the model's last sends activations on, each but the first sends gradients back.
      const int directions = 2 * vpp - (stage == 0 ? 1 : 0) - (stage == pp - 1 ? 1 : 0);
      // The step's loss, two f64, is all-reduced over the stages; wire bytes of a call are rounded down.
      const double loss = pp > 1 ? std::floor(2.0 * 16 * (pp - 1) / pp) : 0;
      EXPECT_EQ(wire_of(e.classes[static_cast<size_t>(stage)], GroupKind::kPp),
                l.micro_batches * directions * message + loss)
          << "stage " << stage;
    }
  }
}

TEST(ExplainCosts, DataParallelAndStateBytes) {
  for (const auto& [tp, pp, dp, vpp] : kMappings) {
    const Built b = build(formula_model(tp, pp, dp, vpp));
    SCOPED_TRACE(mapping_of(b));
    const Explain e = explain(b.layout, b.programs);
    for (int stage = 0; stage < pp; ++stage) {
      const ClassRow& row = e.classes[static_cast<size_t>(stage)];
      const double n = parameters_of(b.layout, stage);
      const double part = static_cast<double>(dp - 1) / dp;
      // Gradients are fp32, weights bf16; besides the loss (16 bytes) and the sum of squares (8) are all-reduced.
      const double scalars = std::floor(2 * part * 16) + std::floor(2 * part * 8);
      EXPECT_EQ(wire_of(row, GroupKind::kDpCp), part * n * (4 + 2) + scalars) << "stage " << stage;
      const auto bytes = [&](Category c) { return static_cast<double>(row.peak_by_category[static_cast<size_t>(c)]); };
      EXPECT_EQ(bytes(Category::kWeight), 2 * n);
      EXPECT_EQ(bytes(Category::kMainGrad), 4 * n);
      EXPECT_EQ(bytes(Category::kMaster) + bytes(Category::kMoment), 12 * n / dp);
    }
  }
}

TEST(ExplainCosts, ReplicatedOptimizerAllReducesGradientsAndKeepsWholeStates) {
  Config config = formula_model(2, 1, 4);
  config.parallel.use_distributed_optimizer = false;
  const Built b = build(config);
  const ClassRow row = explain(b.layout, b.programs).classes[0];
  const double n = parameters_of(b.layout, 0);
  EXPECT_EQ(wire_of(row, GroupKind::kDpCp), 2 * 0.75 * n * 4 + 24);  // and the loss, 16 bytes
  EXPECT_EQ(row.peak_by_category[static_cast<size_t>(Category::kMoment)], static_cast<int64_t>(8 * n));
}

// NUMERICS, section 5: s·b/t · (8h + 4q + 4kv + 6f + 4a) a layer. The program keeps besides the inverse norms of both
// norms, 4 bytes a token each.
TEST(ExplainCosts, ActivationBytesOfALayer) {
  for (const auto& [tp, pp, dp, vpp] : kMappings) {
    const Built b = build(formula_model(tp, pp, dp, vpp));
    SCOPED_TRACE(mapping_of(b));
    const Layout& l = b.layout;
    for (size_t stage = 0; stage < b.programs.programs.size(); ++stage) {
      const Program& program = b.programs.programs[stage];
      double kept = 0;
      int ring = 0;
      for (const Tensor& t : program.tensors) {
        if (t.view_of != kNoTensor || t.scope != Scope::kMicroBatch || t.category != Category::kActivation) continue;
        if (!t.path.starts_with("layers.")) continue;
        kept += static_cast<double>(t.bytes());
        ring = std::max(ring, t.ring);
      }
      if (vpp == 1) {
        EXPECT_EQ(ring, std::min(l.pp - static_cast<int>(stage), l.micro_batches)) << "micro-batches a stage holds";
      }
      const ModelShape& m = l.model;
      const double local = static_cast<double>(l.sequence * l.micro_batch) / l.tp;
      const double a_layer = local * static_cast<double>(8 * m.hidden_size + 4 * m.query_size() + 4 * m.kv_size() +
                                                         6 * m.ffn_hidden_size + 4 * m.num_attention_heads);
      const double inverse_norms = local * 8;
      const auto layers = static_cast<double>(whole_stage(l, static_cast<int>(stage)).num_layers);
      // The first layer's input is the receive's or the embedding's output, the last layer's output is the next one's.
      const double input = 2 * local * static_cast<double>(m.hidden_size);
      const double sent = input * (vpp - (whole_stage(l, static_cast<int>(stage)).head ? 1 : 0));
      EXPECT_EQ(kept, layers * (a_layer + inverse_norms) - sent) << "stage " << stage;
      EXPECT_NEAR((kept + sent) / layers, a_layer, 0.05 * a_layer);
    }
  }
}

TEST(ExplainCosts, BubbleEqualsTheFormulaOnEveryStage) {
  for (int pp : {1, 2, 4, 8})
    for (int micro_batches : {1, 3, 8, 17}) {
      Config config = mapped(1, pp, 1, 8);
      config.train.global_batch_size = micro_batches;
      const Built b = build(config);
      std::vector<const Program*> stages;
      for (const Program& program : b.programs.programs) stages.push_back(&program);
      for (const auto& [forward, backward] : {std::pair{1, 2}, {1, 1}, {3, 5}}) {
        const auto replayed = replay_units(stages, forward, backward);
        ASSERT_TRUE(replayed.has_value()) << replayed.error().what;
        EXPECT_EQ(replayed->step_units, (micro_batches + pp - 1) * (forward + backward));
        for (int64_t idle : replayed->idle_units) EXPECT_EQ(idle, (pp - 1) * (forward + backward));
      }
      const Explain e = explain(b.layout, b.programs);
      EXPECT_DOUBLE_EQ(e.bubble_replayed, e.bubble_formula);
    }
}

// Interleaving divides the bubble by the chunks a stage holds; a unit here is a chunk's.
TEST(ExplainCosts, InterleavedBubbleEqualsTheFormulaOnEveryStage) {
  for (int pp : {2, 4, 8})
    for (int vpp : {2, 3})
      for (int groups : {1, 2, 3}) {
        Config config = mapped(1, pp, 1, int64_t{pp} * vpp);
        config.parallel.virtual_pipeline_model_parallel_size = vpp;
        const int micro_batches = pp * groups;
        config.train.global_batch_size = micro_batches;
        const Built b = build(config);
        SCOPED_TRACE(mapping_of(b) + ", vpp " + std::to_string(vpp));
        std::vector<const Program*> stages;
        for (const Program& program : b.programs.programs) stages.push_back(&program);
        for (const auto& [forward, backward] : {std::pair{1, 2}, {1, 1}, {3, 5}}) {
          const auto replayed = replay_units(stages, forward, backward);
          ASSERT_TRUE(replayed.has_value()) << replayed.error().what;
          EXPECT_EQ(replayed->step_units, (micro_batches * vpp + pp - 1) * (forward + backward));
          for (int64_t idle : replayed->idle_units) EXPECT_EQ(idle, (pp - 1) * (forward + backward));
        }
        const Explain e = explain(b.layout, b.programs);
        EXPECT_DOUBLE_EQ(e.bubble_replayed, e.bubble_formula);
      }
}

// Messages on streams of their own hide under the steady state of an interleaved pipeline and show in warm-up and flush
// only; in the compute stream every one of them shows.
TEST(ExplainCosts, OverlappedMessagesAreExposedInWarmUpAndFlushOnly) {
  constexpr int kStages = 4;
  constexpr int kChunks = 2;
  constexpr int64_t kMessage = 1;
  const auto exposed = [&](bool overlap, int micro_batches) {
    Config config = mapped(1, kStages, 1, int64_t{kStages} * kChunks);
    config.parallel.virtual_pipeline_model_parallel_size = kChunks;
    config.train.global_batch_size = micro_batches;
    config.overlap.overlap_p2p_comm = overlap;
    const Built b = build(config);
    std::vector<const Program*> stages;
    for (const Program& program : b.programs.programs) stages.push_back(&program);
    const auto with = replay_units(stages, 8, 16, kMessage);
    const auto free = replay_units(stages, 8, 16);
    EXPECT_TRUE(with.has_value() && free.has_value());
    return with->step_units - free->step_units;
  };
  for (int m : {8, 16}) {
    // The first micro-batch's way up to the loss, and the last one's way back.
    EXPECT_EQ(exposed(true, m), 2 * (kStages * kChunks - 1) * kMessage) << m << " micro-batches";
    EXPECT_GT(exposed(false, m), exposed(true, m)) << m << " micro-batches";
    EXPECT_GE(exposed(false, 2 * m) - exposed(false, m), 2 * m * kMessage) << "each micro-batch shows its messages";
  }
}

// NUMERICS, section 5: the first stage of an interleaved pipeline holds p micro-batches of L/p layers × (1 +
// (p−1)/(pv)).
TEST(ExplainCosts, ActivationsOfTheFirstStageGrowByTheInterleavedShare) {
  for (const auto& [pp, vpp, tp] : {std::array{4, 2, 1}, {4, 2, 2}, {2, 4, 2}, {4, 1, 1}}) {
    Config config = formula_model(tp, pp, 1, vpp);
    config.train.global_batch_size = 2 * 16;
    config.train.seq_length = 512;
    const Built b = build(config);
    SCOPED_TRACE(mapping_of(b) + ", vpp " + std::to_string(vpp));
    const ModelShape& m = b.layout.model;
    const double local = static_cast<double>(b.layout.sequence * b.layout.micro_batch) / tp;
    const double a_layer = local * static_cast<double>(8 * m.hidden_size + 4 * m.query_size() + 4 * m.kv_size() +
                                                       6 * m.ffn_hidden_size + 4 * m.num_attention_heads);
    const double share = vpp == 1 ? 1.0 : 1.0 + (pp - 1.0) / (static_cast<double>(pp) * vpp);
    const double formula = a_layer * static_cast<double>(m.num_layers) * share;
    const ClassRow row = explain(b.layout, b.programs).classes[0];
    const auto planned = static_cast<double>(row.peak_by_category[static_cast<size_t>(Category::kActivation)]);
    EXPECT_NEAR(planned, formula, 0.05 * formula);
  }
}

// Tied embeddings: their fp32 gradients are all-reduced between the first and the last stage, once a step.
TEST(ExplainCosts, SharedEmbeddingsAreSummedOverFirstAndLastStage) {
  constexpr int kTp = 2;
  Config config = formula_model(kTp, 4, 1);
  config.model.name = "gpt3-126m";
  const Built b = build(config);
  const Explain e = explain(b.layout, b.programs);
  const double table = static_cast<double>(b.layout.vocab * b.layout.model.hidden_size) / kTp * 4;
  for (size_t stage = 0; stage < 4; ++stage)
    EXPECT_EQ(wire_of(e.classes[stage], GroupKind::kEmbedding), stage == 0 || stage == 3 ? table : 0) << stage;
}

// An encoder's attention is worth its own parts of the sequences, and cross attention the pairs of both.
TEST(ExplainPacks, EncodersAndCrossAttentionAreWorthTheirSequencesToo) {
  Config config = formula_model(1, 1, 1);
  config.model.name = "t5-220m";
  config.model.num_query_groups = 8;
  config.model.num_layers = 2;
  config.model.encoder_num_layers = 2;
  config.packing.sequences = SequenceLengths::kLognormal;
  config.packing.packed_sequence_size = config.train.seq_length;
  config.train.micro_batch_size = 1;
  for (const int cp : {1, 2}) {
    config.parallel.context_parallel_size = config.parallel.gpus = cp;
    const Built b = build(config);
    const int64_t s = b.layout.sequence;
    ASSERT_EQ(b.layout.encoder_sequence, s);
    const RowLengths lengths{BatchLengths{{{s / 2, 3, s / 4}, {s / 4, 6, 3 * s / 8}}}, s, 3, s};
    const Explain packs = explain(b.layout, b.programs, &lengths);
    EXPECT_NEAR(packs.model_flops / packs.closed_form_flops, 1, 1e-9) << cp;
    EXPECT_LT(packs.model_flops, explain(b.layout, b.programs).model_flops) << cp;
  }
}

// An encoder on ranks of its own sends its output once a micro-batch to the decoder's first stage, which passes it on
// beside its own; gradients come back the same way.
TEST(ExplainCosts, BytesBetweenMeshes) {
  constexpr int kTp = 2;
  Config config = formula_model(kTp, 2, 1);
  config.model.name = "t5-220m";
  config.model.num_query_groups = 8;
  config.model.encoder_num_layers = 2;
  config.train.encoder_seq_length = 64;
  config.parallel.encoder_pipeline_model_parallel_size = 1;
  config.parallel.encoder_tensor_model_parallel_size = 1;
  config.parallel.gpus = 1 + 2 * kTp;
  const Built b = build(config);
  const Layout& l = b.layout;
  const Explain e = explain(l, b.programs);
  ASSERT_EQ(e.classes.size(), 3U);
  EXPECT_EQ(e.classes[0].rank_class.role, MeshRole::kEncoder);
  EXPECT_EQ(e.classes[0].gpus, 1);
  EXPECT_EQ(e.classes[1].gpus, kTp);
  const auto micro_batches = static_cast<double>(l.micro_batches);
  const auto width = static_cast<double>(l.micro_batch * l.model.hidden_size * 2);
  const double memory = static_cast<double>(l.encoder_sequence) * width;
  const double table = static_cast<double>(l.vocab * l.model.hidden_size * 4);
  // The loss, two f64, and the gradient norm's square over all five ranks.
  const double scalars = std::floor(2.0 * 16 * 4 / 5) + std::floor(2.0 * 8 * 4 / 5);
  EXPECT_EQ(wire_of(e.classes[0], GroupKind::kModel), micro_batches * memory + table + scalars);
  EXPECT_EQ(wire_of(e.classes[1], GroupKind::kModel), micro_batches * memory / kTp + table / kTp + scalars);
  EXPECT_EQ(wire_of(e.classes[2], GroupKind::kModel), scalars);
  const double positions = static_cast<double>(l.model.num_attention_heads * l.model.relative_buckets * 4) / kTp;
  for (size_t stage : {1, 2})
    EXPECT_EQ(wire_of(e.classes[stage], GroupKind::kPp),
              micro_batches * (static_cast<double>(l.sequence) * width + memory) / kTp + positions);
}

TEST(TokenFlops, ByTheClosedFormWhereEverythingTrains) {
  const Built b = build(formula_model(2, 2, 2));
  const TokenFlops flops = token_flops(b.layout, b.programs);
  EXPECT_EQ(flops.causal, flops_per_token(b.layout.model, b.layout.sequence, FlopsConvention::kCausal));
  EXPECT_EQ(flops.full, flops_per_token(b.layout.model, b.layout.sequence, FlopsConvention::kFull));
  EXPECT_STREQ(flops.formula, kFlopsFormulaId);
}

// Forward of the weights and of the adapters, dgrad of both above the first adapter, wgrad of the adapters alone.
TEST(TokenFlops, AdaptersSpareTheWgradOfEverythingElse) {
  for (const bool cut : {false, true}) {
    Config config = cut ? formula_model(2, 2, 2) : formula_model(1, 1, 1);
    config.memory.lora_rank = 4;
    config.memory.lora_targets = "qkv,proj";
    const Built b = build(config);
    const ModelShape& m = b.layout.model;
    const auto layers = static_cast<double>(m.num_layers), h = static_cast<double>(m.hidden_size);
    const auto q = static_cast<double>(m.query_size()), qkv = q + 2 * static_cast<double>(m.kv_size());
    const double adapters = layers * 2 * 4 * ((h + qkv) + (q + h));
    const double first = 2 * h * qkv + 2 * 4 * h;  // the embedding below does not train
    for (const auto convention : {FlopsConvention::kCausal, FlopsConvention::kFull}) {
      const ModelFlops closed = model_flops(m, BatchLengths::uniform(b.layout.sequence), convention);
      const auto tokens = static_cast<double>(b.layout.sequence);
      const double forward = (closed.total() - closed.attention_core) / 3 / tokens;
      const TokenFlops flops = token_flops(b.layout, b.programs);
      EXPECT_DOUBLE_EQ(convention == FlopsConvention::kCausal ? flops.causal : flops.full,
                       2 * forward + 3 * adapters - first + closed.attention_core / tokens)
          << name(convention) << (cut ? ", cut" : "");
      EXPECT_STREQ(flops.formula, kTrainedFlopsFormulaId);
    }
    EXPECT_DOUBLE_EQ(explain(b.layout, b.programs).flops_per_token, token_flops(b.layout, b.programs).causal);
  }
}

// Packed documents: attention by their lengths, linear layers by tokens, half of them spared or not.
TEST(TokenFlops, ShortSequencesCutTheCoreAlone) {
  Config config = formula_model(1, 1, 1);
  config.memory.frozen = "embedding*";
  const Built b = build(config);
  const int64_t s = b.layout.sequence;
  const TokenFlops whole = token_flops(b.layout, b.programs);
  const TokenFlops halves = token_flops(b.layout, b.programs, BatchLengths::packed({s / 2, s / 2}));
  const double core = model_flops(b.layout.model, BatchLengths::uniform(s), FlopsConvention::kCausal).attention_core;
  EXPECT_DOUBLE_EQ(whole.causal - halves.causal, core / 2 / static_cast<double>(s));
}

// Experts get no padding, every other linear layer runs over it.
TEST(ExplainPacks, ExpertsAreWorthTheTokensWithALabel) {
  Config config;
  for (const Small& family : kFamilies)
    if (std::string_view(family.name) == "mixtral") config = config_of(family);
  config.packing.sequences = SequenceLengths::kLognormal;
  const Built b = build(config);
  const RowLengths half{BatchLengths::uniform(b.layout.sequence / 2, 4), b.layout.sequence, 4};
  const auto flops = [&](const Explain& e, const char* kind) {
    double sum = 0;
    for (const SegmentRow& segment : e.classes[0].segments)
      for (const OpRow& op : segment.ops)
        if (op.kind == kind) sum += op.flops * static_cast<double>(op.runs);
    return sum;
  };
  const Explain whole = explain(b.layout, b.programs), padded = explain(b.layout, b.programs, &half);
  for (const char* kind : {"grouped_gemm", "grouped_gemm_dgrad", "grouped_gemm_wgrad"}) {
    EXPECT_GT(flops(whole, kind), 0) << kind;
    EXPECT_DOUBLE_EQ(flops(padded, kind), flops(whole, kind) / 2) << kind;
  }
  for (const char* kind : {"gemm", "attention"}) EXPECT_DOUBLE_EQ(flops(padded, kind), flops(whole, kind)) << kind;
}

// Packs that are full, so that ops and closed form count the same tokens: attention costs by the sequences' lengths.
TEST(ExplainPacks, AttentionIsWorthTheSequencesOfAPack) {
  Config config = formula_model(1, 1, 1);
  config.packing.sequences = SequenceLengths::kLognormal;
  config.packing.packed_sequence_size = config.train.seq_length;
  config.train.micro_batch_size = 1;
  const Built b = build(config);
  const int64_t s = b.layout.sequence;
  const Explain whole = explain(b.layout, b.programs);
  EXPECT_DOUBLE_EQ(whole.label_tokens, static_cast<double>(whole.tokens));
  const RowLengths lengths{BatchLengths{{{s / 2, 3}, {s / 4, 6}}}, s, 3};
  const Explain packs = explain(b.layout, b.programs, &lengths);
  EXPECT_NEAR(packs.model_flops / packs.closed_form_flops, 1, 1e-12);
  EXPECT_NEAR(packs.closed_form_flops, packs.flops_per_token * packs.label_tokens, 1e-9 * packs.closed_form_flops);
  EXPECT_DOUBLE_EQ(packs.label_tokens, static_cast<double>(packs.tokens));
  EXPECT_DOUBLE_EQ(packs.eligible_flops, whole.eligible_flops);
  const double core =
      model_flops(b.layout.model, BatchLengths::uniform(s, b.layout.global_batch), FlopsConvention::kCausal)
          .attention_core;
  EXPECT_NEAR(whole.model_flops - packs.model_flops, core * (1 - (0.25 + 2 * 0.0625)), 1e-9 * core);
  // Half of every row is padding: linear layers run over it, and no token is counted for it.
  const RowLengths half{BatchLengths{{{s / 2, 3}}}, s, 3};
  const Explain padded = explain(b.layout, b.programs, &half);
  EXPECT_DOUBLE_EQ(padded.label_tokens, static_cast<double>(padded.tokens) / 2);
  EXPECT_DOUBLE_EQ(padded.flops_per_token, token_flops(b.layout, b.programs, half.sequences).causal);
  EXPECT_NE(to_text(padded)->find(" tokens/step, 50.0 % with a label\n"), std::string::npos) << *to_text(padded);
  EXPECT_NE(to_text(padded)->find(" run, with padding)   "), std::string::npos) << *to_text(padded);
  EXPECT_NEAR(padded.closed_form_flops, padded.flops_per_token * padded.label_tokens, 1e-9 * padded.model_flops);
  EXPECT_EQ(to_text(whole)->find("padding"), std::string::npos) << *to_text(whole);
  config.fusion.residual_fusion = true;
  const Built fused = build(config);
  const auto told = [&](const RowLengths* rows) {
    return to_text(explain(fused.layout, fused.programs, rows))->find("; FLOPs over whole rows\n") != std::string::npos;
  };
  EXPECT_TRUE(told(&half));
  EXPECT_FALSE(told(nullptr));
}

}  // namespace
}  // namespace mbb::trainer
