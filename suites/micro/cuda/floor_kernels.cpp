// Copy bandwidth, attention by each backend, and our memory-bound kernels at a case's shapes.
#include <fmt/core.h>

#include <cmath>

#include "suites/micro/cuda/floor_bench.h"
#include "trainer/ops/cuda/attention.h"
#include "trainer/ops/cuda/kernels.h"
#include "trainer/ops/cuda/optimizer.h"
#include "trainer/ops/cuda/status.h"

namespace mbb::suites {
namespace {

using namespace trainer::cuda;  // NOLINT: this file speaks of nothing else

bool wanted(const FloorContext& context, const std::string& text) {
  return context.only.empty() || text.find(context.only) != std::string::npos;
}

void run(FloorContext& context, FloorRow row, const std::function<Status()>& call) {
  if (!wanted(context, row.section + " " + row.name + " " + row.uses)) return;
  auto timing = context.watch.sustained(call, context.seconds);
  if (timing)
    row.timing = *timing;
  else
    row.skipped = timing.error().what;
  context.keep(std::move(row));
}

FloorRow bytes_row(const FloorCase& c, const char* kernel, double bytes) {
  FloorRow row;
  row.section = "kernel", row.name = kernel, row.uses = c.name, row.work = bytes, row.is_bytes = true;
  return row;
}

}  // namespace

void floor_copy(FloorContext& context) {
  FloorRow row;
  constexpr int64_t bytes = int64_t{2} << 30;
  row.section = "copy", row.name = "device copy 2 GiB", row.work = 2.0 * bytes, row.is_bytes = true;
  run(context, row, [&] {
    return ok(cudaMemcpyAsync(context.pool.output(bytes), context.pool.input(Element::kBf16, bytes / 2), bytes,
                              cudaMemcpyDeviceToDevice, context.launch.stream),
              "copying");
  });
}

void floor_attention_rows(FloorContext& context, const std::vector<FloorCase>& cases) {
  auto cudnn = CudnnAttention::make();
  for (const FloorCase& c : cases) {
    if (c.heads == 0) continue;
    const AttentionShape s = floor_attention(c);
    const float scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim));
    const int64_t qkv = s.batch * s.seq * (s.heads + 2 * s.kv_heads) * s.head_dim,
                  out = s.batch * s.seq * s.heads * s.head_dim;
    auto* lse = static_cast<float*>(context.pool.scratch());
    auto* workspace = static_cast<char*>(context.pool.scratch()) + (int64_t{16} << 20);
    auto* const fixed_out = context.pool.output(out * 2);
    const AttentionForward f{s, scale, context.pool.input(Element::kBf16, qkv), fixed_out, lse};
    const AttentionBackward b{
        s, scale, f.qkv, f.out, context.pool.input(Element::kBf16, out), lse, context.pool.output(qkv * 2), workspace};
    for (const std::string backend : {"cudnn", "cudnn-deterministic", "flash"}) {
      const bool deterministic = backend == "cudnn-deterministic";
      for (const bool backward : {false, true}) {
        if (deterministic && !backward) continue;  // the forward is cudnn's
        FloorRow row;
        row.section = "attention", row.uses = c.name;
        row.seq = s.seq, row.head_dim = s.head_dim;
        row.work = attention_forward_flops(s) * (backward ? 2.5 : 1.0);
        row.name = backend + (backward ? " backward" : " forward");
        if (backend != "flash") {
          auto bytes = cudnn ? (*cudnn)->workspace(s, scale, deterministic, backward) : tl::unexpected(cudnn.error());
          if (bytes && *bytes > FloorPool::kScratch - (int64_t{16} << 20))
            bytes = fail(ErrorCode::kOutOfMemory, fmt::format("workspace of {} bytes", *bytes));
          if (!bytes) {
            row.skipped = bytes.error().what;
            context.keep(row);
            continue;
          }
        }
        run(context, row, [&] {
          if (backend == "flash")
            return backward ? flash_backward(b, context.launch.stream) : flash_forward(f, context.launch.stream);
          return backward ? (*cudnn)->backward(b, deterministic, context.launch.stream)
                          : (*cudnn)->forward(f, workspace, context.launch.stream);
        });
      }
    }
  }
}

