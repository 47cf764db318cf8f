// Our element-wise, norm, rotary, embedding, cross entropy and quantization kernels against double references.
#include <algorithm>

#include "trainer/data/rng.h"
#include "trainer/ops/cuda/block_kernels.h"
#include "trainer/ops/cuda/embedding_backward.h"
#include "trainer/ops/cuda/expert_kernels.h"
#include "trainer/ops/cuda/gpu_fixture_test.h"
#include "trainer/ops/cuda/status.h"

namespace mbb::trainer::cuda {
namespace {

class Kernels : public GpuTest, public ::testing::WithParamInterface<Element> {
 protected:
  double bound() const { return GetParam() == Element::kF32 ? 2e-5 : 6e-3; }
};
class Quantization : public GpuTest {};
class Statuses : public GpuTest {};

double silu(double x) {
  return x / (1.0 + std::exp(-x));
}

TEST_P(Kernels, NormForwardAndBackward) {
  const Element e = GetParam();
  for (const bool layer : {false, true}) {
    for (const auto& [rows, cols] : std::vector<std::pair<size_t, size_t>>{
             {67, 1600}, {300, 4096}, {600, 6144}, {5, 8192}, {3, 64}, {21501, 64}, {9, 16384}}) {
      SCOPED_TRACE(testing::Message() << (layer ? "layer " : "rms ") << rows << "x" << cols << " seed " << seed_);
      auto x = Tensor::random(e, rows * cols, random_), r = Tensor::random(e, rows * cols, random_);
      auto w = Tensor::random(e, cols, random_), b = Tensor::random(e, cols, random_);
      auto dy = Tensor::random(e, rows * cols, random_), dr = Tensor::random(e, rows * cols, random_);
      Tensor sum(e, rows * cols), y(e, rows * cols), dx(e, rows * cols);
      Tensor mean(Element::kF32, rows), rstd(Element::kF32, rows);
      auto dw = Tensor::random(Element::kF32, cols, random_), db = Tensor::random(Element::kF32, cols, random_);
      DeviceBytes amax(8);
      amax.zero();
      NormForward f;
      f.shape = {static_cast<int64_t>(rows), static_cast<int64_t>(cols)};
      f.element = e, f.layer = layer, f.x = x.get(), f.residual = r.get(), f.sum = sum.get(), f.weight = w.get();
      f.bias = b.get(), f.y = y.get(), f.mean = mean.floats(), f.rstd = rstd.floats(), f.amax = amax.floats();
      expect_ok(norm_forward(f, launch_));
      sum.pull();
      NormBackward g;
      g.shape = f.shape, g.element = e, g.layer = layer, g.x = sum.get(), g.dy = dy.get(), g.dresidual = dr.get();
      g.weight = w.get(), g.mean = mean.floats(), g.rstd = rstd.floats(), g.dx = dx.get(), g.accumulate = true;
      DeviceBytes partials(static_cast<size_t>(norm_backward_partials(f.shape, layer, launch_.sms)));
      g.partials = partials.floats(), g.dweight = dw.floats(), g.dbias = db.floats(), g.amax = amax.floats() + 1;
      const auto dw0 = dw.host(), db0 = db.host();
      expect_ok(norm_backward(g, launch_));

      std::vector<double> ref_sum(rows * cols), ref_y(rows * cols), ref_dx(rows * cols), ref_dw(cols), ref_db(cols);
      for (size_t c = 0; c < cols; ++c) ref_dw[c] = dw0[c], ref_db[c] = db0[c];
      for (size_t i = 0; i < rows; ++i) {
        double m = 0, v = 0, dot = 0, total = 0;
        for (size_t c = 0; c < cols; ++c)
          ref_sum[i * cols + c] = static_cast<double>(x[i * cols + c]) + r[i * cols + c];
        for (size_t c = 0; layer && c < cols; ++c) m += sum[i * cols + c] / static_cast<double>(cols);
        for (size_t c = 0; c < cols; ++c) v += std::pow(sum[i * cols + c] - m, 2) / static_cast<double>(cols);
        const double s = 1.0 / std::sqrt(v + 1e-5);
        for (size_t c = 0; c < cols; ++c) {
          const size_t at = i * cols + c;
          const double hat = (sum[at] - m) * s;
          ref_y[at] = hat * w[c] + (layer ? b[c] : 0.0f);
          dot += static_cast<double>(dy[at]) * w[c] * hat / static_cast<double>(cols);
          total += static_cast<double>(dy[at]) * w[c] / static_cast<double>(cols);
          ref_dw[c] += dy[at] * hat;
          ref_db[c] += dy[at];
        }
        for (size_t c = 0; c < cols; ++c) {
          const size_t at = i * cols + c;
          const double hat = (sum[at] - m) * s;
          ref_dx[at] = dr[at] + s * (static_cast<double>(dy[at]) * w[c] - (layer ? total : 0.0) - hat * dot);
        }
      }
      EXPECT_LT(relative_error(sum.pull(), ref_sum), bound());
      EXPECT_LT(relative_error(y.pull(), ref_y), bound());
      EXPECT_LT(relative_error(dx.pull(), ref_dx), bound());
      EXPECT_LT(relative_error(dw.pull(), ref_dw), 2e-5);
      if (layer) {
        EXPECT_LT(relative_error(db.pull(), ref_db), 2e-5);
      }
      float largest[2];
      amax.download(largest);
      float expect_y = 0, expect_dx = 0;
      for (size_t i = 0; i < y.size(); ++i)
        expect_y = std::max(expect_y, std::fabs(y[i])), expect_dx = std::max(expect_dx, std::fabs(dx[i]));
      EXPECT_EQ(largest[0], expect_y);
      EXPECT_EQ(largest[1], expect_dx);
    }
  }
}

// An error that was told is not told again by the next launch. Not among the tests that memcheck watches: it fails a
// call.
TEST_F(Statuses, AnErrorIsToldOnce) {
  const Status refused = ok(cudaSetDevice(1 << 20), "choosing a device that is not there");
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().what.find("choosing a device that is not there"), std::string::npos);
  Tensor y(Element::kF32, 8);
  expect_ok(fill(Element::kF32, 1.0f, y.get(), 8, launch_));
}

TEST_P(Kernels, AddScaleFillCast) {
  const Element e = GetParam();
  const size_t n = 100003;
  auto a = Tensor::random(e, n, random_), b = Tensor::random(e, n, random_);
  Tensor y(e, n), scaled(e, n), filled(e, n), as_float(Element::kF32, n), as_half(Element::kBf16, n),
      factor(Element::kF32, 1);
  factor.host()[0] = 0.37f;
  factor.push();
  const auto count = static_cast<int64_t>(n);
  expect_ok(add(e, a.get(), b.get(), y.get(), count, launch_));
  expect_ok(scale_by(e, a.get(), factor.floats(), scaled.get(), count, launch_));
  expect_ok(fill(e, 2.5f, filled.get(), count, launch_));
  expect_ok(cast(e, a.get(), Element::kF32, as_float.get(), count, launch_));
  expect_ok(cast(e, a.get(), Element::kBf16, as_half.get(), count, launch_));
  std::vector<double> sum(n), product(n), constant(n, 2.5), same(n);
  for (size_t i = 0; i < n; ++i) sum[i] = static_cast<double>(a[i]) + b[i], product[i] = a[i] * 0.37, same[i] = a[i];
  EXPECT_LT(relative_error(y.pull(), sum), bound());
  EXPECT_LT(relative_error(scaled.pull(), product), bound());
  EXPECT_EQ(relative_error(filled.pull(), constant), 0.0);
  EXPECT_EQ(relative_error(as_float.pull(), same), 0.0);
  EXPECT_LT(relative_error(as_half.pull(), same), 6e-3);
}

// A row in which the upper half of its random words' indices changes; samples whose own upper halves differ.
TEST_P(Kernels, DropoutFarOut) {
  constexpr int64_t kHidden = 768, kBatch = 2;
  Dropout d;
  d.element = GetParam(), d.seq = 2, d.batch = kBatch, d.hidden = kHidden, d.first = (int64_t{1} << 34) / kHidden;
  d.probability = 0.3, d.stream = 12345;
  const int32_t samples[kBatch] = {5, -1};
  DeviceBytes ids(sizeof samples), record(64);
  ids.upload(samples);
  record.zero();
  d.samples = static_cast<const int32_t*>(ids.get()), d.record = record.floats();
  const auto count = static_cast<size_t>(d.seq * kBatch * kHidden);
  auto x = Tensor::random(d.element, count, random_);
  Tensor y(d.element, count);
  expect_ok(dropout(d, x.get(), y.get(), launch_));
  y.pull();
  const RandomStream stream(rng_mix(static_cast<uint64_t>(d.stream) ^ kRngGamma));
  for (size_t i = 0; i < count; ++i) {
    const auto row = static_cast<int64_t>(i) / kHidden, column = static_cast<int64_t>(i) % kHidden;
    const auto sample = static_cast<uint64_t>(int64_t{samples[row % kBatch]});
    const auto element = static_cast<uint64_t>((d.first + row / kBatch) * kHidden + column);
    const bool dropped = static_cast<double>(stream.uniform(sample, element)) < d.probability;
    ASSERT_EQ(y[i] == 0.0f, dropped || x[i] == 0.0f) << row << ", " << column;
  }
}

TEST_P(Kernels, SwigluForwardAndBackward) {
  const Element e = GetParam();
  const size_t rows = 77, cols = 1288;
  auto gu = Tensor::random(e, rows * 2 * cols, random_), dy = Tensor::random(e, rows * cols, random_);
  Tensor y(e, rows * cols), dgu(e, rows * 2 * cols);
  expect_ok(swiglu_forward(e, {rows, cols}, gu.get(), y.get(), launch_));
  expect_ok(swiglu_backward(e, {rows, cols}, gu.get(), dy.get(), dgu.get(), launch_));
  std::vector<double> ref_y(rows * cols), ref_d(rows * 2 * cols);
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < cols; ++c) {
      const double g = gu[r * 2 * cols + c], u = gu[r * 2 * cols + cols + c], d = dy[r * cols + c],
                   s = 1 / (1 + std::exp(-g));
      ref_y[r * cols + c] = silu(g) * u;
      ref_d[r * 2 * cols + c] = d * u * s * (1 + g * (1 - s));
      ref_d[r * 2 * cols + cols + c] = d * g * s;
    }
  }
  EXPECT_LT(relative_error(y.pull(), ref_y), bound());
  EXPECT_LT(relative_error(dgu.pull(), ref_d), bound());
}

