// Every op case, forward and backward, on the device against the CPU oracle on the same fresh random inputs; in fp32
// and bf16, and at shapes that take the vector and tensor-core paths.
#include <cctype>
#include <cmath>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <set>

#include "trainer/execute/cuda/device_cases_test.h"
#include "trainer/execute/cuda/op_call.h"
#include "trainer/ops/cuda/gpu_fixture_test.h"
#include "trainer/ops/far_element_test.h"
#include "trainer/ops/op_case.h"
#include "trainer/ops/table.h"
#include "trainer/precision/scales.h"
#include "trainer/precision/states.h"
#include "trainer/program/autodiff.h"
#include "trainer/program/builder.h"

namespace mbb::trainer::cuda {
namespace {

using HostTensor = mbb::trainer::Tensor;

// What stays fp32 whatever the model's type is: router logits and weights, attention's matrix, step records.
bool stays_f32(const OpCase& c, size_t input) {
  const OpKind* const kind = c.kind;
  const bool router = kind == &kRouterSelect || kind == &kRouterWeights || kind == &kRouterLoss;
  const bool matrix =
      kind == &kScaleMask || kind == &kSoftmax || kind == &kMaskedSoftmax || (kind == &kAttentionContext && input == 0);
  return router || matrix || (kind == &kCombine && input == 2) || (kind == &kWeightedSum && input == 1) ||
         c.in[input].fixed;
}

// What is rounded once, from operands that both sides hold alike and maxima of them, is the oracle's bit by bit.
bool is_exact(const OpKind* kind) {
  const std::set<const OpKind*> exact{&kQuantize,
                                      &kQuantizeDelayed,
                                      &kQuantizeBlocks,
                                      &kQuantizeTokens,
                                      &kDequantizeTokens,
                                      &kPackFp8,
                                      &kUnpackFp8,
                                      &kAmaxRecord,
                                      &kTransposeQuantized,
                                      &kBucketAmax,
                                      &kBucketQuantize,
                                      &kCast,
                                      &kScaleUpdate,
                                      &kCopy,
                                      &kFill};
  return exact.contains(kind);
}

struct Variant {
  OpCase op_case;
  bool bf16 = false;
  const char* left_out = "";      // which copy of a quantized value is
  std::vector<size_t> outputs{};  // and its outputs
};

// Both types where the op has a gradient (activations and weights); the optimizer's and the loss's fixed types
// otherwise.
std::vector<Variant> variants() {
  std::vector<Variant> all;
  for (const OpCase& c : device_cases()) {
    all.push_back({c, false});
    if (c.differentiable) all.push_back({c, true});
    const bool blocks = c.kind->optional_outputs > 2;  // with scales, and inverses of NVFP4's copies
    if (c.kind->optional_outputs == 0) continue;
    all.push_back({c, false, "_turned", blocks ? std::vector<size_t>{0, 1, 4} : std::vector<size_t>{0}});
    all.push_back({c, false, "_plain", blocks ? std::vector<size_t>{2, 3, 5} : std::vector<size_t>{1}});
  }
  return all;
}

class OpOnBoth {
 public:
  OpOnBoth(const Variant& variant, std::mt19937_64& random) : variant_(variant), random_(random) {
    Builder b(program_);
    for (size_t i = 0; i < variant.op_case.in.size(); ++i)
      inputs_.push_back(declare(b, variant.op_case.in[i], variant.bf16 && !stays_f32(variant.op_case, i)));
    b.add_segment("forward", SegmentKind::kForward, 0);
    EmitOptions options;
    if (variant.op_case.kind == &kAdamW) {  // updates weights, moments and master in place
      options.out = {inputs_[1], inputs_[2], inputs_[3]};
      for (size_t i = 6; i < inputs_.size(); ++i) options.out.push_back(inputs_[i]);  // master, inverse scales
    }
    // An accumulating GEMM adds to its last input.
    const auto* gemm = std::get_if<GemmAttrs>(&variant.op_case.attrs);
    const auto* scaled = std::get_if<ScaledGemmAttrs>(&variant.op_case.attrs);
    if ((gemm != nullptr && gemm->accumulate) || (scaled != nullptr && scaled->accumulate))
      options.out = {inputs_.back()};
    const auto* amax = std::get_if<AmaxAttrs>(&variant.op_case.attrs);
    if (amax != nullptr && amax->accumulate) options.out = {inputs_.back()};
    if (variant.op_case.kind == &kScaleUpdate) options.out = {inputs_[1], inputs_[2]};
    if (variant.op_case.kind == &kBucketQuantize) options.out = {inputs_[2]};
    if (variant.op_case.kind == &kGemmRows && inputs_.size() > 2) options.out = {inputs_[2]};
    if (variant.op_case.kind == &kGemmScaledRows && inputs_.size() > 4) options.out = {inputs_[4]};
    if (variant.op_case.kind == &kExpertBias) options.out = {inputs_[1]};
    if (variant.op_case.kind == &kCast)
      options.out = {declare(b, {program_.tensor(inputs_[0]).shape}, program_.tensor(inputs_[0]).dtype == DType::kF32)};
    const auto* loss = std::get_if<LossSumAttrs>(&variant.op_case.attrs);
    if ((loss != nullptr && loss->accumulate) || (variant.op_case.kind == &kCrossEntropyLoss && inputs_.size() > 4))
      options.out = {inputs_.back()};
    const auto outputs = b.emit(*variant.op_case.kind, "op.fwd", inputs_, variant.op_case.attrs, options);
    for (const size_t i : variant.outputs)
      if (i < outputs.size()) program_.tensor(outputs[i]).left_out = true;
    if (variant.op_case.differentiable) {
      HostTensor gradient = b.tensor(outputs[0]);
      gradient.path = "dout";
      const TensorId dout = b.declare(gradient);
      std::set<TensorId> wanted;
      for (size_t i = 0; i < inputs_.size(); ++i)
        if (is_float(program_.tensor(inputs_[i]).dtype) && !variant.op_case.in[i].fixed) wanted.insert(inputs_[i]);
      const int forward = b.segment();
      b.add_segment("backward", SegmentKind::kBackward, 0);
      Autodiff(b).run(forward, {{outputs[0], dout}}, wanted);
      inputs_.push_back(dout);
    }
    host_.resize(program_.tensors.size());
    for (size_t i = 0; i < host_.size(); ++i) {
      const auto bytes = static_cast<size_t>(program_.tensors[i].bytes());
      host_[i].assign(bytes, std::byte{0xff});
      device_.push_back(std::make_unique<DeviceBytes>(bytes));
    }
    for (size_t i = 0; i < inputs_.size(); ++i)
      fill(inputs_[i], i < variant.op_case.in.size() ? variant.op_case.in[i] : CaseInput{});
    for (size_t i = 0; i < host_.size(); ++i) device_[i]->upload(host_[i].data());
  }

