// One walk over the ops, and one sum.
#include "trainer/program/comm_limits.h"

#include <fmt/core.h>

#include <set>

#include "trainer/ops/op_kind.h"

namespace mbb::trainer {

std::vector<CommLimit> comm_limits(const Program& program) {
  std::set<CommLimit> limits;
  for (const Segment& segment : program.segments)
    for (const Op& op : segment.ops)
      if (const auto* a = std::get_if<CommAttrs>(&op.attrs);
          a != nullptr && op.kind->communicates && (a->num_sm > 0 || a->cga_size > 0))
        limits.insert({a->group, a->num_sm, a->cga_size});
  return {limits.begin(), limits.end()};
}

Status check_sms(const std::string& knob, int num_sm, int64_t side_sms, int device_sms) {
  if (num_sm + side_sms + kLeastProductSms <= device_sms) return {};
  return fail(
      ErrorCode::kBadArgument,
      fmt::format("{}: {} SMs{} leave no {} of a device's {} to the product beside", knob, num_sm,
                  side_sms > 0 ? fmt::format(" and host.side_sms = {}", side_sms) : "", kLeastProductSms, device_sms),
      "give num_sm less: 4 to 32 move what the links take");
}

}  // namespace mbb::trainer
