// Rows that begin behind the 2^31st element are computed as the same row is near the front.
#include <algorithm>
#include <functional>

#include "trainer/ops/cuda/gpu_fixture_test.h"

namespace mbb::trainer::cuda {
namespace {

class FarRows : public GpuTest {
 protected:
  using Op = std::function<Status(const void* x, void* y, int64_t rows)>;

  static bool has_room(int64_t bytes) {
    size_t free_bytes = 0, total_bytes = 0;
    return cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess &&
           static_cast<int64_t>(free_bytes) > bytes + (int64_t{4} << 30);
  }

  // What `op` makes of the last of so many rows of bf16, the others being zeros.
  std::vector<float> last_row(const Op& op, int64_t rows, const std::vector<uint16_t>& row, int64_t out_cols) {
    const size_t bytes = row.size() * sizeof(uint16_t), out_bytes = static_cast<size_t>(out_cols) * sizeof(uint16_t);
    DeviceBytes x(static_cast<size_t>(rows) * bytes), y(static_cast<size_t>(rows) * out_bytes);
    x.zero();
    const auto last = static_cast<size_t>(rows - 1);
    EXPECT_EQ(cudaMemcpy(static_cast<char*>(x.get()) + last * bytes, row.data(), bytes, cudaMemcpyHostToDevice),
              cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
    expect_ok(op(x.get(), y.get(), rows));
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    std::vector<uint16_t> bits(static_cast<size_t>(out_cols));
    EXPECT_EQ(
        cudaMemcpy(bits.data(), static_cast<char*>(y.get()) + last * out_bytes, out_bytes, cudaMemcpyDeviceToHost),
        cudaSuccess);
    std::vector<float> values(bits.size());
    std::transform(bits.begin(), bits.end(), values.begin(), from_bf16);
    return values;
  }

  void expect_same(const Op& op, int64_t cols, int64_t out_cols) {
    const int64_t rows = (int64_t{1} << 31) / std::min(cols, out_cols) + 5;
    if (!has_room(2 * rows * (cols + out_cols))) GTEST_SKIP() << "not enough free device memory";
    std::normal_distribution<float> normal;
    std::vector<uint16_t> row(static_cast<size_t>(cols));
    for (uint16_t& bits : row) bits = to_bf16(normal(random_));
    const std::vector<float> near = last_row(op, 5, row, out_cols), far = last_row(op, rows, row, out_cols);
    EXPECT_LT(relative_error(far, std::vector<double>(near.begin(), near.end())), 6e-3) << "seed " << seed_;
  }
};

TEST_F(FarRows, OfASum) {
  expect_same([&](const void* x, void* y, int64_t rows) { return add(Element::kBf16, x, x, y, rows * 8192, launch_); },
              8192, 8192);
}

TEST_F(FarRows, OfSwiglu) {
  expect_same(
      [&](const void* x, void* y, int64_t rows) -> Status {
        return swiglu_forward(Element::kBf16, {rows, 4096}, x, y, launch_);
      },
      8192, 4096);
}

TEST_F(FarRows, OfANorm) {
  Tensor weight = Tensor::random(Element::kBf16, 8192, random_);
  expect_same(
      [&](const void* x, void* y, int64_t rows) -> Status {
        Tensor rstd(Element::kF32, static_cast<size_t>(rows));
        NormForward f;
        f.shape = {rows, 8192};
        f.element = Element::kBf16, f.x = x, f.weight = weight.get(), f.y = y, f.rstd = rstd.floats();
        MB_TRY(norm_forward(f, launch_));
        EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        return {};
      },
      8192, 8192);
}

// 16 k tokens of a vocabulary of 128 k are as many: Qwen2.5's real micro-batches.
TEST_F(FarRows, OfALoss) {
  constexpr int64_t kVocab = 131072;
  expect_same(
      [&](const void* x, void* y, int64_t rows) -> Status {
        const auto count = static_cast<size_t>(rows);
        std::vector<int32_t> host(count, 77);
        DeviceBytes targets(count * sizeof(int32_t));
        targets.upload(host.data());
        Tensor sums(Element::kF32, count), target(Element::kF32, count);
        CrossEntropy args;
        args.rows = rows, args.vocab = args.real_vocab = kVocab;
        args.logits = x, args.gradient = y, args.targets = static_cast<const int32_t*>(targets.get());
        MB_TRY(ce_fused(args, sums.floats(), target.floats(), launch_));
        EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        return {};
      },
      kVocab, kVocab);
}

}  // namespace
}  // namespace mbb::trainer::cuda
