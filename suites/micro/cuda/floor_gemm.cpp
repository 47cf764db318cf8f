// GEMM floors: the algorithms that cuBLASLt offers are timed shortly, the best three for an eighth of the sustained
// time, since a card at its power limit ranks them otherwise, and the winner for all of it.
#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "suites/micro/cuda/floor_bench.h"
#include "trainer/ops/cuda/status.h"

namespace mbb::suites {
namespace {

using namespace trainer::cuda;  // NOLINT: this file speaks of nothing else

std::string hexadecimal(const GemmAlgorithm& algorithm) {
  std::string text;
  for (const uint64_t word : algorithm) text += fmt::format("{:016x}", word);
  return text;
}

// Each call takes fresh places of the pool.
std::function<Status()> caller(FloorContext& context, Gemm& gemm, const GemmProblem& p) {
  return [&context, &gemm, p]() -> Status {
    GemmBuffers buffers;
    buffers.a = context.pool.input(p.a, p.m * p.k);
    buffers.b = context.pool.input(p.b, p.k * p.n);
    buffers.d = context.pool.output(p.m * p.n * bytes_of(p.d));
    buffers.a_scale = buffers.b_scale = context.pool.scales();
    buffers.workspace = context.pool.workspace();
    return gemm.run(p, buffers, context.launch.stream);
  };
}

struct Ranked {
  double ms;
  size_t index;
};

Result<FloorRow> measure(FloorContext& context, Gemm& gemm, const GemmProblem& problem) {
  FloorRow row;
  row.section = "gemm";
  row.name = key(problem);
  row.work = gemm_flops(problem);
  auto candidates = gemm.candidates(problem, kOfferedAlgorithms);
  if (!candidates) {
    row.skipped = candidates.error().what;
    return row;
  }
  row.candidates = static_cast<int>(candidates->size());
  const auto call = caller(context, gemm, problem);
  std::vector<Ranked> ranked;
  for (size_t i = 0; i < candidates->size(); ++i) {
    MB_TRY(gemm.choose(problem, (*candidates)[i].algorithm));
    MB_ASSIGN(const double once, context.watch.quick(call, 1));
    const int calls = std::clamp(static_cast<int>(8.0 / std::max(once, 1e-3)), 2, 40);
    MB_ASSIGN(const double ms, context.watch.quick(call, calls));
    if (i == 0) row.first_ms = ms;
    ranked.push_back({ms, i});
  }
  std::sort(ranked.begin(), ranked.end(), [](const Ranked& a, const Ranked& b) { return a.ms < b.ms; });
  ranked.resize(std::min<size_t>(ranked.size(), 3));
  for (Ranked& r : ranked) {
    MB_TRY(gemm.choose(problem, (*candidates)[r.index].algorithm));
    MB_ASSIGN(const Timing timing, context.watch.sustained(call, context.seconds / 8));
    r.ms = timing.ms;
  }
  const auto best =
      std::min_element(ranked.begin(), ranked.end(), [](const Ranked& a, const Ranked& b) { return a.ms < b.ms; });
  MB_TRY(gemm.choose(problem, (*candidates)[best->index].algorithm));
  row.algorithm = hexadecimal((*candidates)[best->index].algorithm);
  MB_ASSIGN(row.timing, context.watch.sustained(call, context.seconds));
  return row;
}

}  // namespace

std::vector<FloorProduct> floor_products(const std::vector<FloorCase>& cases, const std::string& only) {
  std::vector<FloorProduct> wanted;
  std::map<std::string, size_t> seen;
  for (const FloorCase& c : cases) {
    for (const bool fp8 : {false, true}) {
      for (const FloorGemm& g : floor_gemms(c, fp8)) {
        const std::string use = fmt::format("{} {} {} x{}", c.name, g.site, name(g.role), g.count);
        const auto [at, fresh] = seen.try_emplace(key(g.problem), wanted.size());
        if (fresh)
          wanted.push_back({g.problem, use});
        else
          wanted[at->second].uses += ", " + use;
      }
    }
  }
  std::erase_if(wanted, [&](const FloorProduct& p) {
    return ("gemm " + key(p.problem) + " " + p.uses).find(only) == std::string::npos;
  });
  return wanted;
}

Status floor_gemm_rows(FloorContext& context, const std::vector<FloorProduct>& products) {
  MB_ASSIGN(const auto gemm, Gemm::make());
  for (const auto& [problem, uses] : products) {
    MB_ASSIGN(FloorRow row, measure(context, *gemm, problem));
    row.uses = uses;
    context.keep(std::move(row));
  }
  return {};
}

}  // namespace mbb::suites
