// Number formats and quantizing ops against what PyTorch's float8 types give (expected/make_expected.py), and against
// definitions written apart from the ones they test: the nearest of all values a format has, and products of what the
// codes mean.
#include <gtest/gtest.h>

#include <fmt/core.h>

#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <map>
#include <random>

#include "profiler/base/file.h"
#include "profiler/base/text.h"
#include "trainer/data/rng.h"
#include "trainer/ops/table.h"
#include "trainer/precision/run_op_test.h"
#include "trainer/precision/scales.h"

namespace mbb::trainer {
namespace {

std::vector<std::vector<std::string>> expected(std::string_view kind) {
  const auto text = read_file(MBB_SOURCE_DIR "/trainer/precision/expected/expected.tsv");
  EXPECT_TRUE(text.has_value());
  std::vector<std::vector<std::string>> rows;
  if (!text) return rows;
  for (const std::string_view line : split(*text, '\n')) {
    const auto fields = split(line, '\t');
    if (fields[0] != kind) continue;
    rows.emplace_back(fields.begin() + 1, fields.end());
  }
  EXPECT_FALSE(rows.empty());
  return rows;
}

uint32_t word(std::string_view hex) {
  return static_cast<uint32_t>(std::stoul(std::string(hex), nullptr, 16));
}

uint8_t encode(const std::string& type, float value) {
  if (type == "e2m1") return to_fp4(value);
  return to_fp8(value, *dtype_named(type));
}
float decode(const std::string& type, uint8_t code) {
  if (type == "e2m1") return from_fp4(code);
  if (type == "e8m0") return from_e8m0(code);
  return from_fp8(code, *dtype_named(type));
}

TEST(NumberFormats, CastsEqualPyTorch) {
  size_t checked = 0;
  for (const auto& row : expected("cast")) {
    for (const std::string_view pair : split(row[1], ' ')) {
      const float value = std::bit_cast<float>(word(pair.substr(0, 8)));
      ASSERT_EQ(encode(row[0], value), word(pair.substr(9))) << row[0] << " of " << value;
      ++checked;
    }
  }
  EXPECT_GT(checked, 600U);
}

TEST(NumberFormats, CodesMeanWhatPyTorchSays) {
  for (const auto& row : expected("decode")) {
    const auto values = split(row[1], ' ');
    ASSERT_EQ(values.size(), row[0] == "e2m1" ? 16U : 256U);
    for (size_t code = 0; code < values.size(); ++code) {
      const float mine = decode(row[0], static_cast<uint8_t>(code));
      const float theirs = std::bit_cast<float>(word(values[code]));
      if (std::isnan(theirs))
        EXPECT_TRUE(std::isnan(mine)) << row[0] << " code " << code;
      else
        EXPECT_EQ(std::bit_cast<uint32_t>(mine), std::bit_cast<uint32_t>(theirs)) << row[0] << " code " << code;
    }
  }
}

// The second definition of a cast: of all finite values of the format the nearest, of two the one with the even code.
uint8_t nearest(const std::string& type, float value) {
  const int codes = type == "e2m1" ? 8 : 128;
  int best = 0;
  double distance = std::numeric_limits<double>::infinity();
  for (int code = 0; code < codes; ++code) {
    const float candidate = decode(type, static_cast<uint8_t>(code));
    if (!std::isfinite(candidate)) continue;
    const double d = std::abs(std::abs(static_cast<double>(value)) - static_cast<double>(candidate));
    if (d < distance || (d == distance && code % 2 == 0)) best = code, distance = d;
  }
  return static_cast<uint8_t>(best | (std::signbit(value) ? codes : 0));
}

TEST(NumberFormats, CastsAreTheNearestValue) {
  std::mt19937_64 random(11);
  std::uniform_real_distribution<double> exponent(-24, 18);
  for (const std::string type : {"e4m3", "e5m2", "e2m1"}) {
    for (int i = 0; i < 4000; ++i) {
      const double scale = type == "e2m1" ? std::exp2(exponent(random) / 6) : std::exp2(exponent(random));
      const auto value = static_cast<float>((random() % 2 == 0 ? 1 : -1) * scale);
      ASSERT_EQ(encode(type, value), nearest(type, value)) << type << " of " << value;
    }
  }
}

TEST(NumberFormats, StochasticRoundingIsUnbiased) {
  const RandomStream random(5, "test.rounding", 0);
  for (const float value : {0.1F, 0.26F, 1.1F, -2.7F, 3.5F, -5.9F, 4.0F}) {
    constexpr int kDraws = 200'000;
    double sum = 0;
    for (int i = 0; i < kDraws; ++i)
      sum += static_cast<double>(from_fp4(to_fp4_stochastic(
          value, nine_bits(random.block(0, static_cast<uint64_t>(i / 16), kRoundingRounds), i % 16))));
    // Five standard deviations of the mean of draws that lie at most 2 apart.
    EXPECT_NEAR(sum / kDraws, static_cast<double>(value), 5.0 / std::sqrt(kDraws)) << value;
  }
}

// Over all draws the mean is the value to a 1024th of the step between codes, and exactly where 512ths hold it.
TEST(NumberFormats, StochasticRoundingIsUnbiasedOverItsDraws) {
  const auto mean = [](float value) {
    double sum = 0;
    for (uint32_t draw = 0; draw < 512; ++draw) sum += static_cast<double>(from_fp4(to_fp4_stochastic(value, draw)));
    return sum / 512;
  };
  for (int i = -6 * 256; i <= 6 * 256; ++i) {
    const float value = static_cast<float>(i) / 256;
    EXPECT_EQ(mean(value), static_cast<double>(value));
  }
  std::mt19937_64 random(7);
  std::uniform_real_distribution<float> uniform(-6, 6);
  for (int i = 0; i < 1000; ++i) {
    const float value = uniform(random);
    const double step = std::abs(value) < 2 ? 0.5 : std::abs(value) < 4 ? 1 : 2;
    EXPECT_NEAR(mean(value), static_cast<double>(value), step / 1024) << value;
  }
}

// Each of a draw's elements takes all nine-bit values as often, and the errors of any two do not go together.
TEST(NumberFormats, NeighboursOfADrawAreRoundedApart) {
  constexpr int kDraws = 100'000;
  const RandomStream random(6, "test.rounding", 0);
  std::array<std::array<int, 512>, 16> counts{};
  std::array<std::array<double, 16>, 16> together{};
  for (uint64_t i = 0; i < kDraws; ++i) {
    const PhiloxBlock words = random.block(3, i, kRoundingRounds);
    std::array<double, 16> error{};
    for (size_t e = 0; e < 16; ++e) {
      const uint32_t nine = nine_bits(words, static_cast<int>(e));
      ++counts[e][nine];
      error[e] = static_cast<double>(from_fp4(to_fp4_stochastic(0.25F, nine))) - 0.25;
    }
    for (size_t e = 0; e < 16; ++e)
      for (size_t f = 0; f < e; ++f) together[e][f] += error[e] * error[f];
  }
  for (size_t e = 0; e < 16; ++e) {
    double chi = 0;
    for (const int count : counts[e]) chi += std::pow(count - kDraws / 512.0, 2) / (kDraws / 512.0);
    EXPECT_LT(chi, 511 + 5 * std::sqrt(2 * 511.0)) << e;
    for (size_t f = 0; f < e; ++f)  // of errors of a quarter each: a correlation
      EXPECT_LT(std::abs(together[e][f]) / kDraws * 16, 5 / std::sqrt(kDraws)) << e << " and " << f;
  }
}

TEST(Scales, E8M0IsTheSmallestPowerThatFits) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 5000; ++i) {
    const float amax = std::bit_cast<float>(static_cast<uint32_t>(random() % 0x7f800000U));
    if (amax == 0.0F) continue;
    const uint8_t code = e8m0_inverse_scale(amax, 448.0F);
    const double fits = 448.0 * std::ldexp(1.0, code - 127);
    EXPECT_TRUE(static_cast<double>(amax) <= fits) << amax;
    EXPECT_TRUE(code == 0 || static_cast<double>(amax) > fits / 2) << amax;
  }
  EXPECT_EQ(e8m0_inverse_scale(448.0F, 448.0F), 127);
  EXPECT_EQ(e8m0_inverse_scale(std::nextafter(448.0F, 500.0F), 448.0F), 128);
  EXPECT_EQ(e8m0_inverse_scale(0.0F, 448.0F), 127);
  EXPECT_EQ(e8m0_inverse_scale(std::numeric_limits<float>::infinity(), 448.0F), 127);
}

