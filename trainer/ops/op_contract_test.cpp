// Every differentiable op case: gradients from the record's rule, run on the CPU, against finite differences.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>
#include <set>

#include "trainer/ops/op_case.h"
#include "trainer/ops/table.h"
#include "trainer/program/autodiff.h"
#include "trainer/program/verify.h"

namespace mbb::trainer {
namespace {

// A one-op program with its backward, and a buffer for every tensor.
class OneOp {
 public:
  OneOp(const OpCase& op_case, uint32_t seed) : case_(op_case), random_(seed) {
    Builder b(program_);
    for (const CaseInput& input : op_case.in) inputs_.push_back(declare(b, input));
    forward_ = b.add_segment("forward", SegmentKind::kForward, 0);
    outputs_ = b.emit(*op_case.kind, "op.fwd", inputs_, op_case.attrs);
    if (!op_case.differentiable) return;
    Tensor seed_tensor = b.tensor(outputs_[0]);
    seed_tensor.path = "seed";
    seed_ = b.declare(seed_tensor);
    std::map<TensorId, TensorId> seeds{{outputs_[0], seed_}};
    for (size_t i = 0; i < inputs_.size(); ++i)
      if (!op_case.in[i].fixed && b.tensor(inputs_[i]).dtype == DType::kF32) wanted_.push_back(inputs_[i]);
    backward_ = b.add_segment("backward", SegmentKind::kBackward, 0);
    Autodiff autodiff(b);
    autodiff.run(forward_, seeds, {wanted_.begin(), wanted_.end()});
    for (TensorId id : wanted_) {
      const Tensor& t = program_.tensor(id);
      grads_[id] = t.main_grad != kNoTensor ? t.main_grad : autodiff.grad_of(id);
    }
    buffers_.resize(program_.tensors.size());
    for (size_t i = 0; i < buffers_.size(); ++i)
      buffers_[i].assign(static_cast<size_t>(program_.tensors[i].bytes()), std::byte{0xff});
    for (size_t i = 0; i < inputs_.size(); ++i) fill(inputs_[i], case_.in[i]);
    fill(seed_, CaseInput{});
  }

  void check_gradients() {
    run(forward_);
    run(backward_);
    for (TensorId id : wanted_) {
      ASSERT_NE(grads_[id], kNoTensor) << "no gradient for " << program_.tensor(id).path;
      const std::vector<float> grad = floats(grads_[id]);
      double error = 0;
      double norm = 0;
      for (int64_t i = 0; i < program_.tensor(id).shape.elements(); ++i) {
        const double numeric = difference(id, i);
        error += std::pow(numeric - static_cast<double>(grad[static_cast<size_t>(i)]), 2);
        norm += numeric * numeric;
      }
      EXPECT_LE(std::sqrt(error), case_.tolerance * std::max(1e-3, std::sqrt(norm))) << program_.tensor(id).path;
    }
  }

  // Once more with the accumulating variant: the main gradient doubles.
  void check_accumulation() {
    std::map<TensorId, std::vector<float>> once;
    for (TensorId id : wanted_)
      if (program_.tensor(id).main_grad != kNoTensor) once[id] = floats(grads_[id]);
    run(forward_);  // what the differences left behind belongs to other inputs
    run(backward_, /*first=*/false);
    for (const auto& [id, before] : once) {
      const std::vector<float> after = floats(grads_[id]);
      for (size_t i = 0; i < before.size(); ++i) ASSERT_NEAR(after[i], 2 * before[i], 1e-5 * (1 + std::abs(before[i])));
    }
  }

  std::set<std::string_view> kinds() const {
    std::set<std::string_view> all;
    for (const Segment& segment : program_.segments)
      for (const Op& op : segment.ops) all.insert(op.kind->name);
    return all;
  }

 private:
  TensorId declare(Builder& b, const CaseInput& input) {
    Tensor t;
    t.path = "in" + std::to_string(program_.tensors.size());
    t.dtype = input.dtype;
    t.shape = input.shape;
    if (input.weight) {
      Tensor grad = t;
      grad.path += ".main_grad";
      grad.dtype = DType::kF32;
      t.main_grad = b.declare(grad);
    }
    return b.declare(t);
  }

  void fill(TensorId id, const CaseInput& input) {
    CaseInput whole = input;
    whole.shape = program_.tensor(id).shape;
    const std::vector<double> values = case_values(whole, random_);
    void* data = buffers_[static_cast<size_t>(id)].data();
    for (size_t i = 0; i < values.size(); ++i) {
      if (program_.tensor(id).dtype == DType::kI32)
        static_cast<int32_t*>(data)[i] = static_cast<int32_t>(values[i]);
      else
        static_cast<float*>(data)[i] = static_cast<float>(values[i]);
    }
  }

