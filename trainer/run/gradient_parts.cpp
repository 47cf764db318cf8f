// Cuts each optimizer op's shard of its bucket into the weights it holds parts of.
#include "trainer/run/gradient_parts.h"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/ops/op_kind.h"
#include "trainer/run/rank_reports.h"

namespace mbb::trainer {
namespace {

// A part of a weight's gradient, as it travels to rank 0: this, then `count` floats.
struct GradientPart {
  int64_t tensor = 0, first = 0, count = 0;
};

Result<std::vector<float>> values_of(Executor& executor, const Program& program, TensorId id) {
  const Tensor& t = program.tensor(id);
  std::vector<float> values(static_cast<size_t>(t.shape.elements()));
  if (t.dtype == DType::kF32) {
    MB_TRY(executor.read(id, 0, std::as_writable_bytes(std::span(values))));
    return values;
  }
  MB_CHECK(t.dtype == DType::kBf16, "gradients are f32 or bf16: " + t.path);
  std::vector<Bf16> narrow(values.size());
  MB_TRY(executor.read(id, 0, std::as_writable_bytes(std::span(narrow))));
  std::transform(narrow.begin(), narrow.end(), values.begin(), [](Bf16 v) { return to_float(v); });
  return values;
}

// An optimizer op's shard of its bucket, cut into the weights it holds parts of.
Result<std::string> gradient_parts(Executor& executor, const Program& program, const Mesh& mesh, int rank) {
  std::map<std::string_view, int64_t> weights;
  for (size_t id = 0; id < program.tensors.size(); ++id)
    if (program.tensors[id].main_grad != kNoTensor) weights[program.tensors[id].path] = static_cast<int64_t>(id);
  std::string parts;
  for (const Segment& segment : program.segments) {
    for (const Op& op : segment.ops) {
      const auto* adam = std::get_if<AdamAttrs>(&op.attrs);
      if (adam == nullptr) continue;
      const BucketAttrs& bucket = adam->bucket;
      MB_ASSIGN(const std::vector<float> held, values_of(executor, program, op.in[0]));
      const int64_t shard = program.tensor(op.in[2]).shape.elements();  // as many moments as elements it updates
      const int64_t begin = bucket.sharded ? shard * mesh.group_index(bucket.shard_group, rank) : 0;
      const int64_t first = static_cast<int64_t>(held.size()) == shard ? begin : 0;
      for (const BucketRange& range : bucket.ranges) {
        const int64_t from = std::max(range.offset, begin);
        const int64_t to = std::min(range.offset + range.count, begin + shard);
        if (from >= to) continue;
        parts += bytes_of_values<GradientPart>({{weights.at(range.path), from - range.offset, to - from}});
        parts.append(reinterpret_cast<const char*>(held.data() + (from - first)),
                     static_cast<size_t>(to - from) * sizeof(float));
      }
    }
  }
  return parts;
}

}  // namespace

Status hand_out_gradients(Executor& executor, const StepPrograms& programs, const Mesh& mesh, int rank,
                          Communicator& everyone, int64_t step, const GradientSink& sink) {
  MB_ASSIGN(const std::string mine, gradient_parts(executor, programs.of_rank(mesh, rank), mesh, rank));
  MB_ASSIGN(const std::vector<std::string> all, gather_at_first(everyone, mine));
  for (size_t r = 0; r < all.size(); ++r) {
    const MeshCoordinates at = mesh.coordinates(static_cast<int>(r));
    const Program& program = programs.of_rank(mesh, static_cast<int>(r));
    for (std::string_view rest = all[r]; !rest.empty();) {
      const GradientPart part = values_of_bytes<GradientPart>(rest.substr(0, sizeof(GradientPart))).at(0);
      rest.remove_prefix(sizeof(GradientPart));
      const size_t bytes = static_cast<size_t>(part.count) * sizeof(float);
      sink(at, step, program.tensor(static_cast<TensorId>(part.tensor)), part.first,
           values_of_bytes<float>(rest.substr(0, bytes)));
      rest.remove_prefix(bytes);
    }
  }
  return {};
}

}  // namespace mbb::trainer