TEST(Scales, DelayedScaleKeepsThePresentOneWhereAmaxSaysNothing) {
  EXPECT_EQ(delayed_scale(2.0F, 7.0F, DType::kE4M3, 0), 224.0F);
  EXPECT_EQ(delayed_scale(2.0F, 7.0F, DType::kE5M2, 2), 57344.0F / 8);
  EXPECT_EQ(delayed_scale(0.0F, 7.0F, DType::kE4M3, 0), 7.0F);
  EXPECT_EQ(delayed_scale(std::nanf(""), 7.0F, DType::kE4M3, 0), 7.0F);
  EXPECT_EQ(delayed_scale(std::numeric_limits<float>::infinity(), 7.0F, DType::kE4M3, 0), 7.0F);
  EXPECT_EQ(delayed_scale(1e-38F, 7.0F, DType::kE5M2, 0), std::numeric_limits<float>::max());
  EXPECT_EQ(tensor_scale(1e-38F, DType::kE5M2, largest_of(DType::kBf16)), largest_of(DType::kBf16));
}

// make_expected.py's matrix().
std::vector<float> matrix(int64_t rows, int64_t cols) {
  std::vector<float> x(static_cast<size_t>(rows * cols));
  for (size_t i = 0; i < x.size(); ++i) {
    const uint64_t bits = rng_mix(i + 99);
    const auto down = static_cast<int>(22 + (bits & 7) + i / static_cast<size_t>(cols) % 5);
    x[i] = to_float(to_bf16(std::ldexp(static_cast<float>(static_cast<int64_t>(bits >> 40) - (1 << 23)), -down)));
  }
  return x;
}

