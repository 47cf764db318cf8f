// By the verdict on its losses; store.cpp counts the same in SQL.
#include "baselines/store/unproven.h"

#include <algorithm>

namespace mbb::baselines {

bool is_unproven(const Cell& cell) {
  return cell.status == CellStatus::kOk &&
         std::any_of(cell.verdicts.begin(), cell.verdicts.end(), [](const VerdictRow& row) {
           return row.subject == "loss" && row.verdict == Verdict::kIncomparable;
         });
}

}  // namespace mbb::baselines
