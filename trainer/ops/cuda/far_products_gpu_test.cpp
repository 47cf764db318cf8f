// Products, attention and the optimizer's update of more than 2^31 elements are as near their end as where nothing lies
// before it.
#include "trainer/ops/cuda/attention.h"
#include "trainer/ops/cuda/expert_kernels.h"
#include "trainer/ops/cuda/far_rows_test.h"
#include "trainer/ops/cuda/gemm.h"
#include "trainer/ops/cuda/general_attention.h"
#include "trainer/ops/cuda/optimizer.h"
#include "trainer/ops/cuda/sink_kernels.h"

namespace mbb::trainer::cuda {
namespace {

constexpr int64_t kSide = 1024;
constexpr int64_t kFarRows = kFar / kSide + 16;

class FarProducts : public FarTest {
 protected:
  void SetUp() override {
    FarTest::SetUp();
    if (IsSkipped()) return;
    auto made = Gemm::make();
    ASSERT_TRUE(made.has_value()) << format(made.error());
    gemm_ = std::move(*made);
    workspace_ = std::make_unique<DeviceBytes>(static_cast<size_t>(kGemmWorkspace));
  }
  void multiply(GemmProblem p, const void* a, const void* b, void* d, const float* scale = nullptr) {
    GemmBuffers buffers;
    buffers.a = a, buffers.b = b, buffers.d = d;
    buffers.a_scale = buffers.b_scale = scale;
    buffers.workspace = workspace_->get();
    p.alignment = gemm_alignment(buffers);
    done(gemm_->run(p, buffers, nullptr));
  }

  std::unique_ptr<Gemm> gemm_;
  std::unique_ptr<DeviceBytes> workspace_;
};

TEST_F(FarProducts, OfRows) {
  if (!has_room(9)) GTEST_SKIP() << "not enough free device memory";
  const std::vector<uint16_t> row = random_bf16(kSide), matrix = random_bf16(kSide * kSide);
  const FarBytes weight(kSide * kSide * 2, matrix);
  for (const bool transposed : {true, false}) {
    const auto run = [&](int64_t rows) {
      const FarBytes x(rows * kSide * 2, row), y(rows * kSide * 2);
      GemmProblem p;
      p.m = rows, p.n = p.k = kSide, p.b_transposed = transposed;
      multiply(p, x.get(), weight.get(), y.get());
      return y.end<uint16_t>(kSide);
    };
    expect_near(run(kFarRows), run(16), 6e-3);
  }
}

// Both operands' inner side ends behind 2^31 elements.
TEST_F(FarProducts, OverRows) {
  if (!has_room(9)) GTEST_SKIP() << "not enough free device memory";
  const std::vector<uint16_t> x_row = random_bf16(kSide), dy_row = random_bf16(kSide);
  const auto run = [&](int64_t rows) {
    const FarBytes x(rows * kSide * 2, x_row), dy(rows * kSide * 2, dy_row), dw(kSide * kSide * 4);
    GemmProblem p;
    p.m = p.n = kSide, p.k = rows, p.a_transposed = true, p.d = Element::kF32;
    multiply(p, dy.get(), x.get(), dw.get());
    return dw.end<float>(kSide * kSide);
  };
  const std::vector<float> near = run(16);
  EXPECT_LT(relative_error(run(kFarRows), std::vector<double>(near.begin(), near.end())), 1e-5) << "seed " << seed_;
}

TEST_F(FarProducts, OfRowsInFp8) {
  if (!has_room(7)) GTEST_SKIP() << "not enough free device memory";
  std::vector<uint8_t> row(kSide), matrix(kSide * kSide);
  for (auto* codes : {&row, &matrix})
    for (uint8_t& code : *codes) code = static_cast<uint8_t>(random_() & 0xb7);
  const FarBytes weight(kSide * kSide, matrix), scale(16, std::vector<float>{0.5f, 0.5f, 0.5f, 0.5f});
  const auto run = [&](int64_t rows) {
    const FarBytes x(rows * kSide, row), y(rows * kSide * 2);
    GemmProblem p;
    p.m = rows, p.n = p.k = kSide, p.b_transposed = true;
    p.a = p.b = Element::kE4m3;
    multiply(p, x.get(), weight.get(), y.get(), scale.as<float>());
    return y.end<uint16_t>(kSide);
  };
  expect_near(run(kFarRows), run(16), 6e-3);
}

// The last expert has the last row alone.
TEST_F(FarProducts, OfExpertsRows) {
  if (!has_room(9)) GTEST_SKIP() << "not enough free device memory";
  const std::vector<uint16_t> row = random_bf16(kSide), matrix = random_bf16(kSide * kSide);
  const FarBytes weights(2 * kSide * kSide * 2, matrix);
  for (const bool portable : {false, true}) {
    const auto run = [&](int64_t rows) {
      const auto first = static_cast<int32_t>(rows - 1);
      const FarBytes segments(16, std::vector<int32_t>{0, first, first, 1});
      GroupedGemm g;
      g.rows = rows, g.experts = 2, g.n = g.k = kSide;
      g.segments = segments.as<int32_t>(), g.portable = portable;
      const FarBytes x(rows * kSide * 2, row), y(rows * kSide * 2), dw(2 * kSide * kSide * 4);
      done(grouped_fprop(g, x.get(), weights.get(), y.get(), launch_));
      const std::vector<uint16_t> forward = y.end<uint16_t>(kSide);
      done(grouped_dgrad(g, x.get(), weights.get(), y.get(), launch_));
      const std::vector<uint16_t> dx = y.end<uint16_t>(kSide);
      done(grouped_wgrad(g, x.get(), x.get(), dw.get(), false, launch_));
      return std::tuple(forward, dx, dw.end<float>(kSide * kSide));
    };
    EXPECT_TRUE(run(kFarRows) == run(16)) << (portable ? "portable" : "Hopper's") << ", seed " << seed_;
  }
}

// Sequences of heads of 64: queries, keys, values and output each lie behind 2^31 elements.
constexpr AttentionShape kShape{.batch = 4097, .seq = 1024, .heads = 8, .kv_heads = 1, .head_dim = 64};
constexpr float kScale = 0.125f;

struct Attended {
  std::vector<uint16_t> out, dqkv;
  std::vector<float> lse;
};

class FarAttention : public FarTest {
 protected:
  struct Last {
    std::vector<uint16_t> qkv, dout;
  };
  Last random_last() {
    return {random_bf16(kShape.seq * kShape.packed_row()), random_bf16(kShape.seq * kShape.out_row())};
  }

