// AdamW on the CPU, over this rank's shard of a flat bucket, with states of any form.
#include <cmath>
#include <optional>
#include <vector>

#include "trainer/ops/cpu/bucket.h"
#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/cpu/operand.h"
#include "trainer/precision/fp8.h"
#include "trainer/precision/states.h"

namespace mbb::trainer {
namespace {

// A moment of the shard (or an fp16 master), read and written a range at a time. Types of 16 and 8 bits but bf16 have
// an inverse scale a range; bf16 is rounded stochastically.
class Moment {
 public:
  Moment(const CpuOperand& operand, float* inverse) : operand_(operand), inverse_(inverse) {}

  void read(size_t range, int64_t begin, int64_t end, std::vector<float>& values) const {
    values.clear();
    for (int64_t i = begin; i < end; ++i) values.push_back(load(range, i));
  }

  // bits(i): 16 random bits of element i. A square that is not zero is kept above zero.
  template <typename Bits>
  void write(size_t range, int64_t begin, const std::vector<float>& values, bool square, Bits&& bits) {
    if (operand_.tensor->dtype == DType::kF32 || operand_.tensor->dtype == DType::kBf16) {
      for (size_t i = 0; i < values.size(); ++i) {
        const int64_t at = begin + static_cast<int64_t>(i);
        if (operand_.tensor->dtype == DType::kF32)
          static_cast<float*>(operand_.data)[at] = values[i];
        else
          static_cast<Bf16*>(operand_.data)[at] = stochastic_bf16(values[i], bits(at));
      }
      return;
    }
    float amax = 0;
    for (const float value : values) amax = std::max(amax, std::abs(value));
    const float largest = operand_.tensor->dtype == DType::kF16 ? kFp16Max : fp8_max(operand_.tensor->dtype);
    float scale = amax > 0 ? largest / amax : 1.0F;
    if (std::isinf(scale)) scale = std::numeric_limits<float>::max();
    inverse_[range] = 1.0F / scale;
    for (size_t i = 0; i < values.size(); ++i) {
      const int64_t at = begin + static_cast<int64_t>(i);
      const float scaled = values[i] * scale;
      if (operand_.tensor->dtype == DType::kF16) {
        const uint16_t code = to_f16(scaled);
        static_cast<uint16_t*>(operand_.data)[at] = square && code == 0 && values[i] != 0 ? 1 : code;
      } else {
        const uint8_t code = to_fp8(scaled, operand_.tensor->dtype);
        static_cast<uint8_t*>(operand_.data)[at] = square && code == 0 && values[i] != 0 ? 1 : code;
      }
    }
  }

 private:
  float load(size_t range, int64_t i) const {
    switch (operand_.tensor->dtype) {
      case DType::kF32: return static_cast<const float*>(operand_.data)[i];
      case DType::kBf16: return to_float(static_cast<const Bf16*>(operand_.data)[i]);
      case DType::kF16: return from_f16(static_cast<const uint16_t*>(operand_.data)[i]) * inverse_[range];
      default: return from_fp8(static_cast<const uint8_t*>(operand_.data)[i], operand_.tensor->dtype) * inverse_[range];
    }
  }

  const CpuOperand& operand_;
  float* inverse_;
};

// The fp32 value that an element of the weights stands for.
class Master {
 public:
  Master(MasterForm form, const CpuOperand& weights, const CpuOperand* state, int64_t first_weight, int64_t begin)
      : form_(form), weights_(weights), state_(state), first_weight_(first_weight), begin_(begin) {}

  float read(int64_t i) const {
    switch (form_) {
      case MasterForm::kState: return static_cast<const float*>(state_->data)[i - begin_];
      case MasterForm::kRemainder:
        return join_master({weight<Bf16>(i), static_cast<const uint16_t*>(state_->data)[i - begin_]});
      case MasterForm::kStochastic: return to_float(weight<Bf16>(i));
      case MasterForm::kScaled:  // read and written a range at a time
      case MasterForm::kNone: break;
    }
    return weight<float>(i);
  }

  void write(int64_t i, float value, uint32_t random16) {
    switch (form_) {
      case MasterForm::kNone: weight<float>(i) = value; return;
      case MasterForm::kState:
        static_cast<float*>(state_->data)[i - begin_] = value;
        if (weights_.tensor->dtype == DType::kBf16) weight<Bf16>(i) = to_bf16(value);
        return;
      case MasterForm::kRemainder: {
        const SplitMaster split = split_master(value);
        weight<Bf16>(i) = split.weight;
        static_cast<uint16_t*>(state_->data)[i - begin_] = split.remainder;
        return;
      }
      case MasterForm::kStochastic: weight<Bf16>(i) = stochastic_bf16(value, random16); return;
      case MasterForm::kScaled: weight<Bf16>(i) = to_bf16(value); return;
    }
  }

