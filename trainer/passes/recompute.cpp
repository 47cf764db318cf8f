// Dropping forward values and cloning their makers on demand.
#include "trainer/passes/recompute.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "profiler/base/text.h"
#include "trainer/passes/layers.h"
#include "trainer/program/builder.h"

namespace mbb::trainer {
namespace {

const RecomputeModule kModules[] = {
    {.name = "core_attn", .what = "softmax(QKᵀ)V", .values = {"attn.core.", "cross.core."}},
    {.name = "layernorm",
     .what = "norms before attention and MLP",
     .values = {"attn.norm.", "mlp.norm.", "cross.norm."}},
    {.name = "act", .what = "activation of dense layers", .values = {"mlp.act."}, .dense_only = true},
    {.name = "mlp",
     .what = "feed-forward of dense layers",
     .values = {"mlp.fc1.", "mlp.act.", "mlp.fc2."},
     .dense_only = true},
    {.name = "moe",
     .what = "router, exchange, experts and combination",
     .needs_experts = true,
     .values = {"mlp."},
     .not_values = {"mlp.norm.", "mlp.residual."}},
    {.name = "moe_act", .what = "activation of experts", .needs_experts = true, .values = {"mlp.experts.act."}},
    {.name = "shared_experts",
     .what = "feed-forward of the shared expert",
     .needs_experts = true,
     .needs_shared_expert = true,
     .values = {"mlp.shared.fc1.", "mlp.shared.act.", "mlp.shared.fc2."}},
    {.name = "mla_up_proj",
     .what = "latent attention from its latents on: norms, up projections, rotary positions",
     .needs_mla = true,
     .values = {"attn.q_norm.", "attn.kv_norm.", "attn.q_up.", "attn.kv_up.", "attn.k_rope.all_gather.", "attn.pack.",
                "attn.rope."}},
};

bool keeps_state(const Program& program, const Op& op) {
  return op.when != When::kAlways || op.in.empty() || std::any_of(op.out.begin(), op.out.end(), [&](TensorId id) {
           const Scope scope = program.tensor(id).scope;
           return scope == Scope::kStep || scope == Scope::kPersistent;
         });
}

class Recomputer {
 public:
  Recomputer(Program& program, int forward, int backward) : p_(program), b_(program), backward_(backward) {
    forward_ = p_.segments[static_cast<size_t>(forward)].ops;
    for (const Tensor& t : p_.tensors)
      if (t.view_of != kNoTensor) shared_.insert(t.view_of);
  }

  void drop_modules(const std::vector<const RecomputeModule*>& modules) {
    const std::set<std::string> experts = layers_with("mlp.router.");
    for (const Op& op : forward_) {
      const std::string layer(layer_of(op.path));
      if (layer.empty()) continue;
      for (const TensorId id : op.out) {
        const std::string_view value = std::string_view(p_.tensor(id).path);
        if (!value.starts_with(layer)) continue;
        const auto begins = [&](const std::vector<std::string_view>& heads) {
          return std::any_of(heads.begin(), heads.end(),
                             [&](std::string_view head) { return value.substr(layer.size()).starts_with(head); });
        };
        const bool has_experts = experts.contains(layer);
        const bool taken = std::any_of(modules.begin(), modules.end(), [&](const RecomputeModule* m) {
          return (has_experts ? !m->dense_only : !m->needs_experts) && begins(m->values) && !begins(m->not_values);
        });
        if (taken) drop(id, op);
      }
    }
  }

  // Groups of layers keep what others read of them: the last one's output.
  void drop_layers(RecomputeMethod method, int64_t count) {
    std::map<std::string, int64_t> group_of;
    int64_t seen = 0;
    for (const Op& op : forward_) {
      const std::string layer(layer_of(op.path));
      if (layer.empty() || group_of.contains(layer)) continue;
      const bool block = method == RecomputeMethod::kBlock;
      group_of[layer] = block ? (seen < count ? seen : -1) : seen / count;
      ++seen;
    }
    const auto group = [&](const Op& op) {
      const auto at = group_of.find(std::string(layer_of(op.path)));
      return at == group_of.end() ? int64_t{-1} : at->second;
    };
    std::map<TensorId, std::set<int64_t>> readers;
    for (const Op& op : forward_)
      for (const TensorId id : op.in) readers[id].insert(group(op));
    for (const Op& op : forward_) {
      const int64_t own = group(op);
      if (own < 0) continue;
      for (const TensorId id : op.out)
        if (readers[id].empty() || readers[id] == std::set<int64_t>{own}) drop(id, op);
    }
  }

