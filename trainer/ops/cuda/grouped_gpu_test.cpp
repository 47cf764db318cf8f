// Grouped matrix products against double references and against the portable kernel, with experts that begin anywhere,
// hold any number of rows, and leave rows between them that nobody may read.
#include <limits>
#include <memory>

#include "trainer/ops/cuda/expert_kernels.h"
#include "trainer/ops/cuda/gpu_fixture_test.h"

namespace mbb::trainer::cuda {
namespace {

struct Shape {
  std::vector<int32_t> counts;  // rows of each expert
  int gap = 0;                  // unfilled rows after each
  int64_t n = 0, k = 0;
};

class Grouped : public GpuTest {
 protected:
  void lay_out(const Shape& s) {
    shape_ = s;
    const size_t experts = s.counts.size();
    segments_.assign(2 * experts, 0);
    int32_t row = 3;  // the first expert does not begin at row 0
    for (size_t e = 0; e < experts; ++e) {
      segments_[e] = row;
      segments_[experts + e] = s.counts[e];
      row += s.counts[e] + s.gap;
    }
    g_.rows = row + 1, g_.experts = static_cast<int64_t>(experts), g_.n = s.n, g_.k = s.k;
    device_segments_ = std::make_unique<DeviceBytes>(segments_.size() * 4);
    device_segments_->upload(segments_.data());
    g_.segments = static_cast<const int32_t*>(device_segments_->get());
  }

  int expert_of(int64_t row) const {
    for (size_t e = 0; e < shape_.counts.size(); ++e)
      if (row >= segments_[e] && row < segments_[e] + shape_.counts[e]) return static_cast<int>(e);
    return -1;
  }

  // Normal values where an expert has rows, NaN elsewhere.
  Tensor rows_of(int64_t columns) {
    Tensor t = Tensor::random(Element::kBf16, static_cast<size_t>(g_.rows * columns), random_);
    for (int64_t r = 0; r < g_.rows; ++r)
      if (expert_of(r) < 0)
        for (int64_t c = 0; c < columns; ++c)
          t.host()[static_cast<size_t>(r * columns + c)] = std::numeric_limits<float>::quiet_NaN();
    t.push();
    return t;
  }
  size_t weights() const { return static_cast<size_t>(g_.experts * g_.n * g_.k); }

