// Kernels of latent attention's packing (LatentAttrs in trainer/ops/attrs.h), which turns queries and keys as it moves
// them. Any shape and alignment; all pointers are on the device.
#pragma once

#include "trainer/ops/cuda/kernels.h"

namespace mbb::trainer::cuda {

// Of a token: queries [heads * (nope + rope)], rotary key [rope], keys and values [heads * (nope + value)], packed qkv
// [heads * (nope + rope) | heads * (nope + rope) | heads * value].
struct LatentPacking {
  Element element = Element::kBf16;
  int64_t tokens = 0;
  int64_t batch = 1;
  int heads = 1, nope = 0, rope = 0, value = 0;
  int turned = 0;  // of the `rope` elements, the first ones
  bool interleaved = false;
  const float* table = nullptr;  // table and own are those of Rope
  const int32_t* own = nullptr;
};
Status latent_pack(const LatentPacking& args, const void* q, const void* key, const void* kv, void* packed,
                   const Launch& launch);
// dkey is the sum over the heads.
Status latent_unpack_grad(const LatentPacking& args, const void* dpacked, void* dq, void* dkey, void* dkv,
                          const Launch& launch);

}  // namespace mbb::trainer::cuda
