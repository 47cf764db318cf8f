// How each of our own kernels will be launched for a shape: pure, printable, tested without a GPU.
//
// `bytes` is the least device-memory traffic of the op (each input read once, each output written once), which is what
// a measured time is held against. Shapes: rows are tokens (s*b), row-major, innermost dimension last.
#pragma once

#include <cstdint>
#include <string>

#include "profiler/base/error.h"

namespace mbb::trainer::cuda {

enum class Element { kF32, kBf16, kE4m3, kE5m2 };

int bytes_of(Element element);
const char* name(Element element);

struct KernelPlan {
  const char* kernel = "";
  int64_t grid_x = 1;
  int64_t grid_y = 1;
  int block = 1;
  int rows = 1;        // a block takes at once, a warp each where there are several
  int vectors = 1;     // 8-element vectors a thread holds, where the kernel keeps a row in registers
  int smem_bytes = 0;  // dynamic shared memory
  int stages = 0;      // of it, on their way at once
  int64_t bytes = 0;   // least device-memory traffic
};

// One line: "rmsnorm_forward grid 264x1 block 512 vectors 1 smem 0 B, 134.2 MB".
std::string format(const KernelPlan& plan);

// What the device offers to a launch; sm_margin SMs are left to communication (norm SM margin knobs).
struct Sms {
  int count = 132;
  int margin = 0;
};

struct RowShape {
  int64_t rows = 0;
  int64_t cols = 0;  // a multiple of 8, at most 32768 for norms
};

// RMSNorm over the last dimension. residual: x + residual is normalized and also written.
Result<KernelPlan> plan_norm_forward(RowShape shape, Element in, Element out, bool residual, Sms sms,
                                     bool layer = false);
// Most stages of rows that a block of the backward has on their way, and threads of an SM that leave each registers
// enough for LayerNorm's.
constexpr int kNormStages = 4, kLayerThreads = 768;
// dx (plus an incoming residual gradient) and the weight gradient's per-block partials; `partials` = grid_x rows of
// cols fp32.
Result<KernelPlan> plan_norm_backward(RowShape shape, Element in, bool residual, Sms sms, bool layer = false);
// Whether a row's block is alone on its SM with as few threads.
inline bool norm_layer_alone(const KernelPlan& plan) {
  return plan.rows == 1 && plan.block > 512 && plan.block <= kLayerThreads;
}
// Sums `partials` rows of cols fp32 into the fp32 weight gradient, in row order.
KernelPlan plan_norm_weight_grad(int64_t partials, int64_t cols);

// Grid-stride element-wise kernels on `count` elements, 8 a thread; bytes_per_element read + written.
KernelPlan plan_elementwise(const char* kernel, int64_t count, int bytes_per_element, Sms sms);

// The largest magnitude: blocks that walk with `vectors` of 8 values a thread on their way.
KernelPlan plan_amax(const char* kernel, RowShape shape, int vectors, int bytes_per_element, Sms sms);
// A block a tile of 128 rows x 128 results (`outputs` a column): quantize, and write both q [rows, cols] and its
// transpose [cols, rows].
int64_t quantize_tiles(RowShape shape, int outputs);
Result<KernelPlan> plan_quantize(const char* kernel, RowShape shape, int outputs, int bytes_per_element);

// The same in one launch whose blocks wait for each other (quantize_once_kernel.cuh), at most two an SM; of its
// tiles a block keeps kQuantizeOnceWaiting in shared memory and kQuantizeOnceKept in registers; the others are read
// twice. grid_x 0: no block fits an SM.
constexpr int kQuantizeOnceWaiting = 3, kQuantizeOnceKept = 2;
constexpr int kQuantizeOnceShared = kQuantizeOnceWaiting * 128 * 128 * 2;
struct SharedMemory {
  int64_t of_block = 227 << 10, of_sm = 228 << 10;  // the most a block may ask for, and all blocks of an SM have
};
Result<KernelPlan> plan_quantize_once(const char* kernel, RowShape shape, int outputs, int bytes_per_element,
                                      SharedMemory shared, Sms sms);

// One block a row of logits.
KernelPlan plan_cross_entropy(const char* kernel, int64_t rows, int64_t vocab, int passes_bytes);

struct AttentionShape {
  int64_t batch = 1;
  int64_t seq = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 128;  // of queries and keys; our kernel: 64 or 128
  bool causal = true;
  int window = 0;           // keys a query sees, its own among them; 0: all of them. Causal only
  int64_t value_width = 0;  // of a value head; 0: head_dim. Latent attention: 192 and 128
  int64_t packs = 0;        // sequences of a pack at most, the tokens behind them one more; 0: whole sequences
  // Keys beside `seq` queries, in rows of their own ([k heads | v heads]; queries then stand alone). Causal: the last
  // query sees all of them, the one before it all but one, and so on. 0: as many as queries, packed with them.
  int64_t keys = 0;
  bool bias = false;  // added to the scores, [heads, seq, position_bias_row(keys)]; cuDNN alone takes one
  int64_t value_dim() const { return value_width == 0 ? head_dim : value_width; }
  bool apart() const { return keys > 0; }
  int64_t key_rows() const { return apart() ? keys : seq; }
  // Elements of a packed row, of the rows of queries and of keys, and of a row that attention gives.
  int64_t packed_row() const { return (heads + kv_heads) * head_dim + kv_heads * value_dim(); }
  int64_t query_row() const { return apart() ? heads * head_dim : packed_row(); }
  int64_t key_row() const { return apart() ? kv_heads * (head_dim + value_dim()) : packed_row(); }
  int64_t out_row() const { return heads * value_dim(); }
};

// SMs that a product may take of `sms`, of which other streams leave it `target` (0: all), when `margin` of those are
// left to a collective beside it (0: none); 0: all. Clusters take two at a time.
int sms_beside(int sms, int margin, int target);

// Multiply-adds counted as 2; the causal half is counted when causal. The backward is 2.5 times the forward.
double attention_forward_flops(const AttentionShape& shape);

Result<KernelPlan> plan_flash_forward(const AttentionShape& shape);
Result<KernelPlan> plan_flash_backward_kv(const AttentionShape& shape);
Result<KernelPlan> plan_flash_backward_q(const AttentionShape& shape);

}  // namespace mbb::trainer::cuda
