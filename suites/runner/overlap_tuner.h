// Finds the method of tp_comm_overlap for every GEMM site: method x SMs x splits, from traces of whole steps.
//
// A candidate puts one method on all sites that can take it, so that one run times it for every site at once; sites are
// then chosen one by one. What was chosen is judged on other shapes than it was chosen on, launch by launch beside no
// overlap and beside the defaults, and is worth writing down only if on each it is surely faster than the first and not
// surely slower than the second.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "analysis/gate/ab.h"
#include "analysis/report/table.h"
#include "profiler/base/error.h"
#include "profiler/base/knob.h"
#include "suites/matrix/settings.h"
#include "suites/runner/runner.h"

namespace mbb::suites {

struct OverlapCandidate {
  std::string name;  // "pipeline4-sm16"; "none" leaves collectives whole and beside nothing
  KnobMap entries;   // of tp_comm_overlap_cfg, for all ten sites
};

// The candidates that the configuration takes: "none", and by number of SMs bulk, pipeline in two and four parts, and
// ring_exchange.
std::vector<OverlapCandidate> overlap_candidates(const trainer::Config& config, const std::vector<int>& sms);

// [candidate][site]: a value a launch, ns.
using OverlapTimes = std::map<std::string, std::map<std::string, std::vector<double>>>;

struct SiteChoice {
  std::string site;       // "fc1_bprop"
  std::string candidate;  // "none" where nothing is surely faster
  double none_ns = 0, ns = 0;
  std::string why;  // one sentence
};

struct OverlapChoice {
  std::vector<SiteChoice> sites;
  KnobMap entries;        // of tp_comm_overlap_cfg
  bool overlaps() const;  // at any site
};

// Of candidates that were timed, the first of which is "none".
OverlapChoice choose_overlap(const std::vector<OverlapCandidate>& candidates, const OverlapTimes& times);

// A shape that the choice is judged on.
struct OverlapShape {
  std::string name;  // "seq_length=4096"
  trainer::Config config;
};

// Half the sequence, and twice the micro-batch at half the sequence where that plans. Errors: half the sequence does
// not plan.
Result<std::vector<OverlapShape>> other_shapes(const trainer::Config& tuned);

struct OverlapJudgement {
  std::string shape;
  analysis::AbDecision over_none, over_defaults;  // the choice is B
};

struct LeftOut {
  std::string candidate, why;
};
// Takes candidates out whose cells did not end well; a cell that is unstable did not.
std::vector<LeftOut> leave_out(const baselines::Run& timed, std::vector<OverlapCandidate>& candidates);

struct OverlapTuning {
  OverlapChoice choice;
  std::vector<LeftOut> left_out;
  int rounds = 0, planned_rounds = 0;
  std::vector<OverlapJudgement> judgements;  // of shapes so far
  std::string unjudged;                      // why shapes are left; empty: none is

  // Nothing is until all shapes are judged.
  bool is_worth_it() const;
};

struct OverlapTuneOptions {
  std::vector<int> sms{4, 8, 16};
  double seconds = 0;  // after which no round of the candidates' launches begins; 0: all rounds
  std::vector<OverlapShape> shapes;
  int gpus_here = -1;  // fewer than are needed are refused at once; -1: nobody looked
  // Chooses the GEMM algorithms of configurations whose launches come next, so that all of these have the same ones and
  // none spends time on it; where it is empty or fails, each launch times them by itself.
  std::function<void(const std::vector<trainer::Config>&)> tune_gemms = {};
};

// Times the candidates and chooses; `settings` has the shape it is tuned on. Errors: no tensor parallelism with
// sequence parallelism, a shape to judge on that is the tuned one, no overlap or all candidates that do not run, fewer
// than two rounds.
Result<OverlapTuning> choose_overlap(const Settings& settings, const RunOptions& options,
                                     const OverlapTuneOptions& tuning);

// Judges the choice shape by shape; what is judged stays in `done` where a later shape fails or the user stops it,
// which is kCancelled.
Status judge_overlap(const Settings& settings, const RunOptions& options, const OverlapTuneOptions& tuning,
                     OverlapTuning& done);

analysis::Table overlap_table(const OverlapTuning& tuning);
// As a settings file has it, with what it was judged by as a comment.
std::string overlap_toml(const OverlapTuning& tuning);

}  // namespace mbb::suites
