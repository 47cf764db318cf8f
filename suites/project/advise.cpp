// Every legal mapping, built, planned and projected by a few threads.
#include "suites/project/advise.h"

#include <fmt/core.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <thread>

#include "profiler/base/text.h"
#include "trainer/models/flops.h"
#include "trainer/models/hf_config.h"
#include "trainer/models/transformer.h"
#include "trainer/passes/precision.h"

namespace mbb::suites {
namespace {

using trainer::Config;

struct Mapping {
  int64_t tp = 1, cp = 1, pp = 1, vpp = 1, ep = 1, mbs = 1;
  bool fsdp = false;
};

std::vector<int64_t> divisors(int64_t n, int64_t most) {
  std::vector<int64_t> all;
  for (int64_t d = 1; d <= std::min(n, most); ++d)
    if (n % d == 0) all.push_back(d);
  return all;
}

bool is_power_of_two(int64_t n) {
  return (n & (n - 1)) == 0;
}

// The values of an axis, or the one that the user has set.
std::vector<int64_t> axis(const AdviseOptions& options, const char* key, int64_t set, std::vector<int64_t> values) {
  if (options.fixed.contains(key)) return {set};
  return values;
}

// Interleavings worth a look: none, one layer a chunk, and those between with two or four layers. Of layers that do not
// divide those of a layout that is written out.
std::vector<int64_t> interleavings(int64_t layers, int64_t pp) {
  std::vector<int64_t> all{1};
  if (pp == 1) return all;
  if (layers % pp != 0) {
    for (const int64_t chunk : {4, 2})
      if (const int64_t vpp = (layers + 2 + pp * chunk - 1) / (pp * chunk); vpp > all.back()) all.push_back(vpp);
    return all;
  }
  const int64_t stage = layers / pp;
  for (const int64_t chunk : {4, 2, 1})
    if (stage % chunk == 0 && stage / chunk > 1) all.push_back(stage / chunk);
  return all;
}

std::vector<Mapping> mappings(const Config& base, const trainer::ModelShape& model, const trainer::CostTable& costs,
                              const AdviseOptions& options) {
  const trainer::ParallelConfig& p = base.parallel;
  const int64_t gpus = p.gpus;
  std::vector<int64_t> tensor = divisors(gpus, costs.domain), context = divisors(gpus, 8);
  std::erase_if(tensor, [&](int64_t n) { return !is_power_of_two(n) || model.num_query_groups % n != 0; });
  std::erase_if(context, [&](int64_t n) { return !is_power_of_two(n) || base.train.seq_length / n < 2048; });
  if (context.empty()) context = {1};
  tensor = axis(options, "parallel.tensor_model_parallel_size", p.tensor_model_parallel_size, tensor);
  context = axis(options, "parallel.context_parallel_size", p.context_parallel_size, context);
  std::vector<int64_t> expert{1};
  if (model.is_moe()) expert = divisors(model.moe.num_experts, gpus);
  expert = axis(options, "parallel.expert_model_parallel_size", p.expert_model_parallel_size, expert);
  const std::vector<int64_t> micro =
      axis(options, "train.micro_batch_size", base.train.micro_batch_size, std::vector<int64_t>{1, 2});
  std::vector<Mapping> all;
  for (const int64_t tp : tensor)
    for (const int64_t cp : context)
      for (const int64_t pp :
           axis(options, "parallel.pipeline_model_parallel_size", p.pipeline_model_parallel_size, divisors(gpus, 64))) {
        if (gpus % (tp * cp * pp) != 0) continue;
        for (const int64_t vpp : axis(options, "parallel.virtual_pipeline_model_parallel_size",
                                      p.virtual_pipeline_model_parallel_size, interleavings(model.num_layers, pp)))
          for (const int64_t ep : expert)
            for (const int64_t mbs : micro)
              for (const bool fsdp : {false, true}) {
                if (fsdp && (pp > 1 || options.fixed.contains("data_parallel.data_parallel_sharding_strategy")))
                  continue;
                if (base.train.global_batch_size % (mbs * gpus / (tp * cp * pp)) == 0)
                  all.push_back({tp, cp, pp, vpp, ep, mbs, fsdp});
              }
      }
  return all;
}

std::string layers_text(int64_t layers) {
  return layers == 0 ? "" : layers == 1 ? "t" : fmt::format("t*{}", layers);
}

// Layers over chunks where they do not divide: embedding and loss count as a layer each, and what is still too much
// room is left in the last chunks but one, which lie on different stages. Empty where a chunk would hold nothing.
std::string uneven_layout(int64_t layers, int64_t chunks, int64_t mtp) {
  const int64_t slots = (layers + 2 + chunks - 1) / chunks;
  std::vector<int64_t> held(static_cast<size_t>(chunks), slots);
  --held.front();
  --held.back();
  const int64_t spare = slots * chunks - 2 - layers;
  if (slots == 1 && spare > 0) return "";
  for (int64_t i = 0; i < spare; ++i) --held[static_cast<size_t>(chunks - 2 - i)];
  std::string text = "E" + layers_text(held.front()) + "|";
  for (size_t i = 1; i + 1 < held.size();) {
    size_t end = i;
    while (end + 1 < held.size() && held[end] == held[i]) ++end;
    const std::string chunk = layers_text(held[i]) + "|";
    text += end - i > 1 ? fmt::format("({})*{}", chunk, end - i) : chunk;
    i = end;
  }
  return text + layers_text(held.back()) + std::string(static_cast<size_t>(mtp), 'm') + "L";
}

// Layers that do not divide over the chunks, where nothing says how to cut them.
void cut_unevenly(Config& config, const trainer::ModelShape& model, const AdviseOptions& options) {
  trainer::ParallelConfig& p = config.parallel;
  const int64_t chunks = p.pipeline_model_parallel_size * p.virtual_pipeline_model_parallel_size;
  if (model.num_layers % chunks == 0 || model.is_encoder_decoder()) return;
  for (const char* key : {"parallel.pipeline_layout", "parallel.account_for_embedding_in_pipeline_split",
                          "parallel.account_for_loss_in_pipeline_split"})
    if (options.fixed.contains(key)) return;
  p.pipeline_layout = uneven_layout(model.num_layers, chunks, model.num_mtp_layers);
}

Config config_of(const Config& base, const Mapping& m, const trainer::ModelShape& model, const AdviseOptions& options) {
  Config config = base;
  trainer::ParallelConfig& p = config.parallel;
  p.tensor_model_parallel_size = m.tp;
  p.context_parallel_size = m.cp;
  p.pipeline_model_parallel_size = m.pp;
  p.virtual_pipeline_model_parallel_size = m.vpp;
  p.expert_model_parallel_size = m.ep;
  if (m.pp > 1) cut_unevenly(config, model, options);
  if (model.is_moe() && !options.fixed.contains("parallel.expert_tensor_parallel_size"))
    p.expert_tensor_parallel_size = 1;
  config.train.micro_batch_size = m.mbs;
  if (m.fsdp) config.data_parallel.data_parallel_sharding_strategy = trainer::ShardingStrategy::kOptimGradsParams;
  return config;
}

// Weights, gradients and states alone, as if everything that can be sharded were: no plan is smaller.
double least_bytes(const Mapping& m, const trainer::ModelShape& model, int64_t gpus) {
  const trainer::ParameterCount count = trainer::count_parameters(model);
  const auto dense = static_cast<double>(count.total() - count.experts);
  const double shares = static_cast<double>(m.tp * m.pp), all = static_cast<double>(gpus);
  const double held = dense / shares + static_cast<double>(count.experts) / static_cast<double>(m.ep * m.pp);
  const double everywhere = static_cast<double>(count.total()) / all;
  return m.fsdp ? 16 * everywhere : 4 * held + 12 * everywhere;
}

std::string label_of(const Config& c) {
  const trainer::ParallelConfig& p = c.parallel;
  std::string text = fmt::format("tp{} pp{}", p.tensor_model_parallel_size, p.pipeline_model_parallel_size);
  if (p.virtual_pipeline_model_parallel_size > 1) text += fmt::format(" vpp{}", p.virtual_pipeline_model_parallel_size);
  if (!p.pipeline_layout.empty()) text += " " + p.pipeline_layout;
  if (p.context_parallel_size > 1) text += fmt::format(" cp{}", p.context_parallel_size);
  if (p.expert_model_parallel_size > 1) text += fmt::format(" ep{}", p.expert_model_parallel_size);
  text += fmt::format(" mbs{}", c.train.micro_batch_size);
  if (c.data_parallel.data_parallel_sharding_strategy == trainer::ShardingStrategy::kOptimGradsParams) text += " fsdp";
  if (c.memory.recompute_granularity == trainer::RecomputeGranularity::kSelective) text += " recompute-selective";
  if (c.memory.recompute_granularity == trainer::RecomputeGranularity::kFull) text += " recompute-full";
  return text;
}

// What a mapping loses most by, beside the fastest.
std::string reason_of(const Projection& p, const Projection& best) {
  struct Loss {
    const char* what;
    double ns;
  };
  const auto exposed = [&](analysis::CommKind kind) {
    const auto k = static_cast<size_t>(kind);
    return p.parts.exposed_ns[k] - best.parts.exposed_ns[k];
  };
  using analysis::CommKind;
  const Loss losses[] = {{"compute (smaller or repeated kernels)", p.parts.compute_ns - best.parts.compute_ns},
                         {"exposed tp communication", exposed(CommKind::kTp)},
                         {"exposed cp communication", exposed(CommKind::kCp)},
                         {"exposed ep communication", exposed(CommKind::kEp)},
                         {"exposed pp communication", exposed(CommKind::kPp)},
                         {"exposed dp communication", exposed(CommKind::kDp)},
                         {"bubble", p.parts.bubble_ns - best.parts.bubble_ns},
                         {"waiting", p.parts.wait_ns - best.parts.wait_ns}};
  const Loss* worst =
      std::max_element(std::begin(losses), std::end(losses), [](const Loss& a, const Loss& b) { return a.ns < b.ns; });
  if (worst->ns <= 0.001 * best.step_ns) return "as the fastest";
  return fmt::format("+{} {}", format_percent(worst->ns / best.step_ns), worst->what);
}

class Adviser {
 public:
  Adviser(const Config& base, trainer::ModelShape model, trainer::CostTable costs, const AdviseOptions& options)
      : base_(base), model_(std::move(model)), costs_(std::move(costs)), options_(options) {}

