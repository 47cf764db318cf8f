// Every persistent tensor of every kind of mapping and form of state, made part by part as a device makes it, is byte
// for byte what initial_state makes of whole tensors. The stores here are the host's; kernels are compared on a GPU.
#include "trainer/execute/first_state.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>

#include "trainer/data/rng.h"
#include "trainer/execute/cuda/mapping_cases_test.h"
#include "trainer/precision/fp8.h"
#include "trainer/precision/scales.h"
#include "trainer/precision/states.h"
#include "trainer/run/initial_state.h"

namespace mbb::trainer {
namespace {

constexpr uint64_t kSeed = 77;

class HostStores final : public FirstStores {
 public:
  Status plain(const FirstRange& range, DType dtype, std::byte* to) override {
    each(range, [&](int64_t i, float value) {
      if (dtype == DType::kF32)
        reinterpret_cast<float*>(to)[i] = value;
      else
        reinterpret_cast<Bf16*>(to)[i] = to_bf16(value);
    });
    return dtype == DType::kF32 || dtype == DType::kBf16 ? Status{} : fail(ErrorCode::kUnavailable, "a type");
  }
  Status split(const FirstRange& range, std::byte* weight, std::byte* remainder) override {
    each(range, [&](int64_t i, float value) {
      const SplitMaster split = split_master(value);
      if (weight != nullptr) reinterpret_cast<Bf16*>(weight)[i] = split.weight;
      if (remainder != nullptr) reinterpret_cast<uint16_t*>(remainder)[i] = split.remainder;
    });
    return {};
  }
  Status amax(const FirstRange& range, bool as_bf16, float* amax) override {
    EXPECT_EQ(*amax, 0.0F) << "it must hold 0 before";
    each(range,
         [&](int64_t, float value) { *amax = std::max(*amax, std::abs(as_bf16 ? to_float(to_bf16(value)) : value)); });
    return {};
  }
  Status fp8(const FirstRange& range, const float* amax, bool delayed, std::byte* to) override {
    each(range, [&](int64_t i, float value) {
      reinterpret_cast<uint8_t*>(to)[i] = to_fp8(to_float(to_bf16(value)) * fp8_scale(*amax, delayed), DType::kE4M3);
    });
    return {};
  }
  Status fp8_inverse(const float* amax, bool delayed, float* inverse) override {
    *inverse = 1.0F / fp8_scale(*amax, delayed);
    return {};
  }
  Status fp16(const FirstRange& range, const float* amax, std::byte* to) override {
    each(range, [&](int64_t i, float value) {
      reinterpret_cast<uint16_t*>(to)[i] = to_f16(value * (*amax > 0 ? kFp16Max / *amax : 1.0F));
    });
    return {};
  }
  Status fp16_inverse(float* amax) override {
    *amax = 1.0F / (*amax > 0 ? kFp16Max / *amax : 1.0F);
    return {};
  }

 private:
  static float fp8_scale(float amax, bool delayed) {
    return delayed ? 1.0F : tensor_scale(amax, DType::kE4M3, largest_of(DType::kBf16));
  }
  template <typename Take>
  static void each(const FirstRange& range, const Take& take) {
    const RandomStream random(range.values.key);
    for (int64_t i = 0; i < range.count; ++i) {
      const auto at = static_cast<uint64_t>(range.values.places(range.first + i));
      take(i, range.values.random ? range.values.stddev * random.normal(0, at) : range.values.constant);
    }
  }
};

using Bytes = std::map<TensorId, std::vector<std::byte>>;

Bytes zeros(const Program& program) {
  Bytes bytes;
  for (size_t i = 0; i < program.tensors.size(); ++i) {
    const Tensor& t = program.tensors[i];
    if (t.view_of == kNoTensor && t.scope == Scope::kPersistent)
      bytes[static_cast<TensorId>(i)].resize(static_cast<size_t>(t.bytes()));
  }
  return bytes;
}

std::byte* data(const Program& program, Bytes& bytes, TensorId id) {
  const Tensor& t = program.tensor(id);
  return t.view_of == kNoTensor ? bytes.at(id).data() : bytes.at(t.view_of).data() + t.view_offset_bytes;
}

void expect_equal(const std::string& name, const Config& config) {
  SCOPED_TRACE(name);
  const auto layout = resolve(config);
  ASSERT_TRUE(layout.has_value()) << format(layout.error());
  const auto programs = build_programs(*layout);
  ASSERT_TRUE(programs.has_value()) << format(programs.error());
  for (int rank = 0; rank < layout->mesh.world_size(); ++rank) {
    const Program& program = programs->of_rank(layout->mesh, rank);
    Bytes whole = zeros(program), parts = zeros(program);
    initial_state(program, layout->mesh, rank, kSeed, [&](TensorId id, std::span<const float> values) {
      store_values(program.tensor(id), data(program, whole, id), values);
    });
    HostStores stores;
    const Status made = make_first_state(
        {program, layout->mesh, rank, kSeed, [&](TensorId id) { return data(program, parts, id); }}, stores);
    ASSERT_TRUE(made.has_value()) << format(made.error());
    int filled = 0;
    for (const auto& [id, bytes] : whole) {
      EXPECT_TRUE(bytes == parts.at(id)) << program.tensor(id).path << " of rank " << rank;
      filled += std::any_of(bytes.begin(), bytes.end(), [](std::byte b) { return b != std::byte{0}; }) ? 1 : 0;
    }
    EXPECT_GT(filled, 0);
  }
}

TEST(FirstState, OfEveryMappingIsTheOracles) {
  for (const cuda::Mapping& mapping : cuda::kMappings)
    for (const Recipe recipe : {Recipe::kFp32, Recipe::kBf16, Recipe::kFp8Current}) {
      if (mapping.takes(recipe)) expect_equal(mapping.name, cuda::mapped(mapping, recipe));
    }
}

TEST(FirstState, OfEveryFormOfMastersAndWeightsIsTheOracles) {
  for (const bool sharded_weights : {false, true}) {
    for (const int64_t tensor_parallel : {1, 2}) {
      Config c = cuda::llama();
      cuda::tp(c, tensor_parallel);
      cuda::dp(c, 2);
      c.data_parallel.use_torch_fsdp2 = sharded_weights;
      Config fp8_param = c;
      fp8_param.precision.fp8_param = true;
      for (const Recipe recipe : {Recipe::kFp8Current, Recipe::kFp8Delayed}) {
        fp8_param.precision.recipe = recipe;
        expect_equal("fp8 weights", fp8_param);
        Config frozen = fp8_param;
        frozen.memory.frozen = "layers.0.*";
        expect_equal("frozen fp8 weights", frozen);
        if (!sharded_weights) {
          frozen.memory.frozen = "";
          frozen.memory.lora_rank = 4;
          expect_equal("fp8 weights below adapters", frozen);
        }
      }
      c.precision.recipe = Recipe::kBf16;
      c.optimizer.use_precision_aware_optimizer = true;
      for (const StateType masters : {StateType::kFp32, StateType::kFp16, StateType::kBf16}) {
        c.optimizer.main_params_dtype = masters;
        expect_equal("masters", c);
      }
    }
  }
}

}  // namespace
}  // namespace mbb::trainer
