// Launches of the FP8 quantization kernels.
#include <algorithm>
#include <type_traits>

#include "trainer/ops/cuda/kernels.h"
#include "trainer/ops/cuda/norm_strip_kernel.cuh"
#include "trainer/ops/cuda/quantize_once_kernel.cuh"
#include "trainer/ops/cuda/status.h"

namespace mbb::trainer::cuda {
namespace {

const bf16* b16(const void* x) {
  return static_cast<const bf16*>(x);
}

template <typename Producer>
int tiles_across(RowShape shape) {
  constexpr int64_t kAcross = 128 / Producer::kOutputs;
  return static_cast<int>((shape.cols + kAcross - 1) / kAcross);
}

template <typename Producer>
Status run(const char* kernel, const Quantize& a, Producer produce, int read_bytes, const Launch& launch) {
  const int written = (a.q != nullptr) + (a.qt != nullptr);
  MB_ASSIGN(const auto plan,
            plan_quantize(kernel, a.shape, Producer::kOutputs, read_bytes + written * Producer::kOutputs));
  // A scale that is given needs no pass before, of which L2 could keep the tail: tiles go down first, so that blocks
  // that run together write long pieces of the transpose's rows.
  const int64_t across = tiles_across<Producer>(a.shape), tiles_down = plan.grid_x / across;
  const int64_t tall = a.scale != nullptr ? std::min<int64_t>(tiles_down, 8) : 1;
  const dim3 grid(static_cast<unsigned>(tall), static_cast<unsigned>(across),
                  static_cast<unsigned>((tiles_down + tall - 1) / tall));
  const auto start = [&](auto kind) {
    quantize_kernel<Producer, decltype(kind)::value><<<grid, static_cast<unsigned>(plan.block), 0, launch.stream>>>(
        produce, a.shape.rows, a.shape.cols, {a.amax, a.scale, a.found_amax, a.inverse_scale},
        static_cast<uint8_t*>(a.q), static_cast<uint8_t*>(a.qt));
    return launched(kernel);
  };
  if (a.to == Element::kE4m3) return start(std::integral_constant<__nv_fp8_interpretation_t, __NV_E4M3>{});
  if (a.to == Element::kE5m2) return start(std::integral_constant<__nv_fp8_interpretation_t, __NV_E5M2>{});
  return fail(ErrorCode::kBadArgument, std::string(kernel) + ": target type " + name(a.to) + " is not an FP8 type");
}

struct OnceDevice {
  SharedMemory shared;
  bool cooperative = false;
};
Result<OnceDevice> once_device() {
  const auto read = [](cudaDeviceAttr attribute, int device) -> Result<int> {
    int value = 0;
    MB_TRY(ok(cudaDeviceGetAttribute(&value, attribute, device), "reading what a block may take"));
    return value;
  };
  int device = 0;
  MB_TRY(ok(cudaGetDevice(&device), "reading what a block may take"));
  OnceDevice d;
  MB_ASSIGN(d.shared.of_block, read(cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  MB_ASSIGN(d.shared.of_sm, read(cudaDevAttrMaxSharedMemoryPerMultiprocessor, device));
  MB_ASSIGN(const int cooperative, read(cudaDevAttrCooperativeLaunch, device));
  d.cooperative = cooperative != 0;
  return d;
}

// Lets blocks have their shared memory; how many fit an SM.
template <typename Kernel>
Result<int> resident(Kernel kernel, const KernelPlan& plan) {
  MB_TRY(ok(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, plan.smem_bytes), plan.kernel));
  MB_TRY(
      ok(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared),
         plan.kernel));
  int blocks = 0;
  MB_TRY(ok(
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, plan.block, static_cast<size_t>(plan.smem_bytes)),
      plan.kernel));
  return blocks;
}

// Blocks that wait for each other.
template <typename... Params, typename... Args>
Status start_together(void (*kernel)(Params...), const KernelPlan& plan, cudaStream_t stream, Args... args) {
  if (plan.grid_x == 0) return fail(ErrorCode::kUnavailable, std::string(plan.kernel) + ": a block does not fit an SM");
  cudaLaunchAttribute together;
  together.id = cudaLaunchAttributeCooperative;
  together.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(plan.grid_x));
  config.blockDim = dim3(static_cast<unsigned>(plan.block));
  config.dynamicSmemBytes = static_cast<size_t>(plan.smem_bytes);
  config.stream = stream;
  config.attrs = &together;
  config.numAttrs = 1;
  return ok(cudaLaunchKernelEx(&config, kernel, args...), plan.kernel);
}

