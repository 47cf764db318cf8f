// Launches of the FP8 quantization kernels.
#include <algorithm>

#include "trainer/ops/cuda/kernels.h"
#include "trainer/ops/cuda/quantize_kernel.cuh"
#include "trainer/ops/cuda/status.h"

namespace mbb::trainer::cuda {
namespace {

const bf16* b16(const void* x) {
  return static_cast<const bf16*>(x);
}

template <typename Producer>
Status run(const char* kernel, const Quantize& a, Producer produce, int read_bytes, const Launch& launch) {
  const int written = (a.q != nullptr) + (a.qt != nullptr);
  MB_ASSIGN(const auto plan, plan_quantize(kernel, a.shape, read_bytes + written * Producer::kOutputs));
  const dim3 grid(static_cast<unsigned>(plan.grid_x), static_cast<unsigned>(plan.grid_y));
  auto* q = static_cast<uint8_t*>(a.q);
  auto* qt = static_cast<uint8_t*>(a.qt);
  if (a.to == Element::kE4m3)
    quantize_kernel<Producer, __NV_E4M3><<<grid, 256, 0, launch.stream>>>(
        produce, a.shape.rows, a.shape.cols, {a.amax, a.scale, a.found_amax, a.inverse_scale}, q, qt);
  else if (a.to == Element::kE5m2)
    quantize_kernel<Producer, __NV_E5M2><<<grid, 256, 0, launch.stream>>>(
        produce, a.shape.rows, a.shape.cols, {a.amax, a.scale, a.found_amax, a.inverse_scale}, q, qt);
  else
    return fail(ErrorCode::kBadArgument, std::string(kernel) + ": target type " + name(a.to) + " is not an FP8 type");
  return launched(kernel);
}

template <typename Producer>
Status amax(const char* kernel, RowShape shape, Producer produce, float* out, int read_bytes, const Launch& launch) {
  if (shape.cols % 8 != 0)
    return fail(ErrorCode::kBadArgument, std::string(kernel) + ": columns must be a multiple of 8");
  if (shape.rows * shape.cols / 8 >= int64_t{1} << 32)
    return fail(ErrorCode::kBadArgument, std::string(kernel) + ": more than 2^32 vectors of 8 elements");
  // With several vectors in flight a thread needs a long walk: a few blocks an SM.
  const auto plan = plan_elementwise(kernel, shape.rows * shape.cols, read_bytes, launch.sms);
  const int64_t grid =
      Producer::kInFlight > 1 ? std::min<int64_t>(plan.grid_x, int64_t{launch.sms.count} * 8) : plan.grid_x;
  amax_kernel<<<static_cast<unsigned>(grid), static_cast<unsigned>(plan.block), 0, launch.stream>>>(produce, shape.rows,
                                                                                                    shape.cols, out);
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

}  // namespace mbb::trainer::cuda