uint64_t fnv(const uint8_t* bytes, size_t count) {
  return path_hash({reinterpret_cast<const char*>(bytes), count});
}
template <typename T>
std::string hex(const std::vector<T>& values, size_t count) {
  std::string text;
  for (size_t i = 0; i < std::min(count, values.size()); ++i) text += fmt::format("{:0{}x}", values[i], 2 * sizeof(T));
  return text;
}

// One code a byte.
std::vector<uint8_t> codes_of(const RunOp& op, TensorId q) {
  std::vector<uint8_t> packed = op.values<uint8_t>(q);
  if (op.tensor(q).dtype != DType::kE2M1) return packed;
  std::vector<uint8_t> codes(2 * packed.size());
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = fp4_at(packed.data(), static_cast<int64_t>(i));
  return codes;
}

QuantizeBlocksAttrs form(DType to, BlockScale scale, int block, bool square) {
  return {.to = to, .scale = scale, .block = block, .square = square};
}
const std::map<std::string, QuantizeBlocksAttrs>& block_forms() {
  static const std::map<std::string, QuantizeBlocksAttrs> forms{
      {"1x128", form(DType::kE4M3, BlockScale::kPowerOfTwo, 128, false)},
      {"1x128-f32", form(DType::kE4M3, BlockScale::kF32, 128, false)},
      {"128x128", form(DType::kE4M3, BlockScale::kPowerOfTwo, 128, true)},
      {"mxfp8", form(DType::kE4M3, BlockScale::kE8M0, 32, false)},
      {"nvfp4", form(DType::kE2M1, BlockScale::kE4M3, 16, false)},
      {"nvfp4-square", form(DType::kE2M1, BlockScale::kE4M3, 16, true)}};
  return forms;
}