namespace {

void norm_rows(FloorContext& x, const FloorCase& c) {
  const int64_t n = c.tokens() * c.hidden;
  auto* stats = static_cast<float*>(x.pool.scratch());
  auto* partials = stats + c.tokens() * 2;
  NormForward f;
  f.shape = {c.tokens(), c.hidden}, f.weight = x.pool.input(Element::kBf16, c.hidden), f.rstd = stats;
  run(x, bytes_row(c, "rmsnorm_forward", 4.0 * static_cast<double>(n)), [&] {
    f.x = x.pool.input(Element::kBf16, n), f.y = x.pool.output(n * 2);
    return norm_forward(f, x.launch);
  });
  NormBackward b;
  b.shape = f.shape, b.weight = f.weight, b.rstd = stats, b.partials = partials, b.dweight = stats + (8 << 20);
  run(x, bytes_row(c, "rmsnorm_backward+residual", 8.0 * static_cast<double>(n)), [&] {
    b.x = x.pool.input(Element::kBf16, n), b.dy = x.pool.input(Element::kBf16, n);
    b.dresidual = x.pool.input(Element::kBf16, n), b.dx = x.pool.output(n * 2);
    return norm_backward(b, x.launch);
  });
  run(x, bytes_row(c, "add", 6.0 * static_cast<double>(n)), [&] {
    return add(Element::kBf16, x.pool.input(Element::kBf16, n), x.pool.input(Element::kBf16, n), x.pool.output(n * 2),
               n, x.launch);
  });
  Quantize q;
  q.shape = f.shape, q.amax = x.pool.scales(), q.inverse_scale = stats;
  run(x, bytes_row(c, "norm_amax (pass 1 of norm+quantize)", 2.0 * static_cast<double>(n)), [&] {
    f.x = x.pool.input(Element::kBf16, n), f.y = nullptr, f.amax = partials;
    return norm_forward(f, x.launch);
  });
  run(x, bytes_row(c, "quantize_norm (q and transpose)", 4.0 * static_cast<double>(n)), [&] {
    q.q = x.pool.output(n), q.qt = x.pool.output(n);
    return quantize_norm(q, x.pool.input(Element::kBf16, n), stats, f.weight, x.launch);
  });
  run(x, bytes_row(c, "quantize (q and transpose)", 4.0 * static_cast<double>(n)), [&] {
    q.q = x.pool.output(n), q.qt = x.pool.output(n);
    return quantize(q, x.pool.input(Element::kBf16, n), x.launch);
  });
}

void swiglu_rows(FloorContext& x, const FloorCase& c) {
  const int64_t n = c.tokens() * c.ffn;
  const auto m = static_cast<double>(n);
  const RowShape shape{c.tokens(), c.ffn};
  auto* slot = static_cast<float*>(x.pool.scratch());
  const auto gate_up = [&] { return x.pool.input(Element::kBf16, 2 * n); };
  const auto dy = [&] { return x.pool.input(Element::kBf16, n); };
  run(x, bytes_row(c, "swiglu_forward", 6 * m),
      [&] { return swiglu_forward(Element::kBf16, shape, gate_up(), x.pool.output(n * 2), x.launch); });
  run(x, bytes_row(c, "swiglu_backward", 10 * m),
      [&] { return swiglu_backward(Element::kBf16, shape, gate_up(), dy(), x.pool.output(n * 4), x.launch); });
  Quantize q;
  q.shape = shape, q.amax = x.pool.scales(), q.inverse_scale = slot;
  run(x, bytes_row(c, "swiglu_amax", 4 * m), [&] { return swiglu_amax(shape, gate_up(), slot + 1, x.launch); });
  run(x, bytes_row(c, "quantize_swiglu (q and transpose)", 6 * m), [&] {
    q.q = x.pool.output(n), q.qt = x.pool.output(n);
    return quantize_swiglu(q, gate_up(), x.launch);
  });
  q.to = Element::kE5m2;
  run(x, bytes_row(c, "swiglu_backward_amax", 6 * m),
      [&] { return swiglu_backward_amax(shape, gate_up(), dy(), slot + 1, x.launch); });
  run(x, bytes_row(c, "quantize_swiglu_backward (q and transpose)", 10 * m), [&] {
    q.q = x.pool.output(2 * n), q.qt = x.pool.output(2 * n);
    return quantize_swiglu_backward(q, gate_up(), dy(), x.launch);
  });
}

Status optimizer_rows(FloorContext& x, const FloorCase& c) {
  constexpr int64_t n = int64_t{200} << 20;
  // record (rate, bias corrections, step), scale (factor, norm, found_inf), one piece.
  auto* const base = static_cast<char*>(x.pool.scratch());
  auto* const record = reinterpret_cast<float*>(base);
  auto* const scale = record + 4;
  auto* const pieces = reinterpret_cast<BucketPiece*>(base + 4096);
  auto* const partials = reinterpret_cast<double*>(base + 16384);
  const float values[7] = {1e-4f, 0.1f, 0.05f, 1.0f, 1.0f, 1.0f, 0.0f};
  const BucketPiece piece{2 * n, 0.1f, 1.0f, 1.0f};
  MB_TRY(ok(cudaMemcpy(record, values, sizeof(values), cudaMemcpyHostToDevice), "writing a step record"));
  MB_TRY(ok(cudaMemcpy(pieces, &piece, sizeof(piece), cudaMemcpyHostToDevice), "writing a bucket's piece"));
  struct Form {
    const char* name;
    MasterForm form;
    Element moments, gradients;
  };
  for (const Form form :
       {Form{"adamw fp32 states", MasterForm::kF32, Element::kF32, Element::kF32},
        Form{"adamw remainder, bf16 moments, fp32 grads", MasterForm::kRemainder, Element::kBf16, Element::kF32},
        Form{"adamw bf16 weights and moments, stochastic rounding", MasterForm::kStochastic, Element::kBf16,
             Element::kBf16}}) {
    AdamBucket b;
    b.form = form.form, b.moments = form.moments, b.gradients = form.gradients, b.count = n, b.pieces = pieces,
    b.piece_count = 1;
    b.master = static_cast<float*>(x.pool.output(n * 4)), b.weight = x.pool.output(n * 2);
    b.remainder = static_cast<uint16_t*>(x.pool.output(n * 2));
    b.exp_avg = x.pool.output(n * 4), b.exp_avg_sq = x.pool.output(n * 4);
    // Positive second moments, zero gradients drift: values stay finite however often the call repeats.
    b.gradient = x.pool.input(Element::kBf16, 2 * n);
    run(x, bytes_row(c, form.name, static_cast<double>(n) * adam_bytes_per_parameter(b)),
        [&] { return adam(b, record, scale, x.launch); });
  }
  run(x, bytes_row(c, "square_sum bf16", 4.0 * n), [&] {
    return square_sum(Element::kBf16, x.pool.input(Element::kBf16, 2 * n), 2 * n, pieces, 1, partials,
                      partials + kNormPartials, x.launch);
  });
  return {};
}

}  // namespace

