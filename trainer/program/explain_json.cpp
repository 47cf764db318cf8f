// The programs as JSON, written straight through: large programs are megabytes, and nothing here needs a tree.
#include <fmt/format.h>

#include <iterator>

#include "profiler/base/text.h"
#include "trainer/ops/op_kind.h"
#include "trainer/program/attr_fields.h"
#include "trainer/program/explain.h"
#include "trainer/program/lifetimes.h"
#include "trainer/run/step_programs.h"

namespace mbb::trainer {
namespace {

// JSON text with the commas in the right places.
class Json {
 public:
  void open(char bracket) {
    comma();
    text_ += bracket;
    fresh_ = true;
  }
  void close(char bracket) {
    text_ += bracket;
    fresh_ = false;
  }
  void key(std::string_view key) {
    comma();
    text_ += json_quote(key);
    text_ += ':';
    fresh_ = true;
  }
  void value(std::string_view text) { raw(json_quote(text)); }
  void value(const char* text) { value(std::string_view(text)); }
  void value(bool flag) { raw(flag ? "true" : "false"); }
  void value(int number) { value(int64_t{number}); }
  void value(int64_t number) {
    comma();
    fmt::format_to(std::back_inserter(text_), "{}", number);
  }
  // FLOPs and bytes are whole numbers most of the time, and read better so.
  void value(double number) { raw(format_exact(number)); }
  void value(float number) { raw(fmt::format("{}", number)); }
  void value(const Shape& shape) {
    open('[');
    for (int i = 0; i < shape.rank(); ++i) value(shape[i]);
    close(']');
  }
  template <typename T>
  void field(std::string_view name, const T& of) {
    key(name);
    value(of);
  }
  void line() { text_ += '\n'; }
  std::string take() { return std::move(text_); }

 private:
  void comma() {
    if (!fresh_) text_ += ',';
    fresh_ = false;
  }
  void raw(std::string_view text) {
    comma();
    text_ += text;
  }