  Result<Advised> run() {
    const std::vector<Mapping> all = mappings(base_, model_, costs_, options_);
    std::atomic<size_t> next = 0;
    std::vector<std::thread> threads;
    for (int t = 0; t < std::max(1, options_.threads); ++t)
      threads.emplace_back([&] {
        for (size_t i = next++; i < all.size(); i = next++) consider(all[i]);
      });
    for (std::thread& thread : threads) thread.join();
    std::stable_sort(out_.ranked.begin(), out_.ranked.end(), [](const Advice& a, const Advice& b) {
      return std::pair(a.projection.step_ns, a.label) < std::pair(b.projection.step_ns, b.label);
    });
    out_.tried = static_cast<int>(all.size());
    if (out_.ranked.empty())
      return fail(ErrorCode::kNotFound,
                  fmt::format("no mapping of {} onto {} GPUs fits: {} are too large, {} break a rule{}", model_.name,
                              base_.parallel.gpus, out_.too_large, out_.illegal,
                              out_.example.empty() ? "" : " (such as: " + out_.example + ")"),
                  "ask for more GPUs, fix fewer knobs, or choose a global_batch_size that divides");
    for (Advice& advice : out_.ranked)
      advice.reason =
          &advice == &out_.ranked.front() ? "fastest" : reason_of(advice.projection, out_.ranked.front().projection);
    return std::move(out_);
  }

