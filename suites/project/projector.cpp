// Two short walks of the rank classes' programs, extended to the step's micro-batches.
#include "suites/project/projector.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <future>

#include "suites/project/cost_file.h"
#include "suites/runner/sequence_work.h"
#include "trainer/execute/graph_memory.h"
#include "trainer/execute/simulate/replay.h"
#include "trainer/ops/table.h"
#include "trainer/program/call_counts.h"
#include "trainer/program/token_flops.h"
#include "trainer/run/knobs.h"
#include "trainer/run/precision_rules.h"

namespace mbb::suites {
namespace {

using trainer::CostTerm;
using trainer::kCostTerms;

constexpr double kOutsideBytes = 2.0 * 0x1p30;  // of device memory that no plan sees
constexpr double kNormal80 = 1.2815515655;      // two-sided 80 %

bool is_tensor_parallel(const trainer::Op& op) {
  if (!op.kind->communicates) return false;
  const trainer::GroupKind group = std::get<trainer::CommAttrs>(op.attrs).group;
  return group == trainer::GroupKind::kTp;
}

// A walk of so many micro-batches: its length and parts.
struct Walked {
  double step_ns = 0;
  ProjectedParts parts;
};

ProjectedParts parts_of(const analysis::StepBreakdown& b) {
  ProjectedParts parts;
  parts.compute_ns = static_cast<double>(b.compute_ns);
  for (size_t kind = 0; kind < analysis::kCommKinds; ++kind)
    parts.exposed_ns[kind] = static_cast<double>(b.comm[kind].exposed_ns - b.comm[kind].waiting_ns);
  parts.copy_ns = static_cast<double>(b.exposed_copy_ns);
  parts.bubble_ns = static_cast<double>(b.bubble_ns());
  double idle = static_cast<double>(b.idle_ns) -
                static_cast<double>(b.idle_by_cause_ns[static_cast<size_t>(analysis::IdleCause::kBubble)]);
  parts.wait_ns = idle + static_cast<double>(b.skew_ns());
  return parts;
}

// a + t · (b − a), part by part.
double extend(double a, double b, double t) {
  return a + t * (b - a);
}
ProjectedParts extend(const ProjectedParts& a, const ProjectedParts& b, double t) {
  ProjectedParts out;
  out.compute_ns = extend(a.compute_ns, b.compute_ns, t);
  for (size_t kind = 0; kind < out.exposed_ns.size(); ++kind)
    out.exposed_ns[kind] = extend(a.exposed_ns[kind], b.exposed_ns[kind], t);
  out.copy_ns = extend(a.copy_ns, b.copy_ns, t);
  out.bubble_ns = extend(a.bubble_ns, b.bubble_ns, t);
  out.wait_ns = extend(a.wait_ns, b.wait_ns, t);
  return out;
}

ProjectedParts scaled(const ProjectedParts& parts, double by) {
  return extend(ProjectedParts{}, parts, by);
}

class Projector {
 public:
  Projector(const trainer::Layout& layout, const trainer::StepPrograms& programs, const trainer::CostTable& table,
            const ProjectOptions& options)
      : l_(layout),
        built_(programs),
        programs_(programs.programs),
        plans_(programs.plans),
        table_(table),
        options_(options) {}

  Result<Projection> run() {
    Projection out;
    if (options_.only_memory) {
      fill_memory(out);
      return out;
    }
    MB_TRY(read_sequences(out));
    MB_ASSIGN(costs_, trainer::step_costs(table_, l_.mesh, programs_, rows_ ? &*rows_ : nullptr));
    MB_ASSIGN(Walked walked, whole_step(out.trace));
    fill_basis(out);
    const double doublings = std::log2(std::max(1.0, static_cast<double>(out.gpus) / table_.domain));
    walked.parts.stragglers_ns = walked.step_ns * table_.scale_loss * doublings;
    out.step_ns = walked.step_ns + walked.parts.stragglers_ns;
    out.parts = walked.parts;
    if (options_.parts) fill_terms(out);
    fill_memory(out);
    return out;
  }