  // The last sequence of `batch`, whose others are zeros. Rows are [s, b, ..].
  Attended run(AttentionKernel kernel, int64_t batch, const Last& last) {
    AttentionShape shape = kShape;
    shape.batch = batch;
    const int64_t row = shape.packed_row(), out_row = shape.out_row(), tokens = shape.seq * batch;
    FarBytes qkv(tokens * row * 2), dout(tokens * out_row * 2);
    qkv.zero(), dout.zero();
    qkv.write_pieces(last.qkv, (batch - 1) * row, batch * row, row);
    dout.write_pieces(last.dout, (batch - 1) * out_row, batch * out_row, out_row);
    const FarBytes out(tokens * out_row * 2), dqkv(tokens * row * 2), lse(tokens * shape.heads * 4);
    AttentionForward f{shape, kScale, qkv.get(), out.get(), lse.as<float>()};
    AttentionBackward b{shape, kScale, qkv.get(), out.get(), dout.get(), lse.as<float>(), dqkv.get()};
    if (kernel == AttentionKernel::kFlash) {
      done(flash_forward(f, nullptr));
      DeviceBytes workspace(static_cast<size_t>(flash_backward_workspace(shape)));
      b.workspace = workspace.get();
      done(flash_backward(b, nullptr));
    } else {
      in_cudnn(f, b);
    }
    return {out.pieces<uint16_t>((batch - 1) * out_row, batch * out_row, out_row, shape.seq),
            dqkv.pieces<uint16_t>((batch - 1) * row, batch * row, row, shape.seq),
            lse.end<float>(shape.heads * shape.seq)};
  }

  void in_cudnn(const AttentionForward& f, AttentionBackward& b) {
    const auto bytes = cudnn_->workspace(f.shape, f.scale, false, false);
    const auto backward_bytes = cudnn_->workspace(f.shape, f.scale, false, true);
    ASSERT_TRUE(bytes.has_value() && backward_bytes.has_value());
    DeviceBytes workspace(static_cast<size_t>(std::max(*bytes, *backward_bytes)));
    done(cudnn_->forward(f, workspace.get(), nullptr));
    b.workspace = workspace.get();
    done(cudnn_->backward(b, false, nullptr));
  }

  void expect_same(AttentionKernel kernel) {
    const Last last = random_last();
    const Attended far = run(kernel, kShape.batch, last), near = run(kernel, 1, last);
    expect_near(far.out, near.out, 1e-2);
    expect_near(far.dqkv, near.dqkv, 1e-2);
    EXPECT_LT(relative_error(far.lse, std::vector<double>(near.lse.begin(), near.lse.end())), 1e-4) << "seed " << seed_;
  }