template <typename Producer, __nv_fp8_interpretation_t kKind>
Status start_once(KernelPlan plan, const Quantize& a, Producer produce, const Launch& launch) {
  const int64_t rows = a.shape.rows, cols = a.shape.cols;
  const int across = tiles_across<Producer>(a.shape);
  const auto tiles = static_cast<int>(quantize_tiles(a.shape, Producer::kOutputs));
  const OnceScale by{static_cast<uint32_t*>(a.partials), a.found_amax, a.inverse_scale};
  auto *q = static_cast<uint8_t*>(a.q), *qt = static_cast<uint8_t*>(a.qt);
  const auto start = [&](auto kernel, auto... args) -> Status {
    MB_ASSIGN(const int an_sm, resident(kernel, plan));
    plan.grid_x = std::min<int64_t>(plan.grid_x, int64_t{an_sm} * launch.sms.count);
    return start_together(kernel, plan, launch.stream, produce, rows, args..., across, tiles, by, q, qt);
  };
  if constexpr (Producer::kStored)
    return start(quantize_once_kernel<kKind>);
  else
    return start(quantize_made_once_kernel<Producer, kKind>, cols);
}

// Whether all tiles of a norm stay on the chip.
bool tiles_fit(RowShape shape, const OnceDevice& device, Sms sms) {
  const auto plan = plan_quantize_once("quantize_norm_once", shape, 1, 4, device.shared, sms);
  return plan && quantize_tiles(shape, 1) <= plan->grid_x * kQuantizeOnceWaiting;
}

// Blocks of a strip of 128 rows; 0 where strips are none or too many.
int64_t strip_parts(RowShape shape, const OnceDevice& device, Sms sms) {
  const auto plan = plan_quantize_once("quantize_norm_once", shape, 1, 4, device.shared, sms);
  if (!plan || shape.rows % 128 != 0 || shape.cols % 128 != 0) return 0;
  return std::min(shape.cols / 128, plan->grid_x / (shape.rows / 128));
}

template <__nv_fp8_interpretation_t kKind>
Status start_strips(const Quantize& a, const NormOnce& norm, int64_t parts, const Launch& launch) {
  KernelPlan plan;
  plan.kernel = "quantize_norm_strips";
  plan.block = 256;
  plan.smem_bytes = kQuantizeOnceShared;
  MB_ASSIGN(const int an_sm, resident(norm_strips_kernel<kKind>, plan));
  plan.grid_x = a.shape.rows / 128 * parts;
  if (plan.grid_x > int64_t{an_sm} * launch.sms.count) plan.grid_x = 0;
  auto* const sums = static_cast<float2*>(a.partials);
  const OnceScale by{reinterpret_cast<uint32_t*>(sums + plan.grid_x * 128), a.found_amax, a.inverse_scale};
  return start_together(norm_strips_kernel<kKind>, plan, launch.stream, norm, a.shape.rows, static_cast<int>(parts),
                        sums, by, static_cast<uint8_t*>(a.q), static_cast<uint8_t*>(a.qt));
}

template <typename Producer>
Status run_once(const char* kernel, const Quantize& a, Producer produce, int read_bytes, const Launch& launch) {
  const int written = (a.q != nullptr) + (a.qt != nullptr);
  MB_ASSIGN(const OnceDevice device, once_device());
  MB_ASSIGN(const auto plan, plan_quantize_once(kernel, a.shape, Producer::kOutputs,
                                                read_bytes + written * Producer::kOutputs, device.shared, launch.sms));
  if (plan.grid_x == 0 || !device.cooperative)
    return fail(ErrorCode::kUnavailable, std::string(kernel) + ": no grid of blocks that wait for each other here");
  if (a.to == Element::kE4m3) return start_once<Producer, __NV_E4M3>(plan, a, produce, launch);
  if (a.to == Element::kE5m2) return start_once<Producer, __NV_E5M2>(plan, a, produce, launch);
  return fail(ErrorCode::kBadArgument, std::string(kernel) + ": target type " + name(a.to) + " is not an FP8 type");
}