 private:
  Result<Walked> whole_step(profiler::Trace& trace) {
    if (options_.trace) return walk_some(0, &trace);
    // An interleaved pipeline repeats by groups of micro-batches, once a group and a depth of them are on their way.
    const int period = l_.vpp > 1 ? l_.micro_batch_group : 1;
    const int warm = period + l_.pipeline_depth() + 1;
    const int few = (warm + period - 1) / period * period;
    const int more = few + period;
    if (l_.micro_batches <= more) return walk_some(0, nullptr);
    auto longer = std::async(std::launch::async, [&] { return walk_some(more, nullptr); });
    const Result<Walked> shorter = walk_some(few, nullptr);
    MB_ASSIGN(const Walked b, longer.get());
    MB_ASSIGN(const Walked a, shorter);
    const double t = static_cast<double>(l_.micro_batches - few) / period;
    return Walked{extend(a.step_ns, b.step_ns, t), extend(a.parts, b.parts, t)};
  }

  Result<Walked> walk_some(int micro_batches, profiler::Trace* trace) const {
    trainer::ClassReplayOptions walk;
    walk.micro_batches = micro_batches;
    walk.spans = options_.parts;
    walk.paths = trace != nullptr;
    walk.contention = [&](int c, int segment, int op) { return contention(c, segment, op); };
    walk.issue_ns = std::llround(table_.issue_us * 1e3 * table_.term(CostTerm::kHost).factor);
    MB_ASSIGN(trainer::Replay replayed,
              trainer::replay_classes(
                  l_.mesh, programs_, [&](int c, int segment, int op) { return duration_ns(c, segment, op); }, walk));
    Walked out;
    out.step_ns = static_cast<double>(replayed.step_ns);
    if (!options_.parts) return out;
    const std::vector<analysis::StepTimes> times = analysis::break_down(replayed.trace, {.per_op = false});
    for (const analysis::StepTimes& t : times)
      out.parts = sum(out.parts, scaled(parts_of(t.breakdown), 1.0 / static_cast<double>(times.size())));
    if (trace != nullptr) *trace = std::move(replayed.trace);
    return out;
  }

  static ProjectedParts sum(const ProjectedParts& a, const ProjectedParts& b) {
    ProjectedParts out = a;
    out.compute_ns += b.compute_ns;
    for (size_t kind = 0; kind < out.exposed_ns.size(); ++kind) out.exposed_ns[kind] += b.exposed_ns[kind];
    out.copy_ns += b.copy_ns;
    out.bubble_ns += b.bubble_ns;
    out.wait_ns += b.wait_ns;
    return out;
  }

  int64_t duration_ns(int rank_class, int segment, int op) const {
    double ns = costs_.at(rank_class, segment, op).ns;
    if (options_.assume_tp_hidden > 0 || options_.assume_fp8_gather) ns *= assumed(rank_class, segment, op);
    return std::llround(ns);
  }

  trainer::Contention contention(int rank_class, int segment, int op) const {
    const trainer::OpCost& cost = costs_.at(rank_class, segment, op);
    const trainer::Segment& of = programs_[static_cast<size_t>(rank_class)].segments[static_cast<size_t>(segment)];
    const bool on_sms = cost.slows > 1 && !by_copy_engines(of.ops[static_cast<size_t>(op)], cost);
    return {on_sms ? cost.slows : 1, cost.slowed};
  }

  // What memory.nccl_cta_policy = zero keeps off SMs.
  bool by_copy_engines(const trainer::Op& op, const trainer::OpCost& cost) const {
    const trainer::MemoryConfig& memory = l_.config.memory;
    if (memory.nccl_cta_policy != trainer::CtaPolicy::kZero || cost.term != CostTerm::kNvlink) return false;
    if (op.kind == &trainer::kAllGather) return memory.nccl_ub.value_or(false);
    return op.kind == &trainer::kReduceScatter && !is_tensor_parallel(op);
  }