  void run_and_compare(Device& device) {
    Mesh mesh;
    const MeshCoordinates coordinates = mesh.coordinates(0);
    const RankContext context{&mesh, 0, coordinates, {}};
    for (const Segment& segment : program_.segments) {
      for (const Op& op : segment.ops) {
        if (!runs(op.when, true, false)) continue;
        SCOPED_TRACE(op.path + " " + std::string(op.kind->name));
        std::vector<CpuOperand> in, out;
        std::vector<Operand> device_in, device_out;
        for (const TensorId id : op.in) bind(id, in, device_in);
        for (const TensorId id : op.out) bind(id, out, device_out);
        const Status on_cpu = op.kind->cpu(CpuCall{op, in, out, context});
        ASSERT_TRUE(on_cpu.has_value()) << format(on_cpu.error());
        const Status on_device =
            find_op_function(op.kind->cuda)(OpCall{op, device_in, device_out, coordinates, 0, device});
        // A refusal; the driver's own errors end with their name.
        if (!on_device && on_device.error().code == ErrorCode::kUnavailable &&
            on_device.error().what.find("(cudaError") == std::string::npos)
          GTEST_SKIP() << format(on_device.error());
        ASSERT_TRUE(on_device.has_value()) << format(on_device.error());
        ASSERT_EQ(cudaStreamSynchronize(device.stream()), cudaSuccess);
        for (const std::string& note : device.notes()) std::cout << "[   note   ] " << note << "\n";
        refused_ = !device.notes().empty();
        for (const TensorId id : op.out)
          if (!program_.tensor(id).left_out) compare(id);
      }
    }
  }

  // What the device says of the forward op.
  Status forward_on(Device& device) {
    const Op& op = program_.segments[0].ops[0];
    std::vector<CpuOperand> host;
    std::vector<Operand> in, out;
    for (const TensorId id : op.in) bind(id, host, in);
    for (const TensorId id : op.out) bind(id, host, out);
    return find_op_function(op.kind->cuda)(OpCall{op, in, out, {}, 0, device});
  }

