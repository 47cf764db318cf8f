// Writes projections as a screen of text and as one JSON object.
#include "suites/project/projection_text.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "profiler/base/text.h"
#include "trainer/program/mesh.h"
#include "trainer/run/precision_rules.h"

namespace mbb::suites {
namespace {

using analysis::CommKind;
using analysis::kCommKinds;

struct PlanCost {
  double days = 0;
  double cost = 0;
};

PlanCost cost_of(const Projection& p, const TrainingPlan& plan) {
  const double per_second = static_cast<double>(p.tokens) / (p.step_ns * 1e-9);
  const double days = plan.tokens / per_second / 86400;
  return {days, static_cast<double>(p.gpus) * days * 24 * plan.price_gpu_hour};
}

std::string where(const Projection& p) {
  const auto share = [&](double ns) { return format_percent(ns / p.step_ns); };
  std::string line =
      fmt::format("compute {}   exposed comm {}", share(p.parts.compute_ns), share(p.parts.exposed_comm_ns()));
  std::string kinds;
  for (size_t kind = 0; kind < kCommKinds; ++kind)
    if (p.parts.exposed_ns[kind] > 0.0005 * p.step_ns)
      kinds += fmt::format("{}{} {}", kinds.empty() ? "" : ", ", analysis::name(static_cast<CommKind>(kind)),
                           share(p.parts.exposed_ns[kind]));
  if (!kinds.empty()) line += " (" + kinds + ")";
  line += fmt::format("   bubble {}", share(p.parts.bubble_ns));
  const std::pair<const char*, double> others[] = {
      {"copies", p.parts.copy_ns}, {"waiting", p.parts.wait_ns}, {"stragglers", p.parts.stragglers_ns}};
  for (const auto& [what, ns] : others)
    if (ns > 0.0005 * p.step_ns) line += fmt::format("   {} {}", what, share(ns));
  return line;
}

std::string peaks(const Projection& p, double tflops) {
  const auto hardware = trainer::find_hardware(p.hardware);
  if (!hardware || hardware->bf16_tflops <= 0) return {};
  std::string text = fmt::format(", {} of the bf16 peak", format_percent(tflops / hardware->bf16_tflops));
  if (hardware->fp8_tflops > 0)
    text += fmt::format(", {} of the fp8 peak", format_percent(tflops / hardware->fp8_tflops));
  return text;
}

std::string memory_line(const Projection& p) {
  if (p.memory.capacity_bytes <= 0) return format_bytes(static_cast<double>(p.memory.bytes()));
  return fmt::format("{} on stage {} of {} that a plan may take: {}",
                     format_bytes(static_cast<double>(p.memory.bytes())), p.memory.stage,
                     format_bytes(static_cast<double>(p.memory.capacity_bytes)),
                     p.memory.fits() ? "fits" : "DOES NOT FIT, the step is projected as if it did");
}

std::string title(const Projection& p, const trainer::Layout& layout) {
  return fmt::format("{}  {}{}  {} GPUs, {} micro-batches of {} x {} tokens, {}, on {}", layout.model.name,
                     trainer::describe(layout.mesh.sizes()), layout.vpp > 1 ? fmt::format(" vpp{}", layout.vpp) : "",
                     p.gpus, layout.micro_batches, layout.micro_batch, layout.sequence,
                     trainer::recipe_name(layout.config), p.hardware);
}

nlohmann::json errors_json(const trainer::PublishedAccuracy& a) {
  using nlohmann::json;
  const auto errors = [](const trainer::StepErrors& e) {
    return json{{"rows", e.rows}, {"median", e.median}, {"p90", e.p90}, {"coverage80", e.coverage}};
  };
  return {{"rows", a.rows},
          {"models", a.models},
          {"median", a.median},
          {"p90", a.p90},
          {"coverage80", a.coverage},
          {"unseen_median", a.unseen_median},
          {"unseen_p90", a.unseen_p90},
          {"unseen_coverage80", a.unseen_coverage},
          {"dense_as_projected", errors(a.dense)},
          {"experts_as_projected", errors(a.experts)},
          {"dense_assumed", errors(a.dense_assumed)},
          {"experts_assumed", errors(a.experts_assumed)},
          {"ours", errors(a.ours)}};
}

}  // namespace

std::string unsaid_text(const std::vector<std::string>& unsaid) {
  const char* verb = unsaid.size() == 1 ? "is" : "are";
  return unsaid.empty()
             ? ""
             : fmt::format("({} {} the quickstart's: say what yours {})", fmt::join(unsaid, " and "), verb, verb);
}

std::vector<std::string> accuracy_lines(const trainer::CostTable& costs) {
  const trainer::PublishedAccuracy& a = costs.published;
  const auto errors = [](const trainer::StepErrors& e) {
    return fmt::format("{}, {}, {} of {}", format_percent(e.median), format_percent(e.p90),
                       format_percent(e.coverage, 0), e.rows);
  };
  if (a.rows == 0 && a.ours.rows == 0) return {"No published step was compared with this table."};
  if (a.rows == 0)
    return {
        fmt::format("Our programs as projected, step error (median, p90, inside the 80 % interval) on our own steps, "
                    "one card, {}; no published step was compared with this table.",
                    errors(a.ours))};
  return {
      fmt::format("Our programs as projected, step error (median, p90, inside the 80 % interval): on published H100 "
                  "steps of other trainers, dense {}; with experts {}; on our own steps, one H100, {}.",
                  errors(a.dense), errors(a.experts), errors(a.ours)),
      fmt::format("With what is assumed of those trainers ({} of TP communication hidden, FP8 gathers, {} slower "
                  "before 2025): dense {}; with experts {}; of models the fit had not seen {}, {}, {}.",
                  format_percent(a.tp_hidden, 0), format_percent(a.older_loss, 0), errors(a.dense_assumed),
                  errors(a.experts_assumed), format_percent(a.unseen_median), format_percent(a.unseen_p90),
                  format_percent(a.unseen_coverage, 0))};
}

std::string to_text(const Projection& p, const trainer::Layout& layout, const trainer::CostTable& costs,
                    const TrainingPlan& plan, const std::vector<std::string>& unsaid) {
  const double causal = p.tflops_per_gpu(p.model_flops_causal);
  std::string out = title(p, layout);
  if (!unsaid.empty()) out += "  " + unsaid_text(unsaid);
  out += "\n";
  out +=
      fmt::format("step      {}   80 %: {} to {}\n", format_ns(p.step_ns), format_ns(p.low_ns), format_ns(p.high_ns));
  out += fmt::format("speed     {:.0f} tokens/s/GPU   {:.0f} TFLOP/s/GPU (causal{}), {:.0f} (full)\n",
                     p.tokens_per_s_per_gpu(), causal, peaks(p, causal), p.tflops_per_gpu(p.model_flops_full));
  out += fmt::format("where     {}\n", where(p));
  out += "rests on  ";
  for (size_t i = 0; i < p.terms.size(); ++i)
    out += fmt::format("{}{} {} ±{}", i == 0 ? "" : "   ", trainer::name(p.terms[i].term),
                       format_percent(p.terms[i].share), format_percent(p.terms[i].sigma, 0));
  out += fmt::format("   unexplained ±{}\n", format_percent(costs.model_sigma, 0));
  out += fmt::format("memory    {}\n", memory_line(p));
  if (plan.tokens > 0) {
    const PlanCost cost = cost_of(p, plan);
    out += fmt::format("training  {:.3g} tokens on {} GPUs: {:.1f} days", plan.tokens, p.gpus, cost.days);
    if (plan.price_gpu_hour > 0) out += fmt::format(", {:.0f} at {} a GPU-hour", cost.cost, plan.price_gpu_hour);
    out += " (no time lost to restarts)\n";
  }
  out += fmt::format("trust     {}\n", p.costs);
  for (const std::string& line : accuracy_lines(costs)) out += fmt::format("          {}\n", line);
  out += "projected: nothing here was measured.\n";
  return out;
}

std::string to_json(const Projection& p, const trainer::Layout& layout, const trainer::CostTable& costs,
                    const TrainingPlan& plan, const std::vector<std::string>& unsaid) {
  using nlohmann::json;
  json exposed;
  for (size_t kind = 0; kind < kCommKinds; ++kind)
    exposed[analysis::name(static_cast<CommKind>(kind))] = p.parts.exposed_ns[kind];
  json terms = json::array();
  for (const ProjectedTerm& term : p.terms)
    terms.push_back({{"term", trainer::name(term.term)},
                     {"share", term.share},
                     {"sigma", term.sigma},
                     {"factor", costs.term(term.term).factor},
                     {"fitted", costs.term(term.term).fitted},
                     {"source", costs.term(term.term).source}});
  const double causal = p.tflops_per_gpu(p.model_flops_causal);
  json out = {{"class", "projected"},
              {"model", layout.model.name},
              {"hardware", p.hardware},
              {"costs", p.costs},
              {"measured_costs", p.measured_costs},
              {"mapping", trainer::describe(layout.mesh.sizes())},
              {"vpp", layout.vpp},
              {"recipe", trainer::recipe_name(layout.config)},
              {"gpus", p.gpus},
              {"tokens_per_step", p.tokens},
              {"step_ns", p.step_ns},
              {"step_ns_low80", p.low_ns},
              {"step_ns_high80", p.high_ns},
              {"sigma", p.sigma},
              {"tokens_per_s_per_gpu", p.tokens_per_s_per_gpu()},
              {"tflops_per_gpu_causal", causal},
              {"tflops_per_gpu_full", p.tflops_per_gpu(p.model_flops_full)},
              {"parts_ns",
               {{"compute", p.parts.compute_ns},
                {"exposed_comm", exposed},
                {"copy", p.parts.copy_ns},
                {"bubble", p.parts.bubble_ns},
                {"waiting", p.parts.wait_ns},
                {"stragglers", p.parts.stragglers_ns}}},
              {"terms", terms},
              {"memory",
               {{"arena_bytes", p.memory.arena_bytes},
                {"graph_bytes", p.memory.graph_bytes},
                {"capacity_bytes", p.memory.capacity_bytes},
                {"stage", p.memory.stage},
                {"fits", p.memory.fits()}}},
              {"published_error", errors_json(costs.published)},
              {"not_projected", not_projected(layout.config)},
              {"quickstart_values", unsaid}};
  if (plan.tokens > 0) {
    const PlanCost cost = cost_of(p, plan);
    out["training"] = {{"tokens", plan.tokens}, {"days", cost.days}};
    if (plan.price_gpu_hour > 0) {
      out["training"]["price_gpu_hour"] = plan.price_gpu_hour;
      out["training"]["cost"] = cost.cost;
    }
  }
  return out.dump();
}

}  // namespace mbb::suites
