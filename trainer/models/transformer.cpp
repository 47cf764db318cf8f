// The step program: blocks of the model's shape for the layers of a stage, backward, gradient sync, optimizer,
// schedule.
#include "trainer/models/transformer.h"

#include <fmt/core.h>

#include "trainer/models/blocks/blocks.h"
#include "trainer/models/step_losses.h"
#include "trainer/ops/message_peers.h"
#include "trainer/ops/table.h"
#include "trainer/optim/optimizer.h"
#include "trainer/passes/delay.h"
#include "trainer/passes/expert_overlap.h"
#include "trainer/passes/fusion.h"
#include "trainer/passes/message_order.h"
#include "trainer/passes/norm_margin.h"
#include "trainer/passes/offload.h"
#include "trainer/passes/precision.h"
#include "trainer/passes/recompute.h"
#include "trainer/passes/ring_attention.h"
#include "trainer/passes/sequential_experts.h"
#include "trainer/passes/tp_overlap.h"
#include "trainer/passes/unread_copies.h"
#include "trainer/program/autodiff.h"
#include "trainer/program/finish.h"
#include "trainer/run/precision_rules.h"
#include "trainer/schedule/pipeline.h"

namespace mbb::trainer {
namespace {

CommAttrs to_next_stage(const Layout& layout) {
  return {.group = GroupKind::kPp,
          .group_size = layout.pp,
          .direction = Direction::kForward,
          .ring = layout.vpp > 1,
          .form = layout.message_form};
}

CommAttrs to_next_mesh(const Layout& layout) {
  return {.group = GroupKind::kModel, .group_size = layout.model_ranks(), .form = layout.message_form};
}

// The pipeline's messages of one chunk.
class Messages {
 public:
  // `pipeline` begins their paths.
  Messages(BlockBuilder& k, std::string pipeline) : k_(k), l_(k.layout()), pipeline_(std::move(pipeline)) {}

  // [sequence, b, h] from the stage before, or from the other mesh.
  TensorId receive(const OpKind& kind, CommAttrs attrs, const std::string& name, int64_t sequence) {
    attrs.message = Shape{sequence, l_.micro_batch, l_.model.hidden_size};
    attrs.message_dtype = l_.compute;
    const std::string path = pipeline_ + "." + name;
    return k_.builder().emit1(kind, path + ".fwd", {}, attrs,
                              {.stream = message_stream(attrs.form, attrs.direction, true), .out_path = path + ".out"});
  }
  void send(const OpKind& kind, const CommAttrs& attrs, const std::string& name, TensorId tensor) {
    k_.builder().emit(kind, pipeline_ + "." + name + ".fwd", {tensor}, attrs,
                      {.stream = message_stream(attrs.form, attrs.direction, false)});
  }