 private:
  TensorId declare(Builder& b, const CaseInput& input, bool bf16) {
    HostTensor t;
    t.path = "in" + std::to_string(program_.tensors.size());
    t.dtype = bf16 && input.dtype == DType::kF32 ? DType::kBf16 : input.dtype;
    t.shape = input.shape;
    if (input.weight) {
      HostTensor grad = t;
      grad.path += ".main_grad";
      grad.dtype = DType::kF32;
      t.main_grad = b.declare(grad);
    }
    return b.declare(t);
  }

  void fill(TensorId id, const CaseInput& input) {
    const HostTensor& t = program_.tensor(id);
    void* data = host_[static_cast<size_t>(id)].data();
    std::uniform_real_distribution<float> uniform(0.0f, 1.0f);
    CaseInput whole = input;
    whole.shape = t.shape;
    const std::vector<double> values = case_values(whole, random_);
    for (int64_t i = 0; i < t.shape.elements(); ++i) {
      auto value = static_cast<float>(values[static_cast<size_t>(i)]);
      if (t.dtype == DType::kI32) {
        static_cast<int32_t*>(data)[i] = static_cast<int32_t>(values[static_cast<size_t>(i)]);
        continue;
      }
      if (t.dtype == DType::kE2M1) {
        set_fp4(static_cast<uint8_t*>(data), i, static_cast<uint8_t>(random_() & 15));
        continue;
      }
      if (t.dtype == DType::kE8M0) {
        static_cast<uint8_t*>(data)[i] = static_cast<uint8_t>(120 + random_() % 16);
        continue;
      }
      if (bits_of(t.dtype) == 8) {  // small exponents: no NaN, and sums that fp32 holds
        static_cast<uint8_t*>(data)[i] =
            static_cast<uint8_t>(random_() & (input.fill == Fill::kPositive ? 0x37 : 0xb7));
        continue;
      }
      // A grad scale's third field is found_inf: an update with it set would compare nothing.
      if (variant_.op_case.kind == &kAdamW && id == inputs_[5] && i == 2) value = 0.0f;
      // Bias corrections lie in (0, 1).
      if (variant_.op_case.kind == &kAdamW && id == inputs_[4] && (i == 1 || i == 2))
        value = 0.1f + 0.8f * uniform(random_);
      if (t.dtype == DType::kF64)
        static_cast<double*>(data)[i] = values[static_cast<size_t>(i)];
      else if (t.dtype == DType::kBf16)
        static_cast<uint16_t*>(data)[i] = to_bf16(value);
      else if (t.dtype == DType::kF16)
        static_cast<uint16_t*>(data)[i] = to_f16(value);
      else
        static_cast<float*>(data)[i] = value;
    }
  }

  void bind(TensorId id, std::vector<CpuOperand>& host, std::vector<Operand>& device) {
    const HostTensor& t = program_.tensor(id);
    host.push_back({t.left_out ? nullptr : host_[static_cast<size_t>(id)].data(), &t});
    device.push_back({t.left_out ? nullptr : device_[static_cast<size_t>(id)]->get(), &t});
  }

  std::vector<double> values(const HostTensor& t, const std::byte* data) {
    std::vector<double> out(static_cast<size_t>(t.shape.elements()));
    for (size_t i = 0; i < out.size(); ++i) {
      if (t.dtype == DType::kI32) out[i] = reinterpret_cast<const int32_t*>(data)[i];
      if (t.dtype == DType::kF64) out[i] = reinterpret_cast<const double*>(data)[i];
      if (t.dtype == DType::kF32) out[i] = reinterpret_cast<const float*>(data)[i];
      if (t.dtype == DType::kE2M1)
        out[i] = from_fp4(fp4_at(reinterpret_cast<const uint8_t*>(data), static_cast<int64_t>(i)));
      if (t.dtype == DType::kE8M0) out[i] = static_cast<double>(from_e8m0(reinterpret_cast<const uint8_t*>(data)[i]));
      // The last four bytes of a message are its scale's, which may read like a NaN.
      if (variant_.op_case.kind == &kPackFp8 && t.dtype == DType::kE4M3 && i + 4 >= out.size())
        out[i] = reinterpret_cast<const uint8_t*>(data)[i];
      else if (t.dtype == DType::kE4M3 || t.dtype == DType::kE5M2)
        out[i] = mbb::trainer::from_fp8(reinterpret_cast<const uint8_t*>(data)[i], t.dtype);
      if (t.dtype == DType::kBf16) out[i] = from_bf16(reinterpret_cast<const uint16_t*>(data)[i]);
      if (t.dtype == DType::kF16) out[i] = static_cast<double>(from_f16(reinterpret_cast<const uint16_t*>(data)[i]));
    }
    return out;
  }

