// Explain as values: costs from the op records, volumes from the communicator's byte rules, the bubble by replay.
#include "trainer/program/explain.h"

#include <fmt/core.h>

#include <algorithm>

#include "profiler/base/text.h"
#include "trainer/execute/simulate/replay.h"
#include "trainer/models/flops.h"
#include "trainer/ops/message_peers.h"
#include "trainer/passes/precision.h"
#include "trainer/program/call_counts.h"
#include "trainer/program/op_volume.h"
#include "trainer/program/token_flops.h"
#include "trainer/program/walk.h"
#include "trainer/run/precision_rules.h"
#include "trainer/run/step_programs.h"

namespace mbb::trainer {
namespace {

// Types of a quantized product's operands, and its shape.
std::string operands(const OpView& view) {
  return fmt::format("{}*{}", name(view.in(0).dtype), name(view.in(1).dtype));
}
std::string product_shape(const OpView& view) {
  const Shape &a = view.in(0).shape, &b = view.in(1).shape;
  return fmt::format("{}x{}x{}", a.rows(), b.rows(), a.cols());
}

bool is_quantized_product(const Op& op) {
  return std::holds_alternative<ScaledGemmAttrs>(op.attrs) || std::holds_alternative<ScaledRowsAttrs>(op.attrs) ||
         std::holds_alternative<GemmBlocksAttrs>(op.attrs) || std::holds_alternative<GroupedQuantizedAttrs>(op.attrs);
}
// The attention core. Its gradient may make a weight's as well, of sinks or relative biases, and is no product of one.
bool is_attention_core(const Op& op) {
  return std::string_view(op.kind->name).find("attention") != std::string_view::npos;
}
// Whether a recipe could take the product: the linear layers of Transformer blocks, experts' included.
bool is_eligible(const Op& op) {
  return op.kind->model_flops && op.role != Role::kNone && !is_attention_core(op) && block_layer(op.path) >= 0;
}

// Shapes of a matrix product as m x n x k; other ops by their first input and output where they differ.
std::string describe(const OpView& view) {
  const Op& op = view.op;
  if (const auto* comm = std::get_if<CommAttrs>(&op.attrs); comm != nullptr && op.kind->communicates) {
    const Tensor& message = op.in.empty() ? view.out(0) : view.in(0);
    return fmt::format("{} {} {} {}", op.kind->name, name(comm->group), name(message.dtype),
                       format_bytes_decimal(static_cast<double>(comm_volume(view).algorithmic_bytes)));
  }
  if (op.in.empty() && op.out.empty()) return std::string(op.kind->name);
  const Tensor& main = op.in.empty() ? view.out(0) : view.in(0);
  if (const auto* gemm = std::get_if<GemmAttrs>(&op.attrs)) {
    const Shape& a = view.in(0).shape;
    return fmt::format("{} {} {}x{}x{}{}", op.kind->name, name(main.dtype), gemm->trans_a ? a.cols() : a.rows(),
                       view.out(0).shape.cols(), gemm->trans_a ? a.rows() : a.cols(),
                       gemm->accumulate ? " accumulate" : "");
  }
  if (const auto* gemm = std::get_if<ScaledGemmAttrs>(&op.attrs))
    return fmt::format("{} {} {}{}", op.kind->name, operands(view), product_shape(view),
                       gemm->accumulate ? " accumulate" : "");
  if (const auto* gemm = std::get_if<GemmBlocksAttrs>(&op.attrs))
    return fmt::format("{} {} in blocks of {} {}{}", op.kind->name, operands(view), gemm->block, product_shape(view),
                       gemm->accumulate ? " accumulate" : "");
  std::string text = fmt::format("{} {} {}", op.kind->name, name(main.dtype), main.shape.str());
  if (!op.in.empty() && !op.out.empty() && !(view.out(0).shape == main.shape && view.out(0).dtype == main.dtype))
    text += fmt::format(" -> {} {}", name(view.out(0).dtype), view.out(0).shape.str());
  return text;
}

OpRow row_of(const Program& program, const Op& op, int64_t runs, AttentionShares& shares) {
  const OpView view{program, op};
  OpRow row;
  row.path = op.path;
  row.what = describe(view);
  row.kind = op.kind->name;
  row.role = is_attention_core(op) ? Role::kNone : op.role;
  row.when = op.when;
  row.stream = op.stream;
  row.runs = runs;
  row.flops = op_flops(view, shares);
  row.bytes = op_bytes(view);
  row.model_flops = op.kind->model_flops && !op.recompute;
  row.recompute = op.recompute;
  if (op.kind->communicates) {
    const CommVolume volume = comm_volume(view);
    if (volume.op != CommOp::kRecv) {
      row.wire_bytes = static_cast<double>(volume.wire_bytes);
      row.useful_bytes = static_cast<double>(volume.useful_bytes);
    }
  }
  return row;
}

void add_comm(std::array<CommRow, kGroupKinds.size()>& comm, const Op& op, const OpRow& row) {
  CommRow& of = comm[static_cast<size_t>(std::get<CommAttrs>(op.attrs).group)];
  of.calls += row.runs;
  of.wire_bytes += row.wire_bytes * static_cast<double>(row.runs);
  of.useful_bytes += row.useful_bytes * static_cast<double>(row.runs);
  of.largest_bytes = std::max(of.largest_bytes, row.wire_bytes);
}

ClassRow class_row(const Layout& layout, const Program& program, const MemoryPlan& plan, const RowLengths* rows) {
  ClassRow row;
  AttentionShares shares(rows);
  row.rank_class = program.rank_class;
  row.gpus = int64_t{layout.mesh.tp(program.rank_class.role)} * layout.dp;
  row.arena_bytes = plan.arena_bytes;
  row.host_bytes = plan.host_bytes;
  row.graph_ops = plan.graph_ops;
  row.graph_bytes = plan.graph_bytes;
  row.peak_live_bytes = plan.peak_live_bytes;
  row.peak_by_category = plan.peak_by_category;
  row.peak_path = program.segment(program.schedule[static_cast<size_t>(plan.peak_call)])
                      .ops[static_cast<size_t>(plan.peak_op)]
                      .path;
  const CallCounts calls = count_calls(program);
  std::array<CommRow, kGroupKinds.size()> comm{};
  for (size_t s = 0; s < program.segments.size(); ++s) {
    const Segment& segment = program.segments[s];
    SegmentRow out{segment.name, segment.kind, segment.chunk, 0, {}};
    for (int64_t n : calls[s]) out.calls += n;
    out.ops.reserve(segment.ops.size());
    for (const Op& op : segment.ops) {
      out.ops.push_back(row_of(program, op, runs_of(segment, calls[s], op), shares));
      const OpRow& r = out.ops.back();
      const auto times = static_cast<double>(r.runs);
      if (r.model_flops) row.model_flops_by_role[static_cast<size_t>(r.role)] += r.flops * times;
      if (r.model_flops) row.model_flops += r.flops * times;
      if (r.recompute) row.recompute_flops += r.flops * times;
      if (r.model_flops && is_eligible(op)) row.eligible_flops += r.flops * times;
      if (r.model_flops && is_quantized_product(op)) row.quantized_flops += r.flops * times;
      row.flops_by_segment[static_cast<size_t>(segment.kind)] += r.flops * times;
      row.bytes_by_segment[static_cast<size_t>(segment.kind)] += r.bytes * times;
      if (op.kind->communicates) add_comm(comm, op, r);
    }
    row.segments.push_back(std::move(out));
  }
  for (double flops : row.flops_by_segment) row.flops += flops;
  for (double bytes : row.bytes_by_segment) row.bytes += bytes;
  for (size_t g = 0; g < comm.size(); ++g) {
    comm[g].group = static_cast<GroupKind>(g);
    if (comm[g].calls > 0) row.comm.push_back(comm[g]);
  }
  return row;
}

// A program that costs nothing but one op a call, between the call's receives and its sends.
const OpKind kUnitCall{.name = "call"};

Program unit_program(const Program& program) {
  Program units;
  units.rank_class = program.rank_class;
  units.micro_batches = program.micro_batches;
  units.tensors = program.tensors;
  for (const Segment& segment : program.segments) {
    Segment out{segment.name, segment.kind, segment.chunk, {}};
    Op unit;
    unit.kind = &kUnitCall;
    unit.path = segment.name;
    std::vector<Op> sends;
    for (const Op& op : segment.ops) {
      if (!op.kind->communicates) continue;
      const CommOp way = comm_volume(OpView{program, op}).op;
      if (way == CommOp::kRecv) {
        out.ops.push_back(op);
        unit.in.insert(unit.in.end(), op.out.begin(), op.out.end());
      } else if (way == CommOp::kSend) {
        sends.push_back(op);
        unit.out.insert(unit.out.end(), op.in.begin(), op.in.end());
      }
    }
    out.ops.push_back(std::move(unit));
    out.ops.insert(out.ops.end(), sends.begin(), sends.end());
    units.segments.push_back(std::move(out));
  }
  for (const Call& call : program.schedule)
    if (is_micro_batched(program.segment(call).kind)) units.schedule.push_back(call);
  return units;
}

double bubble_share(double bubble, double work) {
  return bubble + work == 0 ? 0 : bubble / (bubble + work);
}

void add_bubble(const Layout& layout, const StepPrograms& programs, Explain& out) {
  // NUMERICS, section 6: (p − 1)(F + B)/v beside m(F + B) of work; an encoder's mesh is one stage more.
  out.bubble_formula =
      bubble_share(layout.pipeline_depth() - 1, static_cast<double>(layout.micro_batches) * layout.vpp);
  std::vector<const Program*> stages;
  for (const Program& program : programs.programs)
    if (program.rank_class.cp == 0) stages.push_back(&program);
  const Result<UnitReplay> replayed = replay_units(stages);
  MB_CHECK(replayed.has_value(), replayed ? "" : replayed.error().what);
  int64_t longest = 0;
  for (int64_t idle : replayed->idle_units) longest = std::max(longest, idle);
  out.bubble_replayed = bubble_share(static_cast<double>(longest), static_cast<double>(replayed->step_units - longest));
}

}  // namespace

Result<UnitReplay> replay_units(const std::vector<const Program*>& stages, int64_t forward_units,
                                int64_t backward_units, int64_t message_units) {
  ParallelSizes sizes;
  sizes.encoder_pp = stages.front()->rank_class.role == MeshRole::kEncoder ? 1 : 0;
  sizes.pp = static_cast<int>(stages.size()) - sizes.encoder_pp;
  MB_ASSIGN(const Mesh line, Mesh::make(sizes));
  std::vector<Program> units;
  units.reserve(stages.size());
  std::vector<const Program*> by_rank;
  std::vector<std::vector<int64_t>> durations(stages.size());
  UnitReplay out;
  std::vector<int64_t> work(stages.size());
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    units.push_back(unit_program(*stages[stage]));
    by_rank.push_back(&units.back());
    walk(units.back(), [&](int, const Call& call, int, const Op& op) {
      const SegmentKind kind = units.back().segment(call).kind;
      int64_t cost = 0;
      if (op.kind == &kUnitCall && kind == SegmentKind::kForward) cost = forward_units;
      if (op.kind == &kUnitCall && kind == SegmentKind::kBackward) cost = backward_units;
      durations[stage].push_back(sends(op) ? message_units : cost);
      work[stage] += cost;
    });
  }
  MB_ASSIGN(const Replay replayed,
            replay(line, by_rank, [&](int rank, size_t index) { return durations[static_cast<size_t>(rank)][index]; }));
  out.step_units = replayed.step_ns;
  for (int64_t busy : work) out.idle_units.push_back(out.step_units - busy);
  return out;
}