TEST_P(Kernels, RopeAndItsInverse) {
  const Element e = GetParam();
  const size_t seq = 50, batch = 3, heads = 6, kv = 2, total = heads + 2 * kv;
  for (const size_t d : {64, 128}) {
    auto qkv = Tensor::random(e, seq * batch * total * d, random_);
    const auto before = qkv.host();
    Tensor table(Element::kF32, seq * d);
    expect_ok(rope_table(table.floats(), seq, static_cast<int>(d), 500000.0, launch_));
    Rope args;
    args.element = e, args.tokens = seq * batch, args.batch = batch, args.width = total * d, args.heads = heads + kv;
    args.head_dim = args.turned = static_cast<int>(d), args.table = table.floats();
    args.from = args.to = qkv.get();
    expect_ok(rope(args, launch_));
    std::vector<double> ref(before.begin(), before.end());
    for (size_t t = 0; t < seq * batch; ++t)
      for (size_t h = 0; h < heads + kv; ++h)
        for (size_t i = 0; i < d / 2; ++i) {
          const double angle = static_cast<double>(t / batch) *
                               std::pow(500000.0, -2.0 * static_cast<double>(i) / static_cast<double>(d));
          const size_t at = (t * total + h) * d + i;
          ref[at] = before[at] * std::cos(angle) - before[at + d / 2] * std::sin(angle);
          ref[at + d / 2] = before[at + d / 2] * std::cos(angle) + before[at] * std::sin(angle);
        }
    EXPECT_LT(relative_error(qkv.pull(), ref), bound());
    args.backward = true;
    expect_ok(rope(args, launch_));
    EXPECT_LT(relative_error(qkv.pull(), std::vector<double>(before.begin(), before.end())), bound());
  }
}

