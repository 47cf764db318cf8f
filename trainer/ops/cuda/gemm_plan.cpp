// GEMM problems of linear layers: shapes, FLOPs and names, without a library.
#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "trainer/ops/cuda/gemm.h"

namespace mbb::trainer::cuda {

const char* name(GemmRole role) {
  switch (role) {
    case GemmRole::kFprop: return "fprop";
    case GemmRole::kDgrad: return "dgrad";
    case GemmRole::kWgrad: return "wgrad";
  }
  return "?";
}

GemmProblem linear_problem(GemmRole role, int64_t tokens, int64_t in, int64_t out, bool fp8, bool accumulate) {
  GemmProblem p;
  p.accumulate = accumulate;
  const Element activation = fp8 ? Element::kE4m3 : Element::kBf16;
  const Element gradient = fp8 ? Element::kE5m2 : Element::kBf16;
  p.b = activation;
  switch (role) {
    case GemmRole::kFprop:
      p.m = tokens, p.n = out, p.k = in, p.a = activation, p.b_transposed = true, p.fast_accumulation = fp8;
      break;
    case GemmRole::kDgrad: p.m = tokens, p.n = in, p.k = out, p.a = gradient, p.b_transposed = fp8; break;
    case GemmRole::kWgrad:
      p.m = out, p.n = in, p.k = tokens, p.a = gradient, p.d = Element::kF32;
      p.a_transposed = !fp8, p.b_transposed = fp8;
      break;
  }
  return p;
}

int gemm_alignment(const GemmBuffers& buffers) {
  uintptr_t all = 256;
  for (const void* p : {buffers.a, buffers.b, buffers.c, static_cast<const void*>(buffers.d)})
    all |= reinterpret_cast<uintptr_t>(p);
  return static_cast<int>(all & (~all + 1));
}

std::vector<GemmBuffers> rotated(const GemmProblem& p, const GemmBuffers& own, std::span<std::byte> memory,
                                 int64_t cache_bytes) {
  const auto up = [](int64_t bytes) { return (bytes + 255) / 256 * 256; };
  const int64_t a = up(p.m * p.k * bytes_of(p.a)), b = up(p.k * p.n * bytes_of(p.b)), d = up(p.m * p.n * bytes_of(p.d));
  const int64_t set = a + b + d + (p.add_c ? d : 0);
  const int64_t sets = std::min(2 * cache_bytes / set + 1, static_cast<int64_t>(memory.size()) / set);
  if (sets < 2) return {own};
  std::vector<GemmBuffers> all(static_cast<size_t>(sets), own);
  std::byte* at = memory.data();
  const auto take = [&](int64_t bytes) { return std::exchange(at, at + bytes); };
  for (GemmBuffers& buffers : all) {
    buffers.a = take(a), buffers.b = take(b), buffers.d = take(d);
    if (p.add_c) buffers.c = take(d);
  }
  return all;
}

double gemm_flops(const GemmProblem& problem) {
  return 2.0 * static_cast<double>(problem.m) * static_cast<double>(problem.n) * static_cast<double>(problem.k);
}

std::string key(const GemmProblem& p) {
  constexpr const char* kBlocks[] = {"", "1x128", "128x128"};
  const bool blocks = p.a_blocks != BlockScaling::kNone || p.b_blocks != BlockScaling::kNone;
  return fmt::format("m{} n{} k{} {}{} {} {} {} beta{}{}{}{}{}{}{}", p.m, p.n, p.k, p.a_transposed ? 't' : 'n',
                     p.b_transposed ? 't' : 'n', name(p.a), name(p.b), name(p.d), p.accumulate ? 1 : 0,
                     p.add_c ? " c" : "", p.fast_accumulation ? " fast" : "",
                     blocks ? fmt::format(" blocks {}·{}", kBlocks[static_cast<int>(p.a_blocks)],
                                          kBlocks[static_cast<int>(p.b_blocks)])
                            : "",
                     p.device_factors ? " factors" : "", p.sm_target > 0 ? fmt::format(" sm{}", p.sm_target) : "",
                     p.alignment < 256 ? fmt::format(" align{}", p.alignment) : "");
}

}  // namespace mbb::trainer::cuda
