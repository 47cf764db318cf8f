// Builds a program op by op: declares tensors, applies the shape rule of each op's record, keeps paths.
//
// A broken shape rule here is a bug of ours (MB_CHECK): what a user can get wrong is refused earlier, by resolve().
#pragma once

#include <string>
#include <vector>

#include "trainer/ops/op_kind.h"
#include "trainer/program/program.h"

namespace mbb::trainer {

struct EmitOptions {
  Role role = Role::kNone;
  When when = When::kAlways;
  Stream stream = Stream::kCompute;
  Category category = Category::kActivation;  // of new outputs
  std::vector<TensorId> out;                  // write here instead of declaring outputs; kNoTensor entries are declared
  std::string out_path;  // of new outputs; default: the op's path, ".0", ".1" where there are several
};

class Builder {
 public:
  explicit Builder(Program& program) : program_(program) {}

  Program& program() { return program_; }
  const Tensor& tensor(TensorId id) const { return program_.tensor(id); }

  TensorId declare(Tensor tensor);
  // A view of elements [offset, offset + shape.elements()) of `of` (or of what `of` is a view of).
  TensorId view(TensorId of, std::string path, Shape shape, int64_t offset_elements);

  int add_segment(std::string name, SegmentKind kind, int chunk);
  void enter(int segment) { segment_ = segment; }
  int segment() const { return segment_; }
  std::vector<Op>& ops() { return program_.segments[static_cast<size_t>(segment_)].ops; }

  // Appends an op to the current segment and returns its outputs.
  std::vector<TensorId> emit(const OpKind& kind, std::string path, std::vector<TensorId> in, Attrs attrs,
                             EmitOptions options = {});
  // The only output of an op that has one.
  TensorId emit1(const OpKind& kind, std::string path, std::vector<TensorId> in, Attrs attrs, EmitOptions options = {});

 private:
  Program& program_;
  int segment_ = -1;
};

}  // namespace mbb::trainer