TEST(QuantizedMatrices, EqualPyTorch) {
  const auto rows = expected("matrix");
  EXPECT_EQ(rows.size(), block_forms().size() + 2);
  for (const auto& row : rows) {
    const Shape shape{std::stoll(row[1]), std::stoll(row[2])};
    RunOp op;
    const TensorId x = op.bf16(shape, matrix(shape[0], shape[1]));
    std::vector<TensorId> out;
    TensorId scales = kNoTensor;
    if (row[0].starts_with("tensorwise-")) {
      out = op.run(kQuantize, {x}, QuantizeAttrs{*dtype_named(row[0].substr(11))});
      scales = op.input(DType::kU8, Shape{4}, [&] {  // {inverse scale, amax}: the first is compared
        const auto both = op.values<uint8_t>(out[2]);
        return std::vector<uint8_t>(both.begin(), both.begin() + 4);
      }());
    } else {
      out = op.run(kQuantizeBlocks, {x}, block_forms().at(row[0]));
      scales = out[1];
    }
    const auto codes = codes_of(op, out[0]);
    EXPECT_EQ(hex(codes, 16), row[4]) << row[0];
    EXPECT_EQ(fmt::format("{:016x}", fnv(codes.data(), codes.size())), row[3]) << row[0];
    const auto raw = op.values<uint8_t>(scales);
    EXPECT_EQ(fmt::format("{:016x}", fnv(raw.data(), raw.size())), row[5]) << row[0];
    if (op.tensor(scales).dtype == DType::kF32 || row[0].starts_with("tensorwise-"))
      EXPECT_EQ(hex(op.values<uint32_t>(scales), 4), row[6]) << row[0];
    else
      EXPECT_EQ(hex(raw, 4), row[6]) << row[0];
  }
}

// What the codes of a copy mean, one element at a time.
double meaning(const RunOp& op, const QuantizeBlocksAttrs& a, TensorId q, TensorId scales, TensorId inverse, int64_t r,
               int64_t c) {
  const int64_t inner = op.tensor(q).shape.cols(), across = op.tensor(scales).shape.cols();
  const auto at = static_cast<size_t>((a.square ? r / a.block : r) * across + c / a.block);
  const double code =
      static_cast<double>(decode(std::string(name(a.to)), codes_of(op, q)[static_cast<size_t>(r * inner + c)]));
  if (a.scale == BlockScale::kE8M0) return code * std::exp2(op.values<uint8_t>(scales)[at] - 127);
  if (a.scale == BlockScale::kE4M3)
    return code * static_cast<double>(from_fp8(op.values<uint8_t>(scales)[at], DType::kE4M3)) *
           static_cast<double>(op.values<float>(inverse)[0]);
  return code * static_cast<double>(op.values<float>(scales)[at]);
}

std::vector<float> random_values(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& v : values) v = to_float(to_bf16(normal(random) * std::exp2(normal(random))));
  return values;
}

TEST(QuantizedMatrices, CopiesAreNearTheValueAndSquareOnesAreTransposes) {
  constexpr int64_t kRows = 48, kCols = 144;  // partial blocks at 128 and 32
  const std::vector<float> x = random_values(kRows * kCols, 21);
  for (const auto& [label, attrs] : block_forms()) {
    RunOp op;
    const auto out = op.run(kQuantizeBlocks, {op.bf16({kRows, kCols}, x)}, attrs);
    const bool inverse = attrs.scale == BlockScale::kE4M3;
    double error = 0, norm = 0;
    for (int64_t r = 0; r < kRows; r += 5) {
      for (int64_t c = 0; c < kCols; c += 7) {
        const double value = static_cast<double>(x[static_cast<size_t>(r * kCols + c)]);
        const double row = meaning(op, attrs, out[0], out[1], inverse ? out[4] : kNoTensor, r, c);
        const double column = meaning(op, attrs, out[2], out[3], inverse ? out[5] : kNoTensor, c, r);
        error += std::pow(row - value, 2) + std::pow(column - value, 2);
        norm += 2 * value * value;
        if (attrs.square) {
          EXPECT_EQ(row, column) << label << " " << r << "," << c;
        }
      }
    }
    EXPECT_LT(std::sqrt(error / norm), attrs.to == DType::kE2M1 ? 0.25 : 0.04) << label;
    EXPECT_GT(error, 0) << label;
  }
}

