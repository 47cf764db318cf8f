// The rules, one record each: the metric that shows the loss, the share from which it is worth a line, what to try.
#include "analysis/diagnose/diagnose.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "analysis/report/op_groups.h"
#include "profiler/base/text.h"

namespace mbb::analysis {
namespace {

using baselines::Cell;
using Remedies = std::vector<Remedy>;

int64_t whole(const KnobText& knob, std::string_view key, int64_t otherwise) {
  return parse_int(knob(key)).value_or(otherwise);
}
bool is_on(const KnobText& knob, std::string_view key) {
  return knob(key) == "true";
}

// What turns a switch on; nothing where it is on already.
void turn_on(Remedies& remedies, const KnobText& knob, std::vector<std::string> keys) {
  Remedy remedy;
  for (std::string& key : keys)
    if (!is_on(knob, key)) remedy.changes.push_back({std::move(key), "true"});
  if (!remedy.changes.empty()) remedies.push_back(std::move(remedy));
}

constexpr const char* kTpOverlap = "overlap.tp_comm_overlap";
constexpr const char* kTpSites = "overlap.tp_comm_overlap_cfg";
constexpr const char* kTp = "parallel.tensor_model_parallel_size";
constexpr const char* kVpp = "parallel.virtual_pipeline_model_parallel_size";
constexpr const char* kMbs = "train.micro_batch_size";
constexpr const char* kGranularity = "memory.recompute_granularity";

// Products that these recipes quantize are split only where the table says so.
void split_products(Remedies& remedies, const KnobText& knob) {
  const std::string recipe = knob("precision.recipe");
  const bool given = knob(kTpSites).find('=') != std::string::npos;
  if (given || (recipe != "fp8_current" && recipe != "fp8_delayed")) return;
  for (const char* method : {"pipeline", "ring_exchange"}) {
    Remedy remedy;
    if (!is_on(knob, kTpOverlap)) remedy.changes.push_back({kTpOverlap, "true"});
    for (const char* part : {"qkv", "proj", "fc1", "fc2"})
      remedy.changes.push_back({fmt::format("{}.{}.method", kTpSites, part), method});
    remedies.push_back(std::move(remedy));
  }
}

Remedies for_tp(const KnobText& knob) {
  Remedies r;
  turn_on(r, knob, {kTpOverlap});
  split_products(r, knob);
  if (const int64_t tp = whole(knob, kTp, 1); tp % 2 == 0) r.push_back({{{kTp, std::to_string(tp / 2)}}});
  return r;
}
Remedies for_dp(const KnobText& knob) {
  Remedies r;
  turn_on(r, knob, {"data_parallel.overlap_grad_reduce", "data_parallel.overlap_param_gather"});
  if (is_on(knob, "data_parallel.grad_reduce_in_fp32")) r.push_back({{{"data_parallel.grad_reduce_in_fp32", "false"}}});
  return r;
}
Remedies for_pp(const KnobText& knob) {
  Remedies r;
  turn_on(r, knob, {"overlap.overlap_p2p_comm"});
  return r;
}
Remedies for_cp(const KnobText& knob) {
  Remedies r;
  for (const char* form : {"p2p", "a2a"})
    if (knob("parallel.cp_comm_type") != form) r.push_back({{{"parallel.cp_comm_type", form}}});
  return r;
}
Remedies for_ep(const KnobText& knob) {
  Remedies r;
  turn_on(r, knob, {"overlap.overlap_moe_expert_parallel_comm"});
  turn_on(r, knob, {"overlap.overlap_moe_expert_parallel_comm", "overlap.delay_wgrad_compute"});
  turn_on(r, knob, {"parallel.moe_fp8_dispatch"});
  // Padded messages hold what the bound allows, which is the worst case where none is given.
  const bool drops = parse_double(knob("parallel.moe_expert_capacity_factor")).value_or(0) > 0;
  if (drops || knob("parallel.moe_exchange") == "counts") return r;
  r.push_back({{{"parallel.moe_exchange", "counts"}}});
  if (parse_double(knob("parallel.moe_dropless_bound")).value_or(0) == 0)
    for (const char* bound : {"4", "2"}) r.push_back({{{"parallel.moe_dropless_bound", bound}}});
  return r;
}

// Finer stages shrink the bubble by their number; smaller micro-batches by giving more of them.
Remedies for_bubble(const KnobText& knob) {
  Remedies r;
  const int64_t vpp = std::max<int64_t>(1, whole(knob, kVpp, 1));
  for (const int64_t finer : {vpp + 1, 2 * vpp, 3 * vpp, 4 * vpp, 5 * vpp})
    if (finer > vpp) r.push_back({{{kVpp, std::to_string(finer)}}});
  if (const int64_t mbs = whole(knob, kMbs, 1); mbs % 2 == 0) r.push_back({{{kMbs, std::to_string(mbs / 2)}}});
  return r;
}
Remedies for_launches(const KnobText& knob) {
  Remedies r;
  turn_on(r, knob, {"host.enable_cuda_graph"});
  return r;
}

struct Rule {
  const char* metric;  // % of the step
  const char* title;
  double from;      // smallest share that is worth a line
  const char* ops;  // stream whose ops carry the loss; nullptr for none
  Remedies (*remedies)(const KnobText&);
  bool all_of_it = false;
};
constexpr Rule kRules[] = {
    {"exposed_comm_tp", "TP communication exposed", 0.5, "tp", for_tp},
    {"exposed_comm_dp", "DP communication exposed", 0.5, "dp", for_dp},
    {"exposed_comm_pp", "PP communication exposed", 0.5, "pp", for_pp},
    {"exposed_comm_cp", "CP communication exposed", 0.5, "cp", for_cp},
    {"exposed_comm_ep", "EP communication exposed", 0.5, "ep", for_ep},
    {"bubble", "pipeline bubble", 1.0, nullptr, for_bubble},
    {"idle_host_bound", "host-bound: the GPU waits for launches", 1.0, nullptr, for_launches, true},
    {"idle_launch_gap", "gaps between kernels", 1.0, nullptr, for_launches, true},
};

double value_of(const Cell& cell, std::string_view metric) {
  for (const auto& m : cell.metrics)
    if (m.name == metric && std::isfinite(m.value)) return m.value;
  return 0;
}

bool has(const Cell& cell, std::string_view metric) {
  return std::any_of(cell.metrics.begin(), cell.metrics.end(), [&](const auto& m) { return m.name == metric; });
}

// The one or two groups of ops on streams of that name that take longest, or nothing.
std::string longest_on(const Cell& cell, std::string_view stream) {
  std::map<std::string, int64_t> groups;
  for (const auto& launch : cell.launches)
    for (const auto& op : launch.ops)
      if (op.stream.starts_with(stream)) groups[grouped_path(op.path)] += op.total_ns;
  std::vector<std::pair<int64_t, std::string>> order;
  for (const auto& [path, ns] : groups) order.emplace_back(ns, path);
  std::sort(order.rbegin(), order.rend());
  if (order.empty()) return "";
  std::string text = ", most in " + order[0].second;
  if (order.size() > 1) text += " and " + order[1].second;
  return text;
}

// Memory that lies idle while something is recomputed or offloaded for want of it.
void add_unused_memory(std::vector<Symptom>& found, const Cell& cell, const KnobText& knob, double capacity) {
  if (!has(cell, "peak_memory")) return;  // as a log that says nothing of memory
  const double unused = capacity - value_of(cell, "peak_memory");
  if (capacity <= 0 || unused < 0.05 * capacity) return;
  const std::string granularity = knob(kGranularity);
  Symptom s;
  if (!granularity.empty() && granularity != "none") {
    s.what = fmt::format("{} of {} unused while {}={}", format_bytes(unused), format_bytes(capacity),
                         "recompute_granularity", granularity);
    if (granularity == "full") {
      s.remedies.push_back({{{kGranularity, "selective"}}});
      if (const int64_t layers = whole(knob, "memory.recompute_num_layers", 0); layers > 1)
        for (const int64_t fewer : {layers / 2, layers - 1})
          s.remedies.push_back({{{"memory.recompute_num_layers", std::to_string(fewer)}}});
    }
    s.remedies.push_back({{{kGranularity, "none"}}});
  } else if (is_on(knob, "memory.cpu_offloading")) {
    s.what = fmt::format("{} of {} unused while cpu_offloading=true", format_bytes(unused), format_bytes(capacity));
    s.remedies.push_back({{{"memory.cpu_offloading", "false"}}});
  } else {
    s.what = fmt::format("{} of {} unused", format_bytes(unused), format_bytes(capacity));
    const int64_t mbs = whole(knob, kMbs, 1);
    s.remedies.push_back({{{kMbs, std::to_string(2 * mbs)}}});
    if (const int64_t tp = whole(knob, kTp, 1); tp % 2 == 0) s.remedies.push_back({{{kTp, std::to_string(tp / 2)}}});
  }
  found.push_back(std::move(s));
}

void add_precision(std::vector<Symptom>& found, const Cell& cell, const KnobText& knob) {
  if (knob("precision.recipe") != "bf16") return;
  const bool known = has(cell, "fp8_eligible_flops");
  const double share = value_of(cell, "fp8_eligible_flops");
  if (known && share < 20) return;
  Symptom s;
  s.what = "linear layers of blocks run in bf16, which FP8 could take";
  if (known) s.what += fmt::format(": {:.1f} % of the FLOPs", share);
  s.remedies = {{{{"precision.recipe", "fp8_current"}}}, {{{"precision.recipe", "fp8_delayed"}}}};
  found.push_back(std::move(s));
}

}  // namespace

std::string Remedy::text() const {
  std::string text;
  for (const KnobChange& change : changes) {
    const size_t dot = change.key.find('.');  // behind the section
    if (!text.empty()) text += ' ';
    text += change.key.substr(dot == std::string::npos ? 0 : dot + 1) + "=" + change.value;
  }
  return text;
}

KnobText knob_text_of(const Cell& cell) {
  std::map<std::string, std::string, std::less<>> by_key;
  for (const auto& knob : cell.knobs) by_key[knob.key] = knob.value;
  return [by_key = std::move(by_key)](std::string_view key) {
    const auto found = by_key.find(key);
    return found == by_key.end() ? std::string() : found->second;
  };
}

std::vector<Symptom> symptoms(const Cell& cell, const KnobText& knob, double capacity_bytes) {
  std::vector<Symptom> found;
  const double step = value_of(cell, "step_time");
  if (!(step > 0)) return found;
  for (const Rule& rule : kRules) {
    const double share = value_of(cell, rule.metric);
    if (share < rule.from) continue;
    Symptom s;
    s.lost_ns = step * share / 100;
    s.what = fmt::format("{}: {} of {} ({:.1f} %)", rule.title, format_ns(s.lost_ns), format_ns(step), share);
    if (rule.ops != nullptr) s.what += longest_on(cell, rule.ops);
    s.remedies = rule.remedies(knob);
    s.all_of_it = rule.all_of_it;
    found.push_back(std::move(s));
  }
  add_precision(found, cell, knob);
  add_unused_memory(found, cell, knob, capacity_bytes);
  std::stable_sort(found.begin(), found.end(),
                   [](const Symptom& a, const Symptom& b) { return a.lost_ns > b.lost_ns; });
  return found;
}

}  // namespace mbb::analysis
