// Runs one op on the CPU with operands that a test names: for tests that look at what an op computes.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "trainer/ops/op_kind.h"
#include "trainer/program/builder.h"

namespace mbb::trainer {

class RunOp {
 public:
  RunOp() : builder_(program_) { builder_.add_segment("test", SegmentKind::kForward, 0); }

  // An input with these values, in its type's bytes.
  template <typename T>
  TensorId input(DType dtype, const Shape& shape, const std::vector<T>& values) {
    Tensor t;
    t.path = "in" + std::to_string(program_.tensors.size());
    t.dtype = dtype;
    t.shape = shape;
    const TensorId id = builder_.declare(std::move(t));
    buffers_.emplace_back(static_cast<size_t>(program_.tensor(id).bytes()));
    EXPECT_EQ(buffers_.back().size(), values.size() * sizeof(T));
    std::memcpy(buffers_.back().data(), values.data(), buffers_.back().size());
    return id;
  }
  TensorId bf16(const Shape& shape, const std::vector<float>& values) {
    std::vector<Bf16> rounded;
    for (const float value : values) rounded.push_back(to_bf16(value));
    return input(DType::kBf16, shape, rounded);
  }
  TensorId f32(const Shape& shape, const std::vector<float>& values) { return input(DType::kF32, shape, values); }

  // The op's outputs; those that `out` names are updated in place.
  std::vector<TensorId> run(const OpKind& kind, const std::vector<TensorId>& in, const Attrs& attrs,
                            std::vector<TensorId> out = {}) {
    const auto outputs = builder_.emit(kind, "op" + std::to_string(++ops_), in, attrs, {.out = std::move(out)});
    const Op op = builder_.ops().back();
    for (const TensorId id : outputs)
      if (static_cast<size_t>(id) >= buffers_.size())
        buffers_.emplace_back(static_cast<size_t>(program_.tensor(id).bytes()), std::byte{0xff});
    const auto operands = [&](const std::vector<TensorId>& ids) {
      std::vector<CpuOperand> list;
      for (const TensorId id : ids) list.push_back({buffers_[static_cast<size_t>(id)].data(), &program_.tensor(id)});
      return list;
    };
    const auto reads = operands(op.in), writes = operands(op.out);
    Mesh mesh;
    const RankContext context{&mesh, 0, mesh.coordinates(0), {}};
    const Status status = kind.cpu(CpuCall{op, reads, writes, context});
    EXPECT_TRUE(status.has_value()) << (status ? "" : status.error().what);
    return outputs;
  }

  template <typename T>
  std::vector<T> values(TensorId id) const {
    const auto& bytes = buffers_[static_cast<size_t>(id)];
    std::vector<T> all(bytes.size() / sizeof(T));
    std::memcpy(all.data(), bytes.data(), bytes.size());
    return all;
  }
  const Tensor& tensor(TensorId id) const { return program_.tensor(id); }

 private:
  Program program_;
  Builder builder_;
  std::vector<std::vector<std::byte>> buffers_;
  int ops_ = 0;
};

}  // namespace mbb::trainer