// Both copies of a stack are those of its matrices: no block covers two of them, whatever their sides.
TEST(QuantizedMatrices, StackedOnesHaveTheBlocksTheyHaveAlone) {
  constexpr int64_t kStack = 3, kRows = 144, kCols = 80;
  std::vector<float> x = random_values(kStack * kRows * kCols, 33);
  for (int64_t i = 0; i < kRows * kCols; ++i) x[static_cast<size_t>(i)] *= 64.0F;  // the first one's would be seen
  for (const auto& [label, plain] : block_forms()) {
    if (plain.scale == BlockScale::kE4M3) continue;  // they stand under one scale of the whole tensor
    QuantizeBlocksAttrs attrs = plain;
    attrs.stack = kStack;
    RunOp op;
    const auto all = op.run(kQuantizeBlocks, {op.bf16({kStack, kRows, kCols}, x)}, attrs);
    const auto codes = codes_of(op, all[0]), turned = codes_of(op, all[2]);
    const auto width = static_cast<size_t>(bits_of(op.tensor(all[1]).dtype) / 8);
    const auto scales = op.values<uint8_t>(all[1]), turned_scales = op.values<uint8_t>(all[3]);
    for (int64_t m = 0; m < kStack; ++m) {
      const std::vector<float> mine(x.begin() + m * kRows * kCols, x.begin() + (m + 1) * kRows * kCols);
      const auto one = op.run(kQuantizeBlocks, {op.bf16({kRows, kCols}, mine)}, plain);
      // Below each other; and side by side, line for line.
      const auto below = [&](const std::vector<uint8_t>& of_all, const std::vector<uint8_t>& of_one) {
        ASSERT_EQ(of_all.size(), kStack * of_one.size()) << label;
        EXPECT_TRUE(std::equal(of_one.begin(), of_one.end(), of_all.begin() + m * static_cast<int64_t>(of_one.size())))
            << label << " " << m;
      };
      const auto beside = [&](const std::vector<uint8_t>& of_all, const std::vector<uint8_t>& of_one, int64_t bytes) {
        ASSERT_EQ(of_all.size(), kStack * of_one.size()) << label;
        for (int64_t first = 0; first < static_cast<int64_t>(of_one.size()); first += bytes)
          EXPECT_TRUE(std::equal(of_one.begin() + first, of_one.begin() + first + bytes,
                                 of_all.begin() + first * kStack + m * bytes))
              << label << " " << m;
      };
      below(codes, codes_of(op, one[0]));
      below(scales, op.values<uint8_t>(one[1]));
      beside(turned, codes_of(op, one[2]), kRows);
      beside(turned_scales, op.values<uint8_t>(one[3]), op.tensor(one[3]).shape.cols() * static_cast<int64_t>(width));
    }
  }
}

