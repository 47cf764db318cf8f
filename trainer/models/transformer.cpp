// The step program: blocks of the model's shape for the layers of a stage, backward, gradient sync, optimizer,
// schedule.
#include "trainer/models/transformer.h"

#include <fmt/core.h>

#include "trainer/models/blocks/blocks.h"
#include "trainer/ops/table.h"
#include "trainer/optim/optimizer.h"
#include "trainer/passes/fusion.h"
#include "trainer/passes/offload.h"
#include "trainer/passes/precision.h"
#include "trainer/passes/recompute.h"
#include "trainer/program/autodiff.h"
#include "trainer/program/finish.h"
#include "trainer/run/precision_rules.h"
#include "trainer/schedule/pipeline.h"

namespace mbb::trainer {
namespace {

CommAttrs to_next_stage(const Layout& layout) {
  return {.group = GroupKind::kPp, .group_size = layout.pp, .direction = Direction::kForward};
}

TensorId receive(BlockBuilder& k) {
  const Layout& l = k.layout();
  CommAttrs attrs = to_next_stage(l);
  attrs.message = Shape{l.sequence_parallel ? l.sequence / l.tp : l.sequence, l.micro_batch, l.model.hidden_size};
  attrs.message_dtype = l.compute;
  return k.builder().emit1(kRecv, "pipeline.recv.fwd", {}, attrs,
                           {.stream = Stream::kPpForward, .out_path = "pipeline.recv.out"});
}

void build_forward(BlockBuilder& k, const Chunk& chunk) {
  const TensorId memory = k.model().is_encoder_decoder() ? encoder_block(k) : kNoTensor;
  TensorId x = chunk.embedding ? embedding_block(k) : receive(k);
  for (int64_t i = chunk.first_layer; i < chunk.first_layer + chunk.num_layers; ++i)
    x = decoder_layer(k, fmt::format("layers.{}", i), i, x, memory);
  if (chunk.head) {
    head_block(k, x);
  } else {
    k.builder().emit(kSend, "pipeline.send.fwd", {x}, to_next_stage(k.layout()), {.stream = Stream::kPpForward});
  }
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

}  // namespace

Program build_program(const Layout& layout, const RankClass& rank_class, std::vector<PassEffect>* effects) {
  Program program;
  program.rank_class = rank_class;
  program.micro_batches = layout.micro_batches;
  Builder b(program);
  program.ports.step_record = step_tensor(b, "step.record", DType::kF32, Shape{StepRecord::kFields});
  program.ports.loss_sum = step_tensor(b, "step.loss_sum", DType::kF64, Shape{2});
  program.ports.grad_scale = step_tensor(b, "step.grad_scale", DType::kF32, Shape{3});

  const int forward = b.add_segment("chunk0.forward", SegmentKind::kForward, 0);
  BlockBuilder blocks(b, layout);
  build_forward(blocks, layout.stages[static_cast<size_t>(rank_class.pp)]);
  const int backward = b.add_segment("chunk0.backward", SegmentKind::kBackward, 0);
  Autodiff(b).run(forward, {});
  PassLog passes(program);
  const FusionConfig& fusion = layout.config.fusion;
  const MemoryConfig& memory = layout.config.memory;
  PrecisionPass precision(program, layout);
  passes.run("precision", is_quantized(layout.config.precision.recipe), [&] { precision.run(forward, backward); });
  passes.run("bias_activation_fusion", fusion.bias_activation_fusion,
             [&] { fuse_bias_activation(program, forward, backward); });
  passes.run("bias_dropout_fusion", fusion.bias_dropout_fusion, [&] { fuse_bias_dropout(program, forward, backward); });
  passes.run("gradient_accumulation_fusion off", !fusion.gradient_accumulation_fusion,
             [&] { split_gradient_accumulation(program, backward); });
  passes.run("residual_fusion", fusion.residual_fusion, [&] { fuse_residuals(program, forward, backward); });
  passes.run("cross_entropy_loss_fusion", fusion.cross_entropy_loss_fusion,
             [&] { fuse_cross_entropy(program, forward, backward); });
  passes.run("recompute", memory.recompute_granularity != RecomputeGranularity::kNone,
             [&] { recompute(program, forward, backward, memory); });
  passes.run("cpu_offloading", memory.cpu_offloading, [&] { offload(program, forward, backward, memory); });
  if (effects != nullptr) *effects = passes.take();

  const DataParallel data_parallel = build_data_parallel(b, layout);
  b.enter(data_parallel.grad_sync);
  precision.once_a_step(b);
  b.enter(data_parallel.optimizer);
  for (const BlockBuilder::ExpertState& state : blocks.expert_states())
    b.emit(kExpertBias, "optimizer." + state.path + ".expert_bias", {state.load, state.bias},
           ExpertBiasAttrs{state.rate}, {.out = {state.bias}});

  program.schedule = one_f_one_b(rank_class.pp, layout.pp, layout.micro_batches, forward, backward);
  schedule_data_parallel(program, data_parallel);
  finish_program(program);
  return program;
}

}  // namespace mbb::trainer