  // FP8 values may round the other way where the two sides' values differ in their last bit.
  double bound(const HostTensor& t) const {
    if (bits_of(t.dtype) <= 8) return 2e-2;
    if (t.dtype == DType::kI32) return 1e-12;
    // Values of codes under a scale of any fp32 are rounded to bf16 where no tensor core takes such scales.
    const auto* experts = std::get_if<GroupedQuantizedAttrs>(&variant_.op_case.attrs);
    const bool by_values = (variant_.op_case.kind == &kGemmBlocks && refused_) || (experts && experts->block == 128);
    if (by_values && t.dtype == DType::kF32) return 5e-3;
    // Hopper's tensor cores add products of FP8 with fewer bits than fp32 has.
    if ((variant_.op_case.kind == &kGemmBlocks || experts) && t.dtype == DType::kF32) return 1e-3;
    if (t.dtype == DType::kF16) return 1e-3;
    if (!variant_.bf16 && t.dtype != DType::kBf16) return 1e-4;
    // Attention rounds its probabilities too; rounding the inputs moves no other op by more than 5e-3.
    return variant_.op_case.kind->name.find("attention") != std::string_view::npos ? 1.5e-2 : 8e-3;
  }

  // The next op reads the oracle's result on both sides, so that errors do not add up.
  void compare(TensorId id) {
    const HostTensor& t = program_.tensor(id);
    std::vector<std::byte> got(host_[static_cast<size_t>(id)].size());
    device_[static_cast<size_t>(id)]->download(got.data());
    const auto reference = values(t, host_[static_cast<size_t>(id)].data()), found = values(t, got.data());
    EXPECT_LT(relative_error(found, reference), bound(t)) << t.path;
    const auto cols = static_cast<size_t>(t.shape.cols());
    if (const auto at = is_exact(variant_.op_case.kind) ? other_element(found, reference)
                                                        : far_element(t.dtype, cols, found, reference))
      ADD_FAILURE() << t.path << "[" << *at << "] is " << found[*at] << ", the oracle's " << reference[*at];
    device_[static_cast<size_t>(id)]->upload(host_[static_cast<size_t>(id)].data());
  }

  const Variant& variant_;
  std::mt19937_64& random_;
  bool refused_ = false;  // by a library; another kernel computed the op
  Program program_;
  std::vector<TensorId> inputs_;
  std::vector<std::vector<std::byte>> host_;
  std::vector<std::unique_ptr<DeviceBytes>> device_;
};

std::string test_name(const testing::TestParamInfo<Variant>& info) {
  std::string name = info.param.op_case.name + (info.param.bf16 ? "_bf16" : "_fp32") + info.param.left_out;
  for (char& c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  return name;
}

class OpCasesOnDevice : public GpuTest, public testing::WithParamInterface<Variant> {};

TEST_P(OpCasesOnDevice, EqualTheOracle) {
  auto device = Device::open(0);
  ASSERT_TRUE(device.has_value()) << format(device.error());
  SCOPED_TRACE(testing::Message() << "seed " << seed_);
  OpOnBoth(GetParam(), random_).run_and_compare(**device);
}
INSTANTIATE_TEST_SUITE_P(All, OpCasesOnDevice, testing::ValuesIn(variants()), test_name);

using RefusalsOnDevice = GpuTest;

TEST_F(RefusalsOnDevice, SayWhatIsWrongAndLeaveNoError) {
  auto device = Device::open(0);
  ASSERT_TRUE(device.has_value()) << format(device.error());
  for (const RefusedCase& refused : refused_cases()) {
    const Variant variant{refused.op_case};
    const Status status = OpOnBoth(variant, random_).forward_on(**device);
    ASSERT_FALSE(status.has_value()) << refused.op_case.name;
    EXPECT_NE(status.error().what.find(refused.says), std::string::npos) << format(status.error());
    EXPECT_FALSE(status.error().hint.empty()) << refused.op_case.name;
    EXPECT_EQ(cudaGetLastError(), cudaSuccess) << refused.op_case.name;
  }
}

// A record that names a CUDA function has one.
TEST(OpFunctions, EveryNamedOneExists) {
  for (const OpKind* kind : op_table()) {
    if (kind->cuda.empty()) continue;
    EXPECT_NE(find_op_function(kind->cuda), nullptr) << kind->name;
  }
}

}  // namespace
}  // namespace mbb::trainer::cuda