 private:
  void consider(const Mapping& m) {
    const auto hardware = trainer::find_hardware(options_.hardware);
    if (hardware && least_bytes(m, model_, base_.parallel.gpus) > hardware->memory_bytes) {
      const std::lock_guard lock(mutex_);
      ++out_.too_large;
      return;
    }
    Config config = config_of(base_, m, model_, options_);
    const bool may_recompute = !options_.fixed.contains("memory.recompute_granularity");
    using trainer::RecomputeGranularity;
    for (const RecomputeGranularity granularity :
         {config.memory.recompute_granularity, RecomputeGranularity::kSelective, RecomputeGranularity::kFull}) {
      config.memory.recompute_granularity = granularity;
      if (granularity == RecomputeGranularity::kSelective && may_recompute)
        config.memory.recompute_modules = model_.is_moe() ? "layernorm,moe_act" : "layernorm,act";
      Result<Advice> made = project_one(config);
      const std::lock_guard lock(mutex_);
      if (!made) {
        ++out_.illegal;
        if (out_.example.empty()) out_.example = made.error().what;
        return;
      }
      if (made->projection.memory.fits()) {
        out_.ranked.push_back(std::move(*made));
        return;
      }
      if (!may_recompute) break;
    }
    const std::lock_guard lock(mutex_);
    ++out_.too_large;
  }