 private:
  BlockBuilder& k_;
  const Layout& l_;
  std::string pipeline_;
};

// The encoder's output, as hidden states are sharded: computed here, or received.
TensorId memory_of(BlockBuilder& k, Messages& messages, const Chunk& chunk) {
  const Layout& l = k.layout();
  if (chunk.encoder) return encoder_block(k);
  const int64_t sequence = l.local_encoder_sequence() / (l.memory_is_sharded() ? l.tp : 1);
  if (chunk.embedding) return messages.receive(kReshardRecv, to_next_mesh(l), "memory.reshard_recv", sequence);
  return messages.receive(kRecv, to_next_stage(l), "memory.recv", sequence);
}

void build_forward(BlockBuilder& k, const Chunk& chunk, const std::string& pipeline) {
  const Layout& l = k.layout();
  Messages messages(k, pipeline);
  const auto first = [&] {
    const int64_t sequence = l.sequence_parallel ? l.local_sequence() / l.tp : l.local_sequence();
    return chunk.embedding ? embedding_block(k) : messages.receive(kRecv, to_next_stage(l), "recv", sequence);
  };
  if (l.role == MeshRole::kEncoder) {
    messages.send(kReshardSend, to_next_mesh(l), "memory.reshard_send", encoder_block(k));
    return;
  }
  const bool reads_memory = k.model().is_encoder_decoder();
  // A stage's input comes before the memory on the wire; the first stage makes its own and can wait for the memory.
  TensorId x = chunk.embedding ? kNoTensor : first();
  const TensorId memory = reads_memory ? memory_of(k, messages, chunk) : kNoTensor;
  const TensorId whole = reads_memory ? whole_memory(k, memory) : kNoTensor;
  if (chunk.embedding) x = first();
  for (int64_t i = chunk.first_layer; i < chunk.first_layer + chunk.num_layers; ++i)
    x = decoder_layer(k, fmt::format("layers.{}", i), i, x, whole);
  if (chunk.head) {
    head_block(k, x);
    return;
  }
  messages.send(kSend, to_next_stage(l), "send", x);
  if (reads_memory) messages.send(kSend, to_next_stage(l), "memory.send", memory);
}

TensorId step_tensor(Builder& b, const char* path, DType dtype, Shape shape) {
  Tensor t;
  t.path = path;
  t.dtype = dtype;
  t.shape = shape;
  t.category = Category::kStep;
  t.scope = Scope::kStep;
  return b.declare(std::move(t));
}

// The segments of one chunk of the stage.
ChunkSegments build_chunk(BlockBuilder& blocks, const Chunk& chunk, int index) {
  Builder& b = blocks.builder();
  const Layout& layout = blocks.layout();
  const std::string name = fmt::format("chunk{}", index);
  ChunkSegments segments;
  segments.forward = b.add_segment(name + ".forward", SegmentKind::kForward, index);
  build_forward(blocks, chunk, layout.vpp == 1 ? "pipeline" : "pipeline." + name);
  segments.backward = b.add_segment(name + ".backward", SegmentKind::kBackward, index);
  Autodiff(b).run(segments.forward, {});
  return segments;
}

bool has_ring(const Program& program) {
  return std::any_of(program.segments.begin(), program.segments.end(), [](const Segment& segment) {
    return std::any_of(segment.ops.begin(), segment.ops.end(), [](const Op& op) { return op.kind == &kRingAttention; });
  });
}

// The passes over forward and backward, each over all chunks.
void run_passes(PassLog& passes, Program& program, const Layout& layout, const std::vector<ChunkSegments>& chunks,
                PrecisionPass& precision) {
  const FusionConfig& fusion = layout.config.fusion;
  const MemoryConfig& memory = layout.config.memory;
  const auto each = [&](const char* name, const char* knob, bool on, auto&& pass) {
    passes.run(name, knob, on, [&] {
      for (const ChunkSegments& c : chunks) pass(c.forward, c.backward);
    });
  };
  each("moe_grouped_gemm off", "parallel.moe_grouped_gemm", !layout.config.parallel.moe_grouped_gemm,
       [&](int forward, int backward) {
         for (const int segment : {forward, backward}) run_experts_in_turn(program, segment);
       });
  each("precision", "precision.recipe", is_quantized(layout.config.precision.recipe),
       [&](int forward, int backward) { precision.run(forward, backward); });
  each("bias_activation_fusion", "fusion.bias_activation_fusion", fusion.bias_activation_fusion,
       [&](int forward, int backward) { fuse_bias_activation(program, forward, backward); });
  each("bias_dropout_fusion", "fusion.bias_dropout_fusion", fusion.bias_dropout_fusion,
       [&](int forward, int backward) { fuse_bias_dropout(program, forward, backward); });
  each("gradient_accumulation_fusion off", "fusion.gradient_accumulation_fusion", !fusion.gradient_accumulation_fusion,
       [&](int, int backward) { split_gradient_accumulation(program, backward); });
  each("residual_fusion", "fusion.residual_fusion", fusion.residual_fusion,
       [&](int forward, int backward) { fuse_residuals(program, forward, backward); });
  each("swiglu_fusion", "fusion.swiglu_fusion", fusion.swiglu_fusion,
       [&](int forward, int backward) { fuse_swiglu(program, forward, backward); });
  each("cross_entropy_loss_fusion", "fusion.cross_entropy_loss_fusion", fusion.cross_entropy_loss_fusion,
       [&](int forward, int backward) { fuse_cross_entropy(program, forward, backward); });
  each("recompute", "memory.recompute_granularity", memory.recompute_granularity != RecomputeGranularity::kNone,
       [&](int forward, int backward) { recompute(program, forward, backward, memory); });
  // Behind recompute, which takes a ring whole: all ranks then run its exchanges again, whatever steps each of them
  // has.
  each("ring_attention", "parallel.context_parallel_size", has_ring(program), [&](int forward, int backward) {
    expand_ring_attention(program, forward, backward, layout.config.parallel.cp_ring_use_ce);
  });
  each("cpu_offloading", "memory.cpu_offloading", memory.cpu_offloading,
       [&](int forward, int backward) { offload(program, forward, backward, memory); });
  each("delay_wgrad_compute", "overlap.delay_wgrad_compute", layout.config.overlap.delay_wgrad_compute,
       [&](int, int backward) { delay_weight_gradients(program, backward); });
}

std::vector<Call> micro_batch_calls(const Layout& layout, const RankClass& of,
                                    const std::vector<ChunkSegments>& chunks) {
  // A stage that pairs micro-batches has the next forward's input before the pair begins: as much in flight as
  // interleaving needs.
  if (layout.config.overlap.overlap_moe_expert_parallel_comm && layout.vpp == 1)
    return interleaved(of.pp, layout.pp, layout.micro_batches, layout.micro_batches, chunks);
  if (layout.vpp == 1)
    return one_f_one_b(layout.pipeline_place(of), layout.pipeline_depth(), layout.micro_batches, chunks.front());
  return interleaved(of.pp, layout.pp, layout.micro_batches, layout.micro_batch_group, chunks);
}

}  // namespace

Program build_program(const Layout& resolved, const RankClass& rank_class, std::vector<PassEffect>* effects) {
  const Layout layout = resolved.of_role(rank_class.role);
  Program program;
  program.rank_class = rank_class;
  program.micro_batches = layout.micro_batches;
  Builder b(program);
  program.ports.step_record = step_tensor(b, "step.record", DType::kF32, Shape{StepRecord::kFields});
  program.ports.loss_sum = step_tensor(b, "step.loss_sum", DType::kF64, Shape{2});
  program.ports.grad_scale = step_tensor(b, "step.grad_scale", DType::kF32, Shape{3});

  BlockBuilder blocks(b, layout);
  std::vector<ChunkSegments> chunks;
  for (const Chunk& chunk : layout.stages[static_cast<size_t>(rank_class.pp)])
    chunks.push_back(build_chunk(blocks, chunk, static_cast<int>(chunks.size())));
  PrecisionPass precision(program, layout);
  PassLog passes(program, effects);
  run_passes(passes, program, layout, chunks, precision);
  const DataParallel data_parallel = build_data_parallel(b, layout, passes);

  b.enter(data_parallel.grad_sync);
  precision.once_a_step(b);
  b.enter(data_parallel.grad_sync);
  sum_step_losses(b, layout);
  b.enter(data_parallel.optimizer);
  for (const BlockBuilder::ExpertState& state : blocks.expert_states())
    b.emit(kExpertBias, "optimizer." + state.path + ".expert_bias", {state.load, state.bias},
           ExpertBiasAttrs{state.rate}, {.out = {state.bias}});

  program.schedule = micro_batch_calls(layout, rank_class, chunks);
  schedule_data_parallel(program, data_parallel);
  const TpOverlapConfig& overlap = layout.config.tp_overlap;
  const auto forward_sms = static_cast<int>(overlap.fwd_layernorm_sm_margin);
  const auto backward_sms = static_cast<int>(overlap.bwd_layernorm_sm_margin);
  passes.run("tp_comm_overlap", "overlap.tp_comm_overlap", !layout.tp_overlap.empty(),
             [&] { overlap_tensor_parallel(program, layout.tp, layout.tp_overlap); });
  passes.run("fwd_layernorm_sm_margin", "overlap.fwd_layernorm_sm_margin", forward_sms > 0,
             [&] { leave_sms_beside_norms(program, forward_sms, 0); });
  passes.run("bwd_layernorm_sm_margin", "overlap.bwd_layernorm_sm_margin", backward_sms > 0,
             [&] { leave_sms_beside_norms(program, forward_sms, backward_sms); });
  passes.run("overlap_moe_expert_parallel_comm", "overlap.overlap_moe_expert_parallel_comm",
             layout.config.overlap.overlap_moe_expert_parallel_comm, [&] { pair_micro_batches(program); });
  passes.run("unread copies", "precision.recipe", has_unread_copies(program),
             [&] { leave_out_unread_copies(program); });
  put_messages_at_ends(program);
  passes.run("delay_us", "debug.delay_us", layout.config.debug.delay_us > 0,
             [&] { plant_delay(program, 1000 * layout.config.debug.delay_us); });
  finish_program(program);
  if (effects != nullptr && !effects->empty()) end_at(*effects, pass_facts(program));
  return program;
}

}  // namespace mbb::trainer
