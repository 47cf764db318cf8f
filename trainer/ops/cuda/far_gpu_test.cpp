// Rows that begin behind the 2^31st element are computed as the same row is near the front.
#include <algorithm>
#include <functional>
#include <numeric>

#include "trainer/ops/cuda/block_scaled.h"
#include "trainer/ops/cuda/embedding_backward.h"
#include "trainer/ops/cuda/expert_kernels.h"
#include "trainer/ops/cuda/far_rows_test.h"
#include "trainer/ops/cuda/token_kernels.h"

namespace mbb::trainer::cuda {
namespace {

class FarRows : public FarTest {
 protected:
  using Op = std::function<Status(const void* x, void* y, int64_t rows)>;

  // What `op` makes of the last of so many rows, the others being zeros.
  std::vector<uint16_t> last_row(const Op& op, int64_t rows, const std::vector<uint16_t>& row, int64_t out_cols) {
    const FarBytes x(rows * static_cast<int64_t>(row.size()) * 2, row), y(rows * out_cols * 2);
    done(op(x.get(), y.get(), rows));
    return y.end<uint16_t>(out_cols);
  }

  void expect_same(const Op& op, int64_t cols, int64_t out_cols) {
    const int64_t rows = kFar / std::min(cols, out_cols) + 5;
    if (!has_room(2 * rows * (cols + out_cols) >> 30)) GTEST_SKIP() << "not enough free device memory";
    const std::vector<uint16_t> row = random_bf16(cols);
    expect_near(last_row(op, rows, row, out_cols), last_row(op, 5, row, out_cols), 6e-3);
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

// Of a pack, every token being the fourth of its sequence: the kernel counts elements in 32 bits.
TEST_F(FarRows, OfRotaryEmbeddings) {
  constexpr int64_t kWidth = 1024;
  const Tensor table = Tensor::random(Element::kF32, 4 * 64, random_);
  expect_same(
      [&](const void* x, void* y, int64_t rows) -> Status {
        std::vector<int32_t> own(static_cast<size_t>(rows));
        for (size_t i = 0; i < own.size(); ++i) own[i] = std::max(static_cast<int32_t>(i) - 3, 0);
        DeviceBytes on_device(own.size() * sizeof(int32_t));
        on_device.upload(own.data());
        Rope r;
        r.tokens = rows, r.width = kWidth, r.heads = 12, r.head_dim = r.turned = 64;
        r.from = x, r.to = y, r.table = table.floats();
        r.own = static_cast<const int32_t*>(on_device.get());
        MB_TRY(rope(r, launch_));
        EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        return {};
      },
      kWidth, kWidth);
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

// The table is as large as what is taken from it, and every token has a row of its own.
struct Taken {
  std::vector<uint16_t> y;
  std::vector<float> first, added;  // gradients of the table: of the first micro-batch, and added to as much again
  bool operator==(const Taken&) const = default;
};
constexpr int64_t kTaken = 2048;

TEST_F(FarRows, OfAnEmbedding) {
  if (!has_room(14)) GTEST_SKIP() << "not enough free device memory";
  const std::vector<uint16_t> row = random_bf16(kTaken), gradient = random_bf16(kTaken);
  const auto run = [&](int64_t rows) {
    std::vector<int32_t> ids(static_cast<size_t>(rows));
    std::iota(ids.begin(), ids.end(), 0);
    DeviceBytes on_device(ids.size() * 4), workspace(static_cast<size_t>(embedding_workspace(2 * rows)));
    on_device.upload(ids.data());
    Embedding e;
    e.tokens = e.vocab = rows, e.cols = kTaken, e.ids = static_cast<const int32_t*>(on_device.get());
    Taken taken;
    {
      const FarBytes table(rows * kTaken * 2, row), y(rows * kTaken * 2);
      done(embedding_forward(e, table.get(), y.get(), launch_));
      taken.y = y.end<uint16_t>(kTaken);
    }
    const FarBytes dy(rows * kTaken * 2, gradient), dtable(rows * kTaken * 4);
    done(first_embedding_backward(e, dy.get(), dtable.get(), workspace.get(), launch_));
    taken.first = dtable.end<float>(kTaken);
    done(embedding_backward(e, dy.get(), dtable.get(), workspace.get(), launch_));
    taken.added = dtable.end<float>(kTaken);
    return taken;
  };
  const Taken far = run(kFar / kTaken + 5);
  EXPECT_TRUE(far == run(5)) << "seed " << seed_;
  EXPECT_EQ(far.y, row);
}

// Each token to one row of the experts' buffer, which has one more than there are tokens, and back.
struct Exchanged {
  std::vector<uint16_t> buffer, dx, y, dbuffer;
  std::vector<float> dweights;
  bool operator==(const Exchanged&) const = default;
};

TEST_F(FarRows, OfExpertsBuffers) {
  if (!has_room(20)) GTEST_SKIP() << "not enough free device memory";
  const std::vector<uint16_t> row = random_bf16(kTaken), gradient = random_bf16(kTaken);
  const auto run = [&](int64_t tokens) {
    std::vector<int32_t> rows(static_cast<size_t>(tokens));
    std::iota(rows.begin(), rows.end(), 1);
    DeviceBytes on_device(rows.size() * 4);
    on_device.upload(rows.data());
    Routed r;
    r.tokens = tokens, r.hidden = kTaken, r.buffer_rows = tokens + 1;
    r.rows = static_cast<const int32_t*>(on_device.get());
    const FarBytes weights(tokens * 4, std::vector<float>{0.75f}), dweights(tokens * 4);
    const FarBytes x(tokens * kTaken * 2, row), buffer(r.buffer_rows * kTaken * 2), y(tokens * kTaken * 2);
    Exchanged e;
    done(permute(r, x.get(), buffer.get(), launch_));
    e.buffer = buffer.end<uint16_t>(kTaken);
    done(permute_grad(r, buffer.get(), y.get(), launch_));
    e.dx = y.end<uint16_t>(kTaken);
    done(combine(r, buffer.get(), weights.as<float>(), y.get(), launch_));
    e.y = y.end<uint16_t>(kTaken);
    const FarBytes dy(tokens * kTaken * 2, gradient), dbuffer(r.buffer_rows * kTaken * 2);
    done(combine_grad(r, dy.get(), buffer.get(), weights.as<float>(), dbuffer.get(), dweights.as<float>(), launch_));
    e.dbuffer = dbuffer.end<uint16_t>(kTaken), e.dweights = dweights.end<float>(1);
    return e;
  };
  const Exchanged far = run(kFar / kTaken + 5);
  EXPECT_TRUE(far == run(5)) << "seed " << seed_;
  EXPECT_EQ(far.buffer, row);
  EXPECT_EQ(far.dx, row);
}

TEST_F(FarRows, OfTokensInFp8) {
  if (!has_room(13)) GTEST_SKIP() << "not enough free device memory";
  const std::vector<uint16_t> row = random_bf16(kTaken);
  constexpr int64_t kParts = kTaken / kTokenBlock;
  const auto run = [&](int64_t rows) {
    const FarBytes x(rows * kTaken * 2, row), q(rows * kTaken), inverse(rows * kParts * 4), back(rows * kTaken * 2);
    const RowShape shape{rows, kTaken};
    done(quantize_tokens(Element::kBf16, shape, x.get(), q.as<uint8_t>(), inverse.as<float>(), launch_));
    done(dequantize_tokens(Element::kBf16, shape, q.as<uint8_t>(), inverse.as<float>(), back.get(), launch_));
    return std::tuple(q.end<uint8_t>(kTaken), inverse.end<float>(kParts), back.end<uint16_t>(kTaken));
  };
  EXPECT_TRUE(run(kFar / kTaken + 5) == run(5)) << "seed " << seed_;
}

// The last 16 rows' codes, those of the last row again in the transposed copy, and the scales.
struct Quantized {
  std::vector<uint8_t> q, last_column;
  std::vector<float> scales;
  bool operator==(const Quantized&) const = default;
};

TEST_F(FarRows, OfATensorInFp8) {
  if (!has_room(9)) GTEST_SKIP() << "not enough free device memory";
  const std::vector<uint16_t> row = random_bf16(kTaken);
  for (const bool once : {false, true}) {
    const auto run = [&](int64_t rows) {
      const FarBytes x(rows * kTaken * 2, row), q(rows * kTaken), qt(rows * kTaken);
      const FarBytes scales(8, std::vector<float>{0.0f, 0.0f});
      DeviceBytes partials(static_cast<size_t>(quantize_once_partials(launch_)));
      Quantize args;
      args.shape = {rows, kTaken};
      args.q = q.get(), args.qt = qt.get();
      args.inverse_scale = scales.as<float>(), args.amax = scales.as<float>() + 1;
      if (once) {
        args.found_amax = scales.as<float>() + 1, args.partials = partials.get();
        done(quantize_once(args, x.get(), launch_));
      } else {
        done(amax_of(Element::kBf16, x.get(), rows * kTaken, scales.as<float>() + 1, launch_));
        done(quantize(args, x.get(), launch_));
      }
      return Quantized{q.end<uint8_t>(16 * kTaken), qt.pieces<uint8_t>(rows - 1, rows, 1, kTaken),
                       scales.end<float>(2)};
    };
    const Quantized far = run(kFar / kTaken + 16);
    EXPECT_TRUE(far == run(16)) << (once ? "in one launch" : "in turn") << ", seed " << seed_;
    EXPECT_TRUE(std::equal(far.last_column.begin(), far.last_column.end(), far.q.end() - kTaken));
  }
}

// Both copies: the last 16 rows' codes and the last row's scales; the last codes and scales of every column.
struct QuantizedBlocks {
  std::vector<uint8_t> q, scales, qt, column_scales;
  std::vector<float> inverses;
  bool operator==(const QuantizedBlocks&) const = default;
};

class FarBlocks : public FarRows, public testing::WithParamInterface<std::pair<QuantizeBlocksAttrs, Element>> {};

TEST_P(FarBlocks, AreAsTheyAreNear) {
  const auto& [attrs, from] = GetParam();
  if (!has_room(from == Element::kF32 ? 14 : 10)) GTEST_SKIP() << "not enough free device memory";
  const std::vector<float> f32 = random_f32(kTaken);
  const std::vector<uint16_t> b16 = random_bf16(kTaken);
  const auto run = [&, attrs = &attrs, from = from](int64_t rows) {
    const bool four = attrs->to == DType::kE2M1;
    const int64_t count = rows * kTaken, codes = four ? count / 2 : count, block = attrs->block;
    const int64_t across = kTaken / block, down = (rows + block - 1) / block;
    const int64_t width = attrs->scale == BlockScale::kPowerOfTwo ? 4 : 1;  // bytes of a scale
    const FarBytes x = from == Element::kF32 ? FarBytes(count * 4, f32) : FarBytes(count * 2, b16);
    const FarBytes q(codes), qt(codes), scales(rows * across * width), column_scales(kTaken * down * width);
    const FarBytes inverses(8, std::vector<float>{0.0f, 0.0f});
    QuantizeBlocks args;
    args.attrs = attrs, args.from = from, args.shape = {rows, kTaken};
    args.rows = {q.get(), scales.get(), inverses.as<float>()};
    args.columns = {qt.get(), column_scales.get(), inverses.as<float>() + 1};
    DeviceBytes workspace(static_cast<size_t>(quantize_blocks_workspace(args, x.get())));
    args.workspace = workspace.get();
    done(quantize_blocks(args, x.get(), launch_));
    const int64_t last = four ? 8 : 16;  // bytes of the last 16 rows in a column's line
    return QuantizedBlocks{q.end<uint8_t>(last * kTaken), scales.end<uint8_t>(across * width),
                           qt.pieces<uint8_t>(codes / kTaken - last, codes / kTaken, last, kTaken),
                           column_scales.pieces<uint8_t>((down - 1) * width, down * width, width, kTaken),
                           inverses.end<float>(2)};
  };
  const QuantizedBlocks far = run(kFar / kTaken + 16), near = run(16);
  EXPECT_EQ(far.q, near.q) << "seed " << seed_;
  EXPECT_EQ(far.scales, near.scales) << "seed " << seed_;
  EXPECT_EQ(far.qt, near.qt) << "seed " << seed_;
  EXPECT_EQ(far.column_scales, near.column_scales) << "seed " << seed_;
  EXPECT_EQ(far.inverses, near.inverses) << "seed " << seed_;
}

// Tiles in registers of bf16, through shared memory of fp32.
INSTANTIATE_TEST_SUITE_P(All, FarBlocks, testing::ValuesIn([] {
                           const QuantizeBlocksAttrs lines{}, mx{.scale = BlockScale::kE8M0, .block = 32},
                               nv{.to = DType::kE2M1, .scale = BlockScale::kE4M3, .block = 16};
                           std::vector<std::pair<QuantizeBlocksAttrs, Element>> all;
                           for (const QuantizeBlocksAttrs& attrs : {lines, mx, nv})
                             for (const Element from : {Element::kBf16, Element::kF32}) all.emplace_back(attrs, from);
                           return all;
                         }()),
                         [](const auto& test) {
                           return std::string(test.param.first.block == 128  ? "fp8"
                                              : test.param.first.block == 32 ? "mxfp8"
                                                                             : "nvfp4") +
                                  "_of_" + name(test.param.second);
                         });

}  // namespace
}  // namespace mbb::trainer::cuda
