// The shapes whose floor is measured: every linear layer, attention and memory-bound op of the speed targets' cases.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/ops/cuda/gemm.h"
#include "trainer/ops/cuda/kernel_plan.h"

namespace mbb::suites {

// A linear layer: tokens x in to tokens x out.
struct FloorSite {
  const char* name;
  int64_t in, out;
  int count;
};

// What the speed targets run of a case (ci/gpu/cases.txt): recipes, types of main gradients, and whether a step has
// several micro-batches, all but the first of which add to the weight gradients.
enum FloorRuns : unsigned {
  kFloorBf16 = 1,
  kFloorFp8 = 2,
  kFloorFp32Grads = 4,
  kFloorBf16Grads = 8,
  kFloorMany = 16,
};

struct FloorCase {
  std::string name;
  int layers = 0;
  int64_t hidden = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn = 0, vocab = 0;
  int64_t seq = 0, micro_batch = 1;
  unsigned runs = 0;  // FloorRuns
  std::vector<FloorSite> sites;
  bool has(unsigned what) const { return (runs & what) != 0; }
  int64_t tokens() const { return seq * micro_batch; }
};

const std::vector<FloorCase>& floor_cases();

// A GEMM of a case: how often a forward and backward of one micro-batch runs it.
struct FloorGemm {
  std::string site;  // qkv, proj, fc1, fc2, head, ...
  trainer::cuda::GemmRole role;
  bool fp8 = false;
  int count = 0;
  trainer::cuda::GemmProblem problem;
};

// Every role of every linear layer in one recipe; wgrad by type of main gradients, with beta 0 (counted) and 1 (count
// 0: as often as a step has micro-batches beyond its first).
std::vector<FloorGemm> floor_gemms(const FloorCase& c, bool fp8);
trainer::cuda::AttentionShape floor_attention(const FloorCase& c);

}  // namespace mbb::suites