TEST_P(Kernels, EmbeddingForwardAndBackward) {
  const Element e = GetParam();
  const size_t tokens = 999, cols = 1096;
  const int32_t first = 40;
  for (const size_t vocab : {size_t{61}, size_t{1501}}) {  // rows of many tokens, rows of few
    auto table = Tensor::random(e, vocab * cols, random_), dy = Tensor::random(e, tokens * cols, random_);
    auto dtable = Tensor::random(Element::kF32, vocab * cols, random_);
    std::vector<int32_t> ids(tokens);
    for (auto& id : ids)
      id = static_cast<int32_t>(random_() % 4 == 0 ? 77 : random_() % (2 * vocab + 18));  // one has very many
    DeviceBytes device_ids(tokens * 4), workspace(static_cast<size_t>(embedding_workspace(tokens + vocab)));
    device_ids.upload(ids.data());
    Tensor y(e, tokens * cols);
    Embedding args;
    args.element = e, args.tokens = tokens, args.cols = cols, args.vocab = vocab, args.first = first;
    args.ids = static_cast<const int32_t*>(device_ids.get());
    const auto before = dtable.host();
    expect_ok(embedding_forward(args, table.get(), y.get(), launch_));
    expect_ok(embedding_backward(args, dy.get(), dtable.floats(), workspace.get(), launch_));
    std::vector<double> ref_y(tokens * cols), ref_d(before.begin(), before.end());
    for (size_t t = 0; t < tokens; ++t) {
      const int64_t id = ids[t] - first;
      if (id < 0 || id >= static_cast<int64_t>(vocab)) continue;
      for (size_t c = 0; c < cols; ++c) {
        ref_y[t * cols + c] = table[static_cast<size_t>(id) * cols + c];
        ref_d[static_cast<size_t>(id) * cols + c] += dy[t * cols + c];
      }
    }
    EXPECT_EQ(relative_error(y.pull(), ref_y), 0.0);
    EXPECT_LT(relative_error(dtable.pull(), ref_d), 1e-6);
    expect_ok(first_embedding_backward(args, dy.get(), dtable.floats(), workspace.get(), launch_));
    for (size_t i = 0; i < ref_d.size(); ++i) ref_d[i] -= before[i];
    EXPECT_LT(relative_error(dtable.pull(), ref_d), 1e-6);
  }
}

