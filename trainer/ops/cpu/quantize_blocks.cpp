// Block-scaled quantization and its GEMM on the CPU.
#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <vector>

#include "trainer/data/rng.h"
#include "trainer/ops/block_table.h"
#include "trainer/ops/cpu/decode.h"
#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/cpu/operand.h"
#include "trainer/ops/cpu/product.h"
#include "trainer/precision/scales.h"

namespace mbb::trainer {
namespace {

uint8_t* bytes_in(const CpuOperand& operand) {
  return static_cast<uint8_t*>(operand.data);
}

// One copy: rows of values, blocks along their inner dimension.
struct Matrix {
  std::vector<float> values;
  int64_t rows = 0, inner = 0;
  float at(int64_t r, int64_t c) const { return values[static_cast<size_t>(r * inner + c)]; }
};

Matrix transposed(const Matrix& x) {
  Matrix t{std::vector<float>(x.values.size()), x.inner, x.rows};
  for (int64_t r = 0; r < t.rows; ++r)
    for (int64_t c = 0; c < t.inner; ++c) t.values[static_cast<size_t>(r * t.inner + c)] = x.at(c, r);
  return t;
}

// Every whole group of 16 values of a row, v, becomes H·D·v / 4: D a diagonal of signs, H the Hadamard matrix whose
// element (i, j) is −1 to the number of bits that i and j share. H·D/4 is orthogonal, so products of two rotated
// operands are those of the operands. What is left of a row stays as it is, on both sides alike. Sums are fp32's, in
// the order of the loops: all who rotate add in it and get the same bits.
void rotate(Matrix& x, int64_t signs) {
  constexpr int64_t kOrder = 16;
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t first = 0; first + kOrder <= x.inner; first += kOrder) {
      float* const v = x.values.data() + r * x.inner + first;
      for (int64_t j = 0; j < kOrder; ++j) v[j] *= ((signs >> j) & 1) != 0 ? -0.25F : 0.25F;
      // One bit of i and j after another: sums and differences of pairs.
      for (int64_t bit = 1; bit < kOrder; bit *= 2) {
        for (int64_t i = 0; i < kOrder; ++i) {
          if ((i & bit) != 0) continue;
          const float a = v[i], b = v[i | bit];
          v[i] = a + b;
          v[i | bit] = a - b;
        }
      }
    }
  }
}

// The larger magnitude; NaN when either is.
float larger(float amax, float value) {
  return std::isnan(amax) || std::isnan(value) ? std::nanf("") : std::max(amax, std::abs(value));
}

float amax_of(const Matrix& x) {
  float amax = 0;
  for (const float value : x.values) amax = larger(amax, value);
  return amax;
}

// The largest magnitude of each block.
std::vector<float> block_amaxes(const Matrix& x, const BlockTable& table) {
  std::vector<float> amax(static_cast<size_t>(table.size()));
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t c = 0; c < x.inner; ++c) {
      float& of_block = amax[static_cast<size_t>(table.at(r, c))];
      of_block = larger(of_block, x.at(r, c));
    }
  }
  return amax;
}

// Where one copy goes.
struct Target {
  const CpuOperand &q, &scales;
  const CpuOperand* inverse = nullptr;  // E4M3 scales: the copy's inverse scale
};

// Stores the inverse scale of block `at` and returns the factor that its values are multiplied with.
float store_scale(const QuantizeBlocksAttrs& a, const Target& to, int64_t at, float amax, float largest,
                  float tensor_scale_of_copy) {
  switch (a.scale) {
    case BlockScale::kF32:
    case BlockScale::kPowerOfTwo: {
      const float scale = tensor_scale(amax, a.to, largest);
      const float used = a.scale == BlockScale::kF32 ? scale : power_of_two_below(scale);
      static_cast<float*>(to.scales.data)[at] = 1.0F / used;
      return used;
    }
    case BlockScale::kE8M0: {
      const uint8_t code = e8m0_inverse_scale(amax, fp8_max(a.to));
      bytes_in(to.scales)[at] = code;
      return std::ldexp(1.0F, 127 - code);
    }
    case BlockScale::kE4M3: break;
  }
  // amax / 6 is the block's inverse scale; kept relative to the tensor's. What rounds to zero makes the block zero.
  const uint8_t code = to_fp8(amax / kFp4Max * tensor_scale_of_copy, DType::kE4M3);
  bytes_in(to.scales)[at] = code;
  const float kept = from_fp8(code, DType::kE4M3);
  return kept == 0.0F ? 0.0F : tensor_scale_of_copy / kept;
}

