// One pass over the bits of a tensor.
#include <algorithm>

#include "trainer/execute/cuda/find_not_finite.h"
#include "trainer/ops/cuda/status.h"

namespace mbb::trainer::cuda {
namespace {

template <typename Word>
__global__ void not_finite_kernel(const Word* words, int64_t count, Word exponent, int* found) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride)
    if ((words[i] & exponent) == exponent && words[i] != static_cast<Word>(~Word{0})) *found = 1;
}

template <typename Word>
Status look(const Operand& operand, Word exponent, int* found, cudaStream_t stream) {
  const int64_t count = operand.elements();
  const auto grid = static_cast<unsigned>(std::clamp<int64_t>((count + 255) / 256, 1, 4096));
  not_finite_kernel<Word><<<grid, 256, 0, stream>>>(operand.as<const Word>(), count, exponent, found);
  return launched("not_finite");
}

}  // namespace

Result<bool> all_finite(const Operand& operand, Device& device) {
  MB_ASSIGN(void* const scratch, device.scratch(sizeof(int)));
  auto* const found = static_cast<int*>(scratch);
  const cudaStream_t stream = device.stream();
  MB_TRY(ok(cudaMemsetAsync(found, 0, sizeof(int), stream), "looking for values that are not finite"));
  switch (operand.tensor->dtype) {
    case DType::kF32: MB_TRY(look<uint32_t>(operand, 0x7f800000u, found, stream)); break;
    case DType::kF64: MB_TRY(look<unsigned long long>(operand, 0x7ff0000000000000ull, found, stream)); break;
    case DType::kBf16: MB_TRY(look<uint16_t>(operand, 0x7f80u, found, stream)); break;
    default: return true;
  }
  int answer = 0;
  MB_TRY(ok(cudaMemcpyAsync(&answer, found, sizeof(int), cudaMemcpyDeviceToHost, stream),
            "looking for values that are not finite"));
  MB_TRY(ok(cudaStreamSynchronize(stream), "looking for values that are not finite"));
  return answer == 0;
}

}  // namespace mbb::trainer::cuda
