// Finds published rows by configuration.
#include "suites/runner/published_beside.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "analysis/metrics/cell_metrics.h"
#include "analysis/metrics/metrics.h"
#include "profiler/base/check.h"
#include "suites/project/published_config.h"
#include "trainer/models/flops.h"
#include "trainer/models/model.h"
#include "trainer/run/precision_rules.h"

namespace mbb::suites {
namespace {

struct HardwareName {
  const char* key;
  const char* published;
};
constexpr HardwareName kNames[] = {{"h100-sxm", "H100"}, {"b200", "B200"},   {"b300", "B300"},
                                   {"gb200", "GB200"},   {"gb300", "GB300"}, {"a100-sxm", "A100"}};

// A size that the source does not state matches any.
bool agrees(int64_t published, int64_t ours) {
  return published == 0 || published == ours;
}

// Llama 3 and 3.1 of one size do the same work at these lengths: RoPE's frequencies differ.
std::string twin_model(std::string_view name) {
  if (name == "llama3.1-8b") return "llama3-8b";
  if (name == "llama3.1-70b") return "llama3-70b";
  if (name == "llama3-8b") return "llama3.1-8b";
  if (name == "llama3-70b") return "llama3.1-70b";
  return "";
}

int64_t interleaving_of(const baselines::PublishedRow& row) {
  return row.pp > 0 ? published_interleaving(row) : row.vpp;
}

// What of the configuration's mapping the source leaves out: "mapping", "VPP and CP"; empty when it says all.
std::string left_open(const baselines::PublishedRow& row, const trainer::Layout& l) {
  if (row.tp == 0 && row.pp == 0 && row.sharding.empty()) return "mapping";
  std::string open;
  const auto check = [&](bool is_open, const char* what) {
    if (is_open) open += (open.empty() ? "" : " and ") + std::string(what);
  };
  check(row.tp == 0 && l.tp > 1, "TP");
  check(row.pp == 0 && l.pp > 1, "PP");
  check(row.pp > 1 && interleaving_of(row) == 0, "VPP");
  check(row.cp == 0 && l.cp > 1, "CP");
  check(row.ep == 0 && l.ep > 1, "EP");
  return open;
}

// Not a proxy, a model of other widths, or another's config.json in a folder of that name.
bool is_of_its_name(const trainer::Layout& l) {
  const auto named = trainer::find_model(l.model.name);
  const auto work = [&](const trainer::ModelShape& model) {
    return trainer::flops_per_token(model, l.sequence, trainer::FlopsConvention::kCausal, l.encoder_sequence);
  };
  return named && trainer::count_parameters(*named).total() == trainer::count_parameters(l.model).total() &&
         work(*named) == work(l.model);
}

bool is_like(const baselines::PublishedRow& row, const trainer::Layout& l) {
  const bool sharded = l.shards_parameters();
  const bool row_sharded = !row.sharding.empty() && row.sharding != "0";
  return agrees(row.gpus, l.mesh.world_size()) && agrees(row.global_batch, l.global_batch) &&
         agrees(row.micro_batch, l.micro_batch) && agrees(row.seq_length, l.sequence) && agrees(row.tp, l.tp) &&
         agrees(row.pp, l.pp) && agrees(row.cp, l.cp) && agrees(interleaving_of(row), l.vpp) && agrees(row.ep, l.ep) &&
         (row.etp == 0 || !l.model.is_moe() || row.etp == l.etp) && sharded == row_sharded;
}

// The project's name of a source: its repository without the owner.
std::string source_name(const baselines::PublishedRow& row) {
  std::string_view name = row.source;
  name = name.substr(0, name.find(':'));
  if (const size_t slash = name.rfind('/'); slash != std::string_view::npos) name.remove_prefix(slash + 1);
  return fmt::format("{} {}", name, row.release);
}

// In the causal convention: as published, or counted anew from tokens/s with the model's own FLOPs.
std::string teraflops(const baselines::PublishedRow& row, const trainer::Layout& l) {
  if (row.attention_flops.starts_with("causal") && !std::isnan(row.tflops_per_gpu))
    return fmt::format("{:.0f} TFLOP/s causal", row.tflops_per_gpu);
  if (std::isnan(row.tokens_per_s_per_gpu))
    return std::isnan(row.tflops_per_gpu)
               ? ""
               : fmt::format("{:.0f} TFLOP/s, attention {}", row.tflops_per_gpu, row.attention_flops);
  const double a_token =
      trainer::flops_per_token(l.padded_model(), l.sequence, trainer::FlopsConvention::kCausal, l.encoder_sequence);
  const std::string causal = fmt::format("{:.0f} TFLOP/s causal", row.tokens_per_s_per_gpu * a_token * 1e-12);
  if (std::isnan(row.tflops_per_gpu)) return causal;
  return fmt::format("{}, published as {:.0f} with attention {}", causal, row.tflops_per_gpu, row.attention_flops);
}

}  // namespace

std::string_view published_hardware(std::string_view hardware) {
  for (const HardwareName& known : kNames)
    if (hardware == known.key) return known.published;
  return "";
}

std::vector<baselines::PublishedRow> published_like(const trainer::Layout& layout, std::string_view hardware) {
  std::vector<baselines::PublishedRow> found;
  const std::string name{published_hardware(hardware)};
  if (name.empty() || !is_of_its_name(layout)) return found;
  const std::string recipe = trainer::recipe_name(layout.config);
  for (const std::string& model : {layout.model.name, twin_model(layout.model.name)}) {
    if (model.empty()) continue;
    for (baselines::PublishedRow& row :
         baselines::find_published({.model_id = model, .hardware = name, .with_variants = true})) {
      const bool dropless = row.variant == "dropless" && layout.model.is_moe();
      if (!row.variant.empty() && !dropless) continue;
      const bool fp8 = row.precision == "fp8" && recipe.starts_with("fp8");
      if ((row.precision == recipe || fp8) && is_like(row, layout)) found.push_back(std::move(row));
    }
  }
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.date > b.date; });
  return found;
}

