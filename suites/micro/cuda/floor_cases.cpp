// Shapes of the floor measurement.
#include "suites/micro/cuda/floor_cases.h"

#include <string_view>

namespace mbb::suites {
namespace {

using trainer::cuda::Element;
using trainer::cuda::GemmRole;

// The linear layers of a model of gated feed-forwards, or without them (experts take their place).
std::vector<FloorSite> sites(const FloorCase& c, bool feed_forward = true) {
  const int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  std::vector<FloorSite> list = {{"qkv", c.hidden, q + 2 * kv, c.layers}, {"proj", q, c.hidden, c.layers}};
  if (feed_forward) {
    list.push_back({"fc1", c.hidden, 2 * c.ffn, c.layers});
    list.push_back({"fc2", c.ffn, c.hidden, c.layers});
  }
  list.push_back({"head", c.hidden, c.vocab, 1});
  return list;
}

FloorCase dense(FloorCase c) {
  c.sites = sites(c);
  return c;
}

FloorCase mixtral() {
  FloorCase c{"mixtral-8x7b", 2, 4096, 32, 8, 128, 14336, 32000, 4096, 1, kFloorBf16 | kFloorFp32Grads};
  c.sites = sites(c, false);
  c.sites.push_back({"router", c.hidden, 8, c.layers});
  return c;
}

// Two layers, one of them dense, 64 of 256 experts. Its attention has heads of 192 and 128, which no row measures.
FloorCase deepseek_slice() {
  FloorCase c{"deepseek-v3", 2, 7168, 0, 0, 0, 18432, 129280, 4096, 1, kFloorBf16 | kFloorFp32Grads};
  c.sites = {{"q_down", c.hidden, 1536, 2}, {"q_up", 1536, 24576, 2},          {"kv_down", c.hidden, 576, 2},
             {"kv_up", 512, 32768, 2},      {"proj", 16384, c.hidden, 2},      {"fc1", c.hidden, 2 * c.ffn, 1},
             {"fc2", c.ffn, c.hidden, 1},   {"shared_fc1", c.hidden, 4096, 1}, {"shared_fc2", 2048, c.hidden, 1},
             {"router", c.hidden, 64, 1},   {"head", c.hidden, c.vocab, 1}};
  return c;
}

}  // namespace

const std::vector<FloorCase>& floor_cases() {
  constexpr unsigned kBoth = kFloorBf16 | kFloorFp8, kBothGrads = kFloorFp32Grads | kFloorBf16Grads;
  static const std::vector<FloorCase> cases = {
      // name               layers hidden heads kv   d    ffn   vocab    seq  mbs
      dense({"llama3-8b", 8, 4096, 32, 8, 128, 14336, 128256, 8192, 1, kBoth | kBothGrads}),
      dense({"llama3-70b", 2, 8192, 64, 8, 128, 28672, 128256, 8192, 1, kBoth | kBothGrads}),
      dense({"llama3-70b-tp4shard", 20, 8192, 16, 2, 128, 7168, 32064, 4096, 1, kBoth | kBothGrads}),
      dense({"gated-h1600", 48, 1600, 25, 25, 64, 6400, 50304, 1024, 8, kFloorBf16 | kFloorFp32Grads}),
      dense({"qwen2.5-7b", 28, 3584, 28, 4, 128, 18944, 152064, 1024, 4, kFloorBf16 | kFloorBf16Grads | kFloorMany}),
      dense({"qwen2.5-7b-fp8", 28, 3584, 28, 4, 128, 18944, 152064, 1024, 2, kFloorFp8 | kFloorBf16Grads | kFloorMany}),
      dense({"qwen2.5-1.5b", 28, 1536, 12, 2, 128, 8960, 151936, 1024, 16, kFloorBf16 | kFloorBf16Grads | kFloorMany}),
      mixtral(),
      deepseek_slice(),
  };
  return cases;
}

std::vector<FloorGemm> floor_gemms(const FloorCase& c, bool fp8) {
  std::vector<FloorGemm> gemms;
  for (const FloorSite& site : c.sites) {
    // The LM head stays bf16, also beside FP8 layers.
    const bool head = std::string_view(site.name) == "head";
    if (fp8 ? head || !c.has(kFloorFp8) : !head && !c.has(kFloorBf16)) continue;
    const auto add = [&](GemmRole role, bool accumulate, Element d) {
      auto problem = trainer::cuda::linear_problem(role, c.tokens(), site.in, site.out, fp8, accumulate);
      problem.d = d;
      gemms.push_back({site.name, role, fp8, accumulate ? 0 : site.count, problem});
    };
    add(GemmRole::kFprop, false, Element::kBf16);
    add(GemmRole::kDgrad, false, Element::kBf16);
    if (c.has(kFloorFp32Grads)) {
      add(GemmRole::kWgrad, false, Element::kF32);
      add(GemmRole::kWgrad, true, Element::kF32);  // not of one micro-batch a step: for the cost tables
    }
    if (c.has(kFloorBf16Grads)) {
      add(GemmRole::kWgrad, false, Element::kBf16);
      if (c.has(kFloorMany)) add(GemmRole::kWgrad, true, Element::kBf16);
    }
  }
  return gemms;
}

trainer::cuda::AttentionShape floor_attention(const FloorCase& c) {
  return {c.micro_batch, c.seq, c.heads, c.kv_heads, c.head_dim, true};
}

}  // namespace mbb::suites
