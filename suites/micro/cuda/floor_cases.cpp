// Shapes of the floor measurement.
#include "suites/micro/cuda/floor_cases.h"

namespace mbb::suites {

using trainer::cuda::GemmRole;

const std::vector<FloorCase>& floor_cases() {
  static const std::vector<FloorCase> cases = {
      // name               layers hidden heads kv   d    ffn   vocab    seq  mbs
      {"llama3-8b", 8, 4096, 32, 8, 128, 14336, 128256, 8192, 1},
      {"llama3-70b", 2, 8192, 64, 8, 128, 28672, 128256, 8192, 1},
      {"llama3-70b-tp4shard", 20, 8192, 16, 2, 128, 7168, 32064, 4096, 1},
      {"gated-h1600", 48, 1600, 25, 25, 64, 6400, 50304, 1024, 8},
      {"qwen2.5-7b", 28, 3584, 28, 4, 128, 18944, 152064, 1024, 4},
      {"qwen2.5-1.5b", 28, 1536, 12, 2, 128, 8960, 151936, 1024, 4},
  };
  return cases;
}

std::vector<FloorGemm> floor_gemms(const FloorCase& c, bool fp8) {
  const int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  struct Site {
    const char* name;
    int64_t in, out;
    int count;
  };
  const std::vector<Site> sites = {{"qkv", c.hidden, q + 2 * kv, c.layers},
                                   {"proj", q, c.hidden, c.layers},
                                   {"fc1", c.hidden, 2 * c.ffn, c.layers},
                                   {"fc2", c.ffn, c.hidden, c.layers},
                                   {"head", c.hidden, c.vocab, 1}};
  std::vector<FloorGemm> gemms;
  for (const Site& site : sites) {
    if (fp8 && std::string(site.name) == "head") continue;  // the LM head stays bf16
    const auto add = [&](GemmRole role, bool accumulate) {
      gemms.push_back({site.name, role, fp8, accumulate ? 0 : site.count,
                       trainer::cuda::linear_problem(role, c.tokens(), site.in, site.out, fp8, accumulate)});
    };
    add(GemmRole::kFprop, false);
    add(GemmRole::kDgrad, false);
    add(GemmRole::kWgrad, false);
    add(GemmRole::kWgrad, true);
  }
  return gemms;
}

trainer::cuda::AttentionShape floor_attention(const FloorCase& c) {
  return {c.micro_batch, c.seq, c.heads, c.kv_heads, c.head_dim, true};
}

}  // namespace mbb::suites