  std::string text_;
  bool fresh_ = true;
};

struct AttrJson {
  Json& json;
  template <typename T>
  void operator()(const char* field, const T& value) {
    json.key(field);
    write(value);
  }
  template <typename T>
  void write(const T& value) {
    json.value(value);
  }
  void write(DType value) { json.value(name(value)); }
  void write(GroupKind value) { json.value(name(value)); }
  void write(ReduceKind value) { json.value(value == ReduceKind::kMax ? "max" : "sum"); }
  void write(MessageForm value) {
    constexpr std::array kNames{"overlapped", "in_turn", "batched"};
    json.value(kNames[static_cast<size_t>(value)]);
  }
  void write(Direction value) { json.value(value == Direction::kForward ? "forward" : "backward"); }
  void write(const std::vector<double>& values) {
    json.open('[');
    for (double value : values) json.value(value);
    json.close(']');
  }
  void write(const std::vector<int64_t>& values) {
    json.open('[');
    for (int64_t value : values) json.value(value);
    json.close(']');
  }
  void write(const Positions& value) {
    json.open('{');
    json.field("sequence", value.sequence);
    json.field("run", value.run);
    json.key("starts");
    write(value.starts);
    json.close('}');
  }
  void write(const std::vector<BucketRange>& ranges) {
    json.open('[');
    for (const BucketRange& range : ranges) {
      json.open('{');
      json.field("path", range.path);
      json.field("offset", range.offset);
      json.field("count", range.count);
      json.field("decay", range.decay);
      json.field("replicated", range.replicated);
      json.field("counted", range.counted);
      json.close('}');
    }
    json.close(']');
  }
};

void write_tensor(Json& json, const Tensor& tensor, const std::vector<int64_t>& offsets, const Lifetime& life) {
  json.line();
  json.open('{');
  json.field("path", tensor.path);
  json.field("dtype", name(tensor.dtype));
  json.field("shape", tensor.shape);
  json.field("category", name(tensor.category));
  json.field("scope", name(tensor.scope));
  if (tensor.full_shape.rank() > 0 && !(tensor.full_shape == tensor.shape)) json.field("full_shape", tensor.full_shape);
  if (tensor.scope == Scope::kMicroBatch) json.field("ring", tensor.ring);
  if (tensor.space != Space::kDevice) json.field("space", name(tensor.space));
  if (tensor.view_of != kNoTensor) {
    json.field("view_of", tensor.view_of);
    json.field("view_offset", tensor.view_offset_bytes);
  }
  if (tensor.main_grad != kNoTensor) json.field("main_grad", tensor.main_grad);
  if (tensor.sharing.group) json.field("shared_by", name(*tensor.sharing.group));
  if (tensor.sharing.meshes) json.field("shared_by_meshes", true);
  if (!offsets.empty()) {
    json.key("offsets");
    json.open('[');
    for (int64_t offset : offsets) json.value(offset);
    json.close(']');
  }
  if (life.first_writer) json.field("first_writer", life.first_writer->path);
  if (life.last_reader) json.field("last_reader", life.last_reader->path);
  json.close('}');
}

void write_ids(Json& json, const char* key, const std::vector<TensorId>& ids) {
  json.key(key);
  json.open('[');
  for (TensorId id : ids) json.value(id);
  json.close(']');
}

void write_op(Json& json, const Op& op, const OpRow& row) {
  json.line();
  json.open('{');
  json.field("path", op.path);
  json.field("kind", op.kind->name);
  json.field("what", row.what);
  if (op.role != Role::kNone) json.field("role", name(op.role));
  if (op.when != When::kAlways) json.field("when", name(op.when));
  json.field("stream", name(op.stream));
  json.field("runs", row.runs);
  json.key("attrs");
  json.open('{');
  std::visit([&](const auto& attrs) { attr_fields(attrs, AttrJson{json}); }, op.attrs);
  json.close('}');
  write_ids(json, "in", op.in);
  write_ids(json, "out", op.out);
  if (row.flops != 0) json.field("flops", row.flops);
  if (row.model_flops) json.field("model_flops", true);
  if (row.recompute) json.field("recompute", true);
  json.field("bytes", row.bytes);
  if (op.kind->communicates) {
    json.field("wire_bytes", row.wire_bytes);
    json.field("useful_bytes", row.useful_bytes);
  }
  if (!op.covers.empty()) {
    json.key("covers");
    json.open('[');
    for (const std::string& path : op.covers) json.value(path);
    json.close(']');
  }
  json.close('}');
}

template <size_t N, typename Name>
void write_named(Json& json, const char* key, const std::array<double, N>& values, Name&& name_of) {
  json.key(key);
  json.open('{');
  for (size_t i = 0; i < N; ++i)
    if (values[i] != 0) json.field(name_of(i), values[i]);
  json.close('}');
}

void write_facts(Json& json, const char* key, const PassFacts& facts) {
  json.key(key);
  json.open('{');
  json.field("launches", facts.launches);
  json.field("forward_launches", facts.forward_launches);
  json.field("backward_launches", facts.backward_launches);
  json.field("once_launches", facts.once_launches);
  json.field("side_ops", facts.side_ops);
  json.field("comm_calls", facts.comm_calls);
  json.field("wire_bytes", facts.wire_bytes);
  json.field("flops", facts.flops);
  json.field("bytes", facts.bytes);
  json.field("kept_bytes", facts.kept_bytes);
  json.field("host_bytes", facts.host_bytes);
  json.field("held_bytes", facts.held_bytes);
  json.field("pieces", facts.pieces);
  if (facts.arena_bytes != 0) json.field("arena_bytes", facts.arena_bytes);
  json.close('}');
}

void write_edits(Json& json, const OpEdits& edits) {
  json.key("ops");
  json.open('{');
  json.field("added", edits.added);
  json.field("gone", edits.gone);
  json.field("changed", edits.changed);
  json.field("moved", edits.moved);
  json.field("reordered", edits.reordered);
  json.close('}');
}

void write_summary(Json& json, const ClassRow& row) {
  json.key("summary");
  json.open('{');
  json.field("gpus", row.gpus);
  json.field("arena_bytes", row.arena_bytes);
  json.field("host_bytes", row.host_bytes);
  if (row.graph_ops > 0) {
    json.field("graph_ops", row.graph_ops);
    json.field("graph_bytes", row.graph_bytes);
  }
  json.field("peak_live_bytes", row.peak_live_bytes);
  json.field("slack_bytes", row.slack_bytes());
  json.field("peak_path", row.peak_path);
  json.key("peak_by_category");
  json.open('{');
  for (size_t c = 0; c < row.peak_by_category.size(); ++c)
    if (row.peak_by_category[c] != 0) json.field(name(static_cast<Category>(c)), row.peak_by_category[c]);
  json.close('}');
  json.field("model_flops", row.model_flops);
  json.field("recompute_flops", row.recompute_flops);
  const auto role = [](size_t i) { return i == 0 ? "none" : name(static_cast<Role>(i)); };
  const auto segment = [](size_t i) { return name(static_cast<SegmentKind>(i)); };
  write_named(json, "model_flops_by_role", row.model_flops_by_role, role);
  json.field("flops", row.flops);
  json.field("bytes", row.bytes);
  write_named(json, "flops_by_phase", row.flops_by_segment, segment);
  write_named(json, "bytes_by_phase", row.bytes_by_segment, segment);
  json.key("passes");
  json.open('[');
  for (const PassEffect& effect : row.passes) {
    json.open('{');
    json.field("pass", effect.pass);
    json.field("knob", effect.knob);
    write_facts(json, "before", effect.before);
    write_facts(json, "after", effect.after);
    write_edits(json, effect.edits);
    json.close('}');
  }
  json.close(']');
  json.key("communication");
  json.open('[');
  for (const CommRow& comm : row.comm) {
    json.open('{');
    json.field("group", name(comm.group));
    json.field("calls", comm.calls);
    json.field("wire_bytes", comm.wire_bytes);
    json.field("useful_bytes", comm.useful_bytes);
    json.field("largest_bytes", comm.largest_bytes);
    json.close('}');
  }
  json.close(']');
  json.close('}');
}

void write_class(Json& json, const Program& program, const MemoryPlan& plan, const ClassRow& row) {
  json.line();
  json.open('{');
  json.field("role", name(program.rank_class.role));
  json.field("stage", program.rank_class.pp);
  json.field("cp", program.rank_class.cp);
  write_summary(json, row);
  if (!plan.options.one_range) {
    json.key("slab_bytes");
    json.open('{');
    for (size_t c = 0; c < plan.slab_bytes.size(); ++c)
      if (plan.slab_bytes[c] != 0) json.field(name(static_cast<Category>(c)), plan.slab_bytes[c]);
    json.close('}');
  }
  json.key("tensors");
  json.open('[');
  const std::vector<Lifetime> lives = lifetimes(program);
  for (size_t i = 0; i < program.tensors.size(); ++i) write_tensor(json, program.tensors[i], plan.offsets[i], lives[i]);
  json.close(']');
  json.key("segments");
  json.open('[');
  for (size_t s = 0; s < program.segments.size(); ++s) {
    const Segment& segment = program.segments[s];
    json.open('{');
    json.field("name", segment.name);
    json.field("kind", name(segment.kind));
    json.field("chunk", segment.chunk);
    json.field("calls", row.segments[s].calls);
    json.key("ops");
    json.open('[');
    for (size_t o = 0; o < segment.ops.size(); ++o) write_op(json, segment.ops[o], row.segments[s].ops[o]);
    json.close(']');
    json.close('}');
  }
  json.close(']');
  // Each call as [segment, micro-batch].
  json.key("schedule");
  json.open('[');
  for (const Call& call : program.schedule) {
    json.open('[');
    json.value(call.segment);
    json.value(call.micro_batch);
    json.close(']');
  }
  json.close(']');
  json.close('}');
}

}  // namespace

std::string explain_json(const Layout& layout, const StepPrograms& programs, const RowLengths* rows) {
  const Explain explained = explain(layout, programs, rows);
  Json json;
  json.open('{');
  json.field("format", "mbbench-program");
  json.field("version", 1);
  json.field("program_hash", explained.program_hash);
  json.field("model", explained.model);
  json.key("without_effect");
  json.open('[');
  for (const std::string& knob : explained.idle) json.value(knob);
  json.close(']');
  json.field("mapping", describe(explained.sizes));
  json.field("sequence_parallel", explained.sequence_parallel);
  json.field("chunks", explained.chunks);
  json.field("recipe", explained.recipe);
  json.field("compute_dtype", explained.compute_dtype);
  json.field("gpus", explained.gpus);
  json.field("micro_batches", explained.micro_batches);
  json.field("micro_batch_size", explained.micro_batch);
  json.field("seq_length", explained.sequence);
  json.field("tokens_per_step", explained.tokens);
  json.field("label_tokens_per_step", explained.label_tokens);
  json.field("flops_convention", explained.convention);
  json.field("vocabulary", explained.vocabulary);
  json.field("padded_vocabulary", explained.padded_vocabulary);
  json.field("model_flops_per_step", explained.model_flops);
  json.field("recompute_flops_per_step", explained.recompute_flops);
  json.field("closed_form_flops_per_step", explained.closed_form_flops);
  json.field("eligible_flops_per_step", explained.eligible_flops);
  json.field("quantized_flops_per_step", explained.quantized_flops);
  json.field("model_flops_per_token", explained.flops_per_token);
  json.field("bubble_formula", explained.bubble_formula);
  json.field("bubble_replayed", explained.bubble_replayed);
  json.key("rank_classes");
  json.open('[');
  for (size_t i = 0; i < programs.programs.size(); ++i)
    write_class(json, programs.programs[i], programs.plans[i], explained.classes[i]);
  json.close(']');
  json.close('}');
  json.line();
  return json.take();
}

}  // namespace mbb::trainer
