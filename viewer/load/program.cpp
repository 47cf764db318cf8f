// A tolerant reader of explain's JSON.
#include "viewer/load/program.h"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>

#include "profiler/base/text.h"
#include "viewer/widgets/text.h"

namespace mbb::viewer {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxParts = 32;

std::string text_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? clean(found->get<std::string>(), 256) : std::string();
}

double number_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>() : 0;
}

class TreeBuilder {
 public:
  TreeBuilder() { nodes_.emplace_back(); }

  void add(const Json& op) {
    const std::string path = text_of(op, "path");
    if (path.empty()) return;
    std::uint32_t at = 0;
    std::string walked;
    std::size_t depth = 0;
    for (const std::string_view part : split(path, '.')) {
      if (++depth > kMaxParts) break;
      walked += (walked.empty() ? "" : ".") + std::string(part);
      at = child(at, std::string(part), walked);
    }
    ProgramNode& leaf = nodes_[at];
    leaf.is_op = true;
    if (leaf.what.empty()) leaf.what = text_of(op, "what");
    leaf.kind = text_of(op, "kind");
    leaf.role = text_of(op, "role");
    leaf.stream = text_of(op, "stream");
    const double runs = number_of(op, "runs");
    for (std::int32_t up = static_cast<std::int32_t>(at); up >= 0; up = nodes_[static_cast<std::size_t>(up)].parent) {
      ProgramNode& node = nodes_[static_cast<std::size_t>(up)];
      ++node.ops;
      node.runs += static_cast<std::int64_t>(runs);
      node.flops += number_of(op, "flops") * runs;
      node.bytes += number_of(op, "bytes") * runs;
      node.wire_bytes += number_of(op, "wire_bytes") * runs;
    }
  }

  std::vector<ProgramNode> take() { return std::move(nodes_); }

 private:
  std::uint32_t child(std::uint32_t parent, const std::string& part, const std::string& path) {
    const auto [at, added] = by_path_.try_emplace(path, static_cast<std::uint32_t>(nodes_.size()));
    if (added) {
      ProgramNode node;
      node.part = part;
      node.path = path;
      node.parent = static_cast<std::int32_t>(parent);
      nodes_.push_back(std::move(node));
      nodes_[parent].children.push_back(at->second);
    }
    return at->second;
  }

  std::vector<ProgramNode> nodes_;
  std::map<std::string, std::uint32_t> by_path_;
};

ProgramClass class_of(const Json& from) {
  ProgramClass out;
  out.title = fmt::format("{} stage {:.0f}", text_of(from, "role"), number_of(from, "stage"));
  if (number_of(from, "cp") > 0) out.title += fmt::format(", cp {:.0f}", number_of(from, "cp"));
  if (const auto summary = from.find("summary"); summary != from.end() && summary->is_object()) {
    out.facts.emplace_back("GPUs", count_text(number_of(*summary, "gpus")));
    out.facts.emplace_back("FLOPs", format_count(number_of(*summary, "flops"), "F"));
    out.facts.emplace_back("bytes", format_bytes(number_of(*summary, "bytes")));
    out.facts.emplace_back("peak", format_bytes(number_of(*summary, "peak_live_bytes")));
    out.facts.emplace_back("at", text_of(*summary, "peak_path"));
  }
  TreeBuilder tree;
  if (const auto segments = from.find("segments"); segments != from.end() && segments->is_array()) {
    for (const Json& segment : *segments) {
      const auto ops = segment.is_object() ? segment.find("ops") : segment.end();
      if (!segment.is_object() || ops == segment.end() || !ops->is_array()) continue;
      for (const Json& op : *ops) {
        if (op.is_object()) tree.add(op);
      }
    }
  }
  out.nodes = tree.take();
  return out;
}

}  // namespace

Result<ProgramView> read_program(const std::string& json) {
  const Json root = Json::parse(json, nullptr, false);
  if (root.is_discarded())
    return fail(ErrorCode::kBadFile, "the step program is not JSON", "the bundle's program.json is damaged");
  const auto classes = root.is_object() ? root.find("rank_classes") : root.end();
  if (!root.is_object() || classes == root.end() || !classes->is_array()) {
    return fail(ErrorCode::kBadFile, "the step program has no rank classes",
                "it was written by another version; run the cell again");
  }
  ProgramView view;
  for (const char* key : {"model", "mapping", "compute_dtype", "program_hash"}) {
    if (const std::string text = text_of(root, key); !text.empty()) view.facts.emplace_back(key, text);
  }
  const double tokens = number_of(root, "tokens_per_step");
  if (tokens > 0) view.facts.emplace_back("tokens a step", count_text(tokens));
  const double flops = number_of(root, "model_flops_per_step");
  if (flops > 0) view.facts.emplace_back("model FLOPs a step", format_count(flops, "F"));
  const double bubble = number_of(root, "bubble_replayed");
  if (bubble > 0) view.facts.emplace_back("bubble", percent_text(bubble));
  for (const Json& from : *classes) {
    if (from.is_object()) view.classes.push_back(class_of(from));
  }
  return view;
}

}  // namespace mbb::viewer