template <typename Producer>
Status amax(const char* kernel, RowShape shape, Producer produce, float* out, int read_bytes, const Launch& launch) {
  if (shape.cols % 8 != 0)
    return fail(ErrorCode::kBadArgument, std::string(kernel) + ": columns must be a multiple of 8");
  if (shape.rows * shape.cols / 8 >= int64_t{1} << 32)
    return fail(ErrorCode::kBadArgument, std::string(kernel) + ": more than 2^32 vectors of 8 elements");
  // With several vectors in flight a thread needs a long walk: a few blocks an SM.
  const auto plan = plan_amax(kernel, shape, kAmaxInFlight<Producer>, read_bytes, launch.sms);
  amax_kernel<<<static_cast<unsigned>(plan.grid_x), static_cast<unsigned>(plan.block), 0, launch.stream>>>(
      produce, shape.rows, shape.cols, out);
  return launched(kernel);
}

}  // namespace

Status amax_of(Element element, const void* x, int64_t count, float* out, const Launch& launch) {
  if (element != Element::kBf16)
    return fail(ErrorCode::kBadArgument, std::string("amax_of: element ") + name(element) + "; only bf16 is quantized");
  return amax("amax_of", {1, count}, PlainProducer{b16(x), count}, out, 2, launch);
}

Status quantize(const Quantize& args, const void* x, const Launch& launch) {
  return run("quantize", args, PlainProducer{b16(x), args.shape.cols}, 2, launch);
}

Status quantize_norm(const Quantize& args, const void* x, const float* rstd, const void* weight, const Launch& launch) {
  return run("quantize_norm", args, NormProducer{b16(x), b16(weight), rstd, args.shape.cols}, 2, launch);
}

Status swiglu_amax(RowShape shape, const void* gate_up, float* out, const Launch& launch) {
  return amax("swiglu_amax", shape, SwigluProducer{b16(gate_up), shape.cols}, out, 4, launch);
}

Status quantize_swiglu(const Quantize& args, const void* gate_up, const Launch& launch) {
  return run("quantize_swiglu", args, SwigluProducer{b16(gate_up), args.shape.cols}, 4, launch);
}

Status swiglu_backward_amax(RowShape shape, const void* gate_up, const void* dy, float* out, const Launch& launch) {
  return amax("swiglu_backward_amax", shape, SwigluBackwardProducer{b16(gate_up), b16(dy), shape.cols}, out, 6, launch);
}

Status quantize_swiglu_backward(const Quantize& args, const void* gate_up, const void* dy, const Launch& launch) {
  return run("quantize_swiglu_backward", args, SwigluBackwardProducer{b16(gate_up), b16(dy), args.shape.cols}, 6,
             launch);
}

int64_t quantize_once_partials(const Launch& launch) {
  const auto device = once_device();
  if (!device || !device->cooperative) return 0;
  const auto plan =
      plan_quantize_once("quantize_once", {int64_t{1} << 20, int64_t{1} << 10}, 1, 4, device->shared, launch.sms);
  return plan ? plan->grid_x * int64_t{sizeof(uint32_t) + 128 * sizeof(float2)} : 0;
}

Status quantize_once(const Quantize& args, const void* x, const Launch& launch) {
  return run_once("quantize_once", args, PlainProducer{b16(x), args.shape.cols}, 2, launch);
}

bool quantize_norm_once_fits(RowShape shape, const Launch& launch) {
  const auto device = once_device();
  return device && device->cooperative &&
         (tiles_fit(shape, *device, launch.sms) || strip_parts(shape, *device, launch.sms) > 0);
}

Status quantize_norm_once(const Quantize& args, const NormForward& norm, const Launch& launch) {
  MB_ASSIGN(const OnceDevice device, once_device());
  const NormOnce once{{b16(norm.x), b16(norm.weight), norm.rstd, args.shape.cols}, norm.rstd, norm.eps};
  const int64_t parts = strip_parts(args.shape, device, launch.sms);
  if (parts == 0 || tiles_fit(args.shape, device, launch.sms))
    return run_once("quantize_norm_once", args, once, 2, launch);
  return args.to == Element::kE5m2 ? start_strips<__NV_E5M2>(args, once, parts, launch)
                                   : start_strips<__NV_E4M3>(args, once, parts, launch);
}

Status quantize_swiglu_once(const Quantize& args, const void* gate_up, const Launch& launch) {
  return run_once("quantize_swiglu_once", args, SwigluProducer{b16(gate_up), args.shape.cols}, 4, launch);
}

Status quantize_swiglu_backward_once(const Quantize& args, const void* gate_up, const void* dy, const Launch& launch) {
  return run_once("quantize_swiglu_backward_once", args, SwigluBackwardProducer{b16(gate_up), b16(dy), args.shape.cols},
                  6, launch);
}

}  // namespace mbb::trainer::cuda