  GroupedGemm g_;
  Shape shape_;
  std::vector<int32_t> segments_;
  std::unique_ptr<DeviceBytes> device_segments_;
};

TEST_F(Grouped, EqualsDoubleReferences) {
  for (const Shape& s : {Shape{{130, 0, 64, 1, 257}, 5, 200, 136}, Shape{{70, 300}, 0, 520, 328},
                         Shape{{5, 128, 63, 65, 2}, 1, 8, 64}, Shape{{256, 40}, 2, 264, 8}}) {
    SCOPED_TRACE(testing::Message() << s.counts.size() << " experts, n " << s.n << " k " << s.k << " seed " << seed_);
    lay_out(s);
    Tensor x = rows_of(s.k), dy = rows_of(s.n), w = Tensor::random(Element::kBf16, weights(), random_);
    Tensor y(Element::kBf16, static_cast<size_t>(g_.rows * s.n)),
        dx(Element::kBf16, static_cast<size_t>(g_.rows * s.k));
    Tensor dw(Element::kF32, weights()), sum = Tensor::random(Element::kF32, weights(), random_, 10.0f);
    Tensor half(Element::kBf16, weights()), half_sum = Tensor::random(Element::kBf16, weights(), random_, 10.0f);
    const std::vector<float> before = sum.host(), half_before = half_sum.host();
    expect_ok(grouped_fprop(g_, x.get(), w.get(), y.get(), launch_));
    expect_ok(grouped_dgrad(g_, dy.get(), w.get(), dx.get(), launch_));
    expect_ok(grouped_wgrad(g_, dy.get(), x.get(), dw.floats(), false, launch_));
    expect_ok(grouped_wgrad(g_, dy.get(), x.get(), sum.floats(), true, launch_));
    const bool on_hopper = grouped_on_hopper(g_, {dy.get(), x.get(), half.get()});
    g_.gradient = Element::kBf16;
    if (on_hopper) {
      expect_ok(grouped_wgrad(g_, dy.get(), x.get(), half.get(), false, launch_));
      expect_ok(grouped_wgrad(g_, dy.get(), x.get(), half_sum.get(), true, launch_));
    }
    g_.gradient = Element::kF32;

    std::vector<double> ref_y(y.size(), 0.0), ref_dx(dx.size(), 0.0), ref_dw(weights(), 0.0), ref_sum(weights()),
        ref_half(weights());
    for (int64_t r = 0; r < g_.rows; ++r) {
      const int e = expert_of(r);
      if (e < 0) continue;
      for (int64_t i = 0; i < s.n; ++i)
        for (int64_t j = 0; j < s.k; ++j) {
          const auto at = static_cast<size_t>((e * s.n + i) * s.k + j);
          const auto rn = static_cast<size_t>(r * s.n + i), rk = static_cast<size_t>(r * s.k + j);
          ref_y[rn] += static_cast<double>(x[rk]) * w[at];
          ref_dx[rk] += static_cast<double>(dy[rn]) * w[at];
          ref_dw[at] += static_cast<double>(dy[rn]) * x[rk];
        }
    }
    for (size_t i = 0; i < ref_sum.size(); ++i)
      ref_sum[i] = before[i] + ref_dw[i], ref_half[i] = half_before[i] + ref_dw[i];
    EXPECT_LT(relative_error(y.pull(), ref_y), 5e-3) << "fprop";
    EXPECT_LT(relative_error(dx.pull(), ref_dx), 5e-3) << "dgrad";
    EXPECT_LT(relative_error(dw.pull(), ref_dw), 1e-5) << "wgrad";
    EXPECT_LT(relative_error(sum.pull(), ref_sum), 1e-5) << "wgrad, added";
    if (!on_hopper) continue;
    EXPECT_LT(relative_error(half.pull(), ref_dw), 5e-3) << "wgrad in bf16";
    EXPECT_LT(relative_error(half_sum.pull(), ref_half), 5e-3) << "wgrad in bf16, added";
  }
}

// Many tiles a block: stages wrap round, blocks cross experts.
TEST_F(Grouped, EqualsThePortableKernelWhereBlocksTakeManyTiles) {
  for (const Shape& s : {Shape{{700, 1111, 0, 129, 2048, 3}, 7, 2816, 1160}, Shape{{64, 190, 3000}, 0, 1160, 5120}}) {
    SCOPED_TRACE(testing::Message() << s.counts.size() << " experts, n " << s.n << " k " << s.k << " seed " << seed_);
    lay_out(s);
    Tensor x = rows_of(s.k), dy = rows_of(s.n), w = Tensor::random(Element::kBf16, weights(), random_);
    const auto results = [&](bool portable) {
      g_.portable = portable;
      Tensor y(Element::kBf16, static_cast<size_t>(g_.rows * s.n)),
          dx(Element::kBf16, static_cast<size_t>(g_.rows * s.k)), dw(Element::kF32, weights());
      expect_ok(grouped_fprop(g_, x.get(), w.get(), y.get(), launch_));
      expect_ok(grouped_dgrad(g_, dy.get(), w.get(), dx.get(), launch_));
      expect_ok(grouped_wgrad(g_, dy.get(), x.get(), dw.floats(), false, launch_));
      std::vector<std::vector<double>> all;
      for (Tensor* t : {&y, &dx, &dw}) all.emplace_back(t->pull().begin(), t->pull().end());
      return all;
    };
    const auto reference = results(true), got = results(false), again = results(false);
    for (size_t i = 0; i < reference.size(); ++i) {
      EXPECT_LT(relative_error(got[i], reference[i]), i == 2 ? 1e-5 : 5e-3) << i;
      EXPECT_EQ(got[i], again[i]) << "not the same bits twice: " << i;
    }
  }
}

}  // namespace
}  // namespace mbb::trainer::cuda
