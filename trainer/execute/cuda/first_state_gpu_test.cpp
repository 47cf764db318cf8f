// What a rank on the device starts with is, bit by bit, what initial_state makes on the host: cut tensors, shards of
// units, masters in every form. Ranks are threads that share the device.
#include <fmt/core.h>

#include <cstring>
#include <map>
#include <mutex>

#include "trainer/comm/local/run_ranks.h"
#include "trainer/execute/cuda/mapping_cases_test.h"
#include "trainer/ops/cuda/gpu_fixture_test.h"
#include "trainer/run/initial_state.h"

namespace mbb::trainer::cuda {
namespace {

class FirstStateOnDevice : public GpuTest {
 protected:
  // Bytes of every persistent tensor that differ from the oracle's, by path; `compared` counts tensors that are not all
  // zero.
  static std::map<std::string, int64_t> differing(Config c, int* compared) {
    c.host.device = trainer::Device::kCuda;
    c.host.share_device = true;
    std::map<std::string, int64_t> wrong;
    const auto layout = resolve(c);
    EXPECT_TRUE(layout.has_value()) << (layout ? "" : format(layout.error()));
    if (!layout) return {{"no layout", 1}};
    const auto programs = build_programs(*layout);
    EXPECT_TRUE(programs.has_value()) << (programs ? "" : format(programs.error()));
    if (!programs) return {{"no program", 1}};
    std::mutex mutex;
    const Mesh& mesh = layout->mesh;
    const Status ran = run_ranks(mesh.world_size(), [&](World& world) -> Status {
      const Program& program = programs->of_rank(mesh, world.rank());
      const MemoryPlan& plan = programs->plans[static_cast<size_t>(mesh.rank_class_index(world.rank()))];
      MB_ASSIGN(const auto rank, make_executor(c.host, program, plan, mesh, world, 77));
      std::map<TensorId, std::vector<std::byte>> expected;
      for (size_t i = 0; i < program.tensors.size(); ++i) {
        const auto id = static_cast<TensorId>(i);
        const trainer::Tensor& t = program.tensors[i];
        if (t.view_of == kNoTensor && t.scope == Scope::kPersistent && !plan.offsets[i].empty())
          expected[id].resize(static_cast<size_t>(t.bytes()));
      }
      initial_state(program, mesh, world.rank(), 77, [&](TensorId id, std::span<const float> values) {
        store_values(program.tensor(id), expected.at(id).data(), values);
      });
      for (const auto& [id, bytes] : expected) {
        std::vector<std::byte> got(bytes.size());
        MB_TRY(rank->read(id, 0, got));
        const std::lock_guard lock(mutex);
        int64_t& count = wrong[program.tensor(id).path];
        for (size_t b = 0; b < bytes.size(); ++b) count += got[b] != bytes[b] ? 1 : 0;
        *compared += std::any_of(bytes.begin(), bytes.end(), [](std::byte b) { return b != std::byte{0}; }) ? 1 : 0;
      }
      MB_ASSIGN(const auto everyone, world.group(GroupKind::kWorld, mesh));
      return everyone->barrier();
    });
    EXPECT_TRUE(ran.has_value()) << (ran ? "" : format(ran.error()));
    std::erase_if(wrong, [](const auto& entry) { return entry.second == 0; });
    return wrong;
  }

  static void expect_equal(const char* name, const Config& c) {
    SCOPED_TRACE(name);
    int compared = 0;
    for (const auto& [path, bytes] : differing(c, &compared)) ADD_FAILURE() << path << ": " << bytes << " bytes differ";
    EXPECT_GE(compared, 2);
  }
};

TEST_F(FirstStateOnDevice, MappingsAreTheOracles) {
  for (const Recipe recipe : {Recipe::kFp32, Recipe::kBf16, Recipe::kFp8Current})
    for (const Mapping& mapping : kMappings)
      if (mapping.takes(recipe)) expect_equal(mapping.name, mapped(mapping, recipe));
}

TEST_F(FirstStateOnDevice, FormsOfMastersAndWeightsAreTheOracles) {
  for (const bool sharded_weights : {false, true}) {
    for (const int64_t tensor_parallel : {1, 2}) {
      Config c = llama();
      tp(c, tensor_parallel);
      dp(c, 2);
      c.data_parallel.use_torch_fsdp2 = sharded_weights;
      Config fp8_param = c;
      fp8_param.precision.fp8_param = true;
      for (const Recipe recipe : {Recipe::kFp8Current, Recipe::kFp8Delayed}) {
        fp8_param.precision.recipe = recipe;
        expect_equal("fp8 weights", fp8_param);
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
}  // namespace mbb::trainer::cuda