 private:
  template <typename T>
  T& weight(int64_t i) const {
    return static_cast<T*>(weights_.data)[i - first_weight_];
  }

  MasterForm form_;
  const CpuOperand& weights_;
  const CpuOperand* state_;
  int64_t first_weight_, begin_;
};

}  // namespace

// Decoupled weight decay; bias corrections come from the step record. A step with non-finite gradients changes nothing.
Status cpu_adamw(const CpuCall& call) {
  const auto& a = call.attrs<AdamAttrs>();
  const ReadF32 grads(call.in[0]);
  const ReadF32 record(call.in[4]);
  const ReadF32 scale(call.in[5]);
  if (scale[2] != 0.0F) return {};
  const bool stateful = a.master != MasterForm::kNone && a.master != MasterForm::kStochastic;
  const int64_t elements = bucket_elements(a.bucket, call.in[0]);
  const Shard shard = shard_of(a.bucket, elements, call.rank);
  const int64_t first_grad = first_element(call.in[0], elements, shard);
  auto* const inverse = a.scaled ? static_cast<float*>(call.out.back().data) : nullptr;
  Master master(a.master, call.out[0], stateful ? &call.out[3] : nullptr, first_element(call.in[1], elements, shard),
                shard.begin);
  Moment exp_avg(call.out[1], inverse);
  Moment exp_avg_sq(call.out[2], inverse == nullptr ? nullptr : inverse + a.bucket.ranges.size());
  std::optional<Moment> scaled_master;
  if (a.master == MasterForm::kScaled) scaled_master.emplace(call.out[3], inverse + 2 * a.bucket.ranges.size());
  const double rate = static_cast<double>(record[StepRecord::kLearningRate]);
  const double correction1 = static_cast<double>(record[StepRecord::kBiasCorrection1]);
  const double correction2 = static_cast<double>(record[StepRecord::kBiasCorrection2]);
  const double beta1 = static_cast<double>(a.beta1);
  const double beta2 = static_cast<double>(a.beta2);
  const auto random = [&](int64_t i) {
    return rounding_bits(static_cast<uint32_t>(a.seed), static_cast<uint32_t>(record[StepRecord::kStep]),
                         static_cast<uint64_t>(i));
  };
  const auto moment_bits = [&](int64_t local) { return random(local + shard.begin) >> 16; };
  std::vector<float> first, second, masters;
  for_ranges(a.bucket, shard, [&](size_t range, int64_t begin, int64_t end) {
    const double decay = a.bucket.ranges[range].decay ? rate * static_cast<double>(a.weight_decay) : 0.0;
    exp_avg.read(range, begin - shard.begin, end - shard.begin, first);
    exp_avg_sq.read(range, begin - shard.begin, end - shard.begin, second);
    if (scaled_master) scaled_master->read(range, begin - shard.begin, end - shard.begin, masters);
    for (int64_t i = begin; i < end; ++i) {
      const auto at = static_cast<size_t>(i - begin);
      const double g = static_cast<double>(grads[i - first_grad]) * static_cast<double>(scale[0]);
      const double m = beta1 * static_cast<double>(first[at]) + (1.0 - beta1) * g;
      const double v = beta2 * static_cast<double>(second[at]) + (1.0 - beta2) * g * g;
      first[at] = static_cast<float>(m);
      second[at] = static_cast<float>(v);
      const double update = (m / correction1) / (std::sqrt(v / correction2) + static_cast<double>(a.eps));
      const double before = static_cast<double>(scaled_master ? masters[at] : master.read(i));
      const auto after = static_cast<float>(before - decay * before - rate * update);
      master.write(i, after, random(i) & 0xffffU);
      if (scaled_master) masters[at] = after;
    }
    if (scaled_master) scaled_master->write(range, begin - shard.begin, masters, false, moment_bits);
    exp_avg.write(range, begin - shard.begin, first, false, moment_bits);
    exp_avg_sq.write(range, begin - shard.begin, second, true, moment_bits);
  });
  return {};
}

}  // namespace mbb::trainer
