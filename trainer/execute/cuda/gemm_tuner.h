// Finds the fastest algorithm of a GEMM under sustained load: candidates take turns in short slices on a card that is
// already at its power limit, where a step spends its time; those that win bursts on a cool card are often others.
#pragma once

#include "trainer/ops/cuda/gemm_tuning.h"

namespace mbb::trainer::cuda {

// One stage: every remaining candidate runs `rounds` slices; the fastest `keep` go on.
struct TuneStage {
  float slice_ms = 5.0f;
  int rounds = 1;
  size_t keep = 1;
};

struct TuneEffort {
  int candidates = kOfferedAlgorithms;
  float warm_ms = 0.0f;  // of load before the first slice
  std::vector<TuneStage> stages;

  static TuneEffort quick();     // about 0.4 s a problem: what a run does without a tuning file
  static TuneEffort thorough();  // about 2 s a problem: `mbbench tune`
  static TuneEffort brief();     // about 0.1 s a problem: `mbbench tune --brief`
};

// Overwrites D. Calls take the sets of buffers in turn, which should hold what the problem will meet (random values).
Result<TunedGemm> tune_gemm(Gemm& gemm, const GemmProblem& problem, std::span<const GemmBuffers> sets,
                            const TuneEffort& effort, cudaStream_t stream);

}  // namespace mbb::trainer::cuda
