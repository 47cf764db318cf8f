// Packs of sequences train on the device like on the oracle, whatever computes their attention.
#include <algorithm>

#include "trainer/models/small_families.h"
#include "trainer/ops/cuda/gpu_fixture_test.h"
#include "trainer/run/near_fp32_test.h"
#include "trainer/run/training_data.h"

namespace mbb::trainer::cuda {
namespace {

// Documents of 3 to 13 tokens, `longer` times as long.
SequenceDataset documents(const Layout& layout, int longer) {
  std::vector<std::vector<int32_t>> all;
  for (int d = 0; d < 24; ++d) {
    all.emplace_back();
    for (int i = 0; i < longer * (3 + (d * 5) % 11); ++i) all.back().push_back((d * 7 + i * i * 3 + i) % 64);
  }
  auto source = make_in_memory("documents", all, 64);
  EXPECT_TRUE(source.has_value());
  const SequenceCuts cuts{.lengths = SequenceLengths::kDocuments,
                          .longest = layout.config.train.seq_length,
                          .longest_encoder = layout.longest_encoder_part()};
  auto data = SequenceDataset::open(std::move(*source), cuts, row_options(layout));
  EXPECT_TRUE(data.has_value()) << (data ? "" : format(data.error()));
  return std::move(*data);
}

struct Trained {
  std::vector<double> losses;
  std::vector<std::string> notes;
};

Trained trained(const Config& config, int longer) {
  const auto layout = resolve(config);
  EXPECT_TRUE(layout.has_value()) << (layout ? "" : format(layout.error()));
  if (!layout) return {};
  const auto programs = build_programs(*layout);
  EXPECT_TRUE(programs.has_value()) << (programs ? "" : format(programs.error()));
  if (!programs) return {};
  const SequenceDataset data = documents(*layout, longer);
  TrainOptions options;
  options.sequences = &data;
  const auto result = train(
      *layout, *programs, [](int64_t, std::span<int32_t>) -> Status { return {}; }, options);
  EXPECT_TRUE(result.has_value()) << (result ? "" : format(result.error()));
  Trained all;
  if (!result) return all;
  all.losses = losses_of(result->steps);
  all.notes = result->notes;
  return all;
}

Config packed(Config c, int longer) {
  c.packing.sequences = SequenceLengths::kDocuments;
  c.train.seq_length = 12 * longer;
  c.packing.packed_sequence_size = 32 * longer;
  c.packing.max_sequences = 6;
  c.train.micro_batch_size = 1;
  c.train.global_batch_size = 4;
  c.train.train_iters = 3;
  return c;
}

// Of a bf16 step from the fp32 one.
double bound_of(const Config& fp32, const Config& narrow, int longer) {
  const auto losses = [longer](const Config& c) { return trained(c, longer).losses; };
  return near_fp32_bound(Fp32Draws(fp32, losses).own_distance(narrow));
}

Config on_device(Config c, bool graphs = true) {
  c.host.device = trainer::Device::kCuda;
  c.host.enable_cuda_graph = graphs;
  return c;
}

class PacksOnDevice : public GpuTest, public testing::WithParamInterface<Small> {};

// Rotary and learnt positions, windows and sinks, encoders that look both ways and at other tokens, further tokens.
TEST_P(PacksOnDevice, TrainLikeTheOracle) {
  const Config fp32 = packed(config_of(GetParam()), 1);
  const Trained exact = trained(fp32, 1);
  for (const bool graphs : {false, true})
    EXPECT_LT(furthest(trained(on_device(fp32, graphs), 1).losses, exact.losses), 1e-4) << "graphs " << graphs;
  Config c = fp32;
  c.precision.recipe = Recipe::kBf16;
  EXPECT_LT(furthest(trained(on_device(c), 1).losses, exact.losses), bound_of(fp32, c, 1));
}

std::vector<Small> packable() {
  std::vector<Small> families;
  for (const Small& family : kFamilies) {
    const std::string name = family.name;
    if (name != "mixtral_balanced") families.push_back(family);  // forced balance goes by a token's place
  }
  return families;
}

INSTANTIATE_TEST_SUITE_P(All, PacksOnDevice, testing::ValuesIn(packable()),
                         [](const auto& test) { return std::string(test.param.name); });

constexpr int kLonger = 4;

// Heads that cuDNN and our tensor-core kernel take.
Config wide() {
  Config c;
  sizes(c, "llama3-8b", 2);
  c.model.hidden_size = 64;
  c.model.ffn_hidden_size = 128;
  c.model.kv_channels = 64;
  c = packed(c, kLonger);
  c.train.global_batch_size = c.train.train_iters = 2;
  return c;
}

using PackedAttention = GpuTest;

TEST_F(PackedAttention, EveryBackendTrainsLikeTheOracle) {
  Config c = wide();
  const Trained exact = trained(c, kLonger);
  c.precision.recipe = Recipe::kBf16;
  const double bound = bound_of(wide(), c, kLonger);
  for (const AttentionBackend backend :
       {AttentionBackend::kFused, AttentionBackend::kFlash, AttentionBackend::kAuto, AttentionBackend::kUnfused}) {
    c.fusion.attention_backend = backend;
    for (const bool graphs : {false, true}) {
      const Trained device = trained(on_device(c, graphs), kLonger);
      EXPECT_LT(furthest(device.losses, exact.losses), bound) << name(backend) << " graphs " << graphs;
      for (const std::string& note : device.notes)  // cuDNN, where it is asked, computes both ways
        EXPECT_EQ(note.find(" kernel computes it"), std::string::npos) << name(backend) << ": " << note;
    }
  }
}

// Two runs give the same losses bit by bit.
TEST_F(PackedAttention, TwoRunsAreOneBitByBit) {
  Config c = wide();
  c.precision.recipe = Recipe::kBf16;
  c.host.deterministic_mode = true;
  const Trained first = trained(on_device(c), kLonger), second = trained(on_device(c), kLonger);
  EXPECT_FALSE(first.losses.empty());
  EXPECT_EQ(first.losses, second.losses);
  // Of cuDNN, where it is here, the forward alone repeats: a note says why our kernel computes the backward.
  const auto says = [&](const char* start, const char* what) {
    return std::any_of(first.notes.begin(), first.notes.end(), [&](const std::string& note) {
      return note.starts_with(start) && note.find(what) != std::string::npos;
    });
  };
  EXPECT_TRUE(says("attention backward", "repeats bit by bit") || says("cuDNN", "our own kernels compute attention"));
}

}  // namespace
}  // namespace mbb::trainer::cuda