TEST_P(Kernels, CrossEntropyFusedAndInPieces) {
  const Element e = GetParam();
  for (const auto& [vocab, real] : std::vector<std::pair<size_t, size_t>>{{16008, 15990},
                                                                          {1013, 1013},
                                                                          {32008, 31990},
                                                                          {57352, 57000},
                                                                          {128264, 128250},
                                                                          {151936, 151665},
                                                                          {202056, 202048}}) {
    const size_t rows = 37;
    auto logits = Tensor::random(e, rows * vocab, random_, 3.0f);
    Tensor gradient(e, rows * vocab);
    std::vector<int32_t> targets(rows);
    for (auto& t : targets) t = static_cast<int32_t>(random_() % real);
    targets[3] = -100;
    DeviceBytes ids(rows * 4), total(16);
    ids.upload(targets.data());
    std::vector<double> ref_loss(rows), ref_grad(rows * vocab);
    double sum_of_losses = 0;
    for (size_t r = 0; r < rows; ++r) {
      double top = -1e30, sum = 0;
      for (size_t c = 0; c < real; ++c) top = std::max<double>(top, logits[r * vocab + c]);
      for (size_t c = 0; c < real; ++c) sum += std::exp(logits[r * vocab + c] - top);
      if (targets[r] < 0) continue;
      ref_loss[r] = std::log(sum) + top - logits[r * vocab + static_cast<size_t>(targets[r])];
      sum_of_losses += ref_loss[r];
      for (size_t c = 0; c < real; ++c)
        ref_grad[r * vocab + c] =
            std::exp(logits[r * vocab + c] - top) / sum - (static_cast<int32_t>(c) == targets[r] ? 1 : 0);
    }
    CrossEntropy args;
    args.element = e, args.rows = rows, args.vocab = static_cast<int64_t>(vocab),
    args.real_vocab = static_cast<int64_t>(real);
    args.scalar = vocab % 8 != 0, args.logits = logits.get(), args.gradient = gradient.get();
    args.targets = static_cast<const int32_t*>(ids.get());
    Tensor loss(Element::kF32, rows), max(Element::kF32, rows), sums(Element::kF32, rows), target(Element::kF32, rows);
    expect_ok(ce_row_max(args, max.floats(), launch_));
    expect_ok(ce_sum_exp(args, max.floats(), sums.floats(), target.floats(), launch_));
    expect_ok(
        ce_loss(sums.floats(), target.floats(), args.targets, rows, static_cast<double*>(total.get()), false, launch_));
    expect_ok(ce_gradient(args, max.floats(), sums.floats(), launch_));
    EXPECT_LT(relative_error(gradient.pull(), ref_grad), bound());
    double host_total[2];
    total.download(host_total);
    EXPECT_NEAR(host_total[0] / sum_of_losses, 1.0, 1e-5);
    EXPECT_EQ(host_total[1], static_cast<double>(rows - 1));
    args.gradient = logits.get();
    expect_ok(ce_fused(args, sums.floats(), target.floats(), launch_));
    sums.pull(), target.pull();
    for (size_t r = 0; r < rows; ++r) loss.host()[r] = targets[r] < 0 ? 0.0f : std::log(sums[r]) - target[r];
    EXPECT_LT(relative_error(loss.host(), ref_loss), 1e-5);
    EXPECT_LT(relative_error(logits.pull(), ref_grad), bound());
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Kernels, ::testing::Values(Element::kF32, Element::kBf16),
                         [](const auto& test) { return name(test.param); });

// q * inverse scale must be the nearest FP8 value: relative error of the whole within half an ulp of the format.
void check_fp8(const DeviceBytes& q, const DeviceBytes& qt, Element to, float inverse, size_t rows, size_t cols,
               const std::vector<double>& reference) {
  std::vector<uint8_t> plain(rows * cols), turned(rows * cols);
  q.download(plain.data());
  qt.download(turned.data());
  std::vector<double> values(rows * cols);
  size_t mismatches = 0;
  for (size_t r = 0; r < rows; ++r)
    for (size_t c = 0; c < cols; ++c) {
      mismatches += plain[r * cols + c] != turned[c * rows + r];
      values[r * cols + c] = static_cast<double>(from_fp8(plain[r * cols + c], to)) * inverse;
    }
  EXPECT_EQ(mismatches, 0u);
  EXPECT_LT(relative_error(values, reference), to == Element::kE4m3 ? 0.04 : 0.08);
}

TEST_F(Quantization, PlainNormSwigluAndSwigluBackward) {
  for (const Element to : {Element::kE4m3, Element::kE5m2}) {
    const size_t rows = 208, cols = 264;
    SCOPED_TRACE(testing::Message() << name(to) << " seed " << seed_);
    auto x = Tensor::random(Element::kBf16, rows * cols, random_, 0.3f),
         w = Tensor::random(Element::kBf16, cols, random_);
    auto gu = Tensor::random(Element::kBf16, rows * 2 * cols, random_),
         dy = Tensor::random(Element::kBf16, rows * cols, random_, 1e-4f);
    Tensor rstd(Element::kF32, rows);
    DeviceBytes amax(16), inverse(16), q(rows * cols), qt(rows * cols), q2(rows * 2 * cols), qt2(rows * 2 * cols);
    amax.zero();
    NormForward f;
    f.shape = {rows, cols}, f.x = x.get(), f.weight = w.get(), f.rstd = rstd.floats(), f.amax = amax.floats() + 1;
    Quantize args;
    args.to = to, args.shape = {rows, cols}, args.q = q.get(), args.qt = qt.get();
    std::vector<double> plain(rows * cols), norm(rows * cols), act(rows * cols), back(rows * 2 * cols);
    expect_ok(norm_forward(f, launch_));
    rstd.pull();
    for (size_t r = 0; r < rows; ++r)
      for (size_t c = 0; c < cols; ++c) {
        const size_t at = r * cols + c;
        const double g = gu[r * 2 * cols + c], u = gu[r * 2 * cols + cols + c], s = 1 / (1 + std::exp(-g)), d = dy[at];
        plain[at] = x[at], norm[at] = static_cast<double>(x[at]) * rstd[r] * w[c], act[at] = silu(g) * u;
        back[r * 2 * cols + c] = d * u * s * (1 + g * (1 - s)), back[r * 2 * cols + cols + c] = d * g * s;
      }
    expect_ok(amax_of(Element::kBf16, x.get(), static_cast<int64_t>(rows * cols), amax.floats(), launch_));
    expect_ok(swiglu_amax({rows, cols}, gu.get(), amax.floats() + 2, launch_));
    expect_ok(swiglu_backward_amax({rows, cols}, gu.get(), dy.get(), amax.floats() + 3, launch_));
    const auto turn = [&](int slot, auto&& call, const DeviceBytes& qq, const DeviceBytes& qqt, size_t width,
                          const std::vector<double>& ref) {
      args.amax = amax.floats() + slot, args.inverse_scale = inverse.floats() + slot, args.q = qq.get(),
      args.qt = qqt.get();
      expect_ok(call());
      float scales[4];
      inverse.download(scales);
      check_fp8(qq, qqt, to, scales[slot], rows, width, ref);
    };
    turn(
        0, [&] { return quantize(args, x.get(), launch_); }, q, qt, cols, plain);
    turn(
        1, [&] { return quantize_norm(args, x.get(), rstd.floats(), w.get(), launch_); }, q, qt, cols, norm);
    turn(
        2, [&] { return quantize_swiglu(args, gu.get(), launch_); }, q, qt, cols, act);
    turn(
        3, [&] { return quantize_swiglu_backward(args, gu.get(), dy.get(), launch_); }, q2, qt2, 2 * cols, back);
  }
}

// rstd of either way to sum a row differs in its last bits, and so may a value that lies between two codes.
TEST_F(Quantization, NormInOneLaunch) {
  DeviceBytes partials(static_cast<size_t>(quantize_once_partials(launch_)));
  const int all = launch_.sms.count;
  for (const auto& [rows, cols, sms] : {std::tuple<int64_t, int64_t, int>{16, 8, all},
                                        {208, 264, all},
                                        {2048, 3584, all},
                                        {3200, 4096, all},
                                        {1024, 4096, 16},  // of which a block reads some twice
                                        {1024, 8192, 16}}) {
    const auto n = static_cast<size_t>(rows * cols);
    SCOPED_TRACE(testing::Message() << rows << " x " << cols << " seed " << seed_);
    Launch launch = launch_;
    launch.sms.count = sms;
    ASSERT_TRUE(quantize_norm_once_fits({rows, cols}, launch));
    const Tensor x = Tensor::random(Element::kBf16, n, random_),
                 w = Tensor::random(Element::kBf16, static_cast<size_t>(cols), random_);
    Tensor rstd(Element::kF32, static_cast<size_t>(rows));
    DeviceBytes scales(8), q(n), qt(n);
    Quantize a;
    a.shape = {rows, cols}, a.q = q.get(), a.qt = qt.get(), a.partials = partials.get();
    a.inverse_scale = scales.floats(), a.found_amax = scales.floats() + 1;
    NormForward norm;
    norm.shape = a.shape, norm.x = x.get(), norm.weight = w.get(), norm.rstd = rstd.floats();
    expect_ok(quantize_norm_once(a, norm, launch));
    std::vector<double> ref(n), ref_rstd(static_cast<size_t>(rows));
    double largest = 0;
    for (size_t r = 0; r < ref_rstd.size(); ++r) {
      double sum = 0;
      const size_t width = n / ref_rstd.size();
      for (size_t c = 0; c < width; ++c) sum += static_cast<double>(x[r * width + c]) * x[r * width + c];
      ref_rstd[r] = 1 / std::sqrt(sum / static_cast<double>(width) + norm.eps);
      for (size_t c = 0; c < width; ++c) {
        ref[r * width + c] = x[r * width + c] * ref_rstd[r] * w[c];
        largest = std::max(largest, std::fabs(ref[r * width + c]));
      }
    }
    float found[2];
    scales.download(found);
    EXPECT_LT(relative_error(rstd.pull(), ref_rstd), 1e-5);
    EXPECT_NEAR(found[1] / largest, 1.0, 5e-3);
    EXPECT_FLOAT_EQ(found[0], found[1] / 448.0f);
    check_fp8(q, qt, Element::kE4m3, found[0], static_cast<size_t>(rows), static_cast<size_t>(cols), ref);
  }
  EXPECT_TRUE(quantize_norm_once_fits({8192, 8192}, launch_));
  EXPECT_FALSE(quantize_norm_once_fits({8192, 4360}, launch_));
  EXPECT_FALSE(quantize_norm_once_fits({int64_t{2 * launch_.sms.count + 1} * 128, 4096}, launch_));
}

// bf16 of both signs between 2^-6 and 2, as raw bits.
void fill_raw(DeviceBytes& bytes, size_t count, std::mt19937_64& random, int not_a_number) {
  std::vector<uint16_t> bits(count);
  uint64_t word = 0;
  for (size_t i = 0; i < count; ++i) {
    word = i % 4 == 0 ? random() : word >> 16;
    bits[i] = static_cast<uint16_t>((word & 0x807f) | ((0x79 + (word >> 8 & 7)) << 7));
  }
  if (not_a_number >= 0) bits[static_cast<size_t>(not_a_number)] = 0xffc0;
  bytes.upload(bits.data());
}

// Shapes of one tile, of parts of tiles, and of so many that a block keeps some in each way and reads others twice.
// What is only quantized is the same bit by bit; approximate exponentials move few values across a boundary between
// codes.
TEST_F(Quantization, InOneLaunchIsTheSameAsInTwo) {
  DeviceBytes partials(static_cast<size_t>(quantize_once_partials(launch_)));
  ASSERT_GT(quantize_once_partials(launch_), 0);
  const int all = launch_.sms.count;
  for (const auto& [rows, cols, nan, sms] : {std::tuple<int64_t, int64_t, int, int>{16, 8, -1, all},
                                             {208, 264, -1, all},
                                             {208, 264, 77, all},
                                             {2048, 3584, -1, all},
                                             {2064, 10312, -1, all},
                                             {2064, 5160, -1, 24}}) {
    const auto n = static_cast<size_t>(rows * cols);
    DeviceBytes x(n * 2), gate_up(n * 4);
    fill_raw(x, n, random_, nan);
    fill_raw(gate_up, 2 * n, random_, nan);
    Launch launch = launch_;
    launch.sms.count = sms;
    for (const Element to : {Element::kE4m3, Element::kE5m2})
      for (const int form : {0, 1, 2}) {
        SCOPED_TRACE(testing::Message() << rows << " x " << cols << " form " << form << " " << name(to) << " seed "
                                        << seed_);
        const size_t codes = form == 2 ? 2 * n : n;
        std::vector<std::vector<uint8_t>> results;
        for (const bool together : {false, true}) {
          DeviceBytes q(codes), qt(codes), scales(8);
          Quantize a;
          a.to = to, a.shape = {rows, cols}, a.q = q.get(), a.qt = qt.get();
          a.inverse_scale = scales.floats();
          if (together) {
            a.found_amax = scales.floats() + 1, a.partials = partials.get();
            expect_ok(form == 0   ? quantize_once(a, x.get(), launch)
                      : form == 1 ? quantize_swiglu_once(a, gate_up.get(), launch)
                                  : quantize_swiglu_backward_once(a, gate_up.get(), x.get(), launch));
          } else {
            scales.zero();
            a.amax = scales.floats() + 1;
            float* const amax = scales.floats() + 1;
            expect_ok(form == 0   ? amax_of(Element::kBf16, x.get(), rows * cols, amax, launch_)
                      : form == 1 ? swiglu_amax(a.shape, gate_up.get(), amax, launch_)
                                  : swiglu_backward_amax(a.shape, gate_up.get(), x.get(), amax, launch_));
            expect_ok(form == 0   ? quantize(a, x.get(), launch_)
                      : form == 1 ? quantize_swiglu(a, gate_up.get(), launch_)
                                  : quantize_swiglu_backward(a, gate_up.get(), x.get(), launch_));
          }
          results.emplace_back(2 * codes + 8);
          q.download(results.back().data());
          qt.download(results.back().data() + codes);
          scales.download(results.back().data() + 2 * codes);
        }
        size_t moved = 0;
        for (size_t i = 0; i < 2 * codes; ++i) moved += results[0][i] != results[1][i] ? 1 : 0;
        EXPECT_LE(moved, form == 0 ? 0 : codes / 100);
        float scale[2][2];
        for (const size_t i : {0, 1}) std::memcpy(scale[i], results[i].data() + 2 * codes, 8);
        for (const size_t i : {0, 1})
          EXPECT_TRUE(std::fabs(scale[0][i] - scale[1][i]) <= 0.005f * scale[0][i] ||
                      (std::isnan(scale[0][i]) && std::isnan(scale[1][i])))
              << scale[0][i] << " " << scale[1][i];
      }
  }
}

// More experts than a grid has room for across: nothing runs, and the next launch is not blamed.
using Launches = GpuTest;
TEST_F(Launches, ThatFailNameTheirKernel) {
  const Status status =
      grouped_bias_grad(Element::kBf16, {8, 8}, nullptr, nullptr, int64_t{1} << 17, 1.0f, false, nullptr, launch_);
  ASSERT_FALSE(status.has_value());
  EXPECT_NE(status.error().what.find("launching kernel grouped_bias_grad: "), std::string::npos)
      << format(status.error());
  EXPECT_NE(status.error().what.find("(cudaErrorInvalid"), std::string::npos) << format(status.error());
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

}  // namespace
}  // namespace mbb::trainer::cuda