// Sides of a partial block: a block's scale is of what it covers, and a product over it of all three roles is that of
// the values.
TEST(BlockGemm, PartialBlocksInEveryRoleAreNearTheProductOfValues) {
  constexpr int64_t kTokens = 144, kOut = 64, kIn = 336;
  const auto x = random_values(kTokens * kIn, 4), w = random_values(kOut * kIn, 5),
             dy = random_values(kTokens * kOut, 6);
  const QuantizeBlocksAttrs row = block_forms().at("1x128"), square = block_forms().at("128x128");
  RunOp op;
  const auto qx = op.run(kQuantizeBlocks, {op.bf16({kTokens, kIn}, x)}, row);
  const auto qw = op.run(kQuantizeBlocks, {op.bf16({kOut, kIn}, w)}, square);
  const auto qdy = op.run(kQuantizeBlocks, {op.bf16({kTokens, kOut}, dy)}, row);
  EXPECT_EQ(op.tensor(qw[1]).shape, (Shape{1, 3}));
  EXPECT_EQ(op.tensor(qw[3]).shape, (Shape{3, 1}));
  EXPECT_EQ(op.tensor(qx[3]).shape, (Shape{kIn, 2}));
  struct Product {
    const char* role;
    int64_t m, n, k;
    std::vector<float> d;
    std::function<double(int64_t, int64_t)> a, b;  // (row, inner), (column, inner)
  };
  const auto run = [&](TensorId a, TensorId b, TensorId of_a, TensorId of_b, bool b_square) {
    const GemmBlocksAttrs attrs{.b_square = b_square, .out = DType::kF32};
    return op.values<float>(op.run(kGemmBlocks, {a, b, of_a, of_b}, attrs)[0]);
  };
  const auto at = [](const std::vector<float>& values, int64_t i) {
    return static_cast<double>(values[static_cast<size_t>(i)]);
  };
  const std::vector<Product> products{{"fprop", kTokens, kOut, kIn, run(qx[0], qw[0], qx[1], qw[1], true),
                                       [&](int64_t i, int64_t k) { return at(x, i * kIn + k); },
                                       [&](int64_t j, int64_t k) { return at(w, j * kIn + k); }},
                                      {"dgrad", kTokens, kIn, kOut, run(qdy[0], qw[2], qdy[1], qw[3], true),
                                       [&](int64_t i, int64_t k) { return at(dy, i * kOut + k); },
                                       [&](int64_t j, int64_t k) { return at(w, k * kIn + j); }},
                                      {"wgrad", kOut, kIn, kTokens, run(qdy[2], qx[2], qdy[3], qx[3], false),
                                       [&](int64_t i, int64_t k) { return at(dy, k * kOut + i); },
                                       [&](int64_t j, int64_t k) { return at(x, k * kIn + j); }}};
  for (const Product& p : products) {
    double error = 0, norm = 0;
    for (int64_t i = 0; i < p.m; ++i)
      for (int64_t j = 0; j < p.n; ++j) {
        double exact = 0;
        for (int64_t k = 0; k < p.k; ++k) exact += p.a(i, k) * p.b(j, k);
        error += std::pow(at(p.d, i * p.n + j) - exact, 2);
        norm += exact * exact;
      }
    EXPECT_LT(std::sqrt(error / norm), 0.05) << p.role;
    EXPECT_GT(error, 0) << p.role;
  }
}

TEST(BlockGemm, IsTheProductOfWhatTheCodesMean) {
  constexpr int64_t kM = 20, kN = 24, kK = 160;
  for (const auto& [label, right] : block_forms()) {
    QuantizeBlocksAttrs left = right;
    left.square = false;
    RunOp op;
    const auto a = op.run(kQuantizeBlocks, {op.bf16({kM, kK}, random_values(kM * kK, 1))}, left);
    const auto b = op.run(kQuantizeBlocks, {op.bf16({kN, kK}, random_values(kN * kK, 2))}, right);
    const std::vector<float> before = random_values(kM * kN, 3);
    const bool inverse = right.scale == BlockScale::kE4M3;
    std::vector<TensorId> in{a[0], b[0], a[1], b[1]};
    if (inverse) in.insert(in.end(), {a[4], b[4]});
    in.push_back(op.f32({kM, kN}, before));
    const GemmBlocksAttrs attrs{.accumulate = true, .block = right.block, .b_square = right.square, .out = DType::kF32};
    const auto d = op.values<float>(op.run(kGemmBlocks, in, attrs, {in.back()})[0]);
    for (int64_t i = 0; i < kM; i += 7) {
      for (int64_t j = 0; j < kN; j += 5) {
        double sum = static_cast<double>(before[static_cast<size_t>(i * kN + j)]);
        for (int64_t k = 0; k < kK; ++k)
          sum += meaning(op, left, a[0], a[1], inverse ? a[4] : kNoTensor, i, k) *
                 meaning(op, right, b[0], b[1], inverse ? b[4] : kNoTensor, j, k);
        EXPECT_NEAR(static_cast<double>(d[static_cast<size_t>(i * kN + j)]), sum, 1e-5 * (1 + std::abs(sum))) << label;
      }
    }
  }
}

TEST(BlockGemm, RefusesTwoSquareOperandsAndWrongScales) {
  RunOp op;
  const auto a =
      op.run(kQuantizeBlocks, {op.bf16({128, 128}, random_values(128 * 128, 1))}, block_forms().at("128x128"));
  std::vector<const Tensor*> in{&op.tensor(a[0]), &op.tensor(a[0]), &op.tensor(a[1]), &op.tensor(a[1])};
  const auto both = kGemmBlocks.shape(in, GemmBlocksAttrs{.a_square = true, .b_square = true});
  ASSERT_FALSE(both.has_value());
  EXPECT_EQ(both.error().what, "at most one operand of a GEMM has square blocks");
  EXPECT_FALSE(kGemmBlocks.shape(in, GemmBlocksAttrs{.block = 128}).has_value());
}

