// Declaring tensors and appending ops, with the shape rule of the op's record as the only source of output shapes.
#include "trainer/program/builder.h"

#include <fmt/core.h>

namespace mbb::trainer {

TensorId Builder::declare(Tensor tensor) {
  program_.tensors.push_back(std::move(tensor));
  return static_cast<TensorId>(program_.tensors.size() - 1);
}

TensorId Builder::view(TensorId of, std::string path, Shape shape, int64_t offset_elements) {
  const TensorId storage = program_.storage(of);
  Tensor t;
  t.path = std::move(path);
  t.dtype = tensor(of).dtype;
  t.shape = shape;
  t.category = tensor(storage).category;
  t.scope = tensor(storage).scope;
  t.view_of = storage;
  t.view_offset_bytes =
      tensor(of).view_offset_bytes + static_cast<int64_t>(bytes_of(t.dtype, static_cast<size_t>(offset_elements)));
  MB_CHECK(t.view_offset_bytes + t.bytes() <= tensor(storage).bytes(), "view outside its storage: " + t.path);
  return declare(std::move(t));
}

int Builder::add_segment(std::string name, SegmentKind kind, int chunk) {
  program_.segments.push_back({std::move(name), kind, chunk, {}});
  segment_ = static_cast<int>(program_.segments.size()) - 1;
  return segment_;
}

std::vector<TensorId> Builder::emit(const OpKind& kind, std::string path, std::vector<TensorId> in, Attrs attrs,
                                    EmitOptions options) {
  std::vector<const Tensor*> inputs;
  inputs.reserve(in.size());
  for (TensorId id : in) inputs.push_back(&tensor(id));
  auto specs = kind.shape(inputs, attrs);
  MB_CHECK(specs.has_value(), fmt::format("{} {}: {}", kind.name, path, specs.has_value() ? "" : specs.error().what));
  std::vector<TensorId> out = options.out;
  out.resize(specs->size(), kNoTensor);
  for (size_t i = 0; i < out.size(); ++i) {
    const TensorSpec& spec = (*specs)[i];
    if (out[i] != kNoTensor) {
      MB_CHECK(tensor(out[i]).shape.elements() == spec.shape.elements(),
               fmt::format("{} {}: output {} has {} but the op writes {}", kind.name, path, tensor(out[i]).path,
                           tensor(out[i]).shape.str(), spec.shape.str()));
      continue;
    }
    Tensor t;
    t.path = options.out_path.empty() ? path : options.out_path;
    if (specs->size() > 1) t.path += fmt::format(".{}", i);
    t.dtype = spec.dtype;
    t.shape = spec.shape;
    t.category = options.category;
    out[i] = declare(std::move(t));
  }
  Op op;
  op.kind = &kind;
  op.path = std::move(path);
  op.in = std::move(in);
  op.out = out;
  op.attrs = std::move(attrs);
  op.role = options.role;
  op.when = options.when;
  op.stream = options.stream;
  ops().push_back(std::move(op));
  return out;
}

TensorId Builder::emit1(const OpKind& kind, std::string path, std::vector<TensorId> in, Attrs attrs,
                        EmitOptions options) {
  auto out = emit(kind, std::move(path), std::move(in), std::move(attrs), std::move(options));
  MB_CHECK(out.size() == 1, std::string(kind.name) + " has several outputs");
  return out[0];
}

}  // namespace mbb::trainer
