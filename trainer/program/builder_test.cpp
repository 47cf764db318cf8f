// Builder and reverse walk: names, views, and which backward ops a forward calls for.
#include "trainer/program/builder.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "trainer/program/autodiff.h"

#include "trainer/ops/table.h"

namespace mbb::trainer {
namespace {

TensorId declare(Builder& b, const std::string& path, Shape shape, DType dtype = DType::kF32) {
  Tensor t;
  t.path = path;
  t.shape = shape;
  t.dtype = dtype;
  return b.declare(std::move(t));
}

TensorId weight(Builder& b, const std::string& path, Shape shape) {
  const TensorId grad = declare(b, path + ".main_grad", shape);
  const TensorId id = declare(b, path, shape);
  b.program().tensor(id).main_grad = grad;
  return id;
}

TEST(Builder, ViewsOfViewsNameTheOwnerAndAddOffsets) {
  Program program;
  Builder b(program);
  const TensorId owner = declare(b, "owner", Shape{10, 4}, DType::kBf16);
  const TensorId view = b.view(owner, "view", Shape{6, 4}, 8);
  const TensorId inner = b.view(view, "inner", Shape{4}, 12);
  EXPECT_EQ(b.tensor(view).view_of, owner);
  EXPECT_EQ(b.tensor(view).view_offset_bytes, 16);
  EXPECT_EQ(b.tensor(inner).view_of, owner);
  EXPECT_EQ(b.tensor(inner).view_offset_bytes, 40);
  EXPECT_EQ(b.tensor(inner).dtype, DType::kBf16);
}

TEST(BuilderDeath, RefusesViewsOutsideAndShapesTheRecordRefuses) {
  Program program;
  Builder b(program);
  const TensorId owner = declare(b, "owner", Shape{10});
  EXPECT_DEATH(b.view(owner, "late", Shape{4}, 7), "view outside its storage: late");
  const TensorId other = declare(b, "other", Shape{9});
  b.add_segment("forward", SegmentKind::kForward, 0);
  EXPECT_DEATH(b.emit(kAdd, "sum.fwd", {owner, other}, NoAttrs{}), "add sum.fwd: sum of 10 and 9");
  EXPECT_DEATH(b.emit(kAdd, "sum.fwd", {owner, owner}, NoAttrs{}, {.out = {other}}),
               "output other has 9 but the op writes 10");
}

TEST(Builder, OutputsTakeTheOpsPathAndANumberWhereThereAreSeveral) {
  Program program;
  Builder b(program);
  const TensorId x = declare(b, "x", Shape{6, 1, 8});
  b.add_segment("forward", SegmentKind::kForward, 0);
  EXPECT_EQ(b.tensor(b.emit1(kAdd, "sum.fwd", {x, x}, NoAttrs{})).path, "sum.fwd");
  const auto out = b.emit(kRmsNorm, "norm.fwd", {x, weight(b, "norm.weight", Shape{8})}, NormAttrs{},
                          {.category = Category::kGradient, .out_path = "norm.out"});
  ASSERT_EQ(out.size(), 2U);
  EXPECT_EQ(b.tensor(out[0]).path, "norm.out.0");
  EXPECT_EQ(b.tensor(out[1]).path, "norm.out.1");
  EXPECT_EQ(b.tensor(out[1]).category, Category::kGradient);
  EXPECT_EQ(b.tensor(out[1]).shape.str(), "6");
}

// Differentiates the current forward segment from a gradient of `of`.
class Backward {
 public:
  Backward(Builder& b, TensorId of, std::set<TensorId> wanted = {}) {
    const int forward = b.segment();
    segment_ = b.add_segment("backward", SegmentKind::kBackward, 0);
    Tensor seed = b.tensor(of);
    seed.path = "seed";
    seed_ = b.declare(seed);
    autodiff_ = std::make_unique<Autodiff>(b);
    autodiff_->run(forward, {{of, seed_}}, wanted);
    for (const Op& op : b.ops()) ops_.push_back(op);
  }

  std::vector<Op> named(const std::string& path) const {
    std::vector<Op> found;
    std::copy_if(ops_.begin(), ops_.end(), std::back_inserter(found), [&](const Op& op) { return op.path == path; });
    return found;
  }
  const std::vector<Op>& ops() const { return ops_; }
  TensorId seed() const { return seed_; }
  TensorId grad_of(TensorId id) const { return autodiff_->grad_of(id); }

