// Operands with a scale a block (trainer/ops/quantize_blocks.cpp and block_table.h have the layouts): quantization with
// both copies, and what a GEMM without such operands reads instead. Codes, scales and random bits are the oracle's, bit
// by bit.
#pragma once

#include "trainer/ops/attrs.h"
#include "trainer/ops/block_table.h"
#include "trainer/ops/cuda/kernels.h"

namespace mbb::trainer::cuda {

// One copy of a quantized tensor: codes [lines, inner], inverse scales of its blocks, and with E4M3 scales the inverse
// scale of the whole copy, f32 [1].
struct BlockCopy {
  void* q = nullptr;
  void* scales = nullptr;
  float* inverse = nullptr;
};

struct QuantizeBlocks {
  const QuantizeBlocksAttrs* attrs = nullptr;  // block is 16, 32 or 128
  Element from = Element::kBf16;
  RowShape shape;                    // of each of attrs->stack matrices; E2M1 packs two a byte: rows and cols are even
  BlockCopy rows, columns;           // [stack · rows, cols] and [cols, stack · rows]; null: left out
  const int32_t* samples = nullptr;  // stochastic rounding: [batch]
  int64_t batch = 1;
  const float* record = nullptr;  // stochastic rounding: the step record
  void* workspace = nullptr;      // of quantize_blocks_workspace() bytes
};
int64_t quantize_blocks_workspace(const QuantizeBlocks& args, const void* x);
Status quantize_blocks(const QuantizeBlocks& args, const void* x, const Launch& launch);

enum class CodeType { kE4M3, kE5M2, kE2M1 };
enum class ScaleType { kNone, kF32, kE8M0, kE4M3 };

// Codes times their blocks' inverse scales, as bf16 or fp32; without scales the codes' own values, whose blocks say
// only how many lines there are.
struct DecodeBlocks {
  CodeType code = CodeType::kE4M3;
  ScaleType scale = ScaleType::kNone;
  Element to = Element::kBf16;
  BlockTable blocks;
  bool turned = false;  // writes [inner, lines]
};
Status decode_blocks(const DecodeBlocks& args, const void* q, const void* scales, void* out, const Launch& launch);

// to[0] = a · b, to[1] = beta: the factors of a GEMM, on the device.
Status gemm_factors(const float* a, const float* b, float beta, float* to, const Launch& launch);

// Inverse scales [lines, blocks] as cuBLASLt reads them: of 1 x 128 blocks [blocks, lines], of square blocks [lines,
// blocks rounded up to 4]. bytes: of the result.
int64_t library_scales_bytes(int64_t lines, int64_t blocks, bool square);
Status library_scales(int64_t lines, int64_t blocks, bool square, const float* scales, float* to, const Launch& launch);

}  // namespace mbb::trainer::cuda
