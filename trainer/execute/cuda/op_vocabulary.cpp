// CUDA function of the padding of vocabulary-parallel logits.
#include <algorithm>

#include "trainer/execute/cuda/op_call.h"
#include "trainer/ops/cuda/status.h"

namespace mbb::trainer::cuda {

Status mask_vocabulary_op(const OpCall& call) {
  const Tensor& logits = *call.in[0].tensor;
  const auto stream = call.device.stream();
  if (call.in[0].data != call.out[0].data)
    MB_TRY(ok(cudaMemcpyAsync(call.out[0].data, call.in[0].data, static_cast<size_t>(logits.bytes()),
                              cudaMemcpyDeviceToDevice, stream),
              "copying logits"));
  const int64_t cols = logits.shape.cols();
  const int64_t real = call.attrs<VocabularyAttrs>().vocabulary - cols * call.coordinates.tp;
  const auto kept = static_cast<size_t>(std::clamp<int64_t>(real, 0, cols));
  const size_t pitch = bytes_of(logits.dtype, static_cast<size_t>(cols));
  const size_t skipped = bytes_of(logits.dtype, kept);
  if (skipped == pitch) return {};
  return ok(cudaMemset2DAsync(call.out[0].as<char>() + skipped, pitch, kPaddingByte, pitch - skipped,
                              static_cast<size_t>(logits.shape.rows()), stream),
            "masking the vocabulary's padding");
}

}  // namespace mbb::trainer::cuda
