// The step program: what one rank of a rank class does in a training step, as data. Every use of the product reads
// this: the CPU and CUDA executors run it, simulate replays it, explain prints it, the memory plan places it.
//
// A program is segments (op lists) and a schedule of calls; it holds no rank number, no pointer and no step-dependent
// value.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/ops/attrs.h"
#include "trainer/program/tensor.h"

namespace mbb::trainer {

struct OpKind;  // trainer/ops/op_kind.h: the record of an op kind

// Which of a layer's three matrix products a GEMM is; weight gradients of other ops carry kWgrad too.
enum class Role : uint8_t { kNone, kFprop, kDgrad, kWgrad };
const char* name(Role role);

// On which micro-batches of the step an op runs. One micro-batch is both first and last.
enum class When : uint8_t { kAlways, kFirst, kNotFirst, kLast, kNotLast };
const char* name(When when);
inline bool runs(When when, bool first, bool last) {
  switch (when) {
    case When::kAlways: return true;
    case When::kFirst: return first;
    case When::kNotFirst: return !first;
    case When::kLast: return last;
    case When::kNotLast: return !last;
  }
  return true;
}

// Queues in which ops run one after another; ops of different queues overlap unless a tensor orders them. The four
// pipeline queues are one a direction and end: a stage that waits for its peer to take an activation can still receive,
// so stages in a ring cannot wait for each other in a circle.
enum class Stream : uint8_t {
  kCompute,
  kTp,
  kCp,
  kEp,
  kPpRecvForward,
  kPpSendForward,
  kPpRecvBackward,
  kPpSendBackward,
  kDp,
  kCopy
};
inline constexpr int kStreams = 10;
const char* name(Stream stream);

// `in` is read, `out` is written; a tensor that stands in both is updated in place.
struct Op {
  const OpKind* kind = nullptr;
  std::string path;  // "layers.3.mlp.fc1.fwd": NVTX range, table row, term of the projection
  std::vector<TensorId> in;
  std::vector<TensorId> out;
  Attrs attrs;
  Role role = Role::kNone;
  When when = When::kAlways;
  Stream stream = Stream::kCompute;
  std::vector<std::string> covers;  // paths of the ops a fused op stands for
  bool recompute = false;           // runs a forward op again in the backward; its FLOPs are no model FLOPs
};

// kWgrad: weight gradients apart from their backward. kParamGather: parameters gathered at a point of the schedule.
enum class SegmentKind : uint8_t { kForward, kBackward, kGradSync, kOptimizer, kWgrad, kParamGather };
inline constexpr int kSegmentKinds = 6;
const char* name(SegmentKind kind);

struct Segment {
  std::string name;  // "chunk0.forward"
  SegmentKind kind = SegmentKind::kForward;
  int chunk = 0;
  std::vector<Op> ops;
};

// One execution of a segment. Calls outside micro-batches (gradient sync, optimizer, parameter gather) carry
// micro_batch 0 and run every op.
struct Call {
  int segment = 0;
  int micro_batch = 0;
};

// What a layer's router chose: written by the host where a run is replayed, read by it where one is recorded.
struct RoutingPort {
  std::string router;             // "layers.3.mlp.router"
  TensorId experts = kNoTensor;   // i32 [tokens, top_k], per micro-batch
  bool sequence_sharded = false;  // tokens of this tensor-parallel rank alone
};

// Tensors through which the world reaches a program and hears from it.
struct Ports {
  TensorId tokens = kNoTensor;          // i32 [s, b], per micro-batch; first stage
  TensorId labels = kNoTensor;          // i32 [s, b]; last stage
  TensorId samples = kNoTensor;         // i32 [b]: global sample numbers of a micro-batch, for dropout
  TensorId encoder_tokens = kNoTensor;  // i32 [encoder s, b], per micro-batch; encoder-decoders
  TensorId starts = kNoTensor;          // i32 [capacity + 1]: where a pack's sequences begin
  TensorId encoder_starts = kNoTensor;  // i32 [capacity + 1]: the same of the encoder's tokens
  TensorId sequences = kNoTensor;       // i32 [s, b]: the micro-batch's sequence that a token is of, -1: padding
  TensorId step_record = kNoTensor;     // f32 [StepRecord::kFields]
  TensorId loss_sum = kNoTensor;        // f64 [2]: sum of token losses, tokens; all-reduced by the optimizer segment
  TensorId grad_scale = kNoTensor;      // f32 [3]: factor on gradients, global gradient norm, found_inf
  TensorId router_losses = kNoTensor;   // f64 [2]: balancing loss and z-loss of all experts' routers, over the step
  std::vector<TensorId> mtp_losses;     // f64 [2] a depth of multi-token prediction: as loss_sum
  std::vector<RoutingPort> routing;     // of the routers in this program, where choices are recorded or replayed
  std::vector<TensorId> step_sums;      // sums over micro-batches which gradient sync adds up over data-parallel ranks
};

// Fields of the step record: what changes between steps, read on the device.
struct StepRecord {
  enum Field : int { kLearningRate, kBiasCorrection1, kBiasCorrection2, kStep, kFields };
};

// Collectives of a group that are held to so many SMs, in clusters of so many: a communicator's own property.
struct CommLimit {
  GroupKind group = GroupKind::kTp;
  int num_sm = 0;
  int cga_size = 0;
  auto operator<=>(const CommLimit&) const = default;
};

struct Program {
  RankClass rank_class;
  int micro_batches = 1;
  std::vector<Tensor> tensors;
  std::vector<Segment> segments;
  std::vector<Call> schedule;
  Ports ports;
  std::vector<GroupKind> groups;  // that some rank of the world communicates over, whichever program it runs; ascending
  std::vector<CommLimit> limits;  // likewise, of its collectives; ascending

  const Tensor& tensor(TensorId id) const { return tensors[static_cast<size_t>(id)]; }
  Tensor& tensor(TensorId id) { return tensors[static_cast<size_t>(id)]; }
  // The tensor that owns the bytes: itself, or what it is a view of.
  TensorId storage(TensorId id) const { return tensor(id).view_of == kNoTensor ? id : tensor(id).view_of; }
  const Segment& segment(const Call& call) const { return segments[static_cast<size_t>(call.segment)]; }
};

}  // namespace mbb::trainer
