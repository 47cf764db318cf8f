// AdamW, gradient norm, cuBLASLt GEMMs and both attentions against double references.
#include <algorithm>
#include <utility>
#include <vector>

#include "trainer/ops/cuda/attention.h"
#include "trainer/ops/cuda/gemm.h"
#include "trainer/ops/cuda/gpu_fixture_test.h"
#include "trainer/ops/cuda/optimizer.h"
#include "trainer/ops/cuda/packs.h"

namespace mbb::trainer::cuda {
namespace {

class Optimizer : public GpuTest {};
class Gemms : public GpuTest {};
class Attention : public GpuTest {};

struct AdamFixture {
  static constexpr size_t n = 70001;
  BucketPiece pieces[3] = {{1234, 0.1f, 1.0f, 1.0f}, {40003, 0.0f, 0.0f, 0.0f}, {n, 0.02f, 1.0f, 1.0f}};
  float record[4] = {0.02f, 1 - 0.9f * 0.9f, 1 - 0.95f * 0.95f, 2.0f};
  double loss[2] = {17.0, 8.0};  // sum of losses, tokens
  DeviceBytes device_pieces{sizeof(pieces)}, device_record{sizeof(record)}, device_loss{sizeof(loss)}, scale{12};
  DeviceBytes partials{(kNormPartials + 1) * 8};
  AdamFixture() {
    device_pieces.upload(pieces);
    device_record.upload(record);
    device_loss.upload(loss);
  }
  const BucketPiece* table() const { return static_cast<const BucketPiece*>(device_pieces.get()); }
  double* sums() const { return static_cast<double*>(partials.get()); }
  Status norm_and_update(AdamBucket& b, const Launch& launch) {
    b.pieces = table(), b.piece_count = 3, b.seed = 7;
    MB_TRY(square_sum(b.gradients, b.gradient, b.count, table(), 3, sums(), sums() + kNormPartials, launch));
    MB_TRY(grad_scale(sums() + kNormPartials, 1, static_cast<const double*>(device_loss.get()), 1.0, scale.floats(),
                      launch));
    return adam(b, device_record.floats(), scale.floats(), launch);
  }
};

// Random states in one storage form, the reference update of them, and the check of what the kernel left.
class AdamCase {
 public:
  static constexpr size_t n = AdamFixture::n;
  AdamCase(MasterForm form, Element moments, Element gradients, std::mt19937_64& random)
      : form_(form),
        moments_(moments),
        gradients_(gradients),
        master_(Tensor::random(Element::kF32, n, random)),
        weight_(Tensor::random(Element::kBf16, n, random)),
        m_(Tensor::random(moments, n, random, 0.1f)),
        v_(Tensor::random(moments, n, random, 0.01f)),
        g_(Tensor::random(gradients, n, random)) {
    for (auto& x : v_.host()) x = std::fabs(x) + 1e-3f;
    v_.push();
    if (form == MasterForm::kRemainder) split_master();
    if (form == MasterForm::kStochastic) {
      master_.host() = weight_.host();
      master_.push();
    }
  }

  AdamBucket bucket() const {
    AdamBucket b;
    b.form = form_, b.moments = moments_, b.gradients = gradients_, b.count = n, b.master = master_.floats();
    b.weight = weight_.get(), b.remainder = static_cast<uint16_t*>(remainder_.get()), b.exp_avg = m_.get();
    b.exp_avg_sq = v_.get(), b.gradient = g_.get();
    return b;
  }

  void expect(const AdamFixture& fix) {
    std::vector<double> p(n), m(n), v(n);
    double squares = 0;
    for (size_t i = 0; i < n; ++i)
      if (i < 1234 || i >= 40003) squares += static_cast<double>(g_[i]) * g_[i];
    norm = std::sqrt(squares) / 8;
    const double factor = std::min(1.0, 1.0 / (norm + 1e-6)) / 8, b1 = 0.9f, b2 = 0.95f;
    for (size_t i = 0; i < n; ++i) {
      const BucketPiece& piece = fix.pieces[i < 1234 ? 0 : i < 40003 ? 1 : 2];
      const double grad = g_[i] * factor, rate = fix.record[0] * static_cast<double>(piece.rate_factor);
      m[i] = b1 * m_[i] + (1 - b1) * grad;
      v[i] = b2 * v_[i] + (1 - b2) * grad * grad;
      const double direction = m[i] / fix.record[1] / (std::sqrt(v[i] / fix.record[2]) + 1e-8);
      p[i] = master_[i] - rate * (direction + piece.weight_decay * master_[i]);
    }
    ref_p_ = p, ref_m_ = m, ref_v_ = v;
  }

