// Builds, verifies and plans the programs of all rank classes, side by side.
#include "trainer/run/step_programs.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <set>
#include <thread>
#include <utility>

#include "profiler/base/text.h"
#include "profiler/host/host_memory.h"
#include "trainer/comm/process_place.h"
#include "trainer/execute/graph_memory.h"
#include "trainer/models/transformer.h"
#include "trainer/ops/op_kind.h"
#include "trainer/passes/precision.h"
#include "trainer/program/comm_limits.h"
#include "trainer/program/verify.h"
#include "trainer/run/idle_passes.h"

namespace mbb::trainer {
namespace {

// Kinds of groups that any of the programs communicates over.
std::vector<GroupKind> groups_of_world(const std::vector<Program>& programs) {
  std::set<GroupKind> groups;
  for (const Program& program : programs)
    for (const Segment& segment : program.segments)
      for (const Op& op : segment.ops)
        if (const auto* attrs = std::get_if<CommAttrs>(&op.attrs); attrs != nullptr && op.kind->communicates)
          groups.insert(attrs->group);
  return {groups.begin(), groups.end()};
}

// A pattern that names no weight, or a stage without any weight that trains, is a mistake.
Status check_frozen(const Layout& layout, const StepPrograms& built) {
  std::vector<std::string_view> unmatched;
  if (!layout.config.memory.frozen.empty()) unmatched = split(layout.config.memory.frozen, ',');
  for (const Program& program : built.programs) {
    bool trains = false;
    for (const Tensor& t : program.tensors) {
      trains = trains || t.main_grad != kNoTensor;
      if (t.category == Category::kWeight && t.init.kind != Init::Kind::kNone)
        std::erase_if(unmatched, [&](std::string_view p) { return glob_match(p, t.path); });
    }
    if (!trains)
      return fail(ErrorCode::kBadArgument,
                  fmt::format("memory.frozen = {} leaves nothing to train on stage {}", layout.config.memory.frozen,
                              program.rank_class.pp),
                  "freeze less, or use fewer stages");
  }
  if (unmatched.empty()) return {};
  return fail(ErrorCode::kBadArgument,
              fmt::format("memory.frozen: no weight has a path like '{}'", printable(unmatched.front())),
              "mbbench explain --lifetimes lists the paths; '*' stands for any text");
}

// work(i) of every rank class, which have nothing to do with each other, on the cores there are; the first one's error.
Status each_class(size_t classes, const std::function<Status(size_t)>& work) {
  std::vector<Status> done(classes);
  std::atomic<size_t> next{0};
  const auto take = [&] {
    for (size_t i = next++; i < classes; i = next++) done[i] = work(i);
  };
  std::vector<std::thread> others;
  for (size_t t = 1; t < std::min<size_t>(classes, std::thread::hardware_concurrency()); ++t) others.emplace_back(take);
  take();
  for (std::thread& other : others) other.join();
  for (Status& status : done) MB_TRY(std::move(status));
  return {};
}

}  // namespace

std::vector<const Program*> StepPrograms::by_rank(const Mesh& mesh) const {
  std::vector<const Program*> all;
  for (int rank = 0; rank < mesh.world_size(); ++rank) all.push_back(&of_rank(mesh, rank));
  return all;
}

Result<StepPrograms> build_programs(const Layout& layout) {
  StepPrograms built;
  const auto classes = static_cast<size_t>(layout.mesh.rank_class_count());
  built.programs.resize(classes);
  built.effects.resize(classes);
  built.plans.resize(classes);
  MB_TRY(each_class(classes, [&](size_t i) -> Status {
    const int rank = layout.mesh.representative(static_cast<int>(i));
    built.programs[i] = build_program(layout, layout.mesh.rank_class(rank), &built.effects[i]);
    return {};
  }));
  MB_TRY(check_frozen(layout, built));
  const MemoryConfig& memory = layout.config.memory;
  const PlanOptions options{memory.expandable_segments, memory.avoid_record_streams, memory.nccl_ub.value_or(false)};
  const auto plan = [&](size_t i) -> Status {
    MB_TRY(check_block_shapes(built.programs[i]));
    if (layout.config.host.device == Device::kCuda) MB_TRY(check_fp8_rows(built.programs[i]));
    MB_TRY(verify(built.programs[i]));
    built.plans[i] = plan_memory(built.programs[i], options);
    if (layout.config.host.device == Device::kCuda) {
      const GraphMemory graphs = graph_memory(layout.config.host, built.programs[i], built.plans[i]);
      built.plans[i].graph_ops = graphs.ops;
      built.plans[i].graph_bytes = graphs.bytes;
    }
    return {};
  };
  MB_TRY(each_class(classes, plan));
  note_idle_passes(layout, built);
  const std::vector<GroupKind> groups = groups_of_world(built.programs);
  std::set<CommLimit> limits;
  for (const Program& program : built.programs)
    for (const CommLimit& limit : comm_limits(program)) limits.insert(limit);
  for (Program& program : built.programs) program.groups = groups, program.limits = {limits.begin(), limits.end()};
  return built;
}

namespace {

Lowerable lowerable_of(const Layout& layout) {
  const MemoryConfig& memory = layout.config.memory;
  const bool recomputes_all = memory.recompute_granularity == RecomputeGranularity::kFull &&
                              memory.recompute_method == MemoryConfig{}.recompute_method;
  return {.micro_batch = layout.micro_batch > 1,
          .activations = !recomputes_all,
          .optimizer_unsharded = !layout.shards_states()};
}

}  // namespace

Status check_memory(const Layout& layout, const StepPrograms& programs, int64_t capacity_bytes) {
  const auto limit = static_cast<int64_t>(layout.config.memory.limit_gib * 0x1p30);
  const int64_t capacity = limit == 0 || (capacity_bytes > 0 && capacity_bytes < limit) ? capacity_bytes : limit;
  if (capacity == 0) {
    if (layout.config.host.device != Device::kCpu) return {};
    const auto place = place_if_any();
    return check_host_memory(layout, programs, profiler::available_memory_bytes(),
                             place ? place->local_size : layout.mesh.world_size());
  }
  const Lowerable lowerable = lowerable_of(layout);
  for (size_t i = 0; i < programs.programs.size(); ++i)
    if (Status fits = check_fits(programs.programs[i], programs.plans[i], capacity, lowerable); !fits)
      return tl::unexpected<Error>(
          std::move(fits.error()).during(fmt::format("stage {}", programs.programs[i].rank_class.pp)));
  return {};
}

Status check_host_memory(const Layout& layout, const StepPrograms& programs, int64_t host_bytes, int ranks) {
  if (host_bytes == 0) return {};
  const auto bytes_of = [](const MemoryPlan& plan) { return plan.arena_bytes + plan.host_bytes; };
  int64_t together = 0;
  size_t largest = 0;
  for (int rank = 0; rank < std::min(ranks, layout.mesh.world_size()); ++rank) {
    const auto at = static_cast<size_t>(layout.mesh.rank_class_index(rank));
    together += bytes_of(programs.plans[at]);
    if (bytes_of(programs.plans[at]) > bytes_of(programs.plans[largest])) largest = at;
  }
  if (together <= host_bytes) return {};
  // The largest is above an equal share, where the sum is above all shares.
  Status fits = check_fits(programs.programs[largest], programs.plans[largest], host_bytes / std::max(1, ranks),
                           lowerable_of(layout));
  if (fits)
    fits = fail(ErrorCode::kOutOfMemory, "its buffers in host memory take what is left", "offload fewer layers");
  const int stage = programs.programs[largest].rank_class.pp;
  const bool cpu = layout.config.host.device == Device::kCpu;
  const std::string where =
      ranks == 1
          ? fmt::format("stage {}", stage)
          : fmt::format("stage {} of {} ranks that need {} of this host, which has {} left", stage, ranks,
                        format_bytes(static_cast<double>(together)), format_bytes(static_cast<double>(host_bytes)));
  return tl::unexpected<Error>(
      std::move(fits.error())
          .during(where + (cpu ? " (on CPU ranks: host.device = cuda asks for GPUs, and projects without them)" : "")));
}

}  // namespace mbb::trainer
