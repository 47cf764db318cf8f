// The shapes whose floor is measured: every linear layer, attention and memory-bound op of the speed targets' cases.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/ops/cuda/gemm.h"
#include "trainer/ops/cuda/kernel_plan.h"

namespace mbb::suites {

struct FloorCase {
  std::string name;
  int layers = 0;
  int64_t hidden = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn = 0, vocab = 0;
  int64_t seq = 0, micro_batch = 1;
  int64_t tokens() const { return seq * micro_batch; }
};

const std::vector<FloorCase>& floor_cases();

// A GEMM of a case: how often a forward and backward of one micro-batch runs it.
struct FloorGemm {
  std::string site;  // qkv, proj, fc1, fc2, head
  trainer::cuda::GemmRole role;
  bool fp8 = false;
  int count = 0;
  trainer::cuda::GemmProblem problem;
};

// Every role of every linear layer; wgrad with beta 0 and 1 (count only on beta 0: one micro-batch a step).
std::vector<FloorGemm> floor_gemms(const FloorCase& c, bool fp8);
trainer::cuda::AttentionShape floor_attention(const FloorCase& c);

}  // namespace mbb::suites
