// A projection for a person and for machines.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "suites/project/projector.h"

namespace mbb::suites {

// What training takes at that speed; printed with its inputs.
struct TrainingPlan {
  double tokens = 0;          // 0: not asked for
  double price_gpu_hour = 0;  // 0: no price
};

// "(train.seq_length is the quickstart's: say what yours is)"; empty where nothing is unsaid.
std::string unsaid_text(const std::vector<std::string>& unsaid);

// One screen: step with interval, throughput, where the step goes, what the interval rests on, memory, and how far such
// projections were from published steps. `unsaid`: knobs at the quickstart's values although another model was named;
// the first line says so.
std::string to_text(const Projection& projection, const trainer::Layout& layout, const trainer::CostTable& costs,
                    const TrainingPlan& plan = {}, const std::vector<std::string>& unsaid = {});

std::string to_json(const Projection& projection, const trainer::Layout& layout, const trainer::CostTable& costs,
                    const TrainingPlan& plan = {}, const std::vector<std::string>& unsaid = {});

// How far such projections were from measured steps, and whose: our programs as they are projected, by family, then
// with what is assumed of other trainers. A sentence each.
std::vector<std::string> accuracy_lines(const trainer::CostTable& costs);

}  // namespace mbb::suites
