// Cells that ran and whose losses nothing was there to compare with: in words and counts they are not "ok".
#pragma once

#include "baselines/store/records.h"

namespace mbb::baselines {

bool is_unproven(const Cell& cell);

}  // namespace mbb::baselines