// Rounds an element of a copy to a code; (row, column) are those of the copy.
template <typename Round>
void quantize_copy(const QuantizeBlocksAttrs& a, const Matrix& x, const BlockTable& table, const Target& to,
                   float largest, Round&& round) {
  float of_copy = 1.0F;
  if (to.inverse != nullptr) {
    of_copy = fp4_tensor_scale(amax_of(x));
    static_cast<float*>(to.inverse->data)[0] = 1.0F / of_copy;
  }
  std::vector<float> factors = block_amaxes(x, table);
  for (size_t i = 0; i < factors.size(); ++i)
    factors[i] = store_scale(a, to, static_cast<int64_t>(i), factors[i], largest, of_copy);
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t c = 0; c < x.inner; ++c) {
      const uint8_t code = round(x.at(r, c) * factors[static_cast<size_t>(table.at(r, c))], r, c);
      if (a.to == DType::kE2M1)
        set_fp4(bytes_in(to.q), r * x.inner + c, code);
      else
        bytes_in(to.q)[r * x.inner + c] = code;
    }
  }
}

// Random bits by sample and element of the sample, whichever micro-batch it is in; the copies have a stream each.
// Sixteen neighbours of a row share a draw.
class Rounding {
 public:
  Rounding(const CpuCall& call, const QuantizeBlocksAttrs& a) : to_(a.to), cols_(call.in[0].tensor->shape.cols()) {
    if (!a.stochastic) return;
    samples_ = ints(call.in[1]);
    batch_ = call.in[1].elements();
    const auto step = static_cast<uint64_t>(ReadF32(call.in[2])[StepRecord::kStep]);
    const uint64_t key = rng_mix(static_cast<uint64_t>(a.stream) ^ (step + kRngGamma));
    streams_ = {RandomStream(key), RandomStream(rng_mix(key))};  // of the two copies
  }

  uint8_t operator()(float value, int64_t token, int64_t column, size_t copy) const {
    if (samples_ == nullptr) return to_ == DType::kE2M1 ? to_fp4(value) : to_fp8(value, to_);
    const auto sample = static_cast<uint64_t>(samples_[token % batch_]);
    const int64_t sixteen = token / batch_ * ((cols_ + 15) / 16) + column / 16;
    return to_fp4_stochastic(value,
                             nine_bits(streams_[copy].block(sample, static_cast<uint64_t>(sixteen), kRoundingRounds),
                                       static_cast<int>(column % 16)));
  }

 private:
  DType to_;
  int64_t cols_;
  const int32_t* samples_ = nullptr;
  int64_t batch_ = 1;
  std::array<RandomStream, 2> streams_{RandomStream(0), RandomStream(0)};
};

}  // namespace

Status cpu_quantize_blocks(const CpuCall& call) {
  const auto& a = call.attrs<QuantizeBlocksAttrs>();
  const ReadF32 x(call.in[0]);
  const Shape& shape = call.in[0].tensor->shape;
  const float largest = largest_of(call.in[0].tensor->dtype);
  const Matrix rows{{x.data(), x.data() + call.in[0].elements()}, shape.rows(), shape.cols()};
  const bool with_inverse = a.scale == BlockScale::kE4M3;
  const Rounding rounding(call, a);
  const BlockTable of_rows{rows.rows, rows.inner, a.block, a.square, a.stack, 1};
  const BlockTable of_columns{rows.inner, rows.rows, a.block, a.square, 1, a.stack};
  if (call.out[0].data != nullptr)
    quantize_copy(a, rows, of_rows, {call.out[0], call.out[1], with_inverse ? &call.out[4] : nullptr}, largest,
                  [&](float value, int64_t r, int64_t c) { return rounding(value, r, c, 0); });
  if (call.out[2].data == nullptr) return {};
  Matrix columns = transposed(rows);
  if (a.rotate) rotate(columns, a.rotate_signs);
  quantize_copy(a, columns, of_columns, {call.out[2], call.out[3], with_inverse ? &call.out[5] : nullptr}, largest,
                [&](float value, int64_t r, int64_t c) { return rounding(value, c, r, 1); });
  return {};
}

Status cpu_gemm_blocks(const CpuCall& call) {
  const auto& attrs = call.attrs<GemmBlocksAttrs>();
  const bool with_inverse = call.in.size() >= 6;
  const float a_inverse = with_inverse ? ReadF32(call.in[4])[0] : 1.0F;
  const float b_inverse = with_inverse ? ReadF32(call.in[5])[0] : 1.0F;
  std::optional<ReadF32> before;
  if (attrs.accumulate) before.emplace(call.in.back());
  WriteF32 d(call.out[0]);
  const int64_t n = call.in[1].tensor->shape.rows();
  products(decode_blocks(call.in[0], call.in[2], a_inverse, block_table(call.in[0], attrs.block, attrs.a_square)),
           decode_blocks(call.in[1], call.in[3], b_inverse, block_table(call.in[1], attrs.block, attrs.b_square)),
           call.in[0].tensor->shape.cols(), [&](int64_t i, const std::vector<double>& row) {
             for (int64_t j = 0; j < n; ++j)
               d[i * n + j] = static_cast<float>((before ? static_cast<double>((*before)[i * n + j]) : 0.0) +
                                                 row[static_cast<size_t>(j)]);
           });
  return {};
}

}  // namespace mbb::trainer
