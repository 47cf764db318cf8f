// The projection of a configuration: its real rank programs, walked with the costs of a card, at any number of GPUs.
//
// Times are those of the program as it is built: its schedule, streams and dependencies. One rank of each class is
// walked, for a few micro-batches less than the step has: from some micro-batch on each one more takes as long as the
// one before, so that two short walks give the long one.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "analysis/exposure/breakdown.h"
#include "profiler/base/error.h"
#include "profiler/trace/trace.h"
#include "trainer/execute/simulate/cost_table.h"
#include "trainer/models/hardware.h"
#include "trainer/run/config.h"
#include "trainer/run/layout.h"
#include "trainer/run/step_programs.h"

namespace mbb::suites {

inline constexpr const char* kDefaultHardware = "h100-sxm";

// What a plan may take of a card's memory: what the driver's context, cuBLAS, cuDNN and NCCL take is in no plan.
int64_t plan_capacity_bytes(const trainer::Hardware& hardware);

struct ProjectOptions {
  bool trace = false;        // walk every micro-batch and keep the spans
  bool parts = true;         // off: the step's time alone, without interval and parts
  bool only_memory = false;  // nothing is walked
  // Share of the time of tensor-parallel collectives that is taken to be hidden although the program does not hide it.
  // An assumption about another trainer, for its published steps; never about ours.
  double assume_tp_hidden = 0;
  bool assume_fp8_gather = false;  // likewise: tensor-parallel all-gathers move FP8 under an FP8 recipe
};

// Parts of the step of a rank, means over all rank classes; they sum to step_ns.
struct ProjectedParts {
  double compute_ns = 0;
  std::array<double, analysis::kCommKinds> exposed_ns{};  // transfers that nothing covers, without waiting
  double copy_ns = 0;
  double bubble_ns = 0;      // the pipeline has no micro-batch for the stage
  double wait_ns = 0;        // for other ranks or streams
  double stragglers_ns = 0;  // what large worlds lose beyond the program (CostTable::scale_loss)

  double exposed_comm_ns() const;
  double sum_ns() const;
};

// Memory of the fullest rank class, from the plan.
struct ProjectedMemory {
  int64_t arena_bytes = 0;
  int64_t graph_bytes = 0;     // of CUDA graphs, beside the arena
  int64_t capacity_bytes = 0;  // of the device, less what the driver and the libraries take
  int stage = 0;
  int64_t bytes() const { return arena_bytes + graph_bytes; }
  bool fits() const { return bytes() <= capacity_bytes; }
};

// A term's share of the step and what it does to the interval.
struct ProjectedTerm {
  trainer::CostTerm term = trainer::CostTerm::kGemm;
  double share = 0;  // of the step's time that is this term's, on the mean rank
  double sigma = 0;  // relative, of the term
};

struct Projection {
  std::string hardware;
  std::string costs;  // what the costs rest on, one line
  bool measured_costs = false;
  int64_t gpus = 1;
  int64_t tokens = 0;  // a step; of rows of many lengths those with a label, a mean over steps
  double step_ns = 0;
  double low_ns = 0, high_ns = 0;  // 80 % interval
  double sigma = 0;                // relative
  double model_flops_causal = 0;   // of a step, over all GPUs
  double model_flops_full = 0;
  ProjectedParts parts;
  ProjectedMemory memory;
  std::vector<ProjectedTerm> terms;  // of those that take time, by share
  profiler::Trace trace;             // with ProjectOptions::trace: one rank a class

  double tokens_per_s_per_gpu() const;
  double tflops_per_gpu(double model_flops) const;
};

// A card's costs: its table, or, where none was measured, the ceilings of the hardware table at the shares of peak that
// the H100's ops reach (CostTable::measured is false then). kNotFound names the nearest card.
Result<trainer::CostTable> find_costs(const std::string& hardware);

// Knobs that a projected time is as without, "host.enable_cuda_graph = false" where they are not at their defaults:
// what the host does, what NCCL is told of the network, and kernels that are not told apart.
std::vector<std::string> not_projected(const trainer::Config& config);

// Errors: those of resolve() and build_programs(); kUnavailable for a recipe that the card would emulate or has no
// rates for. A configuration that does not fit is projected all the same: memory.fits() says so. Of rows that hold
// sequences of many lengths the data is read (errors of trainer::open_sequences).
Result<Projection> project(const trainer::Config& config, const std::string& hardware = kDefaultHardware,
                           const ProjectOptions& options = {});
// The same of programs that are built already, with costs at hand.
Result<Projection> project(const trainer::Layout& layout, const trainer::StepPrograms& programs,
                           const trainer::CostTable& costs, const ProjectOptions& options = {});

}  // namespace mbb::suites