  std::unique_ptr<CudnnAttention> cudnn_;
};

TEST_F(FarAttention, OfOurKernel) {
  if (!has_room(22)) GTEST_SKIP() << "not enough free device memory";
  expect_same(AttentionKernel::kFlash);
}

TEST_F(FarAttention, OfCudnn) {
  if (!has_room(36)) GTEST_SKIP() << "not enough free device memory";
  auto cudnn = CudnnAttention::make();
  if (!cudnn) GTEST_SKIP() << format(cudnn.error());
  cudnn_ = std::move(*cudnn);
  for (const bool backward : {false, true})
    if (const auto bytes = cudnn_->workspace(kShape, kScale, false, backward); !bytes)
      GTEST_SKIP() << format(bytes.error());
  expect_same(AttentionKernel::kCudnn);
}

// As many log-sum-exps have outputs of 2^31 times a head's width, which no card holds beside them: a few queries' lie
// far apart, as those of a part of a long sequence do.
constexpr int64_t kHeads = 40, kQueries = 4, kWidth = 64, kLseRows = kFar / (kHeads - 1) + 4;

TEST_F(FarAttention, LogSumExpsOfSinks) {
  if (!has_room(9)) GTEST_SKIP() << "not enough free device memory";
  const std::vector<uint16_t> values = random_bf16(kHeads), out = random_bf16(kQueries * kHeads * kWidth),
                              dout = random_bf16(kQueries * kHeads * kWidth);
  const std::vector<float> lse = random_f32(kHeads * kQueries);
  const auto run = [&](int64_t lse_rows) {
    FarBytes far(kHeads * lse_rows * 4);
    far.write_pieces(lse, 0, lse_rows, kQueries);
    const FarBytes sinks(kHeads * 2, values), x(kQueries * kHeads * kWidth * 2, out),
        d(kQueries * kHeads * kWidth * 2, dout), dsinks(kHeads * 4);
    const SinkShape shape{kQueries, 1, kHeads, kWidth, lse_rows};
    done(apply_sinks(shape, sinks.get(), x.get(), far.as<float>(), launch_));
    DeviceBytes workspace(static_cast<size_t>(sink_gradient_workspace(shape)));
    done(sink_gradient(shape, sinks.get(), x.get(), d.get(), far.as<float>(), dsinks.as<float>(), false,
                       workspace.get(), launch_));
    return std::tuple(x.end<uint16_t>(kQueries * kHeads * kWidth), far.pieces<float>(0, lse_rows, kQueries, kHeads),
                      dsinks.end<float>(kHeads));
  };
  EXPECT_TRUE(run(kLseRows) == run(kQueries)) << "seed " << seed_;
}

TEST_F(FarAttention, LogSumExpsOfTheGeneralKernel) {
  if (!has_room(9)) GTEST_SKIP() << "not enough free device memory";
  const AttentionAttrs attrs{kHeads, 1, kWidth, true, kScale};
  const int64_t row = (kHeads + 2) * kWidth, out_row = kHeads * kWidth;
  const FarBytes qkv(kQueries * row * 2, random_bf16(kQueries * row)), out(kQueries * out_row * 2),
      dout(kQueries * out_row * 2, random_bf16(kQueries * out_row)), lse(kHeads * kQueries * 4);
  GeneralAttention g;
  g.attrs = &attrs;
  g.queries = g.keys = kQueries, g.q = g.kv = qkv.get(), g.q_row = g.kv_row = row;
  g.key_offset = kHeads * kWidth, g.value_offset = (kHeads + 1) * kWidth;
  done(general_attention_forward(g, out.get(), lse.as<float>(), launch_));
  const std::vector<float> values = lse.end<float>(kHeads * kQueries);
  DeviceBytes workspace(static_cast<size_t>(general_attention_workspace(g)));
  const auto run = [&](int64_t lse_rows) {
    const int64_t first = lse_rows - kQueries;
    FarBytes far(kHeads * lse_rows * 4);
    far.write_pieces(values, first, lse_rows, kQueries);
    const FarBytes dqkv(kQueries * row * 2);
    done(general_attention_backward(
        g, {out.get(), dout.get(), far.as<float>(), lse_rows, first, dqkv.get(), dqkv.get(), nullptr, workspace.get()},
        launch_));
    return dqkv.end<uint16_t>(kQueries * row);
  };
  EXPECT_EQ(run(kLseRows), run(kQueries)) << "seed " << seed_;
}

// Its last elements, of which the second half decays otherwise. A far one's numbers are the same: they go by the
// element's place in the unsharded bucket.
constexpr int64_t kEnd = 64, kFarCount = kFar + kEnd;

class FarOptimizer : public FarTest {
 protected:
  void SetUp() override {
    FarTest::SetUp();
    if (IsSkipped()) return;
    master_ = random_f32(kEnd);
    weight_ = random_bf16(kEnd), gradient_ = random_bf16(kEnd);
    first_ = random_bf16(kEnd), second_ = random_bf16(kEnd);
    for (uint16_t& bits : second_) bits &= 0x7fff;
  }

