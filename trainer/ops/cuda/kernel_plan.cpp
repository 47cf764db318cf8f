// Launch plans of our own kernels.
#include "trainer/ops/cuda/kernel_plan.h"

#include <fmt/core.h>

#include <algorithm>

namespace mbb::trainer::cuda {
namespace {

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

int row_block(RowShape shape, int vectors) {
  return static_cast<int>(ceil_div(ceil_div(shape.cols / 8, vectors), 32) * 32);
}

// A thread holds one vector of a row where a block has as many threads.
Result<KernelPlan> row_plan(const char* kernel, RowShape shape) {
  if (shape.cols % 8 != 0 || shape.cols <= 0 || shape.cols > 32768)
    return fail(ErrorCode::kBadArgument,
                fmt::format("{}: rows of {} elements; the hidden size must be a multiple of 8 and at most 32768",
                            kernel, shape.cols));
  KernelPlan plan;
  plan.kernel = kernel;
  const int64_t vectors = shape.cols / 8;
  plan.vectors = vectors <= 1024 ? 1 : 4;
  plan.block = row_block(shape, plan.vectors);
  return plan;
}

Result<void> check_attention(const AttentionShape& shape) {
  if ((shape.head_dim != 64 && shape.head_dim != 128) || shape.value_dim() != shape.head_dim)
    return fail(ErrorCode::kUnavailable,
                fmt::format("flash attention: heads of {}{} (this kernel knows 64 and 128)", shape.head_dim,
                            shape.value_dim() == shape.head_dim ? "" : fmt::format(" and {}", shape.value_dim())),
                "use attention_backend = unfused or fused");
  if (shape.apart())
    return fail(ErrorCode::kUnavailable, "flash attention: keys that are not packed with their queries",
                "use attention_backend = fused");
  if (shape.bias)
    return fail(ErrorCode::kUnavailable, "flash attention: a position bias", "use attention_backend = fused");
  if (shape.kv_heads <= 0 || shape.heads % shape.kv_heads != 0)
    return fail(ErrorCode::kBadArgument,
                fmt::format("flash attention: {} query heads over {} KV heads", shape.heads, shape.kv_heads));
  constexpr int64_t kMostDown = 65535;  // blocks of a grid
  if (shape.batch * shape.heads > kMostDown)
    return fail(ErrorCode::kUnavailable,
                fmt::format("flash attention: {} sequences of {} heads, {} of both together are the most", shape.batch,
                            shape.heads, kMostDown),
                "take a smaller micro-batch, or attention_backend = fused");
  return {};
}

}  // namespace

int bytes_of(Element element) {
  switch (element) {
    case Element::kF32: return 4;
    case Element::kBf16: return 2;
    case Element::kE4m3:
    case Element::kE5m2: return 1;
  }
  return 0;
}

const char* name(Element element) {
  switch (element) {
    case Element::kF32: return "fp32";
    case Element::kBf16: return "bf16";
    case Element::kE4m3: return "e4m3";
    case Element::kE5m2: return "e5m2";
  }
  return "?";
}

std::string format(const KernelPlan& plan) {
  return fmt::format("{} grid {}x{} block {} vectors {} smem {} B, {:.1f} MB", plan.kernel, plan.grid_x, plan.grid_y,
                     plan.block, plan.vectors, plan.smem_bytes, static_cast<double>(plan.bytes) * 1e-6);
}

Result<KernelPlan> plan_norm_forward(RowShape shape, Element in, Element out, bool residual, Sms sms, bool layer) {
  MB_ASSIGN(auto plan, row_plan("rmsnorm_forward", shape));
  // A row a warp, or a row a block and two vectors a thread: faster but for wide rows that are read alone for one sum.
  // Blocks that stay on SMs leave the margin free.
  if (sms.margin == 0 && shape.cols < 1024) {
    plan.rows = 4;
    plan.vectors = 4;
    plan.block = plan.rows * 32;
    plan.grid_x = std::max<int64_t>(1, ceil_div(shape.rows, plan.rows));
  } else if (sms.margin == 0 && shape.cols <= (residual || layer ? 8192 : 4096)) {
    plan.vectors =
        layer && shape.cols <= 6144 ? 3 : 2;  // of LayerNorm more of an SM's blocks compute while others wait
    plan.block = row_block(shape, plan.vectors);
    plan.grid_x = std::max<int64_t>(1, shape.rows);
  } else {
    const int64_t resident = std::max(1, 2048 / plan.block);
    plan.grid_x = std::clamp<int64_t>((sms.count - sms.margin) * resident, 1, std::max<int64_t>(1, shape.rows));
  }
  const int64_t elements = shape.rows * shape.cols;
  plan.bytes = elements * (bytes_of(in) * (residual ? 3 : 1) + bytes_of(out)) + shape.rows * 4;
  return plan;
}

Result<KernelPlan> plan_norm_backward(RowShape shape, Element in, bool residual, Sms sms, bool layer) {
  MB_ASSIGN(auto plan, row_plan("rmsnorm_backward", shape));
  // Narrow rows in pairs, which wait for one barrier and one chain of sums.
  if (in == Element::kBf16 && plan.block <= 128) plan.rows = 2;
  const int resident = std::clamp((layer && plan.rows == 2 ? kLayerThreads : 1024) / plan.block, 1, 16);
  plan.grid_x = std::clamp<int64_t>((sms.count - sms.margin) * resident, 1,
                                    std::max<int64_t>(1, ceil_div(shape.rows, plan.rows)));
  if (plan.vectors == 1) {
    constexpr int kOfSm = 228 << 10, kOfBlock = 5 << 9;  // beside the stages: sums, barriers and the driver's share
    const int stage = static_cast<int>(2 * plan.rows * shape.cols) * bytes_of(in);  // x and dy
    const bool alone = layer && in == Element::kBf16 && norm_layer_alone(plan);
    plan.stages = std::clamp((kOfSm / resident - kOfBlock) / stage, 1, alone ? 3 : kNormStages);
    plan.smem_bytes = plan.stages * stage;
  }
  plan.bytes = shape.rows * shape.cols * bytes_of(in) * (residual ? 4 : 3) + shape.rows * 4;
  return plan;
}

KernelPlan plan_norm_weight_grad(int64_t partials, int64_t cols) {
  KernelPlan plan;
  plan.kernel = "norm_weight_grad";
  plan.block = 256;
  plan.grid_x = ceil_div(cols, 32);
  plan.bytes = (partials + 2) * cols * 4;
  return plan;
}

KernelPlan plan_elementwise(const char* kernel, int64_t count, int bytes_per_element, Sms sms) {
  KernelPlan plan;
  plan.kernel = kernel;
  plan.block = 256;
  const int64_t wanted = ceil_div(std::max<int64_t>(count, 1), 8 * plan.block);
  plan.grid_x = std::min<int64_t>(wanted, int64_t{sms.count - sms.margin} * 64);
  plan.bytes = count * bytes_per_element;
  return plan;
}

int64_t quantize_tiles(RowShape shape, int outputs) {
  return ceil_div(shape.cols, 128 / outputs) * ceil_div(shape.rows, 128);
}

KernelPlan plan_amax(const char* kernel, RowShape shape, int vectors, int bytes_per_element, Sms sms) {
  KernelPlan plan;
  plan.kernel = kernel;
  plan.block = 256;
  plan.vectors = vectors;
  const int64_t runs = ceil_div(shape.rows * shape.cols / 8, int64_t{256} * vectors);
  plan.grid_x = std::clamp<int64_t>(runs, 1, int64_t{8} * std::max(sms.count, 1));
  plan.bytes = shape.rows * shape.cols * bytes_per_element;
  return plan;
}

Result<KernelPlan> plan_quantize(const char* kernel, RowShape shape, int outputs, int bytes_per_element) {
  if (shape.cols % 8 != 0 || shape.rows % 16 != 0)
    return fail(
        ErrorCode::kBadArgument,
        fmt::format("{}: {} x {}; rows must be a multiple of 16 and columns of 8", kernel, shape.rows, shape.cols),
        "in FP8 on a GPU, tokens of a micro-batch and rows of weights divide by 16: change the sequence length "
        "or the model's sizes, or take precision.recipe = bf16");
  KernelPlan plan;
  plan.kernel = kernel;
  plan.block = 256;
  plan.grid_x = quantize_tiles(shape, outputs);
  plan.bytes = shape.rows * shape.cols * bytes_per_element;
  return plan;
}

Result<KernelPlan> plan_quantize_once(const char* kernel, RowShape shape, int outputs, int bytes_per_element,
                                      SharedMemory shared, Sms sms) {
  MB_ASSIGN(KernelPlan plan, plan_quantize(kernel, shape, outputs, bytes_per_element));
  constexpr int64_t kStatic = 128 * 128 + 544, kOfDriver = 1 << 10;  // a turned tile, and of rows and warps
  constexpr int64_t kAll = kQuantizeOnceShared + kStatic;
  plan.smem_bytes = kQuantizeOnceShared;
  const int64_t an_sm = kAll > shared.of_block ? 0 : std::min<int64_t>(shared.of_sm / (kAll + kOfDriver), 2);
  plan.grid_x = std::min(plan.grid_x, an_sm * std::max(sms.count - sms.margin, 1));
  plan.vectors = kQuantizeOnceWaiting + kQuantizeOnceKept;
  return plan;
}

KernelPlan plan_cross_entropy(const char* kernel, int64_t rows, int64_t vocab, int passes_bytes) {
  KernelPlan plan;
  plan.kernel = kernel;
  plan.grid_x = std::max<int64_t>(rows, 1);
  plan.block = vocab >= 8192 ? 1024 : 256;
  plan.bytes = rows * vocab * passes_bytes;
  return plan;
}

int sms_beside(int sms, int margin, int target) {
  if (margin <= 0) return target;
  return std::max(2, ((target > 0 ? target : sms) - margin) / 2 * 2);
}

double attention_forward_flops(const AttentionShape& shape) {
  const double full = 2.0 * static_cast<double>(shape.batch * shape.heads) * static_cast<double>(shape.seq) *
                      static_cast<double>(shape.seq) * static_cast<double>(shape.head_dim + shape.value_dim());
  return shape.causal ? full / 2 : full;
}

Result<KernelPlan> plan_flash_forward(const AttentionShape& shape) {
  MB_TRY(check_attention(shape));
  KernelPlan plan;
  plan.kernel = "flash_forward";
  plan.block = 256;
  plan.grid_x = ceil_div(shape.seq, 128);
  plan.grid_y = shape.batch * shape.heads;
  plan.smem_bytes = static_cast<int>((128 + 4 * 64) * shape.head_dim * 2);
  plan.bytes = shape.batch * shape.seq * shape.head_dim * 2 * (2 * shape.heads + 2 * shape.kv_heads);
  return plan;
}

Result<KernelPlan> plan_flash_backward_kv(const AttentionShape& shape) {
  MB_TRY(check_attention(shape));
  KernelPlan plan;
  plan.kernel = "flash_backward_kv";
  plan.block = 128;
  plan.grid_x = ceil_div(shape.seq, 64);
  plan.grid_y = shape.batch * shape.kv_heads;
  // K and V of the block, then two stages of Q and dO (32 rows) with their log-sum-exp, delta, first and last key.
  plan.smem_bytes = static_cast<int>((2 * 64 + 4 * 32) * shape.head_dim * 2 + 2 * 4 * 32 * 4);
  plan.bytes = shape.batch * shape.seq * shape.head_dim * 2 * (3 * shape.heads + 4 * shape.kv_heads);
  return plan;
}

Result<KernelPlan> plan_flash_backward_q(const AttentionShape& shape) {
  MB_TRY(check_attention(shape));
  KernelPlan plan;
  plan.kernel = "flash_backward_q";
  plan.block = 128;
  plan.grid_x = ceil_div(shape.seq, 64);
  plan.grid_y = shape.batch * shape.heads;
  plan.smem_bytes = static_cast<int>((2 * 64 + 4 * 32) * shape.head_dim * 2);
  plan.bytes = shape.batch * shape.seq * shape.head_dim * 2 * (3 * shape.heads + 2 * shape.kv_heads);
  return plan;
}

}  // namespace mbb::trainer::cuda
