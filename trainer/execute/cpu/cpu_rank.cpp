// The CPU executor: bind operands to the arena, call the record's function, time it.
#include "trainer/execute/cpu/cpu_rank.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "profiler/base/clock.h"
#include "trainer/execute/kept_by_optimizer.h"
#include "trainer/precision/fp8.h"
#include "trainer/precision/states.h"
#include "trainer/program/walk.h"
#include "trainer/run/initial_state.h"

namespace mbb::trainer {
namespace {

std::set<GroupKind> groups_of(const Program& program) {
  std::set<GroupKind> groups(program.groups.begin(), program.groups.end());
  for (const Segment& segment : program.segments)
    for (const Op& op : segment.ops)
      if (op.kind->communicates) groups.insert(std::get<CommAttrs>(op.attrs).group);
  return groups;
}

template <typename Word>
bool all_finite(const CpuOperand& operand, Word exponent) {
  const auto* words = static_cast<const Word*>(operand.data);
  for (int64_t i = 0; i < operand.elements(); ++i)
    if ((words[i] & exponent) == exponent && words[i] != static_cast<Word>(~Word{0})) return false;
  return true;
}

// Whether every element is finite, or what poison reads as: rows of a buffer that nobody needs keep it.
bool finite(const CpuOperand& operand) {
  switch (operand.tensor->dtype) {
    case DType::kF32: return all_finite<uint32_t>(operand, 0x7f800000U);
    case DType::kF64: return all_finite<uint64_t>(operand, 0x7ff0000000000000U);
    case DType::kBf16: return all_finite<uint16_t>(operand, 0x7f80U);
    default: return true;  // integers, and FP8 formats, whose quantizers saturate
  }
}

std::optional<NotFinite> look_at(const Op& op, const std::vector<CpuOperand>& out, int micro_batch) {
  for (const CpuOperand& operand : out)
    if (operand.data != nullptr && !finite(operand))
      return NotFinite{op.path, operand.tensor->path, micro_batch, op.kind->communicates};
  return std::nullopt;
}

}  // namespace

Result<std::unique_ptr<CpuRank>> CpuRank::create(const Program& program, const MemoryPlan& plan, const Mesh& mesh,
                                                 World& world, uint64_t seed, uint8_t poison) {
  std::unique_ptr<CpuRank> rank(new CpuRank(program, plan, world));
  rank->context_.mesh = &mesh;
  rank->context_.rank = world.rank();
  rank->context_.coordinates = mesh.coordinates(world.rank());
  MB_TRY(rank->open_communicators(mesh));
  MB_ASSIGN(rank->arena_, rank->allocate(plan.arena_bytes, poison));
  MB_ASSIGN(rank->host_arena_, rank->allocate(plan.host_bytes, poison));
  for (size_t i = 0; i < program.tensors.size(); ++i) {
    const Tensor& t = program.tensors[i];
    const bool used = t.view_of == kNoTensor && !plan.offsets[i].empty();
    const bool slot = t.scope == Scope::kStep && t.category == Category::kComm;  // its padding is never written
    if (used && (t.scope == Scope::kPersistent || t.category == Category::kMainGrad || slot))
      std::memset(rank->data(static_cast<TensorId>(i)), 0, static_cast<size_t>(t.bytes()));
  }
  initial_state(program, mesh, world.rank(), seed, [&](TensorId id, std::span<const float> values) {
    store_values(program.tensor(id), rank->data(id), values);
  });
  return rank;
}

Result<CpuRank::Arena> CpuRank::allocate(int64_t bytes, uint8_t poison) const {
  const auto size = static_cast<size_t>(std::max<int64_t>(bytes, MemoryPlan::kAlign));
  Arena arena(static_cast<std::byte*>(std::aligned_alloc(static_cast<size_t>(MemoryPlan::kAlign), size)), std::free);
  if (!arena)
    return fail(ErrorCode::kOutOfMemory, fmt::format("this process gets no memory for an arena of {} bytes", size),
                "it may be limited (ulimit -v): run fewer ranks in it, or a smaller model");
  std::memset(arena.get(), poison, size);
  return arena;
}

Status CpuRank::open_communicators(const Mesh& mesh) {
  context_.communicators.assign(kGroupKinds.size(), nullptr);
  // Every rank opens every kind that some rank uses, in one order, also where its own group is itself alone.
  for (GroupKind kind : groups_of(program_)) {
    MB_ASSIGN(auto communicator, world_.group(kind, mesh));
    context_.communicators[static_cast<size_t>(kind)] = communicator.get();
    communicators_.push_back(std::move(communicator));
  }
  return {};
}

std::byte* CpuRank::data(TensorId id, int slot) {
  if (program_.tensor(id).left_out) return nullptr;
  const bool host = program_.tensor(program_.storage(id)).space == Space::kHost;
  return (host ? host_arena_ : arena_).get() + plan_.offset(program_, id, slot);
}

CommStats CpuRank::stats(GroupKind kind) const {
  const Communicator* found = context_.communicators[static_cast<size_t>(kind)];
  return found ? found->stats() : CommStats{};
}

Status CpuRank::write_inputs(const StepInput& input) {
  const Ports& ports = program_.ports;
  std::memcpy(data(ports.step_record), input.record.data(), sizeof(input.record));
  const auto slot_of = [&](TensorId id, int micro_batch) -> std::span<int32_t> {
    if (id == kNoTensor) return {};
    const Tensor& t = program_.tensor(id);
    return {reinterpret_cast<int32_t*>(data(id, micro_batch % t.ring)), static_cast<size_t>(t.shape.elements())};
  };
  const bool batch = ports.tokens != kNoTensor || ports.labels != kNoTensor;
  const bool extra = ports.samples != kNoTensor || ports.encoder_tokens != kNoTensor;
  for (int m = 0; m < program_.micro_batches; ++m) {
    if (batch) MB_TRY(input.batch(m, slot_of(ports.tokens, m), slot_of(ports.labels, m)));
    if (extra) MB_TRY(input.extra(m, slot_of(ports.samples, m), slot_of(ports.encoder_tokens, m)));
    if (ports.starts != kNoTensor) MB_TRY(input.starts(m, slot_of(ports.starts, m)));
    if (ports.encoder_starts != kNoTensor) MB_TRY(input.encoder_starts(m, slot_of(ports.encoder_starts, m)));
    if (ports.sequences != kNoTensor) MB_TRY(input.sequences(m, slot_of(ports.sequences, m)));
    if (!input.routing) continue;
    for (const RoutingPort& port : ports.routing) MB_TRY(input.routing(m, port, slot_of(port.experts, m)));
  }
  return {};
}

std::span<const std::byte> CpuRank::arena(Space space) const {
  const bool host = space == Space::kHost;
  return {(host ? host_arena_ : arena_).get(), static_cast<size_t>(host ? plan_.host_bytes : plan_.arena_bytes)};
}

std::optional<NotFinite> CpuRank::left_by_optimizers() {
  for (const Segment& segment : program_.segments)
    for (const Op& op : segment.ops)
      for (const TensorId id : kept_by_optimizer(program_, op))
        if (!finite({data(id), &program_.tensor(id)}))
          return NotFinite{op.path, program_.tensor(id).path, 0, op.kind->communicates, true};
  return std::nullopt;
}

Result<StepOutput> CpuRank::step(const StepInput& input, std::vector<int64_t>* op_ns,
                                 std::optional<NotFinite>* not_finite) {
  MB_TRY(write_inputs(input));
  if (op_ns) op_ns->clear();
  if (not_finite) *not_finite = left_by_optimizers();
  std::vector<CpuOperand> in;
  std::vector<CpuOperand> out;
  const auto bind = [&](std::vector<CpuOperand>& operands, const std::vector<TensorId>& ids, const Call& call) {
    operands.clear();
    for (TensorId id : ids) operands.push_back({data(id, slot(program_.tensor(id), call)), &program_.tensor(id)});
  };
  MB_TRY(walk(program_, [&](int index, const Call& call, int, const Op& op) -> Status {
    bind(in, op.in, call);
    bind(out, op.out, call);
    world_.at(op.path, static_cast<uint64_t>(index));
    const int64_t begin = op_ns ? thread_cpu_ns() : 0;
    if (auto status = op.kind->cpu(CpuCall{op, in, out, context_}); !status)
      return tl::unexpected<Error>(
          std::move(status.error()).during(fmt::format("op {}, micro-batch {}", op.path, call.micro_batch)));
    if (op_ns) op_ns->push_back(thread_cpu_ns() - begin);
    if (not_finite && !not_finite->has_value()) *not_finite = look_at(op, out, call.micro_batch);
    return {};
  }));
  StepOutput output;
  const auto* loss = reinterpret_cast<const double*>(data(program_.ports.loss_sum));
  const auto* scale = reinterpret_cast<const float*>(data(program_.ports.grad_scale));
  output.loss_sum = loss[0];
  output.tokens = loss[1];
  output.grad_norm = static_cast<double>(scale[1]);
  output.found_inf = scale[2] != 0.0F;
  if (program_.ports.router_losses != kNoTensor) {
    const auto* router = reinterpret_cast<const double*>(data(program_.ports.router_losses));
    output.balance_loss_sum = router[0];
    output.z_loss_sum = router[1];
  }
  for (TensorId id : program_.ports.mtp_losses) {
    const auto* depth = reinterpret_cast<const double*>(data(id));
    output.mtp_loss_sum += depth[0];
    output.mtp_tokens += depth[1];
  }
  return output;
}

}  // namespace mbb::trainer
