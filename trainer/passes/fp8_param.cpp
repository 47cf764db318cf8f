// Replacing the quantization of weights by what the optimizer leaves.
#include "trainer/passes/fp8_param.h"

#include <algorithm>
#include <map>
#include <set>

#include "trainer/ops/table.h"
#include "trainer/program/builder.h"

namespace mbb::trainer {
namespace {

bool quantizes_tensorwise(const Op& op) {
  return op.kind == &kQuantize || op.kind == &kQuantizeDelayed;
}

// Of a layer: trained, or frozen. (What the forward gathers or makes is quantized where it is made.)
bool is_weight(const Tensor& t) {
  return t.category == Category::kWeight && t.init.kind != Init::Kind::kNone;
}

TensorId declare_scales(Builder& b, const std::string& weight) {
  Tensor t;
  t.path = weight + ".scales";
  t.shape = Shape{2};
  t.category = Category::kStep;  // stays on the device where weights are offloaded
  t.scope = Scope::kPersistent;
  return b.declare(std::move(t));
}

}  // namespace

void keep_weights_in_fp8(Program& program) {
  std::set<TensorId> others;  // what other ops read
  for (const Segment& segment : program.segments)
    for (const Op& op : segment.ops)
      if (!quantizes_tensorwise(op)) others.insert(op.in.begin(), op.in.end());
  Builder b(program);
  std::map<TensorId, TensorId> instead;
  for (Segment& segment : program.segments) {
    for (Op& op : segment.ops) {
      if (!quantizes_tensorwise(op)) continue;
      const TensorId weight = op.in[0];
      if (!is_weight(program.tensor(weight)) || others.contains(weight)) continue;
      if (program.tensor(weight).scales == kNoTensor) {
        const TensorId scales = declare_scales(b, program.tensor(weight).path);
        program.tensor(weight).scales = scales;
      }
      Tensor& w = program.tensor(weight);
      w.dtype = DType::kE4M3;
      if (op.kind == &kQuantizeDelayed && w.main_grad != kNoTensor) w.scale_state = op.in[1];
      instead[op.out[0]] = weight;
      instead[op.out[2]] = w.scales;
      op.kind = &kTransposeQuantized;
      op.path = w.path + ".transpose";
      op.in = {weight};
      op.out = {op.out[1]};
      op.attrs = NoAttrs{};
    }
  }
  std::set<TensorId> read;
  for (Segment& segment : program.segments) {
    for (Op& op : segment.ops) {
      for (TensorId& id : op.in) {
        if (const auto at = instead.find(id); at != instead.end()) id = at->second;
        read.insert(id);
      }
    }
  }
  for (Segment& segment : program.segments)
    std::erase_if(segment.ops,
                  [&](const Op& op) { return op.kind == &kTransposeQuantized && !read.contains(op.out[0]); });
}

}  // namespace mbb::trainer
