// CUDA functions of attention: which backend computes a call, and what each is given.
#include <fmt/core.h>

#include <algorithm>
#include <vector>

#include "trainer/execute/cuda/op_call.h"
#include "trainer/ops/cuda/general_attention.h"
#include "trainer/ops/cuda/position_bias.h"
#include "trainer/ops/cuda/sink_kernels.h"
#include "trainer/ops/cuda/status.h"
#include "trainer/ops/relative_bucket.h"

namespace mbb::trainer::cuda {
namespace {

// Of a forward or a backward: its operand `qkv`, and `starts` where it is a pack.
AttentionShape attention_shape(const OpCall& call, size_t qkv, size_t starts) {
  const auto& a = call.attrs<AttentionAttrs>();
  const Shape& s = call.in[qkv].shape();
  return {.batch = s[1],
          .seq = s[0],
          .heads = a.heads,
          .kv_heads = a.kv_heads,
          .head_dim = a.head_dim,
          .causal = a.causal,
          .window = a.causal && a.window < s[0] ? a.window : 0,
          .value_width = a.value_dim(),
          .packs = a.packed ? call.in[starts].elements() : 0,
          .bias = a.relative_buckets > 0};
}
// Where they stand: the weight (sinks or bias table) first among the extras, the starts last.
constexpr size_t kForwardQkv = 0, kForwardWeight = 1, kBackwardQkv = 1, kBackwardWeight = 4;
size_t forward_starts(const OpCall& call) {
  return call.in.size() - 1;
}
size_t backward_starts(const OpCall& call) {
  const auto& a = call.attrs<AttentionAttrs>();
  return call.in.size() - (a.has_weight() && a.accumulate ? 2 : 1);  // the main gradient to add to comes last
}
AttentionShape forward_shape(const OpCall& call) {
  return attention_shape(call, kForwardQkv, forward_starts(call));
}
AttentionShape backward_shape(const OpCall& call) {
  return attention_shape(call, kBackwardQkv, backward_starts(call));
}

// Why the general kernel alone computes it; null: the fused ones may.
const char* general_alone(const AttentionAttrs& a, Element element) {
  if (element != Element::kBf16) return "fp32";
  if (a.window > 0 && !a.causal) return "a window that looks both ways";
  if (a.relative_buckets > 0 && a.packed) return "a position bias inside a pack";
  if (a.relative_buckets > 0 && a.window > 0) return "a position bias inside a window";
  if (a.dropout > 0) return "dropout inside attention";
  return nullptr;
}

// What queries see of keys that stand apart from them.
enum class Seen { kAll, kUpToOwn, kElse };

// Of a ring's step: its own keys up to each query's place, or all of another rank's.
Seen seen_by(const AttentionAttrs& a, int64_t queries, int64_t keys) {
  if (!a.causal) return Seen::kAll;
  bool rises = true, alike = queries == keys;
  for (int64_t row = 0; row < queries; ++row) {
    rises = rises && (row == 0 || a.queries.at(row) > a.queries.at(row - 1));
    alike = alike && a.queries.at(row) == a.keys.at(row);
  }
  if (rises && alike) return Seen::kUpToOwn;
  int64_t last_key = 0;
  for (int64_t row = 0; row < keys; ++row) last_key = std::max(last_key, a.keys.at(row));
  for (int64_t row = 0; row < queries; ++row)
    if (a.queries.at(row) < last_key) return Seen::kElse;
  return Seen::kAll;
}

// Queries and keys in tensors of their own, as the fused kernels take them; an error says why they do not.
Result<AttentionShape> shape_apart(const AttentionAttrs& a, const Operand& q, const Operand& kv) {
  MB_ASSIGN(const Element element, element_of(*q.tensor));
  const auto refuse = [](const char* why) { return fail(ErrorCode::kUnavailable, why); };
  if (const char* const why = general_alone(a, element)) return refuse(why);
  if (a.packed) return refuse("a pack's keys apart from its queries");
  if (a.relative_buckets > 0) return refuse("a position bias of keys apart from their queries");
  const int64_t queries = q.shape()[0], keys = kv.shape()[0];
  if (a.window > 0 && a.window < std::max(a.queries.sequence, keys)) return refuse("a window over a part of the keys");
  const Seen seen = seen_by(a, queries, keys);
  if (seen == Seen::kElse) return refuse("queries that see other parts of the keys");
  return AttentionShape{.batch = q.shape()[1],
                        .seq = queries,
                        .heads = a.heads,
                        .kv_heads = a.kv_heads,
                        .head_dim = a.head_dim,
                        .causal = seen == Seen::kUpToOwn,
                        .value_width = a.value_dim(),
                        .keys = keys};
}

const char* name_of(AttentionKernel kernel) {
  return kernel == AttentionKernel::kCudnn ? "cuDNN" : kernel == AttentionKernel::kFlash ? "flash" : "general";
}

// "attention backward of 8192 x 1, 32/8 heads of 128, causal"; "of 4096 x 1 to 2048 keys, ...".
std::string key_of(const AttentionShape& s, bool backward) {
  return fmt::format("attention {} of {} x {}{}, {}/{} heads of {}{}{}{}{}{}", backward ? "backward" : "forward", s.seq,
                     s.batch, s.apart() ? fmt::format(" to {} keys", s.keys) : "", s.heads, s.kv_heads, s.head_dim,
                     s.value_dim() != s.head_dim ? fmt::format(" and {}", s.value_dim()) : "",
                     s.causal ? ", causal" : "", s.bias ? ", biased" : "",
                     s.window > 0 ? fmt::format(", window {}", s.window) : "",
                     s.packs > 0 ? fmt::format(", {} starts", s.packs) : "");
}

// Which of our own computes what cuDNN does not.
std::string ours(const AttentionShape& shape) {
  const auto flash = plan_flash_forward(shape);
  return flash ? "our flash kernel computes it" : flash.error().what + ": our general kernel computes it";
}

// cuDNN reads the bias of every pair of positions, and its gradient is as large.
constexpr int64_t kLargestBias = int64_t{1} << 30;

bool cudnn_takes(const OpCall& call, const AttentionShape& shape, float scale, bool backward) {
  const std::string key = key_of(shape, backward);
  if (shape.head_dim % 8 != 0 || shape.value_dim() % 8 != 0 || shape.head_dim > 256) {
    call.device.refuse(key, "cuDNN has heads in eights up to 256; " + ours(shape));
    return false;
  }
  CudnnAttention* const cudnn = call.device.cudnn();
  if (cudnn == nullptr) {
    call.device.refuse("cuDNN", call.device.cudnn_reason() + "; our own kernels compute attention");
    return false;
  }
  if (call.device.refused(key)) return false;
  if (const int64_t bytes = shape.bias ? position_bias_bytes(shape.heads, shape.seq, shape.key_rows()) : 0;
      bytes > kLargestBias) {
    call.device.refuse(key, fmt::format("a whole position bias takes {} MiB; {}", bytes >> 20, ours(shape)));
    return false;
  }
  const auto bytes = cudnn->workspace(shape, scale, call.device.deterministic(), backward);
  if (!bytes) call.device.refuse(key, bytes.error().what + "; " + ours(shape));
  return bytes.has_value();
}

bool flash_takes(const AttentionShape& shape) {
  return plan_flash_forward(shape).has_value();
}

// As measured for attention_backend = auto; else cuDNN where it is here and plans the shape, then our flash kernel,
// then the reference. One that is asked for, or chosen elsewhere, and cannot compute the shape falls back in the same
// order, and the device notes why.
AttentionKernel fused_kernel_of(const OpCall& call, const AttentionShape& shape, const AttentionAttrs& a,
                                bool backward) {
  if (a.backend == AttentionBackend::kAuto)
    if (call.device.attention_choice(key_of(shape, backward)) == AttentionKernel::kFlash && flash_takes(shape))
      return AttentionKernel::kFlash;
  if (a.backend != AttentionBackend::kFlash && cudnn_takes(call, shape, a.scale, backward))
    return AttentionKernel::kCudnn;
  if (flash_takes(shape)) return AttentionKernel::kFlash;
  call.device.refuse(key_of(shape, backward), ours(shape));
  return AttentionKernel::kGeneral;
}

// Nobody expects a fused kernel of fp32 who did not ask for one.
AttentionKernel general_for(const OpCall& call, std::string_view key, const AttentionAttrs& a, Element element,
                            std::string_view why) {
  if (element == Element::kBf16 || a.backend != AttentionBackend::kAuto)
    call.device.refuse(std::string(key), std::string(why) + ": our general kernel computes it");
  return AttentionKernel::kGeneral;
}

AttentionKernel kernel_of(const OpCall& call, const AttentionShape& shape, const AttentionAttrs& a, Element element,
                          bool backward) {
  if (const char* const why = general_alone(a, element))
    return general_for(call, key_of(shape, backward), a, element, why);
  return fused_kernel_of(call, shape, a, backward);
}

// Of sinks or table: the element from which those of these heads stand.
int64_t first_weight(const AttentionAttrs& a) {
  return int64_t{a.first_head} * (a.relative_buckets > 0 ? a.relative_buckets : 1);
}

// Where rows lie, and the bias's buckets: one constant of the op.
Status add_tables(const OpCall& call, const AttentionAttrs& a, GeneralAttention* g) {
  const bool part = !a.queries.whole() || !a.keys.whole();
  const auto places = [](const Positions& positions, int64_t rows) {
    std::vector<int32_t> all(static_cast<size_t>(rows));
    for (size_t row = 0; row < all.size(); ++row)
      all[row] = static_cast<int32_t>(positions.at(static_cast<int64_t>(row)));
    return all;
  };
  g->all_queries = a.queries.whole() ? g->queries : a.queries.sequence;
  g->all_keys = a.keys.whole() ? g->keys : a.keys.sequence;
  std::vector<int32_t> table;
  if (part) {
    table = places(a.queries, g->queries);
    const std::vector<int32_t> keys = places(a.keys, g->keys);
    table.insert(table.end(), keys.begin(), keys.end());
  }
  const size_t rows = table.size();
  if (a.relative_buckets > 0)
    for (int64_t distance = 1 - g->all_queries; distance < g->all_keys; ++distance)
      table.push_back(relative_bucket(distance, a));
  if (table.empty()) return {};
  MB_ASSIGN(const void* const on_device,
            call.device.constant(&call.op, std::as_bytes(std::span<const int32_t>(table))));
  const auto* values = static_cast<const int32_t*>(on_device);
  if (part) g->query_places = values, g->key_places = values + g->queries;
  if (a.relative_buckets > 0) g->buckets = values + rows;
  return {};
}

// Of sinks or table: this op's heads.
const std::byte* weight_of(const AttentionAttrs& a, const Operand& weight) {
  return weight.as<const std::byte>() + bytes_of(weight.tensor->dtype, static_cast<size_t>(first_weight(a)));
}

// The gradient of sinks or table is of all of this rank's heads, of which the op may have a part: the others get none.
Result<float*> weight_gradient(const OpCall& call, const AttentionAttrs& a) {
  if (!a.has_weight()) return static_cast<float*>(nullptr);
  const Operand& gradient = call.out[0];
  if (a.all_heads != 0 && !a.accumulate)
    MB_TRY(ok(cudaMemsetAsync(gradient.data, 0, static_cast<size_t>(gradient.tensor->bytes()), call.device.stream()),
              "clearing the gradient of attention's weight"));
  return gradient.as<float>() + first_weight(a);
}

// Operands after q and kv stand from `first` on: sinks or table, then samples and step record.
Result<GeneralAttention> general(const OpCall& call, const Operand& q, const Operand& kv, size_t first) {
  const auto& a = call.attrs<AttentionAttrs>();
  if (a.packed) {
    MB_TRY(whole_pack(a.queries));
    MB_TRY(whole_pack(a.keys));
  }
  const bool packed = &q == &kv;
  GeneralAttention g;
  MB_ASSIGN(g.element, element_of(*q.tensor));
  g.attrs = &a;
  g.batch = q.shape()[1], g.queries = q.shape()[0], g.keys = kv.shape()[0];
  g.q = q.data, g.kv = kv.data;
  g.q_row = q.shape().cols(), g.kv_row = kv.shape().cols();
  g.key_offset = packed ? int64_t{a.heads} * a.head_dim : 0;
  g.value_offset = g.key_offset + int64_t{a.kv_heads} * a.head_dim;
  if (a.has_weight()) g.weight = weight_of(a, call.in[first++]);
  MB_TRY(add_tables(call, a, &g));
  if (a.dropout > 0) {
    g.samples = call.in[first].as<const int32_t>();
    g.record = call.in[first + 1].as<const float>();
    g.first_head = int64_t{call.coordinates.tp} * a.tp_heads() + a.first_head;
    first += 2;
  }
  if (a.packed) {
    MB_ASSIGN(g.packs,
              pack_spans(call, first, g.queries, g.keys, !packed && !a.causal, general_attention_workspace(g)));
  }
  return g;
}

}  // namespace

namespace {

int64_t round_up(int64_t bytes) {
  return (bytes + 255) / 256 * 256;
}

// Our flash kernel reads the rows of each token's own sequence.
Status own_rows(const OpCall& call, size_t starts, int64_t tokens, int64_t beside, AttentionPacks* packs) {
  MB_ASSIGN(const PackSpans spans, pack_spans(call, starts, tokens, tokens, false, beside));
  packs->own = spans.key_begin, packs->past = spans.key_past;
  return {};
}

// Scratch memory: a library's workspace, and behind it `beside` bytes.
struct Scratch {
  void* workspace;
  std::byte* beside;
};
Result<Scratch> scratch(const OpCall& call, int64_t workspace, int64_t beside) {
  const int64_t offset = round_up(workspace);
  MB_ASSIGN(void* const all, call.device.scratch(offset + beside));
  return Scratch{all, static_cast<std::byte*>(all) + offset};
}

// The bias of an op with a table, `weight`: where that stands among the operands.
struct Spread {
  PositionBias bias;
  const std::byte* table;
};
Result<Spread> position_bias(const OpCall& call, const AttentionShape& s, size_t weight) {
  const auto& a = call.attrs<AttentionAttrs>();
  GeneralAttention tables;
  tables.queries = s.seq, tables.keys = s.key_rows();
  MB_TRY(add_tables(call, a, &tables));
  return Spread{{s.heads, s.seq, s.key_rows(), a.relative_buckets, a.causal, tables.buckets},
                weight_of(a, call.in[weight])};
}

Status cudnn_forward(const OpCall& call, AttentionForward f) {
  CudnnAttention* const cudnn = call.device.cudnn();
  MB_ASSIGN(const int64_t bytes, cudnn->workspace(f.shape, f.scale, call.device.deterministic(), false));
  const AttentionShape& s = f.shape;
  const int64_t bias_bytes = s.bias ? position_bias_bytes(s.heads, s.seq, s.key_rows()) : 0;
  MB_ASSIGN(const Scratch memory, scratch(call, bytes, bias_bytes));
  if (s.bias) {
    MB_ASSIGN(const Spread spread, position_bias(call, s, kForwardWeight));
    MB_TRY(spread_position_bias(spread.bias, spread.table, memory.beside, call.device.launch()));
    f.bias = memory.beside;
  }
  return cudnn->forward(f, memory.workspace, call.device.stream());
}

// With the gradient of its table, where it has one.
Status cudnn_biased_backward(const OpCall& call, AttentionBackward b, int64_t bytes) {
  const auto& a = call.attrs<AttentionAttrs>();
  const AttentionShape& s = b.shape;
  MB_ASSIGN(const Spread spread, position_bias(call, s, kBackwardWeight));
  const int64_t bias_bytes = round_up(position_bias_bytes(s.heads, s.seq, s.key_rows()));
  MB_ASSIGN(const Scratch memory, scratch(call, bytes, 2 * bias_bytes + position_bias_workspace(spread.bias)));
  MB_TRY(spread_position_bias(spread.bias, spread.table, memory.beside, call.device.launch()));
  b.workspace = memory.workspace, b.bias = memory.beside, b.dbias = memory.beside + bias_bytes;
  MB_TRY(ok(cudaMemsetAsync(b.dbias, 0, static_cast<size_t>(bias_bytes), call.device.stream()),
            "clearing the gradient of a position bias"));
  MB_TRY(call.device.cudnn()->backward(b, call.device.deterministic(), call.device.stream()));
  MB_ASSIGN(float* const dtable, weight_gradient(call, a));
  return gather_position_bias(spread.bias, b.dbias, dtable, a.accumulate, memory.beside + 2 * bias_bytes,
                              call.device.launch());
}

Status cudnn_backward(const OpCall& call, AttentionBackward b) {
  CudnnAttention* const cudnn = call.device.cudnn();
  MB_ASSIGN(const int64_t bytes, cudnn->workspace(b.shape, b.scale, call.device.deterministic(), true));
  if (b.shape.bias) return cudnn_biased_backward(call, b, bytes);
  MB_ASSIGN(b.workspace, call.device.scratch(bytes));
  return cudnn->backward(b, call.device.deterministic(), call.device.stream());
}

// Around the fused kernels, which know no sinks (sink_kernels.h); `weight`: where they stand among the operands.
Status add_sinks(const OpCall& call, const AttentionForward& f, size_t weight) {
  const auto& a = call.attrs<AttentionAttrs>();
  if (!a.sinks) return {};
  const AttentionShape& s = f.shape;
  return apply_sinks({s.seq, s.batch, s.heads, s.value_dim(), s.seq}, weight_of(a, call.in[weight]), f.out, f.lse,
                     call.device.launch());
}
Status add_sink_gradient(const OpCall& call, const AttentionBackward& b, size_t weight) {
  const auto& a = call.attrs<AttentionAttrs>();
  if (!a.sinks) return {};
  const AttentionShape& s = b.shape;
  const SinkShape shape{s.seq, s.batch, s.heads, s.value_dim(), b.lse_rows > 0 ? b.lse_rows : s.seq};
  MB_ASSIGN(void* const workspace, call.device.scratch(sink_gradient_workspace(shape)));
  MB_ASSIGN(float* const dsinks, weight_gradient(call, a));
  return sink_gradient(shape, weight_of(a, call.in[weight]), b.out, b.dout, b.lse, dsinks, a.accumulate, workspace,
                       call.device.launch());
}

Status forward_with(const OpCall& call, AttentionKernel kernel) {
  const auto& a = call.attrs<AttentionAttrs>();
  const AttentionShape shape = forward_shape(call);
  AttentionForward f{shape, a.scale, call.in[0].data, call.out[0].data, call.out[1].as<float>()};
  if (kernel == AttentionKernel::kGeneral) {
    MB_ASSIGN(const GeneralAttention g, general(call, call.in[0], call.in[0], kForwardWeight));
    return general_attention_forward(g, f.out, f.lse, call.device.launch());
  }
  if (a.packed) f.packs.starts = call.in[forward_starts(call)].as<const int32_t>();
  if (kernel == AttentionKernel::kCudnn) {
    MB_TRY(cudnn_forward(call, f));
  } else {
    if (a.packed) MB_TRY(own_rows(call, forward_starts(call), shape.seq, 0, &f.packs));
    MB_TRY(flash_forward(f, call.device.stream()));
  }
  return add_sinks(call, f, kForwardWeight);
}

Status backward_with(const OpCall& call, AttentionKernel kernel) {
  const auto& a = call.attrs<AttentionAttrs>();
  const AttentionShape shape = backward_shape(call);
  const Operand& dqkv = call.out[a.has_weight() ? 1 : 0];
  AttentionBackward b{shape,           a.scale,         call.in[1].data,
                      call.in[2].data, call.in[0].data, call.in[3].as<const float>(),
                      dqkv.data,       nullptr};
  if (a.packed) b.packs.starts = call.in[backward_starts(call)].as<const int32_t>();
  switch (kernel) {
    case AttentionKernel::kCudnn: MB_TRY(cudnn_backward(call, b)); break;
    case AttentionKernel::kFlash: {
      const int64_t bytes = flash_backward_workspace(shape);
      if (a.packed) MB_TRY(own_rows(call, backward_starts(call), shape.seq, bytes, &b.packs));
      MB_ASSIGN(b.workspace, call.device.scratch(bytes));
      MB_TRY(flash_backward(b, call.device.stream()));
      break;
    }
    case AttentionKernel::kGeneral: {
      MB_ASSIGN(const GeneralAttention g, general(call, call.in[1], call.in[1], kBackwardWeight));
      MB_ASSIGN(void* const workspace, call.device.scratch(general_attention_workspace(g)));
      MB_ASSIGN(float* const dweight, weight_gradient(call, a));
      return general_attention_backward(
          g, {b.out, b.dout, b.lse, call.in[3].shape()[2], a.first_query, dqkv.data, dqkv.data, dweight, workspace},
          call.device.launch());
    }
  }
  return add_sink_gradient(call, b, kBackwardWeight);
}

// Nothing wrote the starts yet: a few sequences of one length, then tokens that nobody reads.
Status plausible_starts(const OpCall& call, const Operand& starts, int64_t tokens) {
  constexpr int64_t kSequences = 8;
  std::vector<int32_t> values(static_cast<size_t>(starts.elements()));
  const int64_t sequences = std::min(kSequences, starts.elements());
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<int32_t>(std::min(static_cast<int64_t>(i), sequences) * (tokens / sequences));
  MB_TRY(
      ok(cudaMemcpyAsync(starts.data, values.data(), values.size() * 4, cudaMemcpyHostToDevice, call.device.stream()),
         "writing a pack to time attention on"));
  return ok(cudaStreamSynchronize(call.device.stream()), "writing a pack to time attention on");
}

Status tune(const OpCall& call, const Operand& qkv, const AttentionShape& shape, bool backward) {
  const auto& a = call.attrs<AttentionAttrs>();
  if (a.backend != AttentionBackend::kAuto) return {};
  MB_ASSIGN(const Element element, element_of(*qkv.tensor));
  const std::string key = key_of(shape, backward);
  if (general_alone(a, element) != nullptr) return {};
  if (call.device.deterministic()) {  // time decides otherwise twice
    const AttentionKernel kernel = fused_kernel_of(call, shape, a, backward);
    call.device.adopt_attention(key, kernel, fmt::format("deterministic, not timed here: {}", name_of(kernel)));
    return {};
  }
  if (const auto known = call.device.attention_choice(key)) {
    call.device.adopt_attention(key, *known, fmt::format("as timed elsewhere: {}", name_of(*known)));
    return {};
  }
  std::vector<AttentionKernel> able;
  if (cudnn_takes(call, shape, a.scale, backward)) able.push_back(AttentionKernel::kCudnn);
  if (flash_takes(shape)) able.push_back(AttentionKernel::kFlash);
  if (able.empty()) return {};
  if (a.packed)
    MB_TRY(plausible_starts(call, call.in[backward ? backward_starts(call) : forward_starts(call)], shape.seq));
  std::string said;
  std::vector<double> times;
  for (const AttentionKernel kernel : able) {
    MB_ASSIGN(const double ms,
              timed(call, 3, [&] { return backward ? backward_with(call, kernel) : forward_with(call, kernel); }));
    said += fmt::format("{}{} {:.3f} ms", times.empty() ? "" : ", ", name_of(kernel), ms);
    times.push_back(ms);
  }
  const auto best = static_cast<size_t>(std::min_element(times.begin(), times.end()) - times.begin());
  call.device.choose_attention(key, able[best], times, fmt::format("{}: {}", said, name_of(able[best])));
  return {};
}

}  // namespace

Status attention_op(const OpCall& call) {
  const auto& a = call.attrs<AttentionAttrs>();
  MB_ASSIGN(const Element element, element_of(*call.in[0].tensor));
  return forward_with(call, kernel_of(call, forward_shape(call), a, element, false));
}

Status attention_grad_op(const OpCall& call) {
  const auto& a = call.attrs<AttentionAttrs>();
  MB_ASSIGN(const Element element, element_of(*call.in[1].tensor));
  return backward_with(call, kernel_of(call, backward_shape(call), a, element, true));
}

Status tune_attention_op(const OpCall& call) {
  return tune(call, call.in[kForwardQkv], forward_shape(call), false);
}

Status tune_attention_grad_op(const OpCall& call) {
  return tune(call, call.in[kBackwardQkv], backward_shape(call), true);
}

namespace {

// Of keys that stand apart: the kernel, and the shape where it is a fused one.
struct Apart {
  AttentionKernel kernel = AttentionKernel::kGeneral;
  AttentionShape shape;
};
Result<Apart> apart(const OpCall& call, const Operand& q, const Operand& kv, bool backward) {
  const auto& a = call.attrs<AttentionAttrs>();
  MB_ASSIGN(const Element element, element_of(*q.tensor));
  const auto shape = shape_apart(a, q, kv);
  if (shape)  // our flash kernel reads queries and keys that are packed together
    return fused_kernel_of(call, *shape, a, backward) == AttentionKernel::kCudnn
               ? Apart{AttentionKernel::kCudnn, *shape}
               : Apart{};
  const std::string key = fmt::format("attention {} of {} queries to {} keys apart", backward ? "backward" : "forward",
                                      q.shape()[0], kv.shape()[0]);
  return Apart{general_for(call, key, a, element, shape.error().what), {}};
}

}  // namespace

Status cross_attention_op(const OpCall& call) {
  const auto& a = call.attrs<AttentionAttrs>();
  MB_ASSIGN(const Apart with, apart(call, call.in[0], call.in[1], false));
  AttentionForward f{with.shape, a.scale, call.in[0].data, call.out[0].data, call.out[1].as<float>()};
  f.kv = call.in[1].data;
  if (with.kernel == AttentionKernel::kCudnn) {
    MB_TRY(cudnn_forward(call, f));
    return add_sinks(call, f, 2);
  }
  MB_ASSIGN(const GeneralAttention g, general(call, call.in[0], call.in[1], 2));
  return general_attention_forward(g, call.out[0].data, call.out[1].as<float>(), call.device.launch());
}

Status cross_attention_grad_op(const OpCall& call) {
  const auto& a = call.attrs<AttentionAttrs>();
  const size_t first = a.has_weight() ? 1 : 0;
  MB_ASSIGN(const Apart with, apart(call, call.in[1], call.in[2], true));
  if (with.kernel == AttentionKernel::kCudnn) {
    AttentionBackward b{with.shape,          a.scale,         call.in[1].data,
                        call.in[3].data,     call.in[0].data, call.in[4].as<const float>() + a.first_query,
                        call.out[first].data};
    b.kv = call.in[2].data, b.dkv = call.out[first + 1].data, b.lse_rows = call.in[4].shape()[2];
    MB_TRY(cudnn_backward(call, b));
    return add_sink_gradient(call, b, 5);
  }
  MB_ASSIGN(const GeneralAttention g, general(call, call.in[1], call.in[2], 5));
  MB_ASSIGN(void* const workspace, call.device.scratch(general_attention_workspace(g)));
  MB_ASSIGN(float* const dweight, weight_gradient(call, a));
  return general_attention_backward(
      g,
      {call.in[3].data, call.in[0].data, call.in[4].as<const float>(), call.in[4].shape()[2], a.first_query,
       call.out[first].data, call.out[first + 1].data, dweight, workspace},
      call.device.launch());
}

}  // namespace mbb::trainer::cuda