  void rewrite_backward() {
    std::vector<Op>& list = p_.segments[static_cast<size_t>(backward_)].ops;
    std::vector<Op> before = std::move(list);
    list.clear();
    b_.enter(backward_);
    for (Op& op : before) {
      for (TensorId& id : op.in) id = again(id);
      b_.ops().push_back(std::move(op));
    }
  }

 private:
  std::set<std::string> layers_with(std::string_view part) const {
    std::set<std::string> layers;
    for (const Op& op : forward_) {
      const std::string_view layer = layer_of(op.path);
      if (!layer.empty() && std::string_view(op.path).substr(layer.size()).starts_with(part)) layers.emplace(layer);
    }
    return layers;
  }

  void drop(TensorId id, const Op& op) {
    const bool seen_elsewhere = p_.tensor(id).view_of != kNoTensor || shared_.contains(id);
    if (!seen_elsewhere && !keeps_state(p_, op)) makers_[id].push_back(&op);
  }

  // The tensor that holds the value of `id` in the backward, made here on first use.
  TensorId again(TensorId id) {
    const auto maker = makers_.find(id);
    if (maker == makers_.end()) return id;
    if (const auto known = clones_.find(id); known != clones_.end()) return known->second;
    for (const Op* op : maker->second) clone(*op);
    return clones_.at(id);
  }

  void clone(const Op& op) {
    Op clone = op;
    for (TensorId& in : clone.in) {
      // A part that is added to what others of its makers wrote goes where theirs went.
      const bool updated = std::find(op.out.begin(), op.out.end(), in) != op.out.end();
      if (!updated)
        in = again(in);
      else if (const auto known = clones_.find(in); known != clones_.end())
        in = known->second;
    }
    for (TensorId& out : clone.out) {
      const auto known = clones_.find(out);
      if (known == clones_.end()) {
        Tensor value = p_.tensor(out);
        value.path += ".recompute";
        const TensorId made = b_.declare(std::move(value));
        clones_[out] = made;
        out = made;
      } else {
        out = known->second;
      }
    }
    clone.path += ".recompute";
    clone.recompute = true;
    b_.ops().push_back(std::move(clone));
  }

  Program& p_;
  Builder b_;
  int backward_;
  std::vector<Op> forward_;
  std::set<TensorId> shared_;                          // storages of views
  std::map<TensorId, std::vector<const Op*>> makers_;  // of dropped values, in their order
  std::map<TensorId, TensorId> clones_;
};

}  // namespace

std::span<const RecomputeModule> recompute_modules() {
  return kModules;
}

Result<std::vector<const RecomputeModule*>> parse_recompute_modules(std::string_view text) {
  std::vector<const RecomputeModule*> modules;
  for (const std::string_view name : split(text, ',')) {
    const auto* const found = std::find_if(std::begin(kModules), std::end(kModules),
                                           [&](const RecomputeModule& m) { return m.name == name; });
    if (found == std::end(kModules)) {
      std::vector<std::string> names;
      for (const RecomputeModule& m : kModules) names.emplace_back(m.name);
      return fail(ErrorCode::kBadArgument,
                  "memory.recompute_modules: no module is called '" + std::string(printable(name)) + "'",
                  "modules, with commas between: " + join(names, ", "));
    }
    modules.push_back(found);
  }
  return modules;
}

void recompute(Program& program, int forward, int backward, const MemoryConfig& memory) {
  if (memory.recompute_granularity == RecomputeGranularity::kNone) return;
  Recomputer pass(program, forward, backward);
  if (memory.recompute_granularity == RecomputeGranularity::kFull) {
    pass.drop_layers(memory.recompute_method, memory.recompute_num_layers);
  } else {
    const auto modules = parse_recompute_modules(memory.recompute_modules);
    MB_CHECK(modules.has_value(), "recompute modules are checked by resolve()");
    pass.drop_modules(*modules);
  }
  pass.rewrite_backward();
}

}  // namespace mbb::trainer