Status floor_kernels(FloorContext& x, const FloorCase& c) {
  norm_rows(x, c);
  swiglu_rows(x, c);
  auto* ids = static_cast<int32_t*>(x.pool.scratch());
  auto* table = static_cast<float*>(x.pool.scratch()) + (1 << 20);
  const int64_t t = c.tokens();
  Rope r;
  r.tokens = t, r.batch = c.micro_batch, r.width = (c.heads + 2 * c.kv_heads) * c.head_dim;
  r.heads = static_cast<int>(c.heads + c.kv_heads), r.head_dim = r.turned = static_cast<int>(c.head_dim);
  r.table = table;
  const int64_t qkv = t * (c.heads + 2 * c.kv_heads) * c.head_dim;
  MB_TRY(rope_table(table, c.seq, r.head_dim, 500000.0, x.launch));
  run(x, bytes_row(c, "rope", 4.0 * static_cast<double>(t * (c.heads + c.kv_heads) * c.head_dim)), [&] {
    r.from = r.to = x.pool.output(qkv * 2);
    return rope(r, x.launch);
  });
  std::vector<int32_t> host_ids(static_cast<size_t>(t));
  for (size_t i = 0; i < host_ids.size(); ++i)
    host_ids[i] = static_cast<int32_t>((i * 7919) % static_cast<size_t>(c.vocab));
  MB_TRY(ok(cudaMemcpy(ids, host_ids.data(), host_ids.size() * 4, cudaMemcpyHostToDevice), "writing tokens"));
  Embedding e;
  e.tokens = t, e.cols = c.hidden, e.vocab = c.vocab, e.ids = ids;
  run(x, bytes_row(c, "embedding_forward", 4.0 * static_cast<double>(t * c.hidden)), [&] {
    return embedding_forward(e, x.pool.input(Element::kBf16, c.vocab * c.hidden), x.pool.output(t * c.hidden * 2),
                             x.launch);
  });
  run(x, bytes_row(c, "embedding_backward", 10.0 * static_cast<double>(t * c.hidden)), [&] {
    return embedding_backward(e, x.pool.input(Element::kBf16, t * c.hidden),
                              static_cast<float*>(x.pool.output(c.vocab * c.hidden * 4)),
                              static_cast<char*>(x.pool.scratch()) + (8 << 20), x.launch);
  });
  CrossEntropy ce;
  ce.rows = t, ce.vocab = c.vocab, ce.targets = ids;
  run(x, bytes_row(c, "ce_fused", 4.0 * static_cast<double>(t * c.vocab)), [&] {
    ce.gradient = x.pool.output(t * c.vocab * 2);
    ce.logits = ce.gradient;
    return ce_fused(ce, table, table + t, x.launch);
  });
  return optimizer_rows(x, c);
}

}  // namespace mbb::suites
