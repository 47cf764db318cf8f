// Element-wise ops: SwiGLU over packed [gate | up], sums, fills, casts.
#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/op_case.h"
#include "trainer/ops/table.h"
#include "trainer/program/autodiff.h"

namespace mbb::trainer {
namespace {

Result<std::vector<TensorSpec>> same(Inputs in, const Attrs&) {
  return std::vector<TensorSpec>{{in[0]->shape, in[0]->dtype}};
}

Result<std::vector<TensorSpec>> add_shape(Inputs in, const Attrs&) {
  if (in[0]->shape.elements() != in[1]->shape.elements())
    return fail(ErrorCode::kBadArgument, "sum of " + in[0]->shape.str() + " and " + in[1]->shape.str());
  return std::vector<TensorSpec>{{in[0]->shape, in[0]->dtype}};
}

void add_grad(GradContext& c) {
  for (size_t i = 0; i < 2; ++i)
    if (c.wants(i)) c.set_grad(i, c.grad());
}

// in: [.., 2f] = [gate | up]; out: silu(gate)·up.
Result<std::vector<TensorSpec>> swiglu_shape(Inputs in, const Attrs&) {
  if (in[0]->shape.cols() % 2 != 0)
    return fail(ErrorCode::kBadArgument, "SwiGLU of an odd width: " + in[0]->shape.str());
  return std::vector<TensorSpec>{{in[0]->shape.with_last(in[0]->shape.cols() / 2), in[0]->dtype}};
}

// in: dout, packed input; out: gradient of the packed input.
Result<std::vector<TensorSpec>> swiglu_grad_shape(Inputs in, const Attrs&) {
  return std::vector<TensorSpec>{{in[1]->shape, in[1]->dtype}};
}

void swiglu_grad(GradContext& c) {
  c.emit_grad(0, kSwigluGrad, "bwd", {c.grad(), c.saved_in(0)}, NoAttrs{});
}

// Between device and host memory: one side is the device's.
double copy_bytes(const OpView& op) {
  return static_cast<double>(op.in(0).bytes());
}

double fill_bytes(const OpView& op) {
  return static_cast<double>(op.out(0).bytes());
}

void add_cases(std::vector<OpCase>& all) {
  all.push_back({"add/small", &kAdd, {{{4, 2, 9}}, {{4, 2, 9}}}, NoAttrs{}});
  all.push_back({"add/narrow", &kAdd, {{{4, 2, 9}}, {{4, 2, 9}, DType::kBf16}}, NoAttrs{}, false});
}
void copy_cases(std::vector<OpCase>& all) {
  all.push_back({"copy/small", &kCopy, {{{4, 2, 9}}}, NoAttrs{}, false});
}
void fill_cases(std::vector<OpCase>& all) {
  all.push_back({"fill_zero/odd", &kFill, {{{5, 2, 13}}}, NoAttrs{}, false});
}
void cast_cases(std::vector<OpCase>& all) {
  for (const DType from : {DType::kF32, DType::kBf16})
    all.push_back({std::string("cast/") + name(from), &kCast, {{{5, 2, 13}, from}}, NoAttrs{}, false});
}
void swiglu_cases(std::vector<OpCase>& all) {
  all.push_back({"swiglu/small", &kSwiglu, {{{5, 2, 14}}}, NoAttrs{}});
}

}  // namespace

const OpKind kAdd{
    .name = "add", .shape = add_shape, .grad = add_grad, .cpu = cpu_add, .cuda = "add", .cases = add_cases};
const OpKind kFill{.name = "fill_zero",
                   .shape = same,
                   .bytes = fill_bytes,
                   .cpu = cpu_fill_zero,
                   .cuda = "fill_zero",
                   .cases = fill_cases};
const OpKind kCast{.name = "cast", .shape = same, .cpu = cpu_cast, .cuda = "cast", .cases = cast_cases};
const OpKind kCopy{
    .name = "copy", .shape = same, .bytes = copy_bytes, .cpu = cpu_copy, .cuda = "copy", .cases = copy_cases};
const OpKind kSwiglu{.name = "swiglu",
                     .shape = swiglu_shape,
                     .grad = swiglu_grad,
                     .cpu = cpu_swiglu,
                     .cuda = "swiglu",
                     .cases = swiglu_cases};
const OpKind kSwigluGrad{
    .name = "swiglu_grad", .shape = swiglu_grad_shape, .cpu = cpu_swiglu_grad, .cuda = "swiglu_grad"};

}  // namespace mbb::trainer
