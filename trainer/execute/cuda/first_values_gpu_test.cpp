// Everything that persists starts on the device as on the oracle: weights, masters, moments, scales, in every form that
// the optimizer keeps, through the library's door.
#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "trainer/comm/local/run_ranks.h"
#include "trainer/execute/cuda/mapping_cases_test.h"
#include "trainer/execute/executor.h"
#include "trainer/ops/cuda/gpu_fixture_test.h"

namespace mbb::trainer::cuda {
namespace {

using Bytes = std::map<std::string, std::vector<std::byte>>;  // of a persistent tensor, by "rank path #id"

bool persists(const trainer::Tensor& t, const MemoryPlan& plan, size_t id) {
  return t.view_of == kNoTensor && t.scope == Scope::kPersistent && !plan.offsets[id].empty();
}

// As the executors of all ranks have them before the first step.
Bytes first_values(Config c, bool device, Bytes* types) {
  if (device) {
    c.host.device = trainer::Device::kCuda;
    c.host.share_device = c.parallel.gpus > 1 || c.parallel.tensor_model_parallel_size > 1;
  }
  const auto layout = resolve(c);
  EXPECT_TRUE(layout.has_value()) << format(layout.error());
  if (!layout) return {};
  const auto programs = build_programs(*layout);
  EXPECT_TRUE(programs.has_value()) << format(programs.error());
  if (!programs) return {};
  Bytes all;
  std::mutex mutex;
  const Status ran = run_ranks(layout->mesh.world_size(), [&](World& world) -> Status {
    const auto rank_class = static_cast<size_t>(layout->mesh.rank_class_index(world.rank()));
    const Program& program = programs->programs[rank_class];
    const MemoryPlan& plan = programs->plans[rank_class];
    MB_ASSIGN(const auto executor, make_executor(layout->config.host, program, plan, layout->mesh, world, 5));
    for (size_t i = 0; i < program.tensors.size(); ++i) {
      const trainer::Tensor& t = program.tensors[i];
      if (!persists(t, plan, i)) continue;
      std::vector<std::byte> bytes(static_cast<size_t>(t.bytes()));
      MB_TRY(executor->read(static_cast<TensorId>(i), bytes));
      const std::lock_guard lock(mutex);
      const std::string key = fmt::format("rank {} {} #{}", world.rank(), t.path, i);
      all[key] = std::move(bytes);
      if (types != nullptr) (*types)[key] = {static_cast<std::byte>(t.dtype)};
    }
    return {};
  });
  EXPECT_TRUE(ran.has_value()) << format(ran.error());
  return all;
}

// Numbers of a dtype; of types that hold none, their bytes.
std::vector<double> numbers(DType dtype, const std::vector<std::byte>& bytes) {
  std::vector<double> out;
  const size_t width = dtype == DType::kF32 ? 4 : dtype == DType::kBf16 ? 2 : 1;
  for (size_t i = 0; i + width <= bytes.size(); i += width) {
    uint32_t bits = 0;
    std::memcpy(&bits, &bytes[i], width);
    if (dtype == DType::kF32)
      out.push_back(static_cast<double>(std::bit_cast<float>(bits)));
    else if (dtype == DType::kBf16)
      out.push_back(static_cast<double>(from_bf16(static_cast<uint16_t>(bits))));
    else if (dtype == DType::kE4M3)
      out.push_back(static_cast<double>(from_fp8(static_cast<uint8_t>(bits), Element::kE4m3)));
    else
      out.push_back(static_cast<double>(bits));
  }
  return out;
}

struct Form {
  const char* name;
  void (*set)(Config&);
};
void PrintTo(const Form& form, std::ostream* out) {
  *out << form.name;
}

class FirstValues : public GpuTest, public testing::WithParamInterface<Form> {};

TEST_P(FirstValues, AreTheOracles) {
  Config c = llama();
  GetParam().set(c);
  Bytes types;
  const Bytes oracle = first_values(c, false, &types), device = first_values(c, true, nullptr);
  ASSERT_FALSE(oracle.empty());
  ASSERT_EQ(device.size(), oracle.size());
  int not_zero = 0;
  for (const auto& [key, reference] : oracle) {
    const std::vector<std::byte>& mine = device.at(key);
    not_zero += std::any_of(reference.begin(), reference.end(), [](std::byte b) { return b != std::byte{0}; }) ? 1 : 0;
    if (mine == reference) continue;
    // The device's logarithm and cosine may round the last bit otherwise; nothing else may differ.
    const auto dtype = static_cast<DType>(types.at(key)[0]);
    const double bound = dtype == DType::kF32 ? 1e-6 : dtype == DType::kBf16 || dtype == DType::kE4M3 ? 1e-3 : 0.0;
    EXPECT_LE(relative_error(numbers(dtype, mine), numbers(dtype, reference)), bound) << key << " " << name(dtype);
  }
  EXPECT_GT(not_zero, 0);
}

const Form kForms[] = {
    {"fp32", [](Config&) {}},
    {"bf16", [](Config& c) { c.precision.recipe = Recipe::kBf16; }},
    {"remainder",
     [](Config& c) {
       c.precision.recipe = Recipe::kBf16;
       c.optimizer.use_precision_aware_optimizer = true;
       c.optimizer.exp_avg_dtype = c.optimizer.exp_avg_sq_dtype = StateType::kBf16;
     }},
    {"fp16_master",
     [](Config& c) {
       c.precision.recipe = Recipe::kBf16;
       c.optimizer.use_precision_aware_optimizer = true;
       c.optimizer.main_params_dtype = StateType::kFp16;
     }},
    {"remainder_dp2",
     [](Config& c) {
       dp(c, 2);
       c.precision.recipe = Recipe::kBf16;
       c.optimizer.use_precision_aware_optimizer = true;
     }},
    {"fp8_param",
     [](Config& c) {
       c.precision.recipe = Recipe::kFp8Current;
       c.precision.fp8_param = true;
     }},
    {"fsdp2",
     [](Config& c) {
       dp(c, 2);
       c.data_parallel.use_torch_fsdp2 = true;
     }},
    {"fsdp2_bf16",
     [](Config& c) {
       dp(c, 2);
       c.data_parallel.use_torch_fsdp2 = true;
       c.precision.recipe = Recipe::kBf16;
     }},
    {"tp2", [](Config& c) { tp(c, 2); }},
    {"dp2_bf16",
     [](Config& c) {
       dp(c, 2);
       c.precision.recipe = Recipe::kBf16;
     }},
};

INSTANTIATE_TEST_SUITE_P(All, FirstValues, testing::ValuesIn(kForms),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace mbb::trainer::cuda