Explain explain(const Layout& layout, const StepPrograms& programs, const RowLengths* rows) {
  Explain out;
  out.model = layout.model.name;
  out.recipe = recipe_name(layout.config);
  out.compute_dtype = name(layout.compute);
  out.program_hash = program_hash(programs);
  for (const std::vector<IdleKnob>* idle : {&layout.idle, &programs.idle})
    for (const IdleKnob& knob : *idle) out.idle.push_back(describe(knob));
  out.sizes = layout.mesh.sizes();
  out.sequence_parallel = layout.sequence_parallel;
  out.exchanges_tokens = layout.exchanges_tokens();
  out.chunks = layout.vpp;
  out.gpus = layout.mesh.world_size();
  out.micro_batches = layout.micro_batches;
  out.micro_batch = layout.micro_batch;
  out.sequence = layout.sequence;
  out.tokens = layout.tokens_per_step();
  const auto step_rows = static_cast<double>(layout.global_batch);
  out.label_tokens = rows == nullptr ? static_cast<double>(out.tokens) : rows->tokens_of(step_rows);
  for (size_t i = 0; i < programs.programs.size(); ++i) {
    out.classes.push_back(class_row(layout, programs.programs[i], programs.plans[i], rows));
    if (i < programs.effects.size()) out.classes.back().passes = programs.effects[i];
    const auto gpus = static_cast<double>(out.classes.back().gpus);
    out.model_flops += out.classes.back().model_flops * gpus;
    out.eligible_flops += out.classes.back().eligible_flops * gpus;
    out.quantized_flops += out.classes.back().quantized_flops * gpus;
    out.recompute_flops += out.classes.back().recompute_flops * gpus;
  }
  constexpr FlopsConvention kConvention = FlopsConvention::kCausal;
  out.convention = name(kConvention);
  const ModelShape padded = layout.padded_model();
  out.vocabulary = layout.model.vocab_size;
  out.padded_vocabulary = layout.vocab;
  const BatchLengths whole = BatchLengths::uniform(layout.sequence, layout.global_batch, layout.encoder_sequence);
  const BatchLengths& batch = rows == nullptr ? whole : rows->sequences;
  const double steps = rows == nullptr ? 1 : rows->rows / step_rows;
  out.closed_form_flops = model_flops(padded, batch, kConvention).total() / steps;
  out.flops_per_token =
      (rows == nullptr ? token_flops(layout, programs, out) : token_flops(layout, programs, rows->sequences)).causal;
  add_bubble(layout, programs, out);
  return out;
}

}  // namespace mbb::trainer