 private:
  int segment_ = 0;
  TensorId seed_ = kNoTensor;
  std::unique_ptr<Autodiff> autodiff_;
  std::vector<Op> ops_;
};

constexpr GemmAttrs kLinear{false, true, false};

TEST(Autodiff, AValueReadTwiceSumsItsGradients) {
  Program program;
  Builder b(program);
  const TensorId x = declare(b, "x", Shape{6, 1, 8});
  b.add_segment("forward", SegmentKind::kForward, 0);
  const TensorId y = b.emit1(kGemm, "fc.fwd", {x, weight(b, "w", Shape{8, 8})}, kLinear);
  const Backward back(b, b.emit1(kAdd, "residual.fwd", {x, y}, NoAttrs{}), {x});
  ASSERT_EQ(back.named("fc.grad_sum").size(), 1U);
  const Op sum = back.named("fc.grad_sum")[0];
  EXPECT_EQ(sum.in[0], back.seed()) << "through the residual";
  EXPECT_EQ(sum.in[1], back.named("fc.dgrad")[0].out[0]) << "through the layer";
  EXPECT_EQ(back.grad_of(x), sum.out[0]);
}

TEST(Autodiff, AWeightUsedTwiceIsWrittenOnceAndAccumulatedAfter) {
  Program program;
  Builder b(program);
  const TensorId x = declare(b, "x", Shape{6, 1, 8});
  const TensorId w = weight(b, "w", Shape{8, 8});
  b.add_segment("forward", SegmentKind::kForward, 0);
  const TensorId y = b.emit1(kGemm, "a.fwd", {x, w}, kLinear);
  const Backward back(b, b.emit1(kGemm, "b.fwd", {y, w}, kLinear));
  const auto last = back.named("b.wgrad");  // the backward meets it first
  ASSERT_EQ(last.size(), 2U);
  EXPECT_EQ(last[0].when, When::kFirst);
  EXPECT_FALSE(std::get<GemmAttrs>(last[0].attrs).accumulate);
  EXPECT_EQ(last[1].when, When::kNotFirst);
  EXPECT_TRUE(std::get<GemmAttrs>(last[1].attrs).accumulate);
  const auto first = back.named("a.wgrad");
  ASSERT_EQ(first.size(), 1U);
  EXPECT_EQ(first[0].when, When::kAlways);
  EXPECT_TRUE(std::get<GemmAttrs>(first[0].attrs).accumulate);
  EXPECT_EQ(first[0].role, Role::kWgrad);
  EXPECT_EQ(first[0].out[0], b.tensor(w).main_grad);
}

TEST(Autodiff, NothingIsDifferentiatedThatNoWeightIsBefore) {
  Program program;
  Builder b(program);
  const TensorId x = declare(b, "x", Shape{6, 1, 8});
  b.add_segment("forward", SegmentKind::kForward, 0);
  const TensorId y = b.emit1(kGemm, "fc.fwd", {x, weight(b, "w", Shape{8, 8})}, kLinear);
  const Backward back(b, y);
  EXPECT_TRUE(back.named("fc.dgrad").empty()) << "x is data: nobody wants its gradient";
  EXPECT_EQ(back.named("fc.wgrad").size(), 2U);
  EXPECT_EQ(back.grad_of(x), kNoTensor);
}

TEST(Autodiff, AGatheredInputIsGatheredAgainOnceAndNotKept) {
  Program program;
  Builder b(program);
  const TensorId x = declare(b, "x", Shape{6, 1, 8});
  CommAttrs tp;
  tp.group_size = 2;
  b.add_segment("forward", SegmentKind::kForward, 0);
  const TensorId all = b.emit1(kAllGather, "fc.all_gather.fwd", {x}, tp, {.stream = Stream::kTp});
  const TensorId y = b.emit1(kGemm, "a.fwd", {all, weight(b, "a", Shape{8, 8})}, kLinear);
  const TensorId z = b.emit1(kGemm, "b.fwd", {all, weight(b, "b", Shape{8, 8})}, kLinear);
  const Backward back(b, b.emit1(kAdd, "sum.fwd", {y, z}, NoAttrs{}), {x});
  const auto again = back.named("fc.all_gather.regather");
  ASSERT_EQ(again.size(), 1U);
  EXPECT_EQ(again[0].in[0], x);
  EXPECT_EQ(again[0].stream, Stream::kTp);
  for (const std::string wgrad : {"a.wgrad", "b.wgrad"})
    for (const Op& op : back.named(wgrad)) EXPECT_EQ(op.in[1], again[0].out[0]);
  for (const Op& op : back.ops())
    EXPECT_EQ(std::count(op.in.begin(), op.in.end(), all), 0) << op.path << " keeps the gathered input alive";
  // The gathered input's gradient is scattered back.
  ASSERT_EQ(back.named("fc.all_gather.bwd").size(), 1U);
  EXPECT_EQ(back.named("fc.all_gather.bwd")[0].kind, &kReduceScatter);
}

}  // namespace
}  // namespace mbb::trainer