  void check() {
    EXPECT_LT(relative_error(m_.pull(), ref_m_), moments_ == Element::kF32 ? 1e-5 : 8e-3);
    EXPECT_LT(relative_error(v_.pull(), ref_v_), moments_ == Element::kF32 ? 1e-5 : 8e-3);
    EXPECT_LT(relative_error(weight_.pull(), ref_p_), form_ == MasterForm::kStochastic ? 5e-3 : 3e-3);
    if (form_ == MasterForm::kF32) {
      EXPECT_LT(relative_error(master_.pull(), ref_p_), 1e-6);
    } else if (form_ == MasterForm::kRemainder) {
      remainder_.download(low_.data());
      std::vector<float> exact(n);
      for (size_t i = 0; i < n; ++i)
        exact[i] = std::bit_cast<float>(std::bit_cast<uint32_t>(weight_[i]) + static_cast<uint32_t>(int32_t{low_[i]}));
      EXPECT_LT(relative_error(exact, ref_p_), 1e-6);
    } else {  // rounding is unbiased: the mean error is far below one rounding
      double bias = 0, size = 0;
      for (size_t i = 0; i < n; ++i) bias += weight_[i] - ref_p_[i], size += std::fabs(weight_[i] - ref_p_[i]);
      EXPECT_LT(std::fabs(bias), 0.03 * size);
    }
  }

  double norm = 0;

 private:
  void split_master() {
    for (size_t i = 0; i < n; ++i) {
      const auto bits = std::bit_cast<uint32_t>(master_[i]), top = (bits + 0x8000u) >> 16;
      weight_.host()[i] = from_bf16(static_cast<uint16_t>(top));
      low_[i] = static_cast<int16_t>(bits - (top << 16));
    }
    weight_.push();
    remainder_.upload(low_.data());
  }

