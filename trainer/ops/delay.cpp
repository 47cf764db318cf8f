// A planted slowness: what a gate must find, made to order.
#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/table.h"

namespace mbb::trainer {
namespace {

// in: any tensor, so that the op has a place in the order of edges; it is not read. No output.
Result<std::vector<TensorSpec>> nothing(Inputs, const Attrs&) {
  return std::vector<TensorSpec>{};
}

double no_bytes(const OpView&) {
  return 0;
}

}  // namespace

const OpKind kDelay{.name = "delay", .shape = nothing, .bytes = no_bytes, .cpu = cpu_delay, .cuda = "delay"};

}  // namespace mbb::trainer
