// A tensor of a step program: what one rank of a rank class holds, how it relates to the unsharded tensor, how long it
// lives.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trainer/program/dtype.h"
#include "trainer/program/mesh.h"
#include "trainer/program/shape.h"

namespace mbb::trainer {

using TensorId = int32_t;
inline constexpr TensorId kNoTensor = -1;

// What the bytes are for: the rows of the memory map (NUMERICS.md 4 and 5).
enum class Category : uint8_t {
  kWeight,
  kMainGrad,
  kMaster,      // fp32 master weights
  kMoment,      // Adam's exp_avg and exp_avg_sq
  kActivation,  // written by a forward segment
  kGradient,    // activation gradients, written by a backward segment
  kLogits,      // logits and their gradient
  kComm,        // buffers that exist for a collective only
  kWorkspace,
  kInput,  // tokens, labels, loss mask of a micro-batch
  kStep,   // step record, loss and norm scalars
};
inline constexpr int kCategories = 11;
const char* name(Category category);

// How long a value lives. Builders mark what persists; the rest follows from who reads it (finish_program).
enum class Scope : uint8_t {
  kCall,        // written and read within one call of a segment
  kMicroBatch,  // crosses calls: lives in ring slot (micro-batch mod ring)
  kStep,        // one value a step, over all its calls (main grads, loss sums)
  kPersistent,  // survives the step (weights, optimizer state)
};
const char* name(Scope scope);

// One cut of the unsharded tensor: dimension `dim` is divided over mesh axis `axis`. `parts` divides the dimension
// first (packed qkv: {q, k, v}; gated fc1: {gate, up}), and every part is cut by itself.
struct Cut {
  int dim = 0;
  Axis axis = Axis::kTp;
  std::vector<int64_t> parts;
};

// Which memory holds the bytes: the GPU's (the arena), or pinned host memory beside it.
enum class Space : uint8_t { kDevice, kHost };
const char* name(Space space);

// First values of a weight, a function of (seed, path, index in the unsharded tensor): the same for every mapping.
struct Init {
  enum class Kind : uint8_t { kNone, kZeros, kOnes, kNormal } kind = Kind::kNone;
  double stddev = 0;
};

// Ranks of other stages or of another mesh that hold the same weight: gradient sync adds up their gradients, so that
// they stay equal.
struct Sharing {
  std::optional<GroupKind> group;  // stages: kEmbedding or kPp
  bool meshes = false;             // the encoder and the decoder's first stage
  bool counted = true;             // this rank's gradient enters the norm; of all that share it one does

  bool shared() const { return group.has_value() || meshes; }
};

struct Tensor {
  std::string path;  // "layers.3.mlp.fc1.weight"
  DType dtype = DType::kF32;
  Shape shape;  // local extents
  Category category = Category::kActivation;
  Scope scope = Scope::kCall;
  int ring = 1;  // slots, for Scope::kMicroBatch
  Space space = Space::kDevice;

  // A view: these bytes are bytes [view_offset_bytes, ...) of tensor `view_of`, which is not a view itself.
  TensorId view_of = kNoTensor;
  int64_t view_offset_bytes = 0;

  Shape full_shape;  // unsharded extents; empty: equal to `shape`
  std::vector<Cut> cuts;
  Init init;
  TensorId main_grad = kNoTensor;  // weights that train: where their gradient accumulates
  bool weight_decay = false;       // weights: in the decay group
  Sharing sharing;                 // weights
  bool partial_over_tp = false;  // weights replicated over TP whose gradient is a partial sum there (sequence parallel)
  TensorId scales = kNoTensor;   // weights kept in FP8: their inverse scale and amax, f32 [2]
  TensorId scale_state = kNoTensor;  // and the scale f32 [1] they are written with, where it is delayed
  bool left_out = false;  // an op's output that nothing reads and it does not write: no bytes, and no address
  bool expert = false;    // weights of experts: replicated over kEdp, and what TP is to others is ETP to them

  int64_t bytes() const {
    return left_out ? 0 : static_cast<int64_t>(bytes_of(dtype, static_cast<size_t>(shape.elements())));
  }
};

}  // namespace mbb::trainer