  struct Pieces {
    DeviceBytes on_device;
    explicit Pieces(int64_t count) : on_device(2 * sizeof(BucketPiece)) {
      const BucketPiece pieces[2] = {{count - kEnd / 2, 0.1f, 1.0f, 1.0f, 0}, {count, 0.0f, 0.5f, 1.0f, 1}};
      on_device.upload(pieces);
    }
    const BucketPiece* get() const { return static_cast<const BucketPiece*>(on_device.get()); }
  };

  AdamBucket bucket(int64_t count, const Pieces& pieces) {
    AdamBucket b;
    b.moments = b.gradients = Element::kBf16;
    b.count = count, b.first_index = kFarCount - count;
    b.seed = 7, b.pieces = pieces.get(), b.piece_count = 2;
    return b;
  }

  std::vector<float> master_;
  std::vector<uint16_t> weight_, gradient_, first_, second_;
  const std::vector<float> record_{1e-2f, 0.1f, 0.05f, 3.0f}, scale_{0.7f, 1.0f, 0.0f};
};

TEST_F(FarOptimizer, UpdatesOfBf16Moments) {
  if (!has_room(25)) GTEST_SKIP() << "not enough free device memory";
  const FarBytes record(16, record_), scale(12, scale_);
  const auto run = [&](int64_t count) {
    const FarBytes master(count * 4, master_), weight(count * 2, weight_), gradient(count * 2, gradient_),
        first(count * 2, first_), second(count * 2, second_);
    const Pieces pieces(count);
    AdamBucket b = bucket(count, pieces);
    b.master = master.as<float>(), b.weight = weight.get(), b.gradient = gradient.get();
    b.exp_avg = first.get(), b.exp_avg_sq = second.get();
    done(adam(b, record.as<float>(), scale.as<float>(), launch_));
    return std::tuple(master.end<float>(kEnd), weight.end<uint16_t>(kEnd), first.end<uint16_t>(kEnd),
                      second.end<uint16_t>(kEnd));
  };
  EXPECT_TRUE(run(kFarCount) == run(kEnd)) << "seed " << seed_;
}

TEST_F(FarOptimizer, UpdatesOfScaledMoments) {
  if (!has_room(20)) GTEST_SKIP() << "not enough free device memory";
  const FarBytes record(16, record_), scale(12, scale_);
  const std::vector<uint8_t> codes(kEnd, 0x31);
  const auto run = [&](int64_t count) {
    const FarBytes master(count * 4, master_), weight(count * 2, weight_), gradient(count * 2, gradient_),
        first(count, codes), second(count, codes);
    const FarBytes inverse(16, std::vector<float>{0.5f, 0.25f, 0.125f, 2.0f}), amax(24);
    const Pieces pieces(count);
    AdamStates s;
    s.bucket = bucket(count, pieces);
    s.bucket.master = master.as<float>(), s.bucket.weight = weight.get(), s.bucket.gradient = gradient.get();
    s.bucket.exp_avg = first.get(), s.bucket.exp_avg_sq = second.get();
    s.exp_avg = StateElement::kE4m3, s.exp_avg_sq = StateElement::kE5m2;
    s.inverse = inverse.as<float>(), s.amax = amax.as<float>(), s.ranges = 2;
    done(adam_states(s, record.as<float>(), scale.as<float>(), launch_));
    return std::tuple(master.end<float>(kEnd), weight.end<uint16_t>(kEnd), first.end<uint8_t>(kEnd),
                      second.end<uint8_t>(kEnd), inverse.end<float>(4));
  };
  EXPECT_TRUE(run(kFarCount) == run(kEnd)) << "seed " << seed_;
}

TEST_F(FarOptimizer, SumsOfSquares) {
  if (!has_room(5)) GTEST_SKIP() << "not enough free device memory";
  const auto run = [&](int64_t count) {
    const FarBytes gradient(count * 2, gradient_), partials(kNormPartials * 8), total(8);
    const Pieces pieces(count);
    done(square_sum(Element::kBf16, gradient.get(), count, pieces.get(), 2, partials.as<double>(), total.as<double>(),
                    launch_));
    return total.end<double>(1)[0];
  };
  const double near = run(kEnd);
  EXPECT_GT(near, 0.0);
  EXPECT_NEAR(run(kFarCount), near, 1e-6 * near) << "seed " << seed_;
}

}  // namespace
}  // namespace mbb::trainer::cuda
