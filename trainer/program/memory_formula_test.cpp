// The memory plan of a large model, category by category, against the closed formulas of NUMERICS, sections 4 and 5.
#include <fmt/core.h>

#include "trainer/program/explain.h"
#include "trainer/program/sample_programs_test.h"

namespace mbb::trainer {
namespace {

// Llama 3.1 405B on 16,384 GPUs: 126 layers, the embedding and the loss in 128 slots of 8 stages with 8 chunks each.
Config llama_405b() {
  Config c;
  c.model.name = "llama3.1-405b";
  c.precision.recipe = Recipe::kBf16;
  c.train.seq_length = 8192;
  c.train.global_batch_size = 2048;
  c.parallel.gpus = 16384;
  c.parallel.tensor_model_parallel_size = 8;
  c.parallel.context_parallel_size = 2;
  c.parallel.pipeline_model_parallel_size = 8;
  c.parallel.virtual_pipeline_model_parallel_size = 8;
  c.parallel.account_for_embedding_in_pipeline_split = true;
  c.parallel.account_for_loss_in_pipeline_split = true;
  return c;
}

// What the formulas say of one rank, bytes.
struct Formula {
  double weights = 0, main_grads = 0, optimizer = 0, activations = 0;
  double total() const { return weights + main_grads + optimizer + activations; }
};

double parameters_of(const Layout& l, const std::vector<Chunk>& stage) {
  const ModelShape& m = l.model;
  const auto h = static_cast<double>(m.hidden_size), q = static_cast<double>(m.query_size());
  const auto kv = static_cast<double>(m.kv_size()), f = static_cast<double>(m.ffn_hidden_size);
  const double table = static_cast<double>(l.vocab) * h / l.tp;
  double all = 0;
  for (const Chunk& chunk : stage) {
    all += static_cast<double>(chunk.num_layers) * ((h * (q + 2 * kv) + q * h + 3 * h * f) / l.tp + 2 * h);
    all += (chunk.embedding ? table : 0) + (chunk.head ? table + h : 0);
  }
  return all;
}

// Bytes that a layer keeps of one micro-batch.
double bytes_of_layer(const Layout& l) {
  const ModelShape& m = l.model;
  const double tokens = static_cast<double>(l.sequence * l.micro_batch) / (l.tp * l.cp);
  return tokens * static_cast<double>(8 * m.hidden_size + 4 * m.query_size() + 4 * m.kv_size() + 6 * m.ffn_hidden_size +
                                      4 * m.num_attention_heads);
}

// Layers times micro-batches at the fullest moment: the forwards before a stage's first backward, which go through its
// chunks pp micro-batches at a time.
double layers_in_flight(const Layout& l, int stage) {
  const int forwards = 2 * (l.pp - stage - 1) + (l.vpp - 1) * l.pp + 1;
  double layers = 0;
  for (int k = 0; k < forwards; ++k)
    layers +=
        static_cast<double>(l.stages[static_cast<size_t>(stage)][static_cast<size_t>(k / l.pp % l.vpp)].num_layers);
  return layers;
}

Formula formula_of(const Layout& l, int stage) {
  const double n = parameters_of(l, l.stages[static_cast<size_t>(stage)]);
  return {2 * n, 4 * n, 12 * n / (l.dp * l.cp), layers_in_flight(l, stage) * bytes_of_layer(l)};
}

TEST(MemoryFormula, Llama405bIsWithinFivePercentAndTheRestHasAName) {
  const Built b = build(llama_405b());
  const Explain e = explain(b.layout, b.programs);
  ASSERT_EQ(e.classes.size(), 16U);
  for (const ClassRow& row : e.classes) {
    const Formula want = formula_of(b.layout, row.rank_class.pp);
    const auto bytes = [&](Category c) { return static_cast<double>(row.peak_by_category[static_cast<size_t>(c)]); };
    const auto arena = static_cast<double>(row.arena_bytes);
    std::string difference = fmt::format("stage {}:", row.rank_class.pp);
    const auto differs = [&](const char* what, double planned, double formula) {
      difference += fmt::format(" {} {:+.1f} MiB,", what, (planned - formula) / 0x1p20);
      return planned - formula;
    };
    double named = differs("weights", bytes(Category::kWeight), want.weights);
    named += differs("main grads", bytes(Category::kMainGrad), want.main_grads);
    named += differs("optimizer", bytes(Category::kMaster) + bytes(Category::kMoment), want.optimizer);
    named += differs("activations", bytes(Category::kActivation), want.activations);
    const double of_the_formula = named;
    for (const Category c : {Category::kGradient, Category::kLogits, Category::kComm, Category::kWorkspace,
                             Category::kInput, Category::kStep})
      named += differs(name(c), bytes(c), 0);
    named += differs("slack", arena, static_cast<double>(row.peak_live_bytes));
    SCOPED_TRACE(difference);
    EXPECT_NEAR(arena, want.total(), 0.05 * want.total());
    EXPECT_NEAR(arena - want.total(), named, 1) << "every byte of the difference has a category";
    EXPECT_EQ(bytes(Category::kWeight), want.weights);
    EXPECT_NEAR(bytes(Category::kMainGrad), want.main_grads, 1e-4 * want.main_grads) << "but for padded shards";
    EXPECT_NEAR(bytes(Category::kMaster) + bytes(Category::kMoment), want.optimizer, 1e-4 * want.optimizer);
    EXPECT_NEAR(bytes(Category::kActivation), want.activations, 0.02 * want.activations);
    EXPECT_LT(std::abs(of_the_formula), 0.02 * want.total());
  }
}

// Section 5's short form: the first stage holds p micro-batches of L/p layers, times 1 + (p − 1)/(p·v) when
// interleaved.
TEST(MemoryFormula, TheShortFormHoldsForTheFirstStageOf405b) {
  const Built b = build(llama_405b());
  const Layout& l = b.layout;
  const ClassRow row = explain(l, b.programs).classes[0];
  ASSERT_EQ(row.rank_class.pp, 0);
  const double p = l.pp, v = l.vpp, layers = static_cast<double>(l.model.num_layers);
  Formula want = formula_of(l, 0);
  want.activations = layers * (1 + (p - 1) / (p * v)) * bytes_of_layer(l);
  EXPECT_NEAR(static_cast<double>(row.arena_bytes), want.total(), 0.05 * want.total());
}

}  // namespace
}  // namespace mbb::trainer
