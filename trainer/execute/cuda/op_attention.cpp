// CUDA functions of attention: which backend computes a call, and what each is given.
#include <fmt/core.h>

#include <vector>

#include "trainer/execute/cuda/op_call.h"
#include "trainer/ops/cuda/general_attention.h"
#include "trainer/ops/cuda/status.h"
#include "trainer/ops/relative_bucket.h"

namespace mbb::trainer::cuda {
namespace {

AttentionShape attention_shape(const Shape& qkv, const AttentionAttrs& a) {
  return {qkv[1],       qkv[0], a.heads, a.kv_heads, a.head_dim, a.causal, a.causal && a.window < qkv[0] ? a.window : 0,
          a.value_dim()};
}

// Why the general kernel alone computes it; null: the fused ones may.
const char* general_alone(const AttentionAttrs& a, Element element) {
  if (element != Element::kBf16) return "fp32";
  if (a.window > 0 && !a.causal) return "a window that looks both ways";
  if (a.has_weight()) return "sinks or a position bias";
  if (a.dropout > 0) return "dropout inside attention";
  if (!a.keys.whole() || !a.queries.whole() || a.first_query != 0) return "a part of the sequence";
  return nullptr;
}

const char* name_of(AttentionKernel kernel) {
  return kernel == AttentionKernel::kCudnn ? "cuDNN" : kernel == AttentionKernel::kFlash ? "flash" : "general";
}

// "attention backward of 8192 x 1, 32/8 heads of 128, causal".
std::string key_of(const AttentionShape& s, bool backward, bool packed = false) {
  return fmt::format(
      "attention {} of {} x {}, {}/{} heads of {}{}{}{}{}", backward ? "backward" : "forward", s.seq, s.batch, s.heads,
      s.kv_heads, s.head_dim, s.value_dim() != s.head_dim ? fmt::format(" and {}", s.value_dim()) : "",
      s.causal ? ", causal" : "", s.window > 0 ? fmt::format(", window {}", s.window) : "", packed ? ", packed" : "");
}

bool cudnn_takes(const OpCall& call, const AttentionShape& shape, float scale, bool backward) {
  if (shape.head_dim % 8 != 0 || shape.value_dim() % 8 != 0 || shape.head_dim > 256) return false;
  CudnnAttention* const cudnn = call.device.cudnn();
  const std::string key = key_of(shape, backward);
  if (cudnn == nullptr) {
    call.device.refuse("cuDNN", call.device.cudnn_reason() + "; our own kernels compute attention");
    return false;
  }
  if (call.device.refused(key)) return false;
  const auto bytes = cudnn->workspace(shape, scale, call.device.deterministic());
  if (!bytes) call.device.refuse(key, bytes.error().what + "; our own kernel computes it");
  return bytes.has_value();
}

bool flash_takes(const AttentionShape& shape) {
  return plan_flash_forward(shape).has_value();
}

// As measured for attention_backend = auto; else cuDNN where it is here and plans the shape, then our flash kernel,
// then the reference. One that is asked for and cannot compute the shape falls back in the same order, and the device
// notes why.
AttentionKernel kernel_of(const OpCall& call, const AttentionShape& shape, const AttentionAttrs& a, Element element,
                          bool backward) {
  if (const char* const why = general_alone(a, element)) {
    // Nobody expects a fused kernel of fp32 who did not ask for one.
    if (element == Element::kBf16 || a.backend != AttentionBackend::kAuto)
      call.device.refuse(key_of(shape, backward, a.packed), std::string(why) + ": our general kernel computes it");
    return AttentionKernel::kGeneral;
  }
  if (a.packed) {
    const bool flash = a.causal && flash_takes(shape);
    call.device.refuse(
        key_of(shape, backward, true),
        fmt::format("cuDNN is given whole sequences only: our {} kernel computes packs", flash ? "flash" : "general"));
    return flash ? AttentionKernel::kFlash : AttentionKernel::kGeneral;
  }
  if (a.backend == AttentionBackend::kAuto)
    if (const auto chosen = call.device.attention_choice(key_of(shape, backward))) return *chosen;
  if (a.backend != AttentionBackend::kFlash && cudnn_takes(call, shape, a.scale, backward))
    return AttentionKernel::kCudnn;
  return flash_takes(shape) ? AttentionKernel::kFlash : AttentionKernel::kGeneral;
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
  if (a.packed && !a.causal)
    return fail(ErrorCode::kUnavailable, "attention both ways, or to other tokens, inside packs does not run on CUDA",
                "run on the CPU: --device cpu");
  const bool packed = &q == &kv;
  GeneralAttention g;
  MB_ASSIGN(g.element, element_of(*q.tensor));
  g.attrs = &a;
  g.batch = q.shape()[1], g.queries = q.shape()[0], g.keys = kv.shape()[0];
  g.q = q.data, g.kv = kv.data;
  g.q_row = q.shape().cols(), g.kv_row = kv.shape().cols();
  g.key_offset = packed ? int64_t{a.heads} * a.head_dim : 0;
  g.value_offset = g.key_offset + int64_t{a.kv_heads} * a.head_dim;
  if (a.has_weight()) {
    const Operand& weight = call.in[first++];
    g.weight = weight.as<std::byte>() + bytes_of(weight.tensor->dtype, static_cast<size_t>(first_weight(a)));
  }
  MB_TRY(add_tables(call, a, &g));
  if (a.dropout > 0) {
    g.samples = call.in[first].as<const int32_t>();
    g.record = call.in[first + 1].as<const float>();
    g.first_head = int64_t{call.coordinates.tp} * a.tp_heads() + a.first_head;
    first += 2;
  }
  if (a.packed) {
    MB_ASSIGN(g.own, own_starts(call, first, g.queries, general_attention_workspace(g)));
  }
  return g;
}

}  // namespace

namespace {

Status forward_with(const OpCall& call, AttentionKernel kernel) {
  const auto& a = call.attrs<AttentionAttrs>();
  const AttentionShape shape = attention_shape(call.in[0].shape(), a);
  AttentionForward f{shape, a.scale, call.in[0].data, call.out[0].data, call.out[1].as<float>()};
  switch (kernel) {
    case AttentionKernel::kCudnn: {
      MB_ASSIGN(const int64_t bytes, call.device.cudnn()->workspace(shape, a.scale, call.device.deterministic()));
      MB_ASSIGN(void* const workspace, call.device.scratch(bytes));
      return call.device.cudnn()->forward(f, workspace, call.device.stream());
    }
    case AttentionKernel::kFlash:
      if (a.packed) {
        MB_ASSIGN(f.own, own_starts(call, 1, shape.seq, 0));
      }
      return flash_forward(f, call.device.stream());
    case AttentionKernel::kGeneral: break;
  }
  MB_ASSIGN(const GeneralAttention g, general(call, call.in[0], call.in[0], 1));
  return general_attention_forward(g, f.out, f.lse, call.device.launch());
}

Status backward_with(const OpCall& call, AttentionKernel kernel) {
  const auto& a = call.attrs<AttentionAttrs>();
  const AttentionShape shape = attention_shape(call.in[1].shape(), a);
  const Operand& dqkv = call.out[a.has_weight() ? 1 : 0];
  AttentionBackward b{shape,           a.scale,         call.in[1].data,
                      call.in[2].data, call.in[0].data, call.in[3].as<const float>(),
                      dqkv.data,       nullptr};
  if (kernel == AttentionKernel::kCudnn) {
    MB_ASSIGN(const int64_t bytes, call.device.cudnn()->workspace(shape, a.scale, call.device.deterministic()));
    MB_ASSIGN(b.workspace, call.device.scratch(bytes));
    return call.device.cudnn()->backward(b, call.device.deterministic(), call.device.stream());
  }
  if (kernel == AttentionKernel::kFlash) {
    const int64_t bytes = flash_backward_workspace(shape);
    if (a.packed) {
      MB_ASSIGN(b.own, own_starts(call, 4, shape.seq, bytes));
    }
    MB_ASSIGN(b.workspace, call.device.scratch(bytes));
    return flash_backward(b, call.device.stream());
  }
  MB_ASSIGN(const GeneralAttention g, general(call, call.in[1], call.in[1], 4));
  MB_ASSIGN(void* const workspace, call.device.scratch(general_attention_workspace(g)));
  MB_ASSIGN(float* const dweight, weight_gradient(call, a));
  return general_attention_backward(
      g, {b.out, b.dout, b.lse, call.in[3].shape()[2], a.first_query, dqkv.data, dqkv.data, dweight, workspace},
      call.device.launch());
}

Status tune(const OpCall& call, const Operand& qkv, bool backward) {
  const auto& a = call.attrs<AttentionAttrs>();
  if (a.backend != AttentionBackend::kAuto || call.device.deterministic()) return {};  // time decides otherwise twice
  MB_ASSIGN(const Element element, element_of(*qkv.tensor));
  const AttentionShape shape = attention_shape(qkv.shape(), a);
  const std::string key = key_of(shape, backward);
  if (general_alone(a, element) != nullptr || a.packed || call.device.attention_choice(key)) return {};
  std::vector<AttentionKernel> able;
  if (cudnn_takes(call, shape, a.scale, backward)) able.push_back(AttentionKernel::kCudnn);
  if (flash_takes(shape)) able.push_back(AttentionKernel::kFlash);
  if (able.empty()) return {};
  std::string why;
  double best = 0;
  AttentionKernel chosen = able.front();
  for (const AttentionKernel kernel : able) {
    MB_ASSIGN(const double ms,
              timed(call, 3, [&] { return backward ? backward_with(call, kernel) : forward_with(call, kernel); }));
    why += fmt::format("{}{} {:.3f} ms", why.empty() ? "" : ", ", name_of(kernel), ms);
    if (why.find(',') == std::string::npos || ms < best) best = ms, chosen = kernel;
  }
  call.device.choose_attention(key, chosen, fmt::format("{}: {}", why, name_of(chosen)));
  return {};
}

}  // namespace

Status attention_op(const OpCall& call) {
  const auto& a = call.attrs<AttentionAttrs>();
  MB_ASSIGN(const Element element, element_of(*call.in[0].tensor));
  return forward_with(call, kernel_of(call, attention_shape(call.in[0].shape(), a), a, element, false));
}

Status attention_grad_op(const OpCall& call) {
  const auto& a = call.attrs<AttentionAttrs>();
  MB_ASSIGN(const Element element, element_of(*call.in[1].tensor));
  return backward_with(call, kernel_of(call, attention_shape(call.in[1].shape(), a), a, element, true));
}

Status tune_attention_op(const OpCall& call) {
  return tune(call, call.in[0], false);
}

Status tune_attention_grad_op(const OpCall& call) {
  return tune(call, call.in[1], true);
}

Status cross_attention_op(const OpCall& call) {
  MB_ASSIGN(const GeneralAttention g, general(call, call.in[0], call.in[1], 2));
  return general_attention_forward(g, call.out[0].data, call.out[1].as<float>(), call.device.launch());
}

Status cross_attention_grad_op(const OpCall& call) {
  const auto& a = call.attrs<AttentionAttrs>();
  const size_t first = a.has_weight() ? 1 : 0;
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
