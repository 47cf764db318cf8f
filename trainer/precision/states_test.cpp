// AdamW's states in fewer bits: the remainder is exactly the fp32 master, stochastic rounding is unbiased and a
// function of its counters.
#include "trainer/precision/states.h"

#include <gtest/gtest.h>

#include <array>
#include <random>

#include "trainer/ops/table.h"
#include "trainer/precision/run_op_test.h"

namespace mbb::trainer {
namespace {

TEST(SplitMaster, ComesBackExactly) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 200'000; ++i) {
    const auto bits = static_cast<uint32_t>(random());
    if ((bits & 0x7f800000U) == 0x7f800000U) continue;
    const float master = std::bit_cast<float>(bits);
    const SplitMaster split = split_master(master);
    ASSERT_EQ(std::bit_cast<uint32_t>(join_master(split)), bits);
    // The weight by itself is the nearest bf16 value; at a tie either neighbour is.
    const double off = std::abs(static_cast<double>(to_float(split.weight)) - static_cast<double>(master));
    const double nearest = std::abs(static_cast<double>(to_float(to_bf16(master))) - static_cast<double>(master));
    if (std::isfinite(nearest)) {
      ASSERT_EQ(off, nearest) << master;
    }
  }
}

TEST(Fp16, EveryFiniteCodeSurvivesAndHalvesGoToEven) {
  for (uint32_t code = 0; code < 0x7c00; ++code) {
    const float value = from_f16(static_cast<uint16_t>(code));
    ASSERT_EQ(to_f16(value), code);
    ASSERT_EQ(to_f16(-value), code | 0x8000);
    if (code + 1 == 0x7c00) break;
    const float middle = (value + from_f16(static_cast<uint16_t>(code + 1))) / 2;
    ASSERT_EQ(to_f16(middle), code % 2 == 0 ? code : code + 1);
  }
  EXPECT_EQ(from_f16(to_f16(1e9F)), kFp16Max);
  EXPECT_TRUE(std::isnan(from_f16(to_f16(std::nanf("")))));
}

// Over all 65536 draws the mean is the value itself, in exact arithmetic of doubles.
TEST(StochasticRounding, IsUnbiasedOverItsDraws) {
  for (const float value : {1.0F, 1.00390625F, 0.1F, -3.14159F, 1e-20F, -7.7e12F}) {
    double sum = 0;
    for (uint32_t draw = 0; draw < 65536; ++draw) sum += static_cast<double>(to_float(stochastic_bf16(value, draw)));
    EXPECT_DOUBLE_EQ(sum / 65536, static_cast<double>(value));
  }
  EXPECT_TRUE(std::isnan(to_float(stochastic_bf16(std::nanf(""), 1))));
  EXPECT_TRUE(std::isinf(to_float(stochastic_bf16(std::numeric_limits<float>::infinity(), 65535))));
}

TEST(StochasticRounding, DrawsFollowFromTheirCounters) {
  EXPECT_EQ(rounding_bits(1, 2, 3), rounding_bits(1, 2, 3));
  EXPECT_NE(rounding_bits(1, 2, 3), rounding_bits(2, 2, 3));
  EXPECT_NE(rounding_bits(1, 2, 3), rounding_bits(1, 3, 3));
  EXPECT_NE(rounding_bits(1, 2, 2), rounding_bits(1, 2, 3));
  // Each bit is set half of the time: within five standard deviations.
  std::array<int, 32> set{};
  constexpr int kDraws = 40'000;
  for (int i = 0; i < kDraws; ++i)
    for (size_t bit = 0; bit < 32; ++bit) set[bit] += rounding_bits(9, 4, static_cast<uint64_t>(i)) >> bit & 1;
  for (const int count : set) EXPECT_NEAR(count, kDraws / 2, 5 * std::sqrt(kDraws) / 2);
}

constexpr int64_t kElements = 64;

std::vector<float> normals(uint64_t seed, double scale) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal(0, scale);
  std::vector<float> values(kElements);
  for (float& v : values) v = static_cast<float>(normal(random));
  return values;
}

