// A projection for a person and for machines.
#pragma once

#include <optional>
#include <string>

#include "suites/project/projector.h"

namespace mbb::suites {

// What training takes at that speed; printed with its inputs.
struct TrainingPlan {
  double tokens = 0;          // 0: not asked for
  double price_gpu_hour = 0;  // 0: no price
};

// One screen: step with interval, throughput, where the step goes, what the interval rests on, memory, and how far such
// projections were from published steps.
std::string to_text(const Projection& projection, const trainer::Layout& layout, const trainer::CostTable& costs,
                    const TrainingPlan& plan = {});

std::string to_json(const Projection& projection, const trainer::Layout& layout, const trainer::CostTable& costs,
                    const TrainingPlan& plan = {});

// "error on 60 published H100 steps: median 3.1 %, p90 8.0 %; ..." or that there is none.
std::string accuracy_line(const trainer::CostTable& costs);

}  // namespace mbb::suites