  void run(int segment, bool first = true) {
    Mesh mesh;
    RankContext context{&mesh, 0, mesh.coordinates(0), {}};
    for (const Op& op : program_.segments[static_cast<size_t>(segment)].ops) {
      if (!runs(op.when, first, !first)) continue;
      std::vector<CpuOperand> in;
      std::vector<CpuOperand> out;
      for (TensorId id : op.in) in.push_back({buffers_[static_cast<size_t>(id)].data(), &program_.tensor(id)});
      for (TensorId id : op.out) out.push_back({buffers_[static_cast<size_t>(id)].data(), &program_.tensor(id)});
      const Status status = op.kind->cpu(CpuCall{op, in, out, context});
      ASSERT_TRUE(status.has_value()) << status.error().what;
    }
  }

  std::vector<float> floats(TensorId id) {
    const auto* data = reinterpret_cast<const float*>(buffers_[static_cast<size_t>(id)].data());
    return {data, data + program_.tensor(id).shape.elements()};
  }

  double objective() {
    run(forward_);
    const std::vector<float> y = floats(outputs_[0]);
    const std::vector<float> w = floats(seed_);
    double sum = 0;
    for (size_t i = 0; i < y.size(); ++i) sum += static_cast<double>(y[i]) * static_cast<double>(w[i]);
    return sum;
  }

  double difference(TensorId id, int64_t i) {
    float& x = reinterpret_cast<float*>(buffers_[static_cast<size_t>(id)].data())[i];
    const float held = x;
    constexpr float kStep = 1e-2F;
    x = held + kStep;
    const double up = objective();
    x = held - kStep;
    const double down = objective();
    x = held;
    return (up - down) / (2.0 * static_cast<double>(kStep));
  }

  const OpCase& case_;
  std::mt19937_64 random_;
  Program program_;
  std::vector<TensorId> inputs_, outputs_, wanted_;
  TensorId seed_ = kNoTensor;
  std::map<TensorId, TensorId> grads_;
  std::vector<std::vector<std::byte>> buffers_;
  int forward_ = 0, backward_ = 0;
};

std::vector<OpCase> differentiable_cases() {
  std::vector<OpCase> cases = op_cases();
  const std::vector<OpCase> one_token = one_token_cases();
  cases.insert(cases.end(), one_token.begin(), one_token.end());
  std::erase_if(cases, [](const OpCase& c) { return !c.differentiable; });
  return cases;
}

class OpCases : public testing::TestWithParam<OpCase> {};

TEST_P(OpCases, GradientsEqualFiniteDifferences) {
  if (!GetParam().differentiable)
    GTEST_SKIP() << "no gradient of its own: the op is part of a backward or of the optimizer";
  OneOp op(GetParam(), std::random_device{}());
  op.check_gradients();
  op.check_accumulation();
}

INSTANTIATE_TEST_SUITE_P(All, OpCases, testing::ValuesIn(differentiable_cases()), [](const auto& test) {
  std::string name = test.param.name;
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
});

// A record without a case of its own is in the backward of one that has, or of those below: messages, and what the
// device's own tests have cases of.
const std::set<std::string_view> kMessagesAndDelays{
    "all_gather",   "reduce_scatter", "all_reduce", "all_to_all",      "send",  "recv",
    "reshard_send", "reshard_recv",   "ring_shift", "all_to_all_rows", "delay", "group_identity"};

std::set<std::string_view> ops_in(const std::vector<OpCase>& cases) {
  std::set<std::string_view> in = kMessagesAndDelays;
  for (const OpCase& c : cases) {
    in.insert(c.kind->name);
    const std::set<std::string_view> kinds = OneOp(c, 1).kinds();
    in.insert(kinds.begin(), kinds.end());
  }
  return in;
}

TEST(OpTable, EveryOpIsInACase) {
  std::set<std::string_view> in = ops_in(op_cases());
  in.insert({"dispatch_plan", "expert_load"});
  for (const OpKind* kind : op_table()) EXPECT_TRUE(in.contains(kind->name)) << kind->name;
}

// But those without rows, and FP8 tiles, of which a device refuses fewer than 16 rows.
TEST(OpTable, EveryOpOfRowsIsInACaseOfOneToken) {
  std::set<std::string_view> in = ops_in(one_token_cases());
  in.insert({"grad_square_sum", "scalar_sum", "grad_scale", "adamw", "amax_record", "scale_update", "bucket_amax",
             "bucket_quantize", "loss_sum", "expert_bias", "expert_load"});
  in.insert({"quantize", "quantize_delayed", "rmsnorm_quantize", "swiglu_quantize", "swiglu_grad_quantize"});
  for (const OpKind* kind : op_table()) EXPECT_TRUE(in.contains(kind->name)) << kind->name;
}

TEST(OpTable, EveryRecordIsWhole) {
  std::map<std::string_view, int> names;
  for (const OpKind* kind : op_table()) {
    EXPECT_EQ(++names[kind->name], 1) << kind->name;
    EXPECT_NE(kind->shape, nullptr) << kind->name;
    EXPECT_NE(kind->cpu, nullptr) << kind->name;
    EXPECT_FALSE(kind->cuda.empty()) << kind->name;
    EXPECT_EQ(find_op_kind(kind->name), kind);
  }
}

}  // namespace
}  // namespace mbb::trainer
