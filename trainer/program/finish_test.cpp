// Scopes, shared bytes and ring sizes that finish_program derives, against the rules and a brute force.
#include "trainer/program/finish.h"

#include <algorithm>

#include "trainer/program/builder.h"
#include "trainer/program/sample_programs_test.h"
#include "trainer/program/verify.h"

#include "trainer/ops/table.h"

namespace mbb::trainer {
namespace {

// A forward that keeps `kept` for the backward and drops `dropped`.
struct Small {
  Program program;
  TensorId source, dropped, kept, result;
};

Small small(int micro_batches, std::vector<Call> schedule) {
  Small s;
  s.program.micro_batches = micro_batches;
  Builder b(s.program);
  Tensor source;
  source.path = "source";
  source.shape = Shape{8, 1, 4};
  source.category = Category::kInput;
  source.scope = Scope::kMicroBatch;
  s.source = b.declare(source);
  b.add_segment("forward", SegmentKind::kForward, 0);
  s.dropped = b.emit1(kAdd, "a.fwd", {s.source, s.source}, NoAttrs{});
  s.kept = b.emit1(kAdd, "b.fwd", {s.dropped, s.dropped}, NoAttrs{});
  b.add_segment("backward", SegmentKind::kBackward, 0);
  s.result = b.emit1(kAdd, "b.bwd", {s.kept, s.kept}, NoAttrs{});
  s.program.schedule = std::move(schedule);
  finish_program(s.program);
  return s;
}

TEST(Finish, ScopesFollowFromWhoReads) {
  const Small s = small(2, {{0, 0}, {1, 0}, {0, 1}, {1, 1}});
  EXPECT_EQ(s.program.tensor(s.dropped).scope, Scope::kCall);
  EXPECT_EQ(s.program.tensor(s.kept).scope, Scope::kMicroBatch);
  EXPECT_EQ(s.program.tensor(s.result).scope, Scope::kCall);
  EXPECT_EQ(s.program.tensor(s.source).ring, 2) << "the host writes all micro-batches before the step";
  EXPECT_TRUE(verify(s.program).has_value());
}

// Random schedules, forwards in order and backwards in any: the ring keeps every value until its backward has read it,
// and the next smaller one does not. The verifier, which refuses a slot taken too early, is the brute force.
TEST(Finish, RingIsTheSmallestThatHolds) {
  const uint32_t seed = std::random_device{}();
  std::mt19937 random(seed);
  for (int round = 0; round < 300; ++round) {
    const int m = std::uniform_int_distribution<int>(1, 9)(random);
    std::vector<Call> schedule;
    std::vector<int> waiting;
    for (int forward = 0; forward < m || !waiting.empty();) {
      const bool backward = !waiting.empty() && (forward == m || random() % 2 == 0);
      if (!backward) {
        waiting.push_back(forward);
        schedule.push_back({0, forward++});
        continue;
      }
      std::swap(waiting[random() % waiting.size()], waiting.back());
      schedule.push_back({1, waiting.back()});
      waiting.pop_back();
    }
    Small s = small(m, schedule);
    int& ring = s.program.tensor(s.kept).ring;
    ASSERT_TRUE(verify(s.program).has_value()) << "seed " << seed;
    if (--ring == 0) continue;
    ASSERT_FALSE(verify(s.program).has_value()) << "seed " << seed << ": ring " << ring << " would do";
  }
}

TEST(Finish, RingsOf1F1BAreAsDeepAsThePipelineAhead) {
  for (int pp : {1, 2, 4})
    for (int micro_batches : {1, 2, 3, 8}) {
      Config config = mapped(1, pp, 1);
      config.train.global_batch_size = micro_batches;
      const Built built = build(config);
      for (int stage = 0; stage < pp; ++stage)
        for (const Tensor& t : built.programs.programs[static_cast<size_t>(stage)].tensors)
          if (t.path.ends_with(".mlp.fc1.out")) {
            EXPECT_EQ(t.ring, std::min(pp - stage, micro_batches)) << "stage " << stage << " of " << pp;
          }
    }
}

TEST(Finish, InPlaceOpsShareBytesOnlyWhereNobodyReadsTheInputAgain) {
  const Built built = build(mapped(2, 1, 1, 1));
  const Program& program = built.programs.programs[0];
  const auto id = [&](const std::string& path) {
    for (size_t i = 0; i < program.tensors.size(); ++i)
      if (program.tensors[i].path == path) return static_cast<TensorId>(i);
    ADD_FAILURE() << "no tensor " << path;
    return TensorId{0};
  };
  // RoPE rotates qkv in place: nothing else reads the unrotated one.
  EXPECT_EQ(program.storage(id("layers.0.attn.qkv.out")), program.storage(id("layers.0.attn.rope.out")));
  // The norm's output is read by its gather and, in the backward, once more: it keeps its bytes.
  EXPECT_EQ(program.storage(id("layers.0.mlp.norm.out.0")), id("layers.0.mlp.norm.out.0"));
  // The gradient of the logits takes the logits' bytes.
  EXPECT_EQ(program.storage(id("loss.bwd.out")), program.storage(id("lm_head.out")));
}

// source -> before -> (in place) after, and one more reader of `before` in the segment named.
struct InPlace {
  Program program;
  TensorId before, after;
  bool shared() const { return program.storage(before) == program.storage(after); }
};

InPlace in_place(int reader_segment, bool after_crosses) {
  InPlace p;
  Builder b(p.program);
  Tensor source;
  source.path = "source";
  source.shape = Shape{8, 1, 24};
  source.category = Category::kInput;
  source.scope = Scope::kMicroBatch;
  const TensorId in = b.declare(source);
  b.add_segment("forward", SegmentKind::kForward, 0);
  p.before = b.emit1(kAdd, "before.fwd", {in, in}, NoAttrs{});
  p.after = b.emit1(kRope, "after.fwd", {p.before}, RopeAttrs{1, 1, 8});
  if (reader_segment == 0) b.emit1(kAdd, "reader.fwd", {p.before, p.before}, NoAttrs{});
  b.add_segment("backward", SegmentKind::kBackward, 0);
  if (reader_segment == 1) b.emit1(kAdd, "reader.bwd", {p.before, p.before}, NoAttrs{});
  if (after_crosses) b.emit1(kAdd, "after.bwd", {p.after, p.after}, NoAttrs{});
  p.program.schedule = {{0, 0}, {1, 0}};
  finish_program(p.program);
  return p;
}

TEST(Finish, AReaderAfterwardsKeepsAnInPlaceOpOffItsInput) {
  for (const bool crosses : {false, true}) {
    EXPECT_TRUE(in_place(-1, crosses).shared());
    EXPECT_FALSE(in_place(0, crosses).shared());
    EXPECT_FALSE(in_place(1, crosses).shared());
    for (int reader : {-1, 0, 1}) EXPECT_TRUE(verify(in_place(reader, crosses).program).has_value());
  }
  const InPlace p = in_place(-1, true);
  EXPECT_EQ(p.program.storage(p.before), p.after) << "the one that outlives the call owns the bytes";
}

TEST(Finish, InputsOfTheHostAreNotWrittenOver) {
  Program program;
  Builder b(program);
  Tensor source;
  source.path = "source";
  source.shape = Shape{8, 1, 24};
  source.category = Category::kInput;
  source.scope = Scope::kMicroBatch;
  const TensorId in = b.declare(source);
  b.add_segment("forward", SegmentKind::kForward, 0);
  const TensorId out = b.emit1(kRope, "rope.fwd", {in}, RopeAttrs{1, 1, 8});
  program.schedule = {{0, 0}};
  finish_program(program);
  EXPECT_NE(program.storage(out), program.storage(in));
}

TEST(FinishDeath, AValueThatCrossesIntoTheOptimizerUnmarked) {
  Program program;
  Builder b(program);
  Tensor source;
  source.path = "source";
  source.shape = Shape{4};
  source.category = Category::kInput;
  source.scope = Scope::kMicroBatch;
  const TensorId in = b.declare(source);
  b.add_segment("forward", SegmentKind::kForward, 0);
  const TensorId lost = b.emit1(kAdd, "lost.fwd", {in, in}, NoAttrs{});
  b.add_segment("optimizer", SegmentKind::kOptimizer, 0);
  b.emit1(kAdd, "optimizer.sum", {lost, lost}, NoAttrs{});
  program.schedule = {{0, 0}, {1, 0}};
  EXPECT_DEATH(finish_program(program), "crosses calls outside micro-batches.*lost.fwd");
}

}  // namespace
}  // namespace mbb::trainer
