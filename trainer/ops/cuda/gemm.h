// GEMM through cuBLASLt: problems by role, one cached plan per problem, candidates to be timed, fixed workspace.
//
// All matrices are row-major: D[m, n] = op(A)[m, k] * op(B)[k, n] (+ D when accumulate), fp32 accumulation. Of linear
// layers:
//   fprop Y[T, out] = X[T, in] * W[out, in]^T        (b_transposed)
//   dgrad dX[T, in] = dY[T, out] * W[out, in]
//   wgrad dW[out, in] (+)= dY[T, out]^T * X[T, in]   (a_transposed)
// FP8 operands must be A plain and B transposed (the only form Hopper has): dgrad reads W^T as [in, out], wgrad dY^T
// and X^T.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "profiler/base/error.h"
#include "trainer/ops/cuda/kernel_plan.h"

struct CUstream_st;  // CUDA's own declaration, so that problems and tuning are read and tested without its headers
using cudaStream_t = CUstream_st*;

namespace mbb::trainer::cuda {

inline constexpr int64_t kGemmWorkspace = int64_t{32} << 20;
// As many as cuBLASLt's heuristic has for a problem, however many are asked for.
inline constexpr int kOfferedAlgorithms = 8;

// Scales of an FP8 operand's inner blocks instead of one of the whole operand.
enum class BlockScaling { kNone, kRows, kSquare };  // 1 x 128, 128 x 128

struct GemmProblem {
  int64_t m = 0, n = 0, k = 0;
  bool a_transposed = false;  // A is stored [k, m]
  bool b_transposed = false;  // B is stored [n, k]
  Element a = Element::kBf16;
  Element b = Element::kBf16;
  Element d = Element::kBf16;
  bool accumulate = false;         // D += ...
  bool add_c = false;              // D = ... + C, C of D's type and shape (a residual)
  bool fast_accumulation = false;  // FP8 only: accumulate in the tensor core's own width
  BlockScaling a_blocks = BlockScaling::kNone;
  BlockScaling b_blocks = BlockScaling::kNone;
  bool device_factors = false;  // D = factor · A*B + beta · C, both read on the device
  int sm_target = 0;            // 0: all SMs
  int alignment = 256;          // bytes to which every address is aligned, at most 256
};

enum class GemmRole { kFprop, kDgrad, kWgrad };
const char* name(GemmRole role);
// The problem of a linear layer [tokens, in] -> [tokens, out]; fp8: operands E4M3 (gradients E5M2) and TN forms.
GemmProblem linear_problem(GemmRole role, int64_t tokens, int64_t in, int64_t out, bool fp8, bool accumulate);

double gemm_flops(const GemmProblem& problem);
// Key of a problem in the tuning file: "m8192 n6144 k4096 nt bf16 bf16 bf16 beta0".
std::string key(const GemmProblem& problem);

struct GemmBuffers {
  const void* a = nullptr;
  const void* b = nullptr;
  const void* c = nullptr;  // add_c
  void* d = nullptr;
  const float* a_scale = nullptr;  // FP8: device scalars that dequantize (inverse scales), 16-byte aligned
  const float* b_scale = nullptr;  // or, of blocks, library_scales() (block_scaled.h)
  const float* factors = nullptr;  // device_factors: {factor, beta}
  void* workspace = nullptr;       // kGemmWorkspace bytes, owned by the stream
};

// What GemmProblem::alignment is for these addresses.
int gemm_alignment(const GemmBuffers& buffers);

// The operands at places of `memory`, which begins at 256, one set behind the other: together they pass twice a cache
// of so many bytes, so that no call finds there what an earlier one left. `own` alone where one set passes it, or where
// memory has no room for two.
std::vector<GemmBuffers> rotated(const GemmProblem& problem, const GemmBuffers& own, std::span<std::byte> memory,
                                 int64_t cache_bytes);

// An algorithm as cuBLASLt keeps it, to be stored and read back for the same device, driver and library.
using GemmAlgorithm = std::array<uint64_t, 8>;

struct GemmCandidate {
  GemmAlgorithm algorithm{};
  int64_t workspace_bytes = 0;
  float waves = 0.0f;
};

// One per device and thread of use. Holds the cuBLASLt handle and the descriptors of every problem it has seen.
class Gemm {
 public:
  static Result<std::unique_ptr<Gemm>> make();
  virtual ~Gemm() = default;

  // Up to `limit` algorithms: the library's heuristic's, best guess first, then whatever other tile, stage, cluster,
  // swizzle and option it admits for the problem, in no order of merit and found by trying. An empty list is an
  // error that names the problem.
  virtual Result<std::vector<GemmCandidate>> candidates(const GemmProblem& problem, int limit) = 0;
  // From now on run() uses this algorithm for the problem; without a choice it uses the heuristic's first.
  virtual Status choose(const GemmProblem& problem, const GemmAlgorithm& algorithm) = 0;
  virtual Status run(const GemmProblem& problem, const GemmBuffers& buffers, cudaStream_t stream) = 0;
};

// Library version, as 130100.
uint64_t cublaslt_version();

}  // namespace mbb::trainer::cuda
