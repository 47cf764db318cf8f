// What data parallelism costs, against NUMERICS 4 and 7: bytes and calls of its groups, state bytes, and what overlap
// hides.
#include <algorithm>
#include <functional>
#include <map>

#include "trainer/execute/simulate/replay.h"
#include "trainer/ops/op_kind.h"
#include "trainer/program/explain.h"
#include "trainer/program/sample_programs_test.h"
#include "trainer/program/verify.h"
#include "trainer/program/walk.h"

namespace mbb::trainer {
namespace {

using Strategy = ShardingStrategy;

// Sizes that leave buckets and shards without padding.
Config formula_model(int tp, int pp, int dp) {
  Config c = mapped(tp, pp, dp, 8);
  c.model.hidden_size = 256;
  c.model.num_attention_heads = 8;
  c.model.num_query_groups = 4;
  c.model.kv_channels = 64;
  c.model.ffn_hidden_size = 768;
  c.model.vocab_size = 1024;
  c.train.seq_length = 64;
  c.train.micro_batch_size = 1;
  c.train.global_batch_size = int64_t{dp} * 6;
  c.precision.recipe = Recipe::kBf16;
  return c;
}

const CommRow& row_of(const ClassRow& row, GroupKind group) {
  static const CommRow none;
  for (const CommRow& comm : row.comm)
    if (comm.group == group) return comm;
  return none;
}

// Bytes and calls of one kind of collective over one kind of group, a step of this rank class.
struct Moved {
  double bytes = 0;
  int64_t calls = 0;
};
Moved moved(const ClassRow& row, std::string_view kind, GroupKind group) {
  Moved all;
  for (const SegmentRow& segment : row.segments) {
    for (const OpRow& op : segment.ops) {
      if (op.kind != kind || op.what.find(std::string(kind) + " " + name(group) + " ") != 0) continue;
      all.bytes += op.wire_bytes * static_cast<double>(op.runs);
      all.calls += op.runs;
    }
  }
  return all;
}

double layer_parameters(const Layout& l) {
  const ModelShape& m = l.model;
  const auto h = static_cast<double>(m.hidden_size);
  const auto q = static_cast<double>(m.query_size()), kv = static_cast<double>(m.kv_size());
  return (h * (q + 2 * kv) + q * h + 3 * h * static_cast<double>(m.ffn_hidden_size)) / l.tp + 2 * h;
}
double embedding_parameters(const Layout& l) {
  return static_cast<double>(l.vocab * l.model.hidden_size) / l.tp;
}
// Of one stage holding everything.
double parameters(const Layout& l) {
  return static_cast<double>(l.model.num_layers) * layer_parameters(l) + 2 * embedding_parameters(l) +
         static_cast<double>(l.model.hidden_size);
}

double state_bytes(const ClassRow& row, std::initializer_list<Category> categories) {
  double bytes = 0;
  for (Category c : categories) bytes += static_cast<double>(row.peak_by_category[static_cast<size_t>(c)]);
  return bytes;
}

struct Priced {
  Built built;
  Explain explained;
};
Priced price(const Config& config) {
  Priced p{build(config), {}};
  EXPECT_TRUE(verify_world(p.built.layout.mesh, p.built.programs.by_rank(p.built.layout.mesh)).has_value());
  p.explained = explain(p.built.layout, p.built.programs);
  return p;
}

TEST(DataParallelCosts, BucketsChangeCallsAndNotBytes) {
  Config c = formula_model(2, 1, 4);
  const Priced whole = price(c);
  c.data_parallel.bucket_size = 500'000;
  const Priced cut = price(c);
  const Moved one = moved(whole.explained.classes[0], "reduce_scatter", GroupKind::kDpCp);
  const Moved many = moved(cut.explained.classes[0], "reduce_scatter", GroupKind::kDpCp);
  const double n = parameters(whole.built.layout);
  EXPECT_EQ(one.calls, 1);
  EXPECT_EQ(one.bytes, 0.75 * n * 4);
  // Buckets close at the first tensor that fills them.
  EXPECT_GT(many.calls, 4);
  EXPECT_LE(many.calls, static_cast<int64_t>(n / 500'000) + 1);
  EXPECT_EQ(many.bytes, one.bytes);
  EXPECT_EQ(moved(cut.explained.classes[0], "all_gather", GroupKind::kDpCp).calls, many.calls);
  EXPECT_EQ(moved(cut.explained.classes[0], "all_gather", GroupKind::kDpCp).bytes, 0.75 * n * 2);
  EXPECT_GT(row_of(whole.explained.classes[0], GroupKind::kDpCp).largest_bytes,
            row_of(cut.explained.classes[0], GroupKind::kDpCp).largest_bytes);
}

// The usual bucket is smaller than a layer of a real model; a layer is gathered whole all the same.
TEST(DataParallelCosts, FullyShardedUnitsAreLayersOfAnySize) {
  Config c;
  c.model.name = "llama3-8b";
  c.model.num_layers = 2;
  c.precision.recipe = Recipe::kBf16;
  c.parallel.gpus = 8;
  c.train.global_batch_size = 16;
  c.data_parallel.use_torch_fsdp2 = true;
  const auto layout = resolve(c);
  ASSERT_TRUE(layout);
  const auto programs = build_programs(*layout);
  ASSERT_TRUE(programs) << programs.error().what;
  for (const Segment& segment : programs->programs[0].segments) {
    if (segment.kind != SegmentKind::kForward) continue;
    EXPECT_EQ(std::count_if(segment.ops.begin(), segment.ops.end(),
                            [](const Op& op) { return op.path == "units.layers.1.all_gather"; }),
              1);
  }
}

TEST(DataParallelCosts, Bf16GradientsHalveBytesAndMemory) {
  Config c = formula_model(1, 1, 4);
  const Priced fp32 = price(c);
  c.data_parallel.grad_reduce_in_fp32 = false;
  const Priced bf16 = price(c);
  const auto bytes = [](const Priced& p) {
    return moved(p.explained.classes[0], "reduce_scatter", GroupKind::kDpCp).bytes;
  };
  EXPECT_EQ(bytes(bf16), bytes(fp32) / 2);
  EXPECT_EQ(state_bytes(bf16.explained.classes[0], {Category::kMainGrad}), 2 * parameters(bf16.built.layout));
  EXPECT_EQ(state_bytes(fp32.explained.classes[0], {Category::kMainGrad}), 4 * parameters(fp32.built.layout));
}

TEST(DataParallelCosts, InstancesReduceInsideAndAcross) {
  Config c = formula_model(1, 1, 8);
  c.data_parallel.num_distributed_optimizer_instances = 2;
  const Priced p = price(c);
  const ClassRow& row = p.explained.classes[0];
  const double n = parameters(p.built.layout);
  EXPECT_EQ(moved(row, "reduce_scatter", GroupKind::kDpCpShard).bytes, 0.75 * n * 4);
  EXPECT_EQ(moved(row, "all_gather", GroupKind::kDpCpShard).bytes, 0.75 * n * 2);
  EXPECT_EQ(moved(row, "all_reduce", GroupKind::kDpCpReplica).bytes, 2 * 0.5 * (n / 4) * 4);
  EXPECT_EQ(moved(row, "reduce_scatter", GroupKind::kDpCp).calls, 0);
  EXPECT_EQ(moved(row, "all_gather", GroupKind::kDpCp).calls, 0);
  EXPECT_EQ(state_bytes(row, {Category::kMaster, Category::kMoment}), 12 * n / 4);
}

TEST(DataParallelCosts, StateBytesOfEachStrategy) {
  for (const int tp : {1, 2}) {
    Config c = formula_model(tp, 1, 4);
    for (const Strategy strategy :
         {Strategy::kNoShard, Strategy::kOptim, Strategy::kOptimGrads, Strategy::kOptimGradsParams}) {
      c.data_parallel.data_parallel_sharding_strategy = strategy;
      const Priced p = price(c);
      const ClassRow& row = p.explained.classes[0];
      const double n = parameters(p.built.layout);
      const bool states = strategy != Strategy::kNoShard, parameters_too = strategy == Strategy::kOptimGradsParams;
      const bool gradients = parameters_too || strategy == Strategy::kOptimGrads;
      EXPECT_EQ(state_bytes(row, {Category::kWeight}), 2 * n / (parameters_too ? 4 : 1));
      EXPECT_EQ(state_bytes(row, {Category::kMainGrad}), 4 * n / (gradients ? 4 : 1));
      EXPECT_EQ(state_bytes(row, {Category::kMaster, Category::kMoment}), 12 * n / (states ? 4 : 1));
    }
  }
}

// Slots of the ring: k times the longest unit that takes them, and two of gradients.
TEST(DataParallelCosts, FullyShardedMemoryIsShardsAndSlots) {
  for (const int prefetch : {0, 1, 2}) {
    Config c = formula_model(1, 1, 4);
    c.data_parallel.use_torch_fsdp2 = true;
    c.data_parallel.fsdp_prefetch_units = prefetch;
    const Priced p = price(c);
    const double layer = layer_parameters(p.built.layout);
    double gathered = 0, scattered = 0;
    for (const Tensor& t : p.built.programs.programs[0].tensors) {
      if (t.view_of != kNoTensor || t.category != Category::kComm || t.scope != Scope::kStep) continue;
      (t.dtype == DType::kBf16 ? gathered : scattered) += static_cast<double>(t.bytes());
    }
    EXPECT_EQ(gathered, (prefetch + 1) * 2 * layer);
    EXPECT_EQ(scattered, 2 * 4 * layer);
  }
  Config c = formula_model(1, 1, 4);
  const Priced replicated = price(c);
  c.data_parallel.use_torch_fsdp2 = true;
  const Priced sharded = price(c);
  EXPECT_LT(sharded.built.programs.plans[0].peak_live_bytes, replicated.built.programs.plans[0].peak_live_bytes);
}

// Two gathers and a scatter a micro-batch.
// A layer's FP8 weights and its norms are one unit, whose gathered weights and whose gradients share the slots that
// other units take.
TEST(DataParallelCosts, Fp8WeightsGatherIntoTheSlotsThatThereAre) {
  struct Slots {
    int64_t gathered = 0, grads = 0, arena = 0;
    int count = 0;
  };
  const auto slots = [](bool fp8_param) {
    Config c = formula_model(1, 1, 4);
    c.model.vocab_size = 256;  // a layer is the largest unit
    c.precision.recipe = Recipe::kFp8Current;
    c.precision.fp8_param = fp8_param;
    c.data_parallel.data_parallel_sharding_strategy = Strategy::kOptimGradsParams;
    const Built built = build(c);
    Slots all;
    all.arena = built.programs.plans[0].arena_bytes;
    for (const Tensor& t : built.programs.programs[0].tensors) {
      if (t.view_of != kNoTensor || t.scope != Scope::kStep) continue;
      const bool gathered = t.path.starts_with("units.gathered."), grads = t.path.starts_with("units.grads.");
      if (gathered) all.gathered += t.bytes();
      if (grads) all.grads += t.bytes();
      all.count += gathered || grads ? 1 : 0;
    }
    return all;
  };
  const Slots kept = slots(true), usual = slots(false);
  EXPECT_EQ(kept.count, usual.count);
  EXPECT_LT(kept.gathered, 6 * usual.gathered / 10);
  EXPECT_LT(kept.grads, usual.grads + 16'384);  // padding
  EXPECT_LT(kept.arena, usual.arena);
}

TEST(DataParallelCosts, FullyShardedBytes) {
  for (const int tp : {1, 2})
    for (const bool reshard : {true, false}) {
      Config c = formula_model(tp, 1, 4);
      c.data_parallel.use_torch_fsdp2 = true;
      c.data_parallel.reshard_after_forward = reshard;
      const Priced p = price(c);
      const ClassRow& row = p.explained.classes[0];
      const Layout& l = p.built.layout;
      const double n = parameters(l), m = l.micro_batches;
      // The backward finds the last two units in their slots, and the embedding's reads no weight.
      const double ends = 2 * embedding_parameters(l) + static_cast<double>(l.model.hidden_size) + layer_parameters(l);
      EXPECT_EQ(moved(row, "all_gather", GroupKind::kDpCp).bytes, m * 0.75 * 2 * (reshard ? 2 * n - ends : n));
      EXPECT_EQ(moved(row, "reduce_scatter", GroupKind::kDpCp).bytes, m * 0.75 * 4 * n);
      // Units: the layers, the embedding, final norm with LM head.
      const int64_t units = l.model.num_layers + 2;
      EXPECT_EQ(moved(row, "all_gather", GroupKind::kDpCp).calls, l.micro_batches * (reshard ? 2 * units - 3 : units));
      EXPECT_EQ(moved(row, "reduce_scatter", GroupKind::kDpCp).calls, l.micro_batches * units);
      // Norm gradients are partial sums over TP: summed once a step, before the last scatter.
      const double norms = static_cast<double>((2 * l.model.num_layers + 1) * l.model.hidden_size);
      double partial = 0;
      for (const SegmentRow& segment : row.segments)
        for (const OpRow& op : segment.ops)
          if (op.path.ends_with(".partial.all_reduce")) partial += op.wire_bytes * static_cast<double>(op.runs);
      EXPECT_EQ(partial, tp == 1 ? 0 : 2 * 0.5 * 4 * norms);
    }
}

TEST(DataParallelCosts, ShardedGradientsScatterEveryMicroBatchAndGatherOnce) {
  Config c = formula_model(1, 1, 4);
  c.data_parallel.data_parallel_sharding_strategy = Strategy::kOptimGrads;
  const Priced p = price(c);
  const ClassRow& row = p.explained.classes[0];
  const double n = parameters(p.built.layout);
  EXPECT_EQ(moved(row, "reduce_scatter", GroupKind::kDpCp).bytes, 6 * 0.75 * 4 * n);
  EXPECT_EQ(moved(row, "all_gather", GroupKind::kDpCp).bytes, 0.75 * 2 * n);
}

TEST(DataParallelCosts, HybridShardedReducesAcrossInstancesOnce) {
  Config c = formula_model(1, 1, 8);
  c.data_parallel.use_torch_fsdp2 = true;
  c.data_parallel.num_distributed_optimizer_instances = 2;
  const Priced p = price(c);
  const ClassRow& row = p.explained.classes[0];
  const double n = parameters(p.built.layout);
  EXPECT_EQ(moved(row, "all_reduce", GroupKind::kDpCpReplica).bytes, 2 * 0.5 * (n / 4) * 4);
  EXPECT_EQ(moved(row, "reduce_scatter", GroupKind::kDpCpShard).bytes, 6 * 0.75 * 4 * n);
}

// A replayed step with a unit of time for every compute op and `message` for every data-parallel collective.
struct Timed {
  int64_t step = 0;
  int64_t exposed = 0;  // data-parallel communication of rank 0 while its compute stands still
};
Timed time_of(const Config& config, int64_t message = 3) {
  const Built b = build(config);
  const auto programs = b.programs.by_rank(b.layout.mesh);
  std::vector<std::vector<int64_t>> costs;
  for (const Program* program : programs) {
    costs.emplace_back();
    walk(*program, [&](int, const Call&, int, const Op& op) {
      const auto* comm = op.kind->communicates ? &std::get<CommAttrs>(op.attrs) : nullptr;
      const bool data_parallel = comm != nullptr && comm->group != GroupKind::kTp && comm->group != GroupKind::kPp;
      const bool tensor = data_parallel && !op.in.empty() && program->tensor(op.in[0]).shape.elements() > 64;
      costs.back().push_back(comm == nullptr ? 1 : tensor ? message : 0);
    });
  }
  const auto replayed =
      replay(b.layout.mesh, programs, [&](int rank, size_t i) { return costs[static_cast<size_t>(rank)][i]; });
  EXPECT_TRUE(replayed.has_value()) << (replayed ? "" : replayed.error().what);
  Timed timed{replayed->step_ns, 0};
  std::vector<bool> compute(static_cast<size_t>(replayed->step_ns), false), comm = compute;
  for (const profiler::Span& span : replayed->trace.spans) {
    if (replayed->trace.tracks[span.track].rank != 0) continue;
    std::vector<bool>* busy = span.kind == profiler::SpanKind::kCompute  ? &compute
                              : span.kind == profiler::SpanKind::kCommDp ? &comm
                                                                         : nullptr;
    for (int64_t at = span.start_ns; busy != nullptr && at < span.end_ns; ++at) (*busy)[static_cast<size_t>(at)] = true;
  }
  for (size_t at = 0; at < comm.size(); ++at) timed.exposed += comm[at] && !compute[at] ? 1 : 0;
  return timed;
}

Config timed_model(int pp, int dp) {
  Config c = formula_model(1, pp, dp);
  c.train.global_batch_size = int64_t{dp} * 3;
  c.data_parallel.bucket_size = 600'000;
  return c;
}

TEST(DataParallelOverlap, HidesReductionsAndGathers) {
  Config c = timed_model(1, 2);
  const Timed apart = time_of(c);
  c.data_parallel.overlap_grad_reduce = true;
  const Timed reduces = time_of(c);
  EXPECT_LT(reduces.exposed, apart.exposed);
  EXPECT_LT(reduces.step, apart.step);
  c.data_parallel.overlap_param_gather = true;
  const Timed both = time_of(c);
  EXPECT_LT(both.exposed, reduces.exposed);
  EXPECT_LT(both.step, reduces.step);
  // What is left: the last bucket's reduction and the first one's gather.
  EXPECT_LE(both.exposed, 2 * 3);
  c.data_parallel.overlap_param_gather_with_optimizer_step = true;
  const Timed early = time_of(c);
  EXPECT_LT(early.exposed, both.exposed);
}

TEST(DataParallelOverlap, HidesTheOptimizerUnderTheForward) {
  Config c = timed_model(1, 2);
  c.data_parallel.overlap_grad_reduce = c.data_parallel.overlap_param_gather = true;
  const Timed apart = time_of(c);
  c.data_parallel.overlap_optimizer_with_forward = true;
  EXPECT_LT(time_of(c).step, apart.step);
}

// The norm reads what was reduced while the last reduction is under way; that one's part waits for it.
TEST(DataParallelOverlap, SquaresRunUnderTheLastReduction) {
  for (const bool sharded : {false, true}) {
    Config c = timed_model(1, 2);
    c.data_parallel.overlap_grad_reduce = true;
    c.data_parallel.use_torch_fsdp2 = sharded;
    if (sharded) c.data_parallel.bucket_size = 0;
    const Built b = build(c);
    const Program& program = b.programs.programs[0];
    std::vector<std::string> early, late;
    for (const Segment& segment : program.segments)
      for (const Op& op : segment.ops)
        if (op.kind->name == "grad_square_sum")
          (segment.kind == SegmentKind::kBackward ? early : late).push_back(op.path);
    ASSERT_EQ(late.size(), 1U) << "sharded: " << sharded;
    EXPECT_GT(early.size(), 2U);
    const auto last = std::find_if(program.segments.begin(), program.segments.end(),
                                   [](const Segment& s) { return s.kind == SegmentKind::kBackward; });
    for (size_t i = last->ops.size() - early.size(); i < last->ops.size(); ++i) {
      EXPECT_EQ(last->ops[i].kind->name, "grad_square_sum");
      EXPECT_EQ(last->ops[i].when, When::kLast);
    }
    // A long reduction hides them all.
    const Timed beside = time_of(c, 40);
    c.data_parallel.overlap_grad_reduce = false;
    c.data_parallel.use_torch_fsdp2 = false;
    if (sharded) c.data_parallel.data_parallel_sharding_strategy = Strategy::kOptimGradsParams;
    EXPECT_LT(beside.step, time_of(c, 40).step);
  }
}

// What runs from the embedding's gradient on: products, and reductions.
std::vector<std::string> behind_embedding(const Program& program) {
  const auto backward = std::find_if(program.segments.begin(), program.segments.end(),
                                     [](const Segment& s) { return s.kind == SegmentKind::kBackward; });
  std::vector<std::string> behind;
  for (const Op& op : backward->ops) {
    if (op.path == "embedding.wgrad") behind = {"embedding"};
    if (behind.empty() || op.when == When::kNotFirst) continue;
    if (op.kind->name == "gemm") behind.push_back(op.path);
    if (op.kind->communicates) behind.push_back("reduced");
  }
  return behind;
}

// Its reduction runs under weight gradients of the first layer, whose own is all that is left.
TEST(DataParallelOverlap, TheEmbeddingIsReducedBeforeTheLastWeightGradients) {
  for (const bool sharded : {false, true}) {
    Config c = timed_model(1, 2);
    c.data_parallel.overlap_grad_reduce = true;
    c.data_parallel.use_torch_fsdp2 = sharded;
    if (sharded) c.data_parallel.bucket_size = 0;
    const Built b = build(c);
    const Program& program = b.programs.programs[0];
    const auto behind = behind_embedding(program);
    ASSERT_GT(behind.size(), 4U) << "sharded: " << sharded;
    EXPECT_EQ(behind[0], "embedding");
    EXPECT_EQ(behind[1], "reduced");
    EXPECT_EQ(behind[2], "layers.0.mlp.fc2.wgrad");
    EXPECT_EQ(behind.back(), "reduced");
    for (const Tensor& t : program.tensors)  // a slot of the ring, though the layer's gradients lie around it
      EXPECT_TRUE(t.path != "units.grads.units.embedding" || t.view_of != kNoTensor);
  }
}

// Tied to the head of another stage, it is reduced after the backward.
TEST(DataParallelOverlap, ATiedEmbeddingOfAnotherStageMovesNothing) {
  Config c = timed_model(2, 2);
  c.model.name = "qwen2.5-0.5b";
  c.data_parallel.overlap_grad_reduce = true;
  const auto behind = behind_embedding(build(c).programs.programs[0]);
  EXPECT_EQ(std::count(behind.begin(), behind.end(), "embedding"), 1);
  EXPECT_EQ(std::count(behind.begin(), behind.end(), "layers.0.mlp.fc2.wgrad"), 0);
}

TEST(DataParallelOverlap, PrefetchHidesFullySharded) {
  Config c = timed_model(1, 2);
  c.data_parallel.bucket_size = 0;
  c.data_parallel.data_parallel_sharding_strategy = Strategy::kOptimGradsParams;
  const Timed blocking = time_of(c);
  c.data_parallel.use_torch_fsdp2 = true;
  c.data_parallel.fsdp_prefetch_units = 0;
  const Timed one_slot = time_of(c);
  c.data_parallel.fsdp_prefetch_units = 1;
  const Timed two_slots = time_of(c);
  c.data_parallel.reshard_after_forward = false;
  const Timed kept = time_of(c);
  EXPECT_LE(one_slot.exposed, blocking.exposed);
  EXPECT_LT(two_slots.exposed, one_slot.exposed);
  EXPECT_LE(kept.exposed, two_slots.exposed);
  EXPECT_LT(two_slots.step, one_slot.step);
}

TEST(DataParallelOverlap, DeferredHeadGradientsShortenTheStep) {
  Config c = timed_model(4, 1);
  c.model.num_layers = 4;
  const Timed apart = time_of(c);
  c.data_parallel.defer_embedding_wgrad_compute = true;
  const Built b = build(c);
  EXPECT_LT(time_of(c).step, apart.step);
  const Program& last = b.programs.programs.back();
  const auto at = std::find_if(last.segments.begin(), last.segments.end(),
                               [](const Segment& s) { return s.kind == SegmentKind::kWgrad; });
  ASSERT_NE(at, last.segments.end());
  for (const Op& op : at->ops) EXPECT_TRUE(op.path.starts_with("lm_head.")) << op.path;
  for (size_t i = 0; i + 1 < b.programs.programs.size(); ++i)
    for (const Segment& s : b.programs.programs[i].segments) EXPECT_NE(s.kind, SegmentKind::kWgrad);
}

// Every stage's gathers stand before its first forward, whatever it waits for.
TEST(DataParallelOverlap, AlignedGathersComeBeforeTheSchedule) {
  Config c = timed_model(2, 2);
  c.data_parallel.overlap_grad_reduce = c.data_parallel.overlap_param_gather = true;
  const Built loose = build(c);
  c.data_parallel.align_param_gather = true;
  const Built aligned = build(c);
  EXPECT_NE(program_hash(loose.programs), program_hash(aligned.programs));
  for (const Program& program : aligned.programs.programs) {
    const Segment& first = program.segment(program.schedule.front());
    EXPECT_EQ(first.kind, SegmentKind::kParamGather);
    for (const Op& op : first.ops) EXPECT_EQ(op.kind->name, "all_gather");
  }
  for (const Program& program : loose.programs.programs)
    EXPECT_EQ(program.segment(program.schedule.front()).kind, SegmentKind::kForward);
}

// A later chunk's gathers come when the chunk before it begins on the first stage: a later stage, whose forwards start
// later, counts that many forwards less.
TEST(DataParallelOverlap, AlignedGathersOfLaterChunksFollowTheFirstStage) {
  Config c = timed_model(2, 2);
  c.train.global_batch_size = 2 * 4;
  c.parallel.virtual_pipeline_model_parallel_size = 4;
  c.data_parallel.overlap_grad_reduce = c.data_parallel.overlap_param_gather = true;
  const Built loose = build(c);
  c.data_parallel.align_param_gather = true;
  const Built b = build(c);
  for (int stage = 0; stage < 2; ++stage) {
    EXPECT_EQ(b.programs.plans[static_cast<size_t>(stage)].arena_bytes,
              loose.programs.plans[static_cast<size_t>(stage)].arena_bytes);
    const Program& program = b.programs.programs[static_cast<size_t>(stage)];
    std::map<int, int> gathered_before;  // chunk -> forward calls before its gathers
    std::map<int, int> begins;
    int forwards = 0;
    for (const Call& call : program.schedule) {
      const Segment& segment = program.segment(call);
      if (segment.kind == SegmentKind::kParamGather) gathered_before[segment.chunk] = forwards;
      if (segment.kind == SegmentKind::kForward) begins.try_emplace(segment.chunk, forwards++);
    }
    ASSERT_EQ(gathered_before.size(), 4U);
    EXPECT_EQ(gathered_before[0], 0);
    EXPECT_EQ(gathered_before[1], 0);
    for (int chunk = 2; chunk < 4; ++chunk) {
      EXPECT_EQ(gathered_before[chunk], begins[chunk - 1] - stage);
      EXPECT_LT(gathered_before[chunk], begins[chunk]);
    }
  }
}

std::string refusal(const std::function<void(Config&)>& set) {
  Config c = mapped(1, 1, 2);
  set(c);
  const auto layout = resolve(c);
  return layout ? "" : layout.error().what;
}

TEST(DataParallelRules, ContradictionsAreRefusedByKnob) {
  using D = DataParallelConfig;
  const auto names = [](const std::string& what, const char* knob) { return what.find(knob) != std::string::npos; };
  EXPECT_TRUE(names(refusal([](Config& c) { c.data_parallel.align_param_gather = true; }), "align_param_gather"));
  EXPECT_TRUE(names(refusal([](Config& c) { c.data_parallel.overlap_param_gather_with_optimizer_step = true; }),
                    "overlap_param_gather_with_optimizer_step"));
  EXPECT_TRUE(names(refusal([](Config& c) {
                      c.data_parallel.overlap_optimizer_with_forward = c.data_parallel.align_param_gather = true;
                    }),
                    "overlap_optimizer_with_forward"));
  EXPECT_TRUE(
      names(refusal([](Config& c) { c.data_parallel.reshard_after_forward = false; }), "reshard_after_forward"));
  EXPECT_TRUE(names(refusal([](Config& c) { c.data_parallel.fsdp_prefetch_units = 3; }), "fsdp_prefetch_units"));
  EXPECT_TRUE(names(refusal([](Config& c) { c.data_parallel.grad_reduce_in_fp32 = false; }), "grad_reduce_in_fp32"));
  EXPECT_TRUE(names(refusal([](Config& c) { c.data_parallel.defer_embedding_wgrad_compute = true; }),
                    "defer_embedding_wgrad_compute"));
  EXPECT_TRUE(names(refusal([](Config& c) { c.data_parallel.num_distributed_optimizer_instances = 3; }),
                    "num_distributed_optimizer_instances"));
  for (const auto& set : std::initializer_list<std::function<void(D&)>>{
           [](D& d) { d.bucket_size = 100; }, [](D& d) { d.align_param_gather = d.overlap_param_gather = true; },
           [](D& d) { d.data_parallel_sharding_strategy = Strategy::kNoShard; }})
    EXPECT_NE(refusal([&](Config& c) {
                c.data_parallel.use_torch_fsdp2 = true;
                set(c.data_parallel);
              }),
              "");
  EXPECT_TRUE(names(refusal([](Config& c) {
                      c.parallel.use_distributed_optimizer = false;
                      c.data_parallel.num_distributed_optimizer_instances = 2;
                    }),
                    "num_distributed_optimizer_instances"));
  EXPECT_TRUE(names(refusal([](Config& c) {
                      c.parallel.use_distributed_optimizer = false;
                      c.data_parallel.overlap_param_gather = true;
                    }),
                    "overlap_param_gather"));
  EXPECT_EQ(refusal([](Config& c) { c.data_parallel.use_torch_fsdp2 = true; }), "");
  EXPECT_TRUE(names(refusal([](Config& c) {
                      c.data_parallel.use_torch_fsdp2 = true;
                      c.overlap.overlap_moe_expert_parallel_comm = true;
                    }),
                    "reshard_after_forward"));
}

}  // namespace
}  // namespace mbb::trainer