std::string published_beside(const trainer::Layout& layout, std::string_view hardware) {
  const std::vector<baselines::PublishedRow> rows = published_like(layout, hardware);
  if (rows.empty()) return "";
  const baselines::PublishedRow& newest = rows.front();
  std::string text;
  if (!std::isnan(newest.tokens_per_s_per_gpu)) text = fmt::format("{:.0f} tokens/s/GPU", newest.tokens_per_s_per_gpu);
  if (const std::string rate = teraflops(newest, layout); !rate.empty()) text += (text.empty() ? "" : ", ") + rate;
  const std::string open = left_open(newest, layout);
  const std::string vague = open.empty() ? "" : fmt::format(", {} not stated", open);
  const std::string more = rows.size() > 1 ? fmt::format(", {} older", rows.size() - 1) : "";
  return fmt::format("{}; {}{}{}", text, source_name(newest), vague, more);
}

double published_rate(const trainer::Layout& layout, std::string_view hardware) {
  const std::vector<baselines::PublishedRow> rows = published_like(layout, hardware);
  if (rows.empty() || !left_open(rows.front(), layout).empty()) return baselines::kNotStated;
  return rows.front().tokens_per_s_per_gpu;
}

void add_published_error(baselines::Cell& cell, double rate) {
  const baselines::Metric* ours = analysis::find(cell, "tokens_per_second_per_gpu");
  if (!(rate > 0) || ours == nullptr || !(ours->value > 0)) return;
  const analysis::MetricInfo* info = analysis::find_metric("published_error");
  MB_CHECK(info != nullptr, "metric not declared: published_error");
  // Of the step: at equal work it is long where the rate is low.
  const auto error = [&](double a_rate) { return 100 * (rate / a_rate - 1); };
  cell.metrics.push_back(
      {info->id, error(ours->value), error(ours->high), error(ours->low), info->unit, ours->launches, ours->interval});
}

}  // namespace mbb::suites
