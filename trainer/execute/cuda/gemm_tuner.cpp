// Rounds of slices over candidates, fewer each stage.
#include "trainer/execute/cuda/gemm_tuner.h"

#include <algorithm>

#include "trainer/ops/cuda/status.h"

namespace mbb::trainer::cuda {
namespace {

class Slices {
 public:
  static Result<Slices> make(Gemm& gemm, const GemmProblem& problem, std::span<const GemmBuffers> sets,
                             cudaStream_t stream) {
    Slices s(gemm, problem, sets, stream);
    MB_TRY(ok(cudaEventCreate(&s.start_), "timing GEMM algorithms"));
    MB_TRY(ok(cudaEventCreate(&s.end_), "timing GEMM algorithms"));
    return s;
  }
  Slices(Slices&& other) noexcept
      : gemm_(other.gemm_), problem_(other.problem_), sets_(other.sets_), stream_(other.stream_) {
    std::swap(start_, other.start_);
    std::swap(end_, other.end_);
  }
  ~Slices() {
    if (start_ != nullptr) cudaEventDestroy(start_);
    if (end_ != nullptr) cudaEventDestroy(end_);
  }

  // Milliseconds of a call, over `calls`.
  Result<float> time(const GemmAlgorithm& algorithm, int calls) {
    MB_TRY(gemm_.choose(problem_, algorithm));
    MB_TRY(ok(cudaEventRecord(start_, stream_), "timing GEMM algorithms"));
    for (int i = 0; i < calls; ++i) MB_TRY(gemm_.run(problem_, sets_[next_++ % sets_.size()], stream_));
    MB_TRY(ok(cudaEventRecord(end_, stream_), "timing GEMM algorithms"));
    MB_TRY(ok(cudaEventSynchronize(end_), "timing GEMM algorithms"));
    float ms = 0.0f;
    MB_TRY(ok(cudaEventElapsedTime(&ms, start_, end_), "timing GEMM algorithms"));
    return ms / static_cast<float>(calls);
  }

 private:
  Slices(Gemm& gemm, const GemmProblem& problem, std::span<const GemmBuffers> sets, cudaStream_t stream)
      : gemm_(gemm), problem_(problem), sets_(sets), stream_(stream) {}

  Gemm& gemm_;
  GemmProblem problem_;
  std::span<const GemmBuffers> sets_;
  size_t next_ = 0;
  cudaStream_t stream_;
  cudaEvent_t start_ = nullptr, end_ = nullptr;
};

struct Entrant {
  GemmAlgorithm algorithm{};
  float call_ms = 0.0f;
  bool first_choice = false;
};

// Calls too short to fill a slice differ by less than their launch: a few dozen tell.
int calls_for(float slice_ms, float call_ms) {
  return std::clamp(static_cast<int>(slice_ms / std::max(call_ms, 1e-3f)), 1, call_ms < 0.02f ? 40 : 2000);
}

}  // namespace

TuneEffort TuneEffort::quick() {
  return {kOfferedAlgorithms, 0.0f, {{5.0f, 1, 3}, {30.0f, 3, 1}}};
}
TuneEffort TuneEffort::brief() {
  return {kOfferedAlgorithms, 0.0f, {{3.0f, 1, 2}, {12.0f, 2, 1}}};
}
TuneEffort TuneEffort::thorough() {
  return {160, 60.0f, {{2.0f, 1, 40}, {4.0f, 2, 12}, {8.0f, 4, 5}, {20.0f, 5, 1}}};
}

Result<TunedGemm> tune_gemm(Gemm& gemm, const GemmProblem& problem, std::span<const GemmBuffers> sets,
                            const TuneEffort& effort, cudaStream_t stream) {
  MB_ASSIGN(const auto candidates, gemm.candidates(problem, effort.candidates));
  MB_ASSIGN(Slices slices, Slices::make(gemm, problem, sets, stream));
  // One call each: what the library admits and then refuses, or what is far off, does not enter.
  std::vector<Entrant> entrants;
  float best = 0.0f;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const auto ms = slices.time(candidates[i].algorithm, 1);
    if (!ms && i == 0) return tl::unexpected(ms.error());
    if (!ms) continue;
    best = i == 0 ? *ms : std::min(best, *ms);
    entrants.push_back({candidates[i].algorithm, *ms, i == 0});
  }
  std::erase_if(entrants, [&](const Entrant& e) { return !e.first_choice && e.call_ms > 1.25f * best; });
  if (effort.warm_ms > 0.0f)
    MB_TRY(slices.time(entrants[0].algorithm, calls_for(effort.warm_ms, entrants[0].call_ms)).map([](float) {}));
  double first_us = 0.0;
  for (const TuneStage& stage : effort.stages) {
    std::vector<float> sums(entrants.size(), 0.0f);
    for (int round = 0; round < stage.rounds; ++round)
      for (size_t i = 0; i < entrants.size(); ++i) {
        MB_ASSIGN(const float ms, slices.time(entrants[i].algorithm, calls_for(stage.slice_ms, entrants[i].call_ms)));
        sums[i] += ms;
      }
    for (size_t i = 0; i < entrants.size(); ++i) {
      entrants[i].call_ms = sums[i] / static_cast<float>(stage.rounds);
      if (entrants[i].first_choice) first_us = static_cast<double>(entrants[i].call_ms) * 1e3;
    }
    std::stable_sort(entrants.begin(), entrants.end(),
                     [](const Entrant& a, const Entrant& b) { return a.call_ms < b.call_ms; });
    if (entrants.size() > stage.keep) entrants.resize(stage.keep);
  }
  MB_TRY(gemm.choose(problem, entrants[0].algorithm));
  return TunedGemm{entrants[0].algorithm, static_cast<double>(entrants[0].call_ms) * 1e3, first_us,
                   static_cast<int>(candidates.size())};
}

}  // namespace mbb::trainer::cuda
