// Every kind of mapping trains on the device like one rank on the oracle: ranks are threads that share the device, so
// that all of it but the wires between GPUs is what several GPUs run.
#include <algorithm>
#include <cstdio>
#include <iterator>
#include <vector>

#include "trainer/comm/local/reduce.h"
#include "trainer/comm/local/run_ranks.h"
#include "trainer/execute/cuda/device_memory.h"
#include "trainer/execute/cuda/mapping_cases_test.h"
#include "trainer/ops/cuda/comm_kernels.h"
#include "trainer/ops/cuda/gpu_fixture_test.h"
#include "trainer/run/equal_training_test.h"
#include "trainer/run/near_fp32_test.h"

namespace mbb::trainer::cuda {
namespace {

Result<Trained> trained(Config c, const Mapping* mapping, bool on_device) {
  if (mapping != nullptr) mapping->map(c);
  if (on_device) {
    c.host.device = trainer::Device::kCuda;
    c.host.share_device = true;
  }
  return train_and_collect(c);
}

using Losses = std::vector<double> (*)(const Config&);
std::vector<double> losses(const Config& c) {
  const auto oracle = train_and_collect(c);
  EXPECT_TRUE(oracle.has_value()) << (oracle ? "" : format(oracle.error()));
  return oracle ? losses_of(oracle->steps) : std::vector<double>{};
}

// Of a narrow recipe. Both distances are printed.
void expect_as_near(const Mapping& mapping, Config narrow, Recipe recipe, const Fp32Draws<Losses>& fp32) {
  narrow.precision.recipe = recipe;
  SCOPED_TRACE(std::string(mapping.name) + " " + recipe_name(narrow));
  Config as_mapped = narrow;
  mapping.map(as_mapped);
  const double own = fp32.own_distance(as_mapped);
  const auto many = trained(narrow, &mapping, true);
  ASSERT_TRUE(many.has_value()) << format(many.error());
  const double device = furthest(losses_of(many->steps), fp32.first());
  EXPECT_LT(device, near_fp32_bound(own));
  printf("%s, %s: %.1e from fp32, the oracle %.1e\n", mapping.name, recipe_name(narrow).c_str(), device, own);
}

class MappingsOnDevice : public GpuTest, public testing::WithParamInterface<Mapping> {};

TEST_P(MappingsOnDevice, Fp32EqualsOneRankOfTheOracle) {
  if (!GetParam().takes(Recipe::kFp32)) GTEST_SKIP() << "a mapping of FP8";
  const Config base = base_of(GetParam());
  const auto one = trained(base, nullptr, false);
  ASSERT_TRUE(one.has_value()) << format(one.error());
  const auto many = trained(base, &GetParam(), true);
  ASSERT_TRUE(many.has_value()) << format(many.error());
  EXPECT_LT(furthest(losses_of(many->steps), losses_of(one->steps)), 1e-4);
  expect_equal_gradients(many->gradients[0], one->gradients[0], 1e-4);
}

TEST_P(MappingsOnDevice, NarrowRecipesStayAsNearAsTheOracles) {
  for (const Recipe recipe : {Recipe::kBf16, Recipe::kFp8Current})
    if (GetParam().takes(recipe)) {
      const Config base = base_of(GetParam(), recipe);
      expect_as_near(GetParam(), base, recipe, {base, losses, 6});  // many threads each
    }
}

// Experts whose rows come from other ranks, of sizes that every recipe's blocks divide.
class ExpertsOnDevice : public MappingsOnDevice {};

TEST_P(ExpertsOnDevice, QuantizedRecipesStayAsNearAsTheOracles) {
  Config base = base_of(GetParam(), Recipe::kMxfp8);
  base.model.moe_ffn_hidden_size = 64;
  const Fp32Draws<Losses> fp32(base, losses);
  for (const Recipe recipe :
       {Recipe::kFp8Delayed, Recipe::kFp8Current, Recipe::kFp8Blockwise, Recipe::kMxfp8, Recipe::kNvfp4})
    expect_as_near(GetParam(), base, recipe, fp32);
}

std::vector<Mapping> of_experts() {
  std::vector<Mapping> all;
  for (const char* name : {"ep2_padded", "ep2_counts", "ep2_etp2"})
    all.push_back(*std::find_if(std::begin(kMappings), std::end(kMappings),
                                [&](const Mapping& m) { return std::string_view(m.name) == name; }));
  return all;
}
INSTANTIATE_TEST_SUITE_P(All, ExpertsOnDevice, testing::ValuesIn(of_experts()),
                         [](const auto& test) { return std::string(test.param.name); });

INSTANTIATE_TEST_SUITE_P(All, MappingsOnDevice, testing::ValuesIn(kMappings),
                         [](const auto& test) { return std::string(test.param.name); });

class SharedDevice : public GpuTest {};

// Heads' sinks are vectors, whose gradients kernels write in fp32; in bf16 they are rounded beside them.
TEST_F(SharedDevice, GradientsInBf16AreTheOracles) {
  Config base = family("gpt_oss");
  base.precision.recipe = Recipe::kBf16;
  base.data_parallel.grad_reduce_in_fp32 = false;
  base.parallel.context_parallel_size = 2;
  const auto oracle = trained(base, nullptr, false), many = trained(base, nullptr, true);
  ASSERT_TRUE(oracle.has_value()) << format(oracle.error());
  ASSERT_TRUE(many.has_value()) << format(many.error());
  for (const auto& [path, gradient] : oracle->gradients[0]) {
    if (path.find("router") != std::string::npos) continue;  // a token that goes elsewhere is much of its gradient
    EXPECT_LT(gradient_error({{path, many->gradients[0].at(path)}}, {{path, gradient}}), 0.1) << path;
  }
}

// A slot too small for what its experts get ends the cell with the op and the bound it needs.
TEST_F(SharedDevice, SlotsThatOverflowSayTheBoundTheyNeed) {
  Config c = family("mixtral");
  ep(c, MoeExchange::kPadded);
  c.parallel.moe_dropless_bound = 1.0;
  c.model.moe_router_topk = 1;
  c.host.device = trainer::Device::kCuda;
  c.host.share_device = true;
  const auto many = train_and_collect(c);
  ASSERT_FALSE(many.has_value());
  EXPECT_NE(many.error().what.find("the experts of a peer get"), std::string::npos) << format(many.error());
  EXPECT_NE(many.error().what.find("parallel.moe_dropless_bound must be at least"), std::string::npos);
}

TEST_F(SharedDevice, ThreadsAreRefusedWhereNobodyAskedForThem) {
  Config c = llama();
  tp(c, 2);
  c.host.device = trainer::Device::kCuda;
  const auto many = train_and_collect(c);
  ASSERT_FALSE(many.has_value());
  EXPECT_NE(many.error().hint.find("host.share_device"), std::string::npos) << format(many.error());
}

// Bit by bit what the oracle's reduction gives, in place too.
TEST_F(SharedDevice, SumsAndMaximaAreTheOracles) {
  constexpr size_t kCount = 1000, kMembers = 5;
  auto device = Device::open(0);
  ASSERT_TRUE(device.has_value()) << format(device.error());
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBf16, DType::kI32, DType::kI64, DType::kU8}) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
      SCOPED_TRACE(std::string(name(dtype)) + " " + name(op));
      const size_t bytes = bytes_of(dtype, kCount);
      std::vector<std::vector<std::byte>> host(kMembers, std::vector<std::byte>(bytes));
      std::vector<std::unique_ptr<DeviceBytes>> on_device;
      std::vector<const void*> inputs, device_inputs;
      for (std::vector<std::byte>& member : host) {
        for (std::byte& b : member) b = static_cast<std::byte>(random_());  // NaN and infinities among them
        on_device.push_back(std::make_unique<DeviceBytes>(bytes));
        on_device.back()->upload(member.data());
        inputs.push_back(member.data());
        device_inputs.push_back(on_device.back()->get());
      }
      std::vector<void*> outputs{host[0].data(), host[1].data()};
      std::vector<void*> device_outputs{on_device[0]->get(), on_device[1]->get()};
      reduce_elements(dtype, op, inputs, outputs, 3, kCount - 2);
      expect_ok(reduce_members(dtype, op, device_inputs, device_outputs, 3, kCount - 2, (*device)->launch()));
      ASSERT_EQ(cudaStreamSynchronize((*device)->stream()), cudaSuccess);
      for (size_t i = 0; i < 2; ++i) {
        std::vector<std::byte> got(bytes);
        on_device[i]->download(got.data());
        const size_t width = size_of(dtype);
        for (size_t e = 0; e < kCount; ++e) {
          if (std::memcmp(&got[e * width], &host[i][e * width], width) == 0) continue;
          // Two NaNs may differ in the bits that carry no number.
          const auto is_nan = [&](const std::byte* at) {
            if (dtype == DType::kF32) return std::isnan(*reinterpret_cast<const float*>(at));
            if (dtype == DType::kF64) return std::isnan(*reinterpret_cast<const double*>(at));
            if (dtype == DType::kBf16) return std::isnan(from_bf16(*reinterpret_cast<const uint16_t*>(at)));
            return false;
          };
          ASSERT_TRUE(is_nan(&got[e * width]) && is_nan(&host[i][e * width])) << "element " << e;
        }
      }
    }
  }
}

}  // namespace
}  // namespace mbb::trainer::cuda