  // What is taken to remain of an op's time.
  double assumed(int rank_class, int segment, int op) const {
    const trainer::Segment& of = programs_[static_cast<size_t>(rank_class)].segments[static_cast<size_t>(segment)];
    const trainer::Op& it = of.ops[static_cast<size_t>(op)];
    if (!is_tensor_parallel(it)) return 1;
    const bool gather = options_.assume_fp8_gather && it.kind->name == std::string_view("all_gather");
    return (1 - options_.assume_tp_hidden) * (gather ? 0.5 : 1);
  }

  // What a step computes: of rows of many lengths the tokens with a label, as cells count them.
  Status read_sequences(Projection& out) {
    baselines::Work work;
    if (l_.has_sequences()) {
      MB_ASSIGN(const SequenceWork rows, sequence_work(l_));
      work = step_work(l_, built_, rows);
      rows_ = row_lengths(l_, rows);
    } else {
      work = work_of(l_.tokens_per_step(), trainer::token_flops(l_, built_));
    }
    out.tokens = work.tokens_per_step;
    out.model_flops_causal = work.flops_per_token_causal * static_cast<double>(out.tokens);
    out.model_flops_full = work.flops_per_token_full * static_cast<double>(out.tokens);
    return {};
  }

  void fill_basis(Projection& out) const {
    out.hardware = table_.hardware;
    out.measured_costs = table_.measured;
    out.costs = table_.measured ? fmt::format("kernels {} {}", table_.hardware, table_.date)
                                : fmt::format("ceilings of {}: none of its ops was measured", table_.hardware);
    out.gpus = l_.mesh.world_size();
  }

  // Busy time by term, over the step's calls, means over classes.
  std::array<double, kCostTerms> busy_by_term() const {
    std::array<double, kCostTerms> busy{};
    for (size_t c = 0; c < programs_.size(); ++c) {
      const trainer::Program& program = programs_[c];
      const trainer::CallCounts calls = trainer::count_calls(program);
      for (size_t s = 0; s < program.segments.size(); ++s) {
        const trainer::Segment& segment = program.segments[s];
        for (size_t o = 0; o < segment.ops.size(); ++o) {
          const auto runs = static_cast<double>(trainer::runs_of(segment, calls[s], segment.ops[o]));
          const auto at = [](size_t i) { return static_cast<int>(i); };
          busy[static_cast<size_t>(costs_.at(at(c), at(s), at(o)).term)] +=
              runs * static_cast<double>(duration_ns(at(c), at(s), at(o))) / static_cast<double>(programs_.size());
        }
      }
    }
    return busy;
  }

  void fill_terms(Projection& out) const {
    const std::array<double, kCostTerms> busy = busy_by_term();
    const auto is_comm = [](size_t t) {
      return t == static_cast<size_t>(CostTerm::kNvlink) || t == static_cast<size_t>(CostTerm::kNetwork);
    };
    double compute = 0, comm = 0;
    for (size_t t = 0; t < kCostTerms; ++t) (is_comm(t) ? comm : compute) += busy[t];
    double variance = table_.model_sigma * table_.model_sigma;
    for (size_t t = 0; t < kCostTerms; ++t) {
      const double whole = is_comm(t) ? comm : compute;
      const double counts = is_comm(t) ? out.parts.exposed_comm_ns() : out.parts.compute_ns;
      if (busy[t] <= 0 || whole <= 0) continue;
      const ProjectedTerm term{static_cast<CostTerm>(t), busy[t] / whole * counts / out.step_ns, table_.terms[t].sigma};
      variance += term.share * term.share * term.sigma * term.sigma;
      out.terms.push_back(term);
    }
    std::sort(out.terms.begin(), out.terms.end(), [](const auto& a, const auto& b) { return a.share > b.share; });
    out.sigma = std::sqrt(variance);
    out.low_ns = out.step_ns * (1 - kNormal80 * out.sigma);
    out.high_ns = out.step_ns * (1 + kNormal80 * out.sigma);
  }