// Rotated along the inner dimension, two operands have the product they had.
TEST(BlockGemm, RotationKeepsTheProduct) {
  constexpr int64_t kRows = 64, kCols = 16;  // the transposed copies are [16, 64]
  QuantizeBlocksAttrs plain = block_forms().at("nvfp4");
  plain.to = DType::kE4M3;
  plain.scale = BlockScale::kF32;  // fine enough to see the product
  QuantizeBlocksAttrs turned = plain;
  turned.rotate = true;
  turned.rotate_signs = 0x9c35;
  const auto product = [&](const QuantizeBlocksAttrs& attrs, std::vector<uint8_t>& codes) {
    RunOp op;
    const auto a = op.run(kQuantizeBlocks, {op.bf16({kRows, kCols}, random_values(kRows * kCols, 5))}, attrs);
    const auto b = op.run(kQuantizeBlocks, {op.bf16({kRows, kCols}, random_values(kRows * kCols, 6))}, attrs);
    codes = op.values<uint8_t>(a[2]);
    return op.values<float>(
        op.run(kGemmBlocks, {a[2], b[2], a[3], b[3]}, GemmBlocksAttrs{.block = 16, .out = DType::kF32})[0]);
  };
  std::vector<uint8_t> codes, turned_codes;
  const auto one = product(plain, codes), other = product(turned, turned_codes);
  EXPECT_NE(codes, turned_codes);
  double difference = 0, norm = 0;
  for (size_t i = 0; i < one.size(); ++i) {
    difference += std::pow(static_cast<double>(one[i]) - static_cast<double>(other[i]), 2);
    norm += std::pow(static_cast<double>(one[i]), 2);
  }
  EXPECT_LT(std::sqrt(difference / norm), 0.1);
}

TEST(DelayedScaling, RecordsAmaxAndUpdatesOnceFromTheHistory) {
  RunOp op;
  const TensorId first = op.f32({2}, {0.5F, 3.0F}), second = op.f32({2}, {0.25F, 8.0F});
  const TensorId amax = op.run(kAmaxRecord, {first, second}, AmaxAttrs{false})[0];
  EXPECT_EQ(op.values<float>(amax), (std::vector<float>{3.0F, 8.0F}));
  const TensorId again = op.f32({2}, {0.5F, 7.0F}), smaller = op.f32({2}, {0.25F, 1.0F});
  op.run(kAmaxRecord, {again, smaller, amax}, AmaxAttrs{true}, {amax});
  EXPECT_EQ(op.values<float>(amax), (std::vector<float>{7.0F, 8.0F}));

  const TensorId history = op.f32({3, 2}, {0, 0, 14.0F, 0, 0, 0}), scale = op.f32({2}, {1.0F, 1.0F});
  const auto update = [&](float step, bool most_recent) {
    op.run(kScaleUpdate, {amax, history, scale, op.f32({4}, {0, 0, 0, step})},
           ScaleUpdateAttrs{DType::kE4M3, 0, most_recent}, {history, scale});
  };
  update(5, false);  // row 5 mod 3
  EXPECT_EQ(op.values<float>(history), (std::vector<float>{0, 0, 14.0F, 0, 7.0F, 8.0F}));
  EXPECT_EQ(op.values<float>(scale), (std::vector<float>{448.0F / 14, 448.0F / 8}));
  update(6, true);
  EXPECT_EQ(op.values<float>(scale), (std::vector<float>{448.0F / 7, 448.0F / 8}));
  update(7, false);  // the row with 14 is written over
  EXPECT_EQ(op.values<float>(history), (std::vector<float>{7.0F, 8.0F, 7.0F, 8.0F, 7.0F, 8.0F}));
  EXPECT_EQ(op.values<float>(scale), (std::vector<float>{448.0F / 7, 448.0F / 8}));
}

}  // namespace
}  // namespace mbb::trainer
