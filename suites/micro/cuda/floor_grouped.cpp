// Grouped products of experts at mixture-of-experts shapes: every role, on Hopper's kernel and on the portable one.
#include <fmt/core.h>

#include <random>

#include "suites/micro/cuda/floor_bench.h"
#include "trainer/ops/cuda/expert_kernels.h"
#include "trainer/ops/cuda/status.h"

namespace mbb::suites {
namespace {

using namespace trainer::cuda;  // NOLINT: this file speaks of nothing else

struct ExpertCase {
  const char* name;
  int64_t pairs, experts, hidden, ffn;  // pairs: tokens x chosen experts that arrive here
};

// Mixtral 8x7B with 4096 tokens; a quarter of DeepSeek-V3's experts (expert parallel 4) with their share of 16384; one
// expert of Llama's shape, which cuBLASLt multiplies in the section before.
constexpr ExpertCase kCases[] = {{"mixtral-8x7b", 8192, 8, 4096, 14336},
                                 {"deepseek-v3-ep4", 32768, 64, 7168, 2048},
                                 {"llama3-8b as one expert", 8192, 1, 4096, 14336}};

// Rows of each expert where every pair chooses with equal chances.
std::vector<int32_t> segments_of(const ExpertCase& c) {
  std::mt19937_64 random(7);
  std::uniform_int_distribution<int64_t> choose(0, c.experts - 1);
  std::vector<int32_t> segments(static_cast<size_t>(2 * c.experts), 0);
  for (int64_t i = 0; i < c.pairs; ++i) ++segments[static_cast<size_t>(c.experts + choose(random))];
  for (int64_t e = 1; e < c.experts; ++e)
    segments[static_cast<size_t>(e)] =
        segments[static_cast<size_t>(e - 1)] + segments[static_cast<size_t>(c.experts + e - 1)];
  return segments;
}

}  // namespace

Status floor_grouped_rows(FloorContext& x) {
  for (const ExpertCase& c : kCases) {
    const std::vector<int32_t> segments = segments_of(c);
    MB_TRY(ok(cudaMemcpy(x.pool.scratch(), segments.data(), segments.size() * 4, cudaMemcpyHostToDevice),
              "writing experts' rows"));
    for (const auto& [site, n, k] : {std::tuple{"fc1", 2 * c.ffn, c.hidden}, std::tuple{"fc2", c.hidden, c.ffn}}) {
      GroupedGemm g;
      g.rows = c.pairs, g.experts = c.experts, g.n = n, g.k = k;
      g.segments = static_cast<const int32_t*>(x.pool.scratch());
      const auto in = [&](int64_t count) { return x.pool.input(Element::kBf16, count); };
      for (const char* role : {"fprop", "dgrad", "wgrad", "wgrad beta1"})
        for (const bool portable : {false, true}) {
          FloorRow row;
          row.section = "grouped", row.uses = c.name;
          row.name =
              fmt::format("{} {} e{} m{} n{} k{}{}", site, role, c.experts, c.pairs, n, k, portable ? " portable" : "");
          row.work = 2.0 * static_cast<double>(c.pairs) * static_cast<double>(n) * static_cast<double>(k);
          if (!x.only.empty() && (row.section + " " + row.name + " " + row.uses).find(x.only) == std::string::npos)
            continue;
          g.portable = portable;
          const std::string_view r = role;
          const auto call = [&]() -> Status {
            if (r == "fprop")
              return grouped_fprop(g, in(g.rows * k), in(g.experts * n * k), x.pool.output(g.rows * n * 2), x.launch);
            if (r == "dgrad")
              return grouped_dgrad(g, in(g.rows * n), in(g.experts * n * k), x.pool.output(g.rows * k * 2), x.launch);
            return grouped_wgrad(g, in(g.rows * n), in(g.rows * k),
                                 static_cast<float*>(x.pool.output(g.experts * n * k * 4)), r != "wgrad", x.launch);
          };
          auto timing = x.watch.sustained(call, x.seconds);
          if (timing)
            row.timing = *timing;
          else
            row.skipped = timing.error().what;
          x.keep(std::move(row));
        }
    }
  }
  return {};
}

}  // namespace mbb::suites
