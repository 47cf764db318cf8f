// One rank's step program on the CPU: the oracle. Ops run one after another in program order, in an arena laid out by
// the memory plan, and each is timed on its thread's CPU clock.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trainer/comm/communicator.h"
#include "trainer/ops/op_kind.h"
#include "trainer/program/memory_plan.h"
#include "trainer/program/program.h"

namespace mbb::trainer {

// What the host gives a step: the record, and the tokens and labels of each micro-batch, [s, b] row-major.
struct StepInput {
  std::array<float, StepRecord::kFields> record{};
  // Fills tokens and labels of one micro-batch (either may be empty when the program does not read it).
  std::function<Status(int micro_batch, std::span<int32_t> tokens, std::span<int32_t> labels)> batch;
  // What only some models read; not called where the program reads neither: global sample numbers [b], and the
  // encoder's tokens [encoder s, b].
  std::function<Status(int micro_batch, std::span<int32_t> samples, std::span<int32_t> encoder_tokens)> extra = {};
  // Where the sequences of a micro-batch's pack begin, [capacity + 1], and those of the encoder's; called where the
  // program reads it.
  std::function<Status(int micro_batch, std::span<int32_t> starts)> starts = {};
  std::function<Status(int micro_batch, std::span<int32_t> starts)> encoder_starts = {};
  // Which of the micro-batch's sequences each token [s, b] is of, -1 where it is padding; called where the program
  // reads it.
  std::function<Status(int micro_batch, std::span<int32_t> sequences)> sequences = {};
  // What a router chooses where a run is replayed, [tokens, top_k].
  std::function<Status(int micro_batch, const RoutingPort& router, std::span<int32_t> experts)> routing = {};
};

struct StepOutput {
  double loss_sum = 0;  // over the global batch
  double tokens = 0;
  double grad_norm = 0;
  bool found_inf = false;
  // Beside the main loss, over the global batch: balancing and z-losses of all routers with their coefficients, and the
  // losses of multi-token prediction, whose depths are added up.
  double balance_loss_sum = 0;
  double z_loss_sum = 0;
  double mtp_loss_sum = 0;
  double mtp_tokens = 0;

  double loss() const { return loss_sum / tokens; }
};

// The first op that wrote a value that is not finite.
struct NotFinite {
  std::string op;
  std::string tensor;
  int micro_batch = 0;
  bool communicates = false;
  bool step_before = false;  // an optimizer's, which the step began with: of the step before, or the first values
};

class CpuRank {
 public:
  // The arena's first bytes: fp32, fp64 and bf16 all read a run of them as NaN.
  static constexpr uint8_t kPoison = 0xff;

  // `program` and `plan` must outlive the rank. Opens a communicator for every group the program uses, in one order on
  // all ranks; allocates the arena and fills it with `poison`, so that a read of what nobody wrote shows.
  static Result<std::unique_ptr<CpuRank>> create(const Program& program, const MemoryPlan& plan, const Mesh& mesh,
                                                 World& world, uint64_t seed, uint8_t poison = kPoison);

  // One step. With `op_ns` the CPU time of each op is stored, in walk order. With `not_finite` every floating-point
  // value an op writes is looked at, until the first that is neither finite nor what the poison reads as; before all of
  // them what optimizers left. Errors name the op.
  Result<StepOutput> step(const StepInput& input, std::vector<int64_t>* op_ns = nullptr,
                          std::optional<NotFinite>* not_finite = nullptr);

  // All of the plan's bytes in a space, for tests.
  std::span<const std::byte> arena(Space space = Space::kDevice) const;
  // The bytes of a tensor in a slot, for tests and checkpoints.
  std::byte* data(TensorId id, int slot = 0);
  CommStats stats(GroupKind kind) const;

 private:
  CpuRank(const Program& program, const MemoryPlan& plan, World& world)
      : program_(program), plan_(plan), world_(world) {}
  Status open_communicators(const Mesh& mesh);
  Status write_inputs(const StepInput& input);
  std::optional<NotFinite> left_by_optimizers();

  const Program& program_;
  const MemoryPlan& plan_;
  World& world_;
  RankContext context_;
  std::vector<std::unique_ptr<Communicator>> communicators_;
  using Arena = std::unique_ptr<std::byte, void (*)(void*)>;
  Result<Arena> allocate(int64_t bytes, uint8_t poison) const;
  Arena arena_{nullptr, std::free};
  Arena host_arena_{nullptr, std::free};  // tensors of Space::kHost
};

}  // namespace mbb::trainer
