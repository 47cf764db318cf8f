// The hash of a layout's programs over their values: names of kinds, never addresses.
#include "profiler/base/hash.h"
#include "trainer/ops/op_kind.h"
#include "trainer/program/attr_fields.h"
#include "trainer/program/explain.h"
#include "trainer/run/step_programs.h"

namespace mbb::trainer {
namespace {

// Bytes of a program in a fixed form: integers as eight bytes, texts and lists after their length.
class Digest {
 public:
  void number(int64_t value) {
    for (int i = 0; i < 8; ++i) buffer_.push_back(static_cast<char>(static_cast<uint64_t>(value) >> (8 * i)));
    if (buffer_.size() > 1 << 16) flush();
  }
  void real(double value) { number(std::bit_cast<int64_t>(value)); }
  void text(std::string_view value) {
    number(static_cast<int64_t>(value.size()));
    buffer_.append(value);
  }
  void shape(const Shape& value) {
    number(value.rank());
    for (int i = 0; i < value.rank(); ++i) number(value[i]);
  }
  std::string hex16() {
    flush();
    return hasher_.hex().substr(0, 16);
  }

 private:
  void flush() {
    hasher_.update(buffer_);
    buffer_.clear();
  }

  std::string buffer_;
  Hasher hasher_;
};

struct AttrDigest {
  Digest& digest;
  template <typename T>
  void operator()(const char* field, const T& value) {
    digest.text(field);
    add(value);
  }
  void add(bool value) { digest.number(value); }
  void add(int value) { digest.number(value); }
  void add(int64_t value) { digest.number(value); }
  void add(float value) { digest.real(static_cast<double>(value)); }
  void add(double value) { digest.real(value); }
  void add(std::string_view value) { digest.text(value); }
  void add(const std::vector<double>& values) {
    digest.number(static_cast<int64_t>(values.size()));
    for (double value : values) digest.real(value);
  }
  void add(const std::vector<int64_t>& values) {
    digest.number(static_cast<int64_t>(values.size()));
    for (int64_t value : values) digest.number(value);
  }
  void add(const Positions& value) {
    digest.number(value.sequence);
    digest.number(value.run);
    add(value.starts);
  }
  void add(DType value) { digest.text(name(value)); }
  void add(GroupKind value) { digest.text(name(value)); }
  void add(ReduceKind value) { digest.number(static_cast<int64_t>(value)); }
  void add(Direction value) { digest.number(static_cast<int64_t>(value)); }
  void add(MessageForm value) { digest.number(static_cast<int64_t>(value)); }
  void add(const Shape& value) { digest.shape(value); }
  void add(const std::vector<BucketRange>& ranges) {
    digest.number(static_cast<int64_t>(ranges.size()));
    for (const auto& [path, offset, count, decay, replicated, counted] : ranges) {
      digest.text(path);
      digest.number(offset);
      digest.number(count);
      digest.number(decay);
      digest.number(replicated);
      digest.number(counted);
    }
  }
};

void add(Digest& d, const Tensor& tensor) {
  const auto& [path, dtype, shape, category, scope, ring, space, view_of, view_offset, full_shape, cuts, init,
               main_grad, weight_decay, sharing, partial_over_tp, scales, scale_state, left_out, expert] = tensor;
  d.text(path);
  d.shape(shape);
  d.shape(full_shape);
  for (const char* text : {name(dtype), name(category), name(scope), name(space)}) d.text(text);
  for (int64_t value : {int64_t{ring}, int64_t{view_of}, view_offset, int64_t{main_grad}, int64_t{weight_decay},
                        int64_t{partial_over_tp}, int64_t{expert}, static_cast<int64_t>(init.kind),
                        int64_t{sharing.meshes}, int64_t{sharing.counted}, int64_t{scales}, int64_t{scale_state}})
    d.number(value);
  if (left_out) d.text("left out");
  d.text(sharing.group ? name(*sharing.group) : "");
  d.real(init.stddev);
  d.number(static_cast<int64_t>(cuts.size()));
  for (const auto& [dim, axis, parts] : cuts) {
    d.number(dim);
    d.text(name(axis));
    d.number(static_cast<int64_t>(parts.size()));
    for (int64_t part : parts) d.number(part);
  }
}

void add(Digest& d, const std::vector<TensorId>& ids) {
  d.number(static_cast<int64_t>(ids.size()));
  for (TensorId id : ids) d.number(id);
}

void add(Digest& d, const Op& op) {
  const auto& [kind, path, in, out, attrs, role, when, stream, covers, recompute] = op;
  d.text(kind->name);
  d.text(path);
  add(d, in);
  add(d, out);
  std::visit([&](const auto& a) { attr_fields(a, AttrDigest{d}); }, attrs);
  for (const char* text : {name(role), name(when), name(stream)}) d.text(text);
  d.number(static_cast<int64_t>(covers.size()));
  for (const std::string& covered : covers) d.text(covered);
  d.number(recompute);
}

void add(Digest& d, const Program& program) {
  const auto& [rank_class, micro_batches, tensors, segments, schedule, ports, groups, limits] = program;
  d.text(name(rank_class.role));
  for (int64_t value :
       {int64_t{rank_class.pp}, int64_t{rank_class.cp}, int64_t{micro_batches}, static_cast<int64_t>(tensors.size())})
    d.number(value);
  for (GroupKind group : groups) d.text(name(group));
  for (const auto& [group, num_sm, cga_size] : limits) {
    d.text(name(group));
    d.number(num_sm);
    d.number(cga_size);
  }
  for (const Tensor& tensor : tensors) add(d, tensor);
  d.number(static_cast<int64_t>(segments.size()));
  for (const auto& [segment_name, kind, chunk, ops] : segments) {
    d.text(segment_name);
    d.text(name(kind));
    d.number(chunk);
    d.number(static_cast<int64_t>(ops.size()));
    for (const Op& op : ops) add(d, op);
  }
  d.number(static_cast<int64_t>(schedule.size()));
  for (const auto& [segment, micro_batch] : schedule) {
    d.number(segment);
    d.number(micro_batch);
  }
  const auto& [tokens, labels, samples, encoder_tokens, starts, encoder_starts, sequences, step_record, loss_sum,
               grad_scale, router_losses, mtp_losses, routing, step_sums] = ports;
  for (TensorId id : {tokens, labels, samples, encoder_tokens, starts, encoder_starts, sequences, step_record, loss_sum,
                      grad_scale, router_losses})
    d.number(id);
  add(d, mtp_losses);
  for (const auto& [router, experts, sequence_sharded] : routing) {
    d.text(router);
    d.number(experts);
    d.number(sequence_sharded);
  }
  add(d, step_sums);
}

}  // namespace

std::string program_hash(const StepPrograms& programs) {
  Digest digest;
  digest.number(static_cast<int64_t>(programs.programs.size()));
  for (const Program& program : programs.programs) add(digest, program);
  return digest.hex16();
}

}  // namespace mbb::trainer
