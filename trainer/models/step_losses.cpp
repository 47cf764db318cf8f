// Sums of reported losses over ranks that hold other parts of the model.
#include "trainer/models/step_losses.h"

#include <fmt/core.h>

#include "trainer/ops/table.h"

namespace mbb::trainer {
namespace {

bool has_router_losses(const ModelShape& m) {
  const bool balances = m.moe.aux_loss != AuxLoss::kNone && m.moe.aux_loss_coefficient != 0;
  return m.is_moe() && (balances || m.moe.z_loss_coefficient != 0);
}

// A stage without such layers adds zero.
TensorId zero(Builder& b, const std::string& path) {
  Tensor t;
  t.path = path;
  t.dtype = DType::kF64;
  t.shape = Shape{2};
  t.category = Category::kStep;
  t.scope = Scope::kStep;
  const TensorId id = b.declare(std::move(t));
  b.emit(kFill, "grad_sync." + path + ".zero", {id}, NoAttrs{}, {.out = {id}});
  return id;
}

void sum_over(Builder& b, TensorId sum, GroupKind group, int size) {
  if (size == 1) return;
  b.emit(kAllReduce, fmt::format("grad_sync.{}.all_reduce_{}", b.tensor(sum).path, name(group)), {sum},
         CommAttrs{.group = group, .group_size = size}, {.stream = Stream::kDp, .out = {sum}});
}

}  // namespace

void sum_step_losses(Builder& b, const Layout& layout) {
  Ports& ports = b.program().ports;
  if (has_router_losses(layout.model)) {
    if (ports.router_losses == kNoTensor) ports.router_losses = zero(b, "step.router_losses");
    sum_over(b, ports.router_losses, GroupKind::kModel, layout.tp * layout.pp);
  }
  for (auto depth = static_cast<int64_t>(ports.mtp_losses.size()); depth < layout.model.num_mtp_layers; ++depth)
    ports.mtp_losses.push_back(zero(b, fmt::format("mtp.{}.loss_sum", depth)));
  for (TensorId sum : ports.mtp_losses) sum_over(b, sum, GroupKind::kPp, layout.pp);
}

}  // namespace mbb::trainer
