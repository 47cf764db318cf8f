// A cell's twin: the same structure in small, so that ranks that are threads train it on any machine.
//
// A cell of 64 GPUs cannot run here, but what may be wrong with it is not its width: stages, chunks, shards, groups,
// schedule, overlap, recompute. The twin keeps those (TP, PP, VPP, CP, EP, ETP, DP and every pass), and takes a narrow
// model of the same family, few layers a chunk, few micro-batches, in fp32. It must train as one rank does.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "baselines/store/records.h"
#include "profiler/base/error.h"
#include "trainer/run/config.h"

namespace mbb::suites {

inline constexpr int kTwinRanks = 64;                // at most
inline constexpr int kTwinSteps = 3;                 // losses of each, gradients of the first
inline constexpr const char* kTwinSubject = "twin";  // of the verdict

struct Twin {
  trainer::Config mapped;
  trainer::Config alone;  // the same work on one rank, without any pass
  int ranks = 1;
  std::string reduction;  // "tp 8 → 4, hidden 16384 → 32, ..."
  // Equal structures have equal hashes: of the step programs, with the number of ranks.
  std::string mapped_hash;
  std::string alone_hash;

  // One rank and no pass: there is nothing that could differ.
  bool is_trivial() const { return mapped_hash == alone_hash; }
};

// Errors as trainer::resolve and build_programs: the configuration, or what it was reduced to, breaks a rule.
Result<Twin> twin_of(const trainer::Config& config);

// How the twin of a structure ended.
struct TwinEnd {
  baselines::Verdict verdict = baselines::Verdict::kInconclusive;
  double difference = baselines::kNotMeasured;  // largest relative difference of a loss
  std::string text;
};

// Twins that have run, by mapped_hash; one-rank references by alone_hash. Cells of one structure share a twin.
struct TwinMemory {
  std::map<std::string, TwinEnd> ended;
  std::map<std::string, baselines::Cell> alone;
};

// Adds the "twin" verdict to the cell; where it is broken, so is the cell.
void add_twin_verdict(baselines::Cell& cell, const Twin& twin, const TwinEnd& end);
void add_twin_verdict(baselines::Cell& cell, const Error& no_twin);

}  // namespace mbb::suites