  void fill_memory(Projection& out) const {
    for (size_t c = 0; c < plans_.size(); ++c) {
      if (plans_[c].arena_bytes == 0) continue;  // not planned
      // What is projected runs on a card, whatever device the configuration names.
      const trainer::GraphMemory graphs = trainer::graph_memory(l_.config.host, programs_[c], plans_[c]);
      if (plans_[c].arena_bytes + graphs.bytes <= out.memory.bytes()) continue;
      out.memory.arena_bytes = plans_[c].arena_bytes;
      out.memory.graph_bytes = graphs.bytes;
      out.memory.stage = programs_[c].rank_class.pp;
    }
    const auto limit = static_cast<int64_t>(l_.config.memory.limit_gib * 0x1p30);
    if (const auto hardware = trainer::find_hardware(table_.hardware))
      out.memory.capacity_bytes = plan_capacity_bytes(*hardware);
    if (limit > 0 && (out.memory.capacity_bytes == 0 || limit < out.memory.capacity_bytes))
      out.memory.capacity_bytes = limit;
  }

  const trainer::Layout& l_;
  const trainer::StepPrograms& built_;
  const std::vector<trainer::Program>& programs_;
  const std::vector<trainer::MemoryPlan>& plans_;
  const trainer::CostTable& table_;
  const ProjectOptions& options_;
  trainer::StepCosts costs_;
  std::optional<trainer::RowLengths> rows_;
};

// A card without the recipe's products computes in other formats.
Status check_recipe(const trainer::Config& config, const std::string& hardware) {
  const auto card = trainer::find_hardware(hardware);
  if (!card || trainer::runs_natively(config.precision.recipe, card->compute_major, card->compute_minor)) return {};
  return fail(ErrorCode::kUnavailable,
              fmt::format("{} has no {}, and emulated steps are not projected", hardware, trainer::recipe_name(config)),
              "choose a card that has it (--hardware), or another precision.recipe");
}

}  // namespace

std::vector<std::string> not_projected(const trainer::Config& config) {
  std::vector<std::string> said;
  const KnobTable& all = trainer::knobs();
  for (const Knob& knob : all.knobs()) {
    if (knob.projected) continue;
    const std::string value = all.text(config, knob.key);
    if (value != all.default_text(knob)) said.push_back(fmt::format("{} = {}", knob.key, value));
  }
  return said;
}

int64_t plan_capacity_bytes(const trainer::Hardware& hardware) {
  return static_cast<int64_t>(hardware.memory_bytes - kOutsideBytes);
}

double ProjectedParts::exposed_comm_ns() const {
  double all = 0;
  for (double ns : exposed_ns) all += ns;
  return all;
}

double ProjectedParts::sum_ns() const {
  return compute_ns + exposed_comm_ns() + copy_ns + bubble_ns + wait_ns + stragglers_ns;
}

double Projection::tokens_per_s_per_gpu() const {
  return static_cast<double>(tokens) / (step_ns * 1e-9) / static_cast<double>(gpus);
}

double Projection::tflops_per_gpu(double model_flops) const {
  return model_flops / (step_ns * 1e-9) / static_cast<double>(gpus) / 1e12;
}

Result<Projection> project(const trainer::Config& config, const std::string& hardware, const ProjectOptions& options) {
  MB_ASSIGN(const trainer::CostTable costs, find_costs(hardware));
  MB_ASSIGN(const trainer::Layout layout, trainer::resolve(config));
  MB_ASSIGN(const trainer::StepPrograms programs, trainer::build_programs(layout));
  return project(layout, programs, costs, options);
}

Result<Projection> project(const trainer::Layout& layout, const trainer::StepPrograms& programs,
                           const trainer::CostTable& costs, const ProjectOptions& options) {
  MB_TRY(check_recipe(layout.config, costs.hardware));
  return Projector(layout, programs, costs, options).run();
}

}  // namespace mbb::suites
