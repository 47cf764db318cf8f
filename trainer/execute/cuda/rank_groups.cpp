// Opening communicators, and waiting.
#include "trainer/execute/cuda/rank_groups.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>

#include "profiler/base/env.h"
#include "trainer/ops/cuda/status.h"
#include "trainer/ops/table.h"
#include "trainer/program/comm_limits.h"

namespace mbb::trainer::cuda {
namespace {

// A step that is nearly over is worth spinning for; then looking a few thousand times a second is enough.
constexpr int kSpins = 2000;
constexpr std::chrono::microseconds kPause{200};

std::set<GroupKind> groups_of(const Program& program) {
  std::set<GroupKind> groups(program.groups.begin(), program.groups.end());
  for (const Segment& segment : program.segments)
    for (const Op& op : segment.ops)
      if (op.kind->communicates) groups.insert(std::get<CommAttrs>(op.attrs).group);
  return groups;
}

// Of the world's programs, so that all ranks open as many; a program by itself has its own.
std::set<CommLimit> limits_of(const Program& program) {
  std::set<CommLimit> limits(program.limits.begin(), program.limits.end());
  for (const CommLimit& limit : comm_limits(program)) limits.insert(limit);
  return limits;
}

// NCCL_CTA_POLICY, which memory.nccl_cta_policy sets: collectives take no SMs where copy engines can do it.
bool no_sms() {
  return env_text("NCCL_CTA_POLICY") == "2";
}

// Bytes of a member's part of the largest reduce-scatter of a kind; 0 where they run on several streams, over which
// copies have no order.
size_t scattered_of(const Program& program, GroupKind kind) {
  size_t most = 0;
  std::set<Stream> streams;
  for (const Segment& segment : program.segments)
    for (const Op& op : segment.ops)
      if (op.kind == &kReduceScatter && std::get<CommAttrs>(op.attrs).group == kind) {
        streams.insert(op.stream);
        most = std::max(most, static_cast<size_t>(program.tensor(op.in[0]).bytes()) /
                                  static_cast<size_t>(std::get<CommAttrs>(op.attrs).group_size));
      }
  return streams.size() == 1 ? most : 0;
}

// What copy engines are to move in a kind of group, on this rank.
NcclLimits copies_of(const Program& program, GroupKind kind) {
  NcclLimits limits;
  if (no_sms() && kind != GroupKind::kTp) limits.scattered = scattered_of(program, kind);
  for (const Segment& segment : program.segments)
    for (const Op& op : segment.ops)
      if (const auto* a = std::get_if<CommAttrs>(&op.attrs);
          a != nullptr && op.kind->communicates && a->group == kind && a->copy_engines)
        limits.copied = std::max(limits.copied, static_cast<size_t>(program.tensor(op.in[0]).bytes()));
  return limits;
}

// The same on all ranks, which open what moves it together: by kind.
Result<std::vector<NcclLimits>> copies_of_all(const Program& program, const Mesh& mesh, World& world) {
  std::vector<int64_t> bytes;
  for (size_t kind = 0; kind < kGroupKinds.size(); ++kind) {
    const NcclLimits mine = copies_of(program, static_cast<GroupKind>(kind));
    bytes.push_back(static_cast<int64_t>(mine.copied));
    bytes.push_back(static_cast<int64_t>(mine.scattered));
  }
  std::vector<int64_t> most(bytes.size());
  MB_ASSIGN(const auto everyone, world.group(GroupKind::kWorld, mesh));
  MB_TRY(everyone->all_reduce(bytes.data(), most.data(), bytes.size(), DType::kI64, ReduceOp::kMax));
  std::vector<NcclLimits> limits(kGroupKinds.size());
  for (size_t kind = 0; kind < limits.size(); ++kind) {
    limits[kind].copied = static_cast<size_t>(most[2 * kind]);
    limits[kind].scattered = static_cast<size_t>(most[2 * kind + 1]);
  }
  return limits;
}

}  // namespace

Result<std::unique_ptr<RankGroups>> RankGroups::open(const Program& program, const Mesh& mesh, World& world,
                                                     Device& device, const profiler::CudaRankRequest& request) {
  std::unique_ptr<RankGroups> groups(new RankGroups(world, device));
  RankContext& context = groups->context_;
  context.mesh = &mesh;
  context.rank = world.rank();
  context.coordinates = mesh.coordinates(world.rank());
  context.communicators.assign(kGroupKinds.size(), nullptr);
  if (request.share_device) {
    int devices = 0;
    MB_TRY(ok(cudaGetDeviceCount(&devices), "counting CUDA devices"));
    MB_TRY(reach_devices(request.device, std::min(devices, mesh.world_size())));
  } else {
    MB_ASSIGN(groups->nccl_, NcclGroups::open(world, [&device] { return device.stream(); }));
  }
  std::vector<NcclLimits> copies(kGroupKinds.size());
  if (!request.share_device) {
    MB_ASSIGN(copies, copies_of_all(program, mesh, world));
  }
  for (const GroupKind kind : groups_of(program)) {
    MB_ASSIGN(auto communicator, request.share_device
                                     ? world.group(kind, mesh.group(kind, world.rank()), groups->memory_)
                                     : groups->nccl_->group(kind, mesh, copies[static_cast<size_t>(kind)]));
    context.communicators[static_cast<size_t>(kind)] = communicator.get();
    groups->communicators_.push_back(std::move(communicator));
  }
  for (const CommLimit& limit : limits_of(program)) {
    MB_TRY(check_sms(fmt::format("num_sm of collectives over {}", name(limit.group)), limit.num_sm, request.side_sms,
                     device.sms()));
    if (request.share_device) continue;
    MB_ASSIGN(auto communicator, groups->nccl_->group(limit.group, mesh, {limit.num_sm, limit.cga_size}));
    context.limited.emplace_back(limit, communicator.get());
    groups->communicators_.push_back(std::move(communicator));
  }
  if (groups->nccl_ != nullptr)
    for (const std::string& note : groups->nccl_->notes()) device.note(note);
  return groups;
}

CommStats RankGroups::stats(GroupKind kind) const {
  const Communicator* found = context_.communicators[static_cast<size_t>(kind)];
  CommStats sum = found != nullptr ? found->stats() : CommStats{};
  for (const auto& [limit, communicator] : context_.limited) {
    if (limit.group != kind) continue;
    const CommStats more = communicator->stats();
    for (size_t op = 0; op < more.by_op.size(); ++op) sum.by_op[op] += more.by_op[op];
  }
  return sum;
}

void RankGroups::abort(const std::function<void()>& drop_graphs) {
  nccl_ != nullptr ? nccl_->abort(drop_graphs) : drop_graphs();
}

Result<std::vector<std::string>> RankGroups::texts_of_all(std::string_view mine) {
  MB_ASSIGN(const auto everyone, world_.group(GroupKind::kWorld, *context_.mesh));
  const auto ranks = static_cast<size_t>(everyone->size());
  const auto own = static_cast<int64_t>(mine.size());
  std::vector<int64_t> lengths(ranks);
  MB_TRY(everyone->all_gather(&own, lengths.data(), 1, DType::kI64));
  const auto longest = static_cast<size_t>(*std::max_element(lengths.begin(), lengths.end()));
  std::string padded(mine);
  padded.resize(longest);
  std::string all(ranks * longest, '\0');
  if (longest > 0) MB_TRY(everyone->all_gather(padded.data(), all.data(), longest, DType::kU8));
  std::vector<std::string> texts;
  for (size_t r = 0; r < ranks; ++r) texts.push_back(all.substr(r * longest, static_cast<size_t>(lengths[r])));
  return texts;
}

Status RankGroups::register_arena(const Arena& arena, const MemoryPlan& plan) {
  if (nccl_ == nullptr) return {};
  std::vector<NcclMemory> memory;
  std::string mine;
  for (const Arena::Block& block : arena.blocks()) {
    memory.push_back({block.data, static_cast<size_t>(block.allocated)});
    mine += fmt::format("{} ", block.allocated);
  }
  for (const auto& slots : plan.offsets) mine += fmt::format("{} ", fmt::join(slots, ","));
  MB_ASSIGN(const std::vector<std::string> layouts, texts_of_all(mine));
  const auto alike = [&](std::span<const int> members) {
    return std::all_of(members.begin(), members.end(), [&](int rank) {
      return layouts[static_cast<size_t>(rank)] == layouts[static_cast<size_t>(members.front())];
    });
  };
  MB_ASSIGN(const NcclRegistered done, nccl_->register_memory(memory, alike));
  device_.note(fmt::format("memory.nccl_ub: the arena is registered with {} communicators, {} of them with windows",
                           done.communicators, done.windows));
  return {};
}

void RankGroups::forget_arena() {
  if (nccl_ != nullptr) nccl_->forget_memory();
}

Status RankGroups::wait(cudaStream_t stream) {
  for (int looked = 0;; ++looked) {
    const cudaError_t status = cudaStreamQuery(stream);
    if (status != cudaErrorNotReady) {
      if (looked >= kSpins) world_.waits_for_device(false);
      return ok(status, "running a step");
    }
    if (looked == kSpins) world_.waits_for_device(true);
    if (looked < kSpins) continue;
    MB_TRY(nccl_ == nullptr ? world_.check() : nccl_->check());
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace mbb::trainer::cuda