// AdamW with one form of the master, step by step.
class Stepper {
 public:
  explicit Stepper(MasterForm form, DType moments = DType::kF32) {
    attrs_.bucket.ranges = {{"w", 0, 40, true, false}, {"b", 40, 24, false, false}};
    attrs_.master = form;
    attrs_.seed = 5;
    const std::vector<float> first = normals(3, 1.0);
    std::vector<Bf16> weights;
    std::vector<uint16_t> remainders;
    for (const float v : first) {
      weights.push_back(split_master(v).weight);
      remainders.push_back(split_master(v).remainder);
    }
    weights_ = form == MasterForm::kNone ? op_.f32({kElements}, first) : op_.input(DType::kBf16, {kElements}, weights);
    const std::vector<std::byte> zeros(kElements * size_of(moments));
    exp_avg_ = op_.input(moments, {kElements}, zeros);
    exp_avg_sq_ = op_.input(moments, {kElements}, zeros);
    if (form == MasterForm::kState) master_ = op_.f32({kElements}, first);
    if (form == MasterForm::kRemainder) master_ = op_.input(DType::kU16, {kElements}, remainders);
  }

  void step(int64_t index, const std::vector<float>& gradient, float rate = 0.01F) {
    const auto t = static_cast<double>(index + 1);
    std::vector<TensorId> in{op_.f32({kElements}, gradient),
                             weights_,
                             exp_avg_,
                             exp_avg_sq_,
                             op_.f32({4}, {rate, static_cast<float>(1 - std::pow(0.9, t)),
                                           static_cast<float>(1 - std::pow(0.95, t)), static_cast<float>(index)}),
                             op_.f32({3}, {1.0F, 1.0F, 0.0F})};
    std::vector<TensorId> out{weights_, exp_avg_, exp_avg_sq_};
    if (master_ != kNoTensor) {
      in.push_back(master_);
      out.push_back(master_);
    }
    op_.run(kAdamW, in, attrs_, out);
  }

  // What the weights stand for.
  std::vector<float> masters() const {
    if (attrs_.master == MasterForm::kState) return op_.values<float>(master_);
    if (attrs_.master == MasterForm::kNone) return op_.values<float>(weights_);
    std::vector<float> all;
    const auto weights = op_.values<Bf16>(weights_);
    for (size_t i = 0; i < weights.size(); ++i)
      all.push_back(attrs_.master == MasterForm::kRemainder
                        ? join_master({weights[i], op_.values<uint16_t>(master_)[i]})
                        : to_float(weights[i]));
    return all;
  }

 private:
  RunOp op_;
  AdamAttrs attrs_;
  TensorId weights_, exp_avg_, exp_avg_sq_, master_ = kNoTensor;
};

TEST(AdamWForms, RemainderIsTheFp32MasterBitForBit) {
  Stepper state(MasterForm::kState), remainder(MasterForm::kRemainder), fp32(MasterForm::kNone);
  for (int64_t step = 0; step < 50; ++step) {
    const auto gradient = normals(static_cast<uint64_t>(100 + step), 0.1);
    for (Stepper* each : {&state, &remainder, &fp32}) each->step(step, gradient);
    ASSERT_EQ(state.masters(), remainder.masters()) << step;
    ASSERT_EQ(state.masters(), fp32.masters()) << step;
  }
}

// Steps far below half a unit of bf16: rounded to nearest no weight would ever move.
TEST(AdamWForms, StochasticWeightsMoveAsFarAsTheMasterOnAverage) {
  Stepper exact(MasterForm::kNone), rounded(MasterForm::kStochastic);
  const std::vector<float> ones(kElements, 1.0F), start = exact.masters();
  for (int64_t step = 0; step < 400; ++step)
    for (Stepper* each : {&exact, &rounded}) each->step(step, ones, 2e-4F);
  double moved = 0, wanted = 0;
  for (size_t i = 0; i < start.size(); ++i) {
    wanted += static_cast<double>(exact.masters()[i]) - static_cast<double>(start[i]);
    moved += static_cast<double>(rounded.masters()[i]) - static_cast<double>(start[i]);
  }
  EXPECT_LT(wanted, -4);
  EXPECT_NEAR(moved, wanted, 0.1 * std::abs(wanted));
}

}  // namespace
}  // namespace mbb::trainer