  // Of a pipeline the first stage holds most activations and the last one the logits: only their plans are made, and
  // the second's, which holds a layer more where the first one's embedding counts as one.
  Result<Advice> project_one(const Config& config) const {
    MB_ASSIGN(const trainer::Layout layout, trainer::resolve(config));
    trainer::StepPrograms built;
    const int classes = layout.mesh.rank_class_count();
    for (int c = 0; c < classes; ++c)
      built.programs.push_back(trainer::build_program(layout, layout.mesh.rank_class(layout.mesh.representative(c))));
    built.plans.resize(built.programs.size());
    const trainer::PlanOptions plan{config.memory.expandable_segments, config.memory.avoid_record_streams};
    built.plans.front() = trainer::plan_memory(built.programs.front(), plan);
    for (int c = 1; c + 1 < classes && !config.parallel.pipeline_layout.empty(); ++c)
      if (built.programs[static_cast<size_t>(c)].rank_class.pp == 1) {
        built.plans[static_cast<size_t>(c)] = trainer::plan_memory(built.programs[static_cast<size_t>(c)], plan);
        break;
      }
    if (classes > 1) built.plans.back() = trainer::plan_memory(built.programs.back(), plan);
    Advice advice;
    advice.config = config;
    advice.label = label_of(config);
    // What does not fit is not walked.
    ProjectOptions options;
    options.only_memory = true;
    MB_ASSIGN(advice.projection, project(layout, built, costs_, options));
    if (!advice.projection.memory.fits()) return advice;
    MB_TRY(trainer::check_block_shapes(built.programs.front()));
    MB_ASSIGN(advice.projection, project(layout, built, costs_));
    return advice;
  }

  const Config& base_;
  trainer::ModelShape model_;
  trainer::CostTable costs_;
  const AdviseOptions& options_;
  std::mutex mutex_;
  Advised out_;
};

}  // namespace

Result<Advised> advise(const Config& base, const AdviseOptions& options) {
  if (base.parallel.gpus < 1) return fail(ErrorCode::kBadArgument, "advise needs the number of GPUs", "give --gpus N");
  auto named = trainer::resolve_model(base.model.name);
  if (!named && !trainer::is_model_path(base.model.name)) named.error().code = ErrorCode::kBadArgument;
  MB_ASSIGN(trainer::ModelShape model, std::move(named));
  if (base.model.num_layers > 0) model.num_layers = base.model.num_layers;
  MB_ASSIGN(trainer::CostTable costs, find_costs(options.hardware));
  return Adviser(base, std::move(model), std::move(costs), options).run();
}

}  // namespace mbb::suites
