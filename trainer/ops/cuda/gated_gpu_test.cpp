// Products with SwiGLU in their epilogue against double references, and the same bits twice where blocks take many
// tiles.
#include <cmath>

#include "trainer/ops/cuda/gated_wgmma.h"
#include "trainer/ops/cuda/gpu_fixture_test.h"

namespace mbb::trainer::cuda {
namespace {

using Gated = GpuTest;

double rounded(double x) {
  return static_cast<double>(from_bf16(to_bf16(static_cast<float>(x))));
}
std::vector<double> doubles(Tensor& t) {
  return {t.pull().begin(), t.pull().end()};
}

TEST_F(Gated, EqualsDoubleReferences) {
  for (const GatedGemm g :
       {GatedGemm{200, 136, 200}, GatedGemm{64, 64, 8}, GatedGemm{130, 328, 264}, GatedGemm{300, 8, 136}}) {
    SCOPED_TRACE(testing::Message() << g.tokens << " tokens, " << g.hidden << " to " << g.ffn << " seed " << seed_);
    const auto T = static_cast<size_t>(g.tokens), H = static_cast<size_t>(g.hidden), F = static_cast<size_t>(g.ffn);
    Tensor x = Tensor::random(Element::kBf16, T * H, random_), w = Tensor::random(Element::kBf16, 2 * F * H, random_);
    Tensor dy = Tensor::random(Element::kBf16, T * H, random_), w2 = Tensor::random(Element::kBf16, H * F, random_);
    Tensor gate_up(Element::kBf16, T * 2 * F), y(Element::kBf16, T * F), dgate_up(Element::kBf16, T * 2 * F);
    if (!gated_on_hopper(g, {x.get(), w.get(), gate_up.get(), y.get()})) GTEST_SKIP() << "not Hopper";
    expect_ok(gated_forward(g, x.get(), w.get(), gate_up.get(), y.get(), launch_));
    std::vector<double> products(T * 2 * F, 0.0), gated(T * F), gradients(T * 2 * F);
    for (size_t t = 0; t < T; ++t)
      for (size_t f = 0; f < 2 * F; ++f)
        for (size_t h = 0; h < H; ++h) products[t * 2 * F + f] += static_cast<double>(x[t * H + h]) * w[f * H + h];
    EXPECT_LT(relative_error(gate_up.pull(), products), 5e-3);
    // From the product as it was stored: one rounding apart.
    const auto stored = [&](size_t at) { return static_cast<double>(gate_up[at]); };
    expect_ok(gated_backward(g, dy.get(), w2.get(), gate_up.get(), dgate_up.get(), launch_));
    for (size_t t = 0; t < T; ++t)
      for (size_t f = 0; f < F; ++f) {
        const double gate = stored(t * 2 * F + f), up = stored(t * 2 * F + F + f), s = 1 / (1 + std::exp(-gate));
        gated[t * F + f] = gate * s * up;
        double d = 0;
        for (size_t h = 0; h < H; ++h) d += static_cast<double>(dy[t * H + h]) * w2[h * F + f];
        d = rounded(d);
        gradients[t * 2 * F + f] = d * up * s * (1 + gate * (1 - s));
        gradients[t * 2 * F + F + f] = d * gate * s;
      }
    EXPECT_LT(relative_error(y.pull(), gated), 4e-3);
    EXPECT_LT(relative_error(dgate_up.pull(), gradients), 5e-3);
  }
}

// Against the activation's own kernels on the product that was stored.
TEST_F(Gated, IsTheActivationOfWhatItStored) {
  const GatedGemm g{4000, 520, 2824};
  const auto T = static_cast<size_t>(g.tokens), H = static_cast<size_t>(g.hidden), F = static_cast<size_t>(g.ffn);
  Tensor x = Tensor::random(Element::kBf16, T * H, random_), w = Tensor::random(Element::kBf16, 2 * F * H, random_);
  Tensor gate_up(Element::kBf16, T * 2 * F), y(Element::kBf16, T * F), apart(Element::kBf16, T * F);
  if (!gated_on_hopper(g, {x.get(), w.get(), gate_up.get(), y.get()})) GTEST_SKIP() << "not Hopper";
  expect_ok(gated_forward(g, x.get(), w.get(), gate_up.get(), y.get(), launch_));
  expect_ok(swiglu_forward(Element::kBf16, {g.tokens, g.ffn}, gate_up.get(), apart.get(), launch_));
  EXPECT_LT(relative_error(y.pull(), doubles(apart)), 1e-4);
  // Of the gradient: with a weight that is one, the product is exact.
  const GatedGemm unit{g.tokens, g.ffn, g.ffn};
  Tensor one(Element::kBf16, F * F), dy = Tensor::random(Element::kBf16, T * F, random_);
  for (size_t f = 0; f < F; ++f) one.host()[f * F + f] = 1.0f;
  one.push();
  Tensor got(Element::kBf16, T * 2 * F), again(Element::kBf16, T * 2 * F), wanted(Element::kBf16, T * 2 * F);
  expect_ok(gated_backward(unit, dy.get(), one.get(), gate_up.get(), got.get(), launch_));
  expect_ok(gated_backward(unit, dy.get(), one.get(), gate_up.get(), again.get(), launch_));
  expect_ok(swiglu_backward(Element::kBf16, {g.tokens, g.ffn}, gate_up.get(), dy.get(), wanted.get(), launch_));
  EXPECT_LT(relative_error(got.pull(), doubles(wanted)), 1e-4);
  EXPECT_EQ(again.pull(), got.pull()) << "not the same bits twice";
}

}  // namespace
}  // namespace mbb::trainer::cuda