  MasterForm form_;
  Element moments_, gradients_;
  Tensor master_, weight_, m_, v_, g_;
  DeviceBytes remainder_{n * 2};
  std::vector<int16_t> low_ = std::vector<int16_t>(n);
  std::vector<double> ref_p_, ref_m_, ref_v_;
};

TEST_F(Optimizer, EveryStateFormMatchesTheFormula) {
  for (const MasterForm form : {MasterForm::kF32, MasterForm::kRemainder, MasterForm::kStochastic}) {
    for (const Element moments : {Element::kF32, Element::kBf16}) {
      for (const Element gradients : {Element::kF32, Element::kBf16}) {
        SCOPED_TRACE(testing::Message() << static_cast<int>(form) << name(moments) << name(gradients) << " seed "
                                        << seed_);
        AdamFixture fix;
        AdamCase states(form, moments, gradients, random_);
        states.expect(fix);
        AdamBucket bucket = states.bucket();
        expect_ok(fix.norm_and_update(bucket, launch_));
        float scale[3];
        fix.scale.download(scale);
        EXPECT_NEAR(scale[1] / states.norm, 1.0, 1e-5);
        EXPECT_EQ(scale[2], 0.0f);
        states.check();
      }
    }
  }
}

TEST_F(Optimizer, ANonFiniteGradientSkipsTheStep) {
  AdamFixture fix;
  auto p = Tensor::random(Element::kF32, 64, random_), m = Tensor::random(Element::kF32, 64, random_),
       v = Tensor::random(Element::kF32, 64, random_);
  auto g = Tensor::random(Element::kF32, 64, random_);
  g.host()[5] = INFINITY;
  g.push();
  const auto before = p.host();
  AdamBucket b;
  b.count = 64, b.master = p.floats(), b.exp_avg = m.get(), b.exp_avg_sq = v.get(), b.gradient = g.get();
  expect_ok(fix.norm_and_update(b, launch_));
  EXPECT_EQ(p.pull(), before);
}

TEST_F(Gemms, EveryRoleInBf16AndFp8) {
  auto made = Gemm::make();
  ASSERT_TRUE(made.has_value()) << format(made.error());
  const size_t tokens = 256, in = 192, out = 320;
  DeviceBytes workspace(static_cast<size_t>(kGemmWorkspace));
  for (const bool fp8 : {false, true}) {
    for (const GemmRole role : {GemmRole::kFprop, GemmRole::kDgrad, GemmRole::kWgrad}) {
      for (const bool accumulate : {false, true}) {
        if (accumulate && role != GemmRole::kWgrad) continue;
        const auto p = linear_problem(role, tokens, in, out, fp8, accumulate);
        SCOPED_TRACE(key(p));
        const auto m = static_cast<size_t>(p.m), n = static_cast<size_t>(p.n), k = static_cast<size_t>(p.k);
        auto c = Tensor::random(p.d, m * n, random_);
        const auto c0 = c.host();
        std::vector<double> a(m * k), b(k * n);
        auto a16 = Tensor::random(Element::kBf16, m * k, random_), b16 = Tensor::random(Element::kBf16, k * n, random_);
        std::vector<uint8_t> a8(m * k), b8(k * n);
        for (auto& x : a8) x = static_cast<uint8_t>(random_() & 0xb7);  // exponents stay small: no NaN, no overflow
        for (auto& x : b8) x = static_cast<uint8_t>(random_() & 0xb7);
        DeviceBytes a_fp8(m * k), b_fp8(k * n), scales(32);
        a_fp8.upload(a8.data()), b_fp8.upload(b8.data());
        const float host_scales[8] = {0.5f, 0, 0, 0, 3.0f};  // cuBLASLt reads scales at 16-byte addresses only
        scales.upload(host_scales);
        for (size_t i = 0; i < m * k; ++i) a[i] = fp8 ? from_fp8(a8[i], p.a) * 0.5f : a16[i];
        for (size_t i = 0; i < k * n; ++i) b[i] = fp8 ? from_fp8(b8[i], p.b) * 3.0f : b16[i];
        GemmBuffers buffers;
        buffers.a = fp8 ? a_fp8.get() : a16.get(), buffers.b = fp8 ? b_fp8.get() : b16.get(), buffers.d = c.get();
        buffers.a_scale = scales.floats(), buffers.b_scale = scales.floats() + 4, buffers.workspace = workspace.get();
        expect_ok((*made)->run(p, buffers, nullptr));
        std::vector<double> ref(m * n);
        for (size_t i = 0; i < m; ++i)
          for (size_t j = 0; j < n; ++j) {
            double sum = p.accumulate ? c0[i * n + j] : 0;
            for (size_t l = 0; l < k; ++l)
              sum += a[p.a_transposed ? l * m + i : i * k + l] * b[p.b_transposed ? j * k + l : l * n + j];
            ref[i * n + j] = sum;
          }
        EXPECT_LT(relative_error(c.pull(), ref), p.d == Element::kF32 ? (fp8 ? 2e-3 : 1e-5) : 5e-3);
      }
    }
  }
}

struct AttentionReference {
  std::vector<double> out, lse, dqkv;
};

// `spans`: of a pack, keys [first, second) of each query.
AttentionReference attention_reference(const AttentionShape& s, double scale, const Tensor& qkv, const Tensor& dout,
                                       const std::vector<std::pair<size_t, size_t>>& spans) {
  const auto S = static_cast<size_t>(s.seq), B = static_cast<size_t>(s.batch), H = static_cast<size_t>(s.heads);
  const auto G = static_cast<size_t>(s.kv_heads), D = static_cast<size_t>(s.head_dim);
  const auto V = static_cast<size_t>(s.value_dim()), row = static_cast<size_t>(s.packed_row());
  AttentionReference r{std::vector<double>(S * B * H * V), std::vector<double>(B * H * S),
                       std::vector<double>(S * B * row)};
  std::vector<double> p(S), dp(S);
  for (size_t b = 0; b < B; ++b)
    for (size_t h = 0; h < H; ++h) {
      const size_t g = h / (H / G), qo = b * row + h * D, ko = b * row + (H + g) * D,
                   vo = b * row + (H + G) * D + g * V;
      for (size_t i = 0; i < S; ++i) {
        const size_t o = (i * B + b) * H * V + h * V, window = s.window > 0 ? static_cast<size_t>(s.window) : S;
        const size_t begin = std::max(spans.empty() ? 0 : spans[i].first, i + 1 < window ? 0 : i + 1 - window);
        const size_t keys = s.causal ? i + 1 : spans.empty() ? S : spans[i].second;
        double top = -1e30, sum = 0, delta = 0;
        for (size_t j = begin; j < keys; ++j) {
          p[j] = 0;
          for (size_t d = 0; d < D; ++d)
            p[j] += static_cast<double>(qkv[i * B * row + qo + d]) * qkv[j * B * row + ko + d];
          p[j] *= scale;
          top = std::max(top, p[j]);
        }
        for (size_t j = begin; j < keys; ++j) sum += p[j] = std::exp(p[j] - top);
        r.lse[(b * H + h) * S + i] = std::log(sum) + top;
        for (size_t j = begin; j < keys; ++j) {
          p[j] /= sum;
          dp[j] = 0;
          for (size_t d = 0; d < V; ++d) {
            r.out[o + d] += p[j] * qkv[j * B * row + vo + d];
            dp[j] += static_cast<double>(dout[o + d]) * qkv[j * B * row + vo + d];
            r.dqkv[j * B * row + vo + d] += p[j] * dout[o + d];
          }
          delta += p[j] * dp[j];
        }
        for (size_t j = begin; j < keys; ++j) {
          const double ds = p[j] * (dp[j] - delta) * scale;
          for (size_t d = 0; d < D; ++d) {
            r.dqkv[i * B * row + qo + d] += ds * qkv[j * B * row + ko + d];
            r.dqkv[j * B * row + ko + d] += ds * qkv[i * B * row + qo + d];
          }
        }
      }
    }
  return r;
}

// A pack's tables on the device, and what its queries see.
struct PackFixture {
  std::vector<std::pair<size_t, size_t>> spans;
  DeviceBytes starts, own, past;
  PackFixture(const std::vector<int32_t>& from, int64_t tokens)
      : starts(from.size() * 4 + 4), own(static_cast<size_t>(tokens) * 4), past(static_cast<size_t>(tokens) * 4) {
    if (from.empty()) return;
    std::vector<int32_t> padded = from;
    padded.push_back(0);
    starts.upload(padded.data());
    const auto* all = static_cast<const int32_t*>(starts.get());
    EXPECT_TRUE(sequence_rows({all, tokens, all, tokens, static_cast<int64_t>(from.size())},
                              static_cast<int32_t*>(own.get()), static_cast<int32_t*>(past.get()), Launch{}));
    for (size_t i = 0; i < from.size(); ++i) {
      const auto begin = static_cast<size_t>(from[i]);
      const auto end = i + 1 < from.size() ? static_cast<size_t>(from[i + 1]) : static_cast<size_t>(tokens);
      for (size_t token = begin; token < end; ++token) spans.emplace_back(begin, end);
    }
  }
  AttentionPacks packs() const {
    return {static_cast<const int32_t*>(own.get()), static_cast<const int32_t*>(past.get()),
            static_cast<const int32_t*>(starts.get())};
  }
};

TEST_F(Attention, FlashAndCudnnMatchTheReference) {
  auto cudnn = CudnnAttention::make();
  if (!cudnn) std::printf("cuDNN not compared: %s\n", format(cudnn.error()).c_str());
  const std::vector<int32_t> starts{0, 1, 70, 70, 200, 290, 290};  // two empty ones, and tokens behind the last
  for (AttentionShape s :
       {AttentionShape{2, 200, 4, 2, 64, true}, AttentionShape{1, 256, 4, 1, 128, true},
        AttentionShape{1, 130, 2, 2, 128, false}, AttentionShape{2, 64, 3, 3, 64, false},
        AttentionShape{2, 256, 3, 3, 192, true, 0, 128},
        AttentionShape{.seq = 300, .heads = 4, .kv_heads = 2, .head_dim = 64, .packs = 7},
        AttentionShape{.seq = 300, .heads = 4, .kv_heads = 1, .packs = 7},
        AttentionShape{.seq = 300, .heads = 2, .kv_heads = 2, .causal = false, .packs = 7},
        AttentionShape{.seq = 300, .heads = 4, .kv_heads = 2, .causal = false, .packs = 7},
        AttentionShape{.seq = 300, .heads = 4, .kv_heads = 1, .window = 50, .packs = 7},
        AttentionShape{2, 130, 4, 2, 64, true, 40},
        AttentionShape{.seq = 300, .heads = 3, .kv_heads = 3, .head_dim = 192, .value_width = 128, .packs = 7}}) {
    const PackFixture pack(s.packs > 0 ? starts : std::vector<int32_t>{}, s.seq);
    const auto row = static_cast<size_t>(s.packed_row()), tokens = static_cast<size_t>(s.seq * s.batch);
    const auto q = static_cast<size_t>(s.out_row());
    const float scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim));
    auto qkv = Tensor::random(Element::kBf16, tokens * row, random_),
         dout = Tensor::random(Element::kBf16, tokens * q, random_);
    const auto ref = attention_reference(s, scale, qkv, dout, pack.spans);
    for (const bool use_cudnn : {false, true}) {
      if (use_cudnn ? !cudnn : !plan_flash_forward(s)) continue;
      SCOPED_TRACE(testing::Message() << (use_cudnn ? "cudnn" : "flash") << " s" << s.seq << " d" << s.head_dim
                                      << " values " << s.value_dim() << " causal " << s.causal << " window " << s.window
                                      << " packs " << s.packs << " seed " << seed_);
      Tensor out(Element::kBf16, tokens * q), lse(Element::kF32, static_cast<size_t>(s.batch * s.heads * s.seq)),
          dqkv(Element::kBf16, tokens * row);
      int64_t forward_bytes = 0, bytes = flash_backward_workspace(s);
      if (use_cudnn) {
        auto forward = (*cudnn)->workspace(s, scale, false, false),
             backward = (*cudnn)->workspace(s, scale, false, true);
        ASSERT_TRUE(forward && backward) << format(forward ? backward.error() : forward.error());
        forward_bytes = *forward, bytes = *backward;
      }
      DeviceBytes forward_workspace(static_cast<size_t>(forward_bytes)), workspace(static_cast<size_t>(bytes));
      const AttentionForward f{s, scale, qkv.get(), out.get(), lse.floats(), pack.packs()};
      expect_ok(use_cudnn ? (*cudnn)->forward(f, forward_workspace.get(), nullptr) : flash_forward(f, nullptr));
      EXPECT_LT(relative_error(out.pull(), ref.out), 1e-2);
      EXPECT_LT(relative_error(lse.pull(), ref.lse), 1e-3);
      const AttentionBackward b{s,          scale,           qkv.get(),   out.get(), dout.get(), lse.floats(),
                                dqkv.get(), workspace.get(), pack.packs()};
      expect_ok(use_cudnn ? (*cudnn)->backward(b, false, nullptr) : flash_backward(b, nullptr));
      EXPECT_LT(relative_error(dqkv.pull(), ref.dqkv), 1.5e-2);
    }
  }
}

// A backward of packs that would hold every sequence at the pack's length, or is not there, is refused by name; the
// forward stays.
TEST_F(Attention, CudnnSaysWhichPacksItsBackwardDoesNotTake) {
  auto cudnn = CudnnAttention::make();
  if (!cudnn) GTEST_SKIP() << format(cudnn.error());
  const auto why = [&](const AttentionShape& s, bool deterministic) {
    EXPECT_TRUE((*cudnn)->workspace(s, 0.125F, deterministic, false).has_value());
    const auto bytes = (*cudnn)->workspace(s, 0.125F, deterministic, true);
    if (bytes) return std::string();
    EXPECT_EQ(bytes.error().code, ErrorCode::kUnavailable);
    return bytes.error().what;
  };
  AttentionShape s{.seq = 300, .heads = 4, .kv_heads = 2, .head_dim = 64, .packs = 7};
  EXPECT_EQ(why(s, false), "");
  EXPECT_NE(why(s, true).find("repeats bit by bit"), std::string::npos) << why(s, true);
  s.head_dim = 72;
  EXPECT_NE(why(s, false).find("heads of 72 and 72"), std::string::npos) << why(s, false);
}

}  // namespace
}  // namespace mbb::trainer::cuda
