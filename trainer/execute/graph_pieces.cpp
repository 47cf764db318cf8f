// Scopes by name, and a walk cut where what holds its ops changes.
#include "trainer/execute/graph_pieces.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <utility>

#include "profiler/base/text.h"
#include "trainer/passes/layers.h"

namespace mbb::trainer {
namespace {

constexpr const char* kKnob = "host.cuda_graph_scope";
constexpr std::array kNames{std::pair{"attn", GraphScope::kAttn}, std::pair{"mlp", GraphScope::kMlp},
                            std::pair{"moe_router", GraphScope::kMoeRouter}, std::pair{"layer", GraphScope::kLayer},
                            std::pair{"full_iteration", GraphScope::kFullIteration}};

bool has(std::span<const GraphScope> scopes, GraphScope scope) {
  return std::find(scopes.begin(), scopes.end(), scope) != scopes.end();
}

// What holds an op, as a text that differs from its neighbours'; empty: nothing.
std::string_view holder(std::string_view path, std::span<const GraphScope> scopes) {
  const std::string_view layer = layer_of(path);
  if (layer.empty()) return {};
  if (has(scopes, GraphScope::kLayer)) return layer;
  const std::string_view rest = path.substr(layer.size());
  const auto part = [&](std::string_view name) { return path.substr(0, layer.size() + name.size()); };
  if (has(scopes, GraphScope::kMoeRouter) && rest.starts_with("mlp.router.")) return part("mlp.router.");
  if (has(scopes, GraphScope::kMlp) && rest.starts_with("mlp.")) return part("mlp.");
  for (const std::string_view name : {"attn.", "cross."})
    if (has(scopes, GraphScope::kAttn) && rest.starts_with(name)) return part(name);
  return {};
}

}  // namespace

Result<std::vector<GraphScope>> parse_graph_scopes(std::string_view names) {
  std::vector<GraphScope> scopes;
  for (const std::string_view name : split(names, ',')) {
    const auto known = std::find_if(kNames.begin(), kNames.end(), [&](const auto& n) { return n.first == name; });
    if (known == kNames.end())
      return fail(ErrorCode::kBadArgument, fmt::format("{} names {}", kKnob, printable(std::string(name))),
                  "give attn, mlp, moe_router, layer, full_iteration, or several with commas between");
    if (!has(scopes, known->second)) scopes.push_back(known->second);
  }
  for (const auto& [name, scope] : {kNames[3], kNames[4]})
    if (has(scopes, scope) && scopes.size() > 1)
      return fail(ErrorCode::kBadArgument, fmt::format("{} = {}: {} holds the others", kKnob, names, name),
                  fmt::format("give {} alone, or the others without it", name));
  return scopes;
}

bool captures(const HostConfig& host) {
  return host.enable_cuda_graph && host.cuda_graph_impl == GraphImpl::kLocal;
}

Status check_graphs(const HostConfig& host, int64_t experts, bool reads_counts) {
  MB_ASSIGN(const std::vector<GraphScope> scopes, parse_graph_scopes(host.cuda_graph_scope));
  if (!captures(host) && host.cuda_graph_scope != HostConfig{}.cuda_graph_scope)
    return fail(ErrorCode::kBadArgument,
                fmt::format("{} = {} has no effect beside {}", kKnob, host.cuda_graph_scope,
                            host.enable_cuda_graph ? "host.cuda_graph_impl = none" : "host.enable_cuda_graph = false"),
                "capture graphs, or leave the scope as it is");
  if (has(scopes, GraphScope::kMoeRouter) && experts == 0)
    return fail(ErrorCode::kBadArgument,
                fmt::format("{} = {}, and the model has no experts to route to", kKnob, host.cuda_graph_scope),
                "take moe_router out, or a model with experts");
  const bool exchange =
      has(scopes, GraphScope::kMlp) || has(scopes, GraphScope::kLayer) || has(scopes, GraphScope::kFullIteration);
  if (reads_counts && captures(host) && exchange)
    return fail(
        ErrorCode::kBadArgument,
        fmt::format("parallel.moe_exchange = counts reads them on the host, which a CUDA graph cannot ({} = {})", kKnob,
                    host.cuda_graph_scope),
        "set host.enable_cuda_graph = false or host.cuda_graph_scope = attn, or choose moe_exchange = padded");
  return {};
}

std::vector<GraphPiece> graph_pieces(std::span<const GraphStep> steps, std::span<const GraphScope> scopes) {
  const bool whole = has(scopes, GraphScope::kFullIteration);
  std::vector<GraphPiece> pieces;
  std::string_view last;
  for (size_t i = 0; i < steps.size(); ++i) {
    const GraphStep& step = steps[i];
    const std::string_view now = whole || step.optimizer ? std::string_view{} : holder(step.path, scopes);
    const bool captured = whole || !now.empty();
    const bool cut = i == 0 || step.optimizer != steps[i - 1].optimizer || now != last ||
                     (!now.empty() && step.call != steps[i - 1].call);
    if (cut) pieces.push_back({i, i, captured});
    pieces.back().end = i + 1;
    last = now;
  }
  return pieces;
}

}  // namespace mbb::trainer
