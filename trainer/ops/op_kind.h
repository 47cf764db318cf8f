// The record of an op kind: everything the product knows of it, in one place. Passes and executors never switch on
// kinds; they read the record. The visible list of all records is op_table() in table.h.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "profiler/base/error.h"
#include "trainer/program/program.h"

namespace mbb::trainer {

class GradContext;   // trainer/program/autodiff.h
class CaseBuilder;   // trainer/ops/op_case.h
class Communicator;  // trainer/comm/communicator.h

// An output as the shape rule answers it; the builder adds path and category.
struct TensorSpec {
  Shape shape;
  DType dtype = DType::kF32;
};

using Inputs = std::span<const Tensor* const>;

// An op with its tensors resolved, as cost rules read it.
struct OpView {
  const Program& program;
  const Op& op;
  const Tensor& in(size_t i) const { return program.tensor(op.in[i]); }
  const Tensor& out(size_t i) const { return program.tensor(op.out[i]); }
};

// One operand of a CPU function: row-major elements of `tensor.dtype`, owned by the executor's arena.
struct CpuOperand {
  void* data = nullptr;
  const Tensor* tensor = nullptr;
  int64_t elements() const { return tensor->shape.elements(); }
};

// Where a rank stands: what a program, which holds no rank number, asks of the rank that runs it.
struct RankContext {
  const Mesh* mesh = nullptr;
  int rank = 0;
  MeshCoordinates coordinates;
  std::vector<Communicator*> communicators;  // by GroupKind; nullptr for groups the program does not use
  // Communicators of their own, where the backend holds collectives to a number of SMs.
  std::vector<std::pair<CommLimit, Communicator*>> limited;

  int index_in(GroupKind kind) const { return mesh->group_index(kind, rank); }
  Communicator& communicator(GroupKind kind) const {
    Communicator* found = communicators[static_cast<size_t>(kind)];
    MB_CHECK(found != nullptr, std::string("no communicator for group ") + mbb::trainer::name(kind));
    return *found;
  }
  Communicator& communicator(const CommAttrs& attrs) const {
    for (const auto& [limit, communicator] : limited)
      if (limit == CommLimit{attrs.group, attrs.num_sm, attrs.cga_size}) return *communicator;
    return communicator(attrs.group);
  }
};

// What a CPU function is called with. Operands stand in the op's order; an updated tensor has the same data in both
// lists.
struct CpuCall {
  const Op& op;
  std::span<const CpuOperand> in;
  std::span<const CpuOperand> out;
  const RankContext& rank;

  template <typename T>
  const T& attrs() const {
    return std::get<T>(op.attrs);
  }
};

struct OpKind {
  std::string_view name;
  // What the outputs look like, or why these inputs are not allowed. Sees attributes too.
  Result<std::vector<TensorSpec>> (*shape)(Inputs in, const Attrs& attrs) = nullptr;
  // Emits the backward ops of one forward op; nullptr: gradients stop here.
  void (*grad)(GradContext& context) = nullptr;
  // Floating-point operations of one execution (multiply and add count as two); model FLOPs count GEMMs and attention
  // only.
  double (*flops)(const OpView& op) = nullptr;
  // Bytes through device memory; nullptr: every operand once.
  double (*bytes)(const OpView& op) = nullptr;
  Status (*cpu)(const CpuCall& call) = nullptr;
  // Name of the function in libmbbench_cuda.so's table; empty: none yet.
  std::string_view cuda;
  // Adds the cases that serve as oracle test, gradient check and benchmark on every backend.
  void (*cases)(std::vector<struct OpCase>& cases) = nullptr;
  // The backward starts here, needing no gradient of the output: the loss, and sends along the pipeline.
  bool gradient_root = false;
  // Output 0 may take the bytes of input 0 when nothing reads that input afterwards.
  bool in_place = false;
  // So many first outputs are written only where something reads them: else their operand is null (unread_copies.h).
  int optional_outputs = 0;
  // The op is a collective or a send/recv over CommAttrs::group.
  bool communicates = false;
  // FLOPs count as model FLOPs (NUMERICS.md 2).
  bool model_flops = false;
};

double op_flops(const OpView& op);
double op_bytes(const OpView& op);

// Shape, role and dtype in one string; equal keys have equal cost: the index of cost tables and tuned algorithms.
// "gemm:fprop:bf16:8192x4096x14336".
std::string cost_key(const OpView& op);

}  // namespace mbb::trainer
