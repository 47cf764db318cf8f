// Ring steps: which rows of queries and keys meet in each, and how their results come together.
#include "trainer/passes/ring_attention.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>

#include "trainer/ops/table.h"
#include "trainer/program/builder.h"

namespace mbb::trainer {
namespace {

struct Rows {
  int64_t first = 0, count = 0;
};

// The rank whose keys step j attends to.
int source_of(const RingAttrs& a, int j) {
  return (a.index - j + a.size) % a.size;
}

// Queries and keys that meet in one step: rows of the rank's own, and of its source's.
struct Step {
  int j = 0;
  Rows queries, keys;
  AttentionAttrs attrs;
};

Step cut(const RingAttrs& a, const Positions& keys, int j, const Rows& q, const Rows& k) {
  Step step{j, q, k, a.core};
  step.attrs.queries = a.core.queries.rows(q.first, q.count);
  step.attrs.keys = keys.rows(k.first, k.count);
  step.attrs.first_query = q.first;
  step.attrs.sinks = false;
  step.attrs.all_heads = a.core.tp_heads();
  return step;
}

// The smallest range of runs that holds every pair that is seen; where none is, nothing, or (`always`) one run that
// sees none of another: its gradients are the zeros that travel.
std::optional<Step> step_of(const RingAttrs& a, int64_t query_rows, int64_t key_rows, int j, bool always) {
  const int source = source_of(a, j);
  const Positions& queries = a.core.queries;
  // Neighbours of the inner group hold their parts together: rank after rank of a pack, one part otherwise.
  const int held = static_cast<int>(queries.starts.size() / 2);
  const Positions keys = group_positions(a.core.keys.sequence, a.size * held, source * held, held);
  // Which rows of a pack meet is known when the step runs only; both ways all meet.
  if (a.core.packed || !a.core.causal) return cut(a, keys, j, {0, query_rows}, {0, key_rows});
  Rows q{query_rows, 0}, k{key_rows, 0};
  int64_t q_end = 0, k_end = 0;
  for (int64_t qr = 0; qr < query_rows; qr += queries.run) {
    for (int64_t kr = 0; kr < key_rows; kr += keys.run) {
      if (visible_pairs(queries.rows(qr, queries.run), queries.run, keys.rows(kr, keys.run), keys.run, a.core.window) ==
          0)
        continue;
      q.first = std::min(q.first, qr), q_end = std::max(q_end, qr + queries.run);
      k.first = std::min(k.first, kr), k_end = std::max(k_end, kr + keys.run);
    }
  }
  if (q_end > 0) return cut(a, keys, j, {q.first, q_end - q.first}, {k.first, k_end - k.first});
  if (!always) return std::nullopt;
  return cut(a, keys, j, {0, queries.run}, {0, keys.run});
}

class Expansion {
 public:
  Expansion(Program& program, int segment, bool copy_engines)
      : program_(program), b_(program), segment_(segment), copy_engines_(copy_engines) {}

  void run() {
    std::vector<Op> old = std::move(program_.segments[static_cast<size_t>(segment_)].ops);
    program_.segments[static_cast<size_t>(segment_)].ops.clear();
    b_.enter(segment_);
    for (size_t i = 0; i < old.size(); ++i) {
      if (old[i].kind == &kRingAttention) {
        const size_t first = b_.ops().size();
        forward(old[i]);
        for (size_t made = first; made < b_.ops().size(); ++made) b_.ops()[made].recompute = old[i].recompute;
      } else if (old[i].kind == &kRingAttentionGrad) {
        // The first micro-batch's op and the others' differ in what they do to the sinks' gradient alone.
        std::vector<Op> variants{old[i]};
        while (i + 1 < old.size() && old[i + 1].kind == &kRingAttentionGrad && old[i + 1].path == old[i].path)
          variants.push_back(old[++i]);
        backward(variants);
      } else {
        b_.ops().push_back(std::move(old[i]));
      }
    }
  }

 private:
  TensorId rows_of(TensorId x, const Rows& rows, const std::string& path) {
    Shape shape = b_.tensor(x).shape;
    if (rows.first == 0 && rows.count == shape[0]) return x;
    const int64_t width = shape.elements() / shape[0];
    shape[0] = rows.count;
    return b_.view(x, path, shape, rows.first * width);
  }

  TensorId shift(const RingAttrs& a, const std::string& path, TensorId x, Category category) {
    return b_.emit1(kRingShift, path, {x},
                    CommAttrs{.group = a.group, .group_size = a.size, .copy_engines = copy_engines_},
                    {.stream = Stream::kCp, .category = category, .out_path = path + ".out"});
  }

  // Operands after queries and key-values that every step reads too: samples and step record, starts of a pack (both
  // ways, of queries and of keys).
  static std::vector<TensorId> step_extras(const Op& op, const AttentionAttrs& core, size_t first) {
    const auto begin = op.in.begin() + static_cast<std::ptrdiff_t>(first + (core.has_weight() ? 1 : 0));
    const int packs = !core.packed ? 0 : core.causal ? 1 : 2;
    return {begin, begin + (core.dropout > 0 ? 2 : 0) + packs};
  }

  // Rows of one rank's keys.
  int64_t key_rows_of(const RingAttrs& a, TensorId kv) const {
    return b_.tensor(kv).shape[0] / (a.gathered ? a.size : 1);
  }

  // The keys of a step, of a tensor that holds its source's or all ranks'.
  TensorId keys_of(const RingAttrs& a, const Step& step, TensorId kv, const std::string& path) {
    const int64_t before = a.gathered ? source_of(a, step.j) * key_rows_of(a, kv) : 0;
    return rows_of(kv, {before + step.keys.first, step.keys.count}, path);
  }

  void forward(const Op& op) {
    const auto& a = std::get<RingAttrs>(op.attrs);
    const int64_t rows = b_.tensor(op.in[0]).shape[0];
    const int64_t key_rows = key_rows_of(a, op.in[1]);
    TensorId kv = op.in[1];
    PartAttrs merge{rows, {}, a.core.sinks, a.core.first_head};
    std::vector<TensorId> parts;
    for (int j = 0; j < a.size; ++j) {
      const TensorId held = kv;
      if (!a.gathered && j + 1 < a.size)
        kv = shift(a, fmt::format("{}.shift{}", op.path, j + 1), held, Category::kComm);
      const auto step = step_of(a, rows, key_rows, j, false);
      if (!step) continue;
      const std::string path = fmt::format("{}.step{}", op.path, j);
      std::vector<TensorId> in{rows_of(op.in[0], step->queries, path + ".q"), keys_of(a, *step, held, path + ".kv")};
      if (a.core.relative_buckets > 0) in.push_back(op.in[2]);
      const std::vector<TensorId> extras = step_extras(op, a.core, 2);
      in.insert(in.end(), extras.begin(), extras.end());
      const auto part = b_.emit(kCrossAttention, path, in, step->attrs, {.out_path = path + ".out"});
      parts.insert(parts.end(), part.begin(), part.end());
      merge.first_rows.push_back(step->queries.first);
    }
    if (a.core.sinks) parts.push_back(op.in[2]);
    b_.emit(kMergeAttention, op.path + ".merge", parts, merge, {.out = op.out});
  }

  struct StepGrads {
    TensorId dq, dkv;
  };

  // The gradients of one step. The own keys' step (which sees every query) carries the sinks' gradient; the bias
  // table's is the sum over all steps, of which the first one begins. That of the keys goes to `dkv`, where it is
  // given.
  StepGrads step_grads(const std::vector<Op>& variants, const Step& step, TensorId kv, TensorId dkv = kNoTensor) {
    const Op& op = variants[0];
    const auto& a = std::get<RingAttrs>(op.attrs);
    const AttentionAttrs& core = a.core;
    const bool begins = step.j == 0;
    const bool with_weight = core.relative_buckets > 0 || (core.sinks && begins);
    const std::string path = fmt::format("{}.step{}", op.path, step.j);
    std::vector<TensorId> in{rows_of(op.in[0], step.queries, path + ".dout"),
                             rows_of(op.in[1], step.queries, path + ".q"), keys_of(a, step, kv, path + ".kv"),
                             rows_of(op.in[3], step.queries, path + ".out"), op.in[4]};
    if (with_weight) in.push_back(op.in[5]);
    const std::vector<TensorId> extras = step_extras(op, core, 5);
    in.insert(in.end(), extras.begin(), extras.end());
    EmitOptions options{.category = Category::kGradient, .out_path = path + ".out"};
    if (!with_weight) {
      options.out = {kNoTensor, dkv};
      const auto out = b_.emit(kCrossAttentionGrad, path, in, step.attrs, options);
      return {out[0], out[1]};
    }
    options.role = Role::kWgrad;
    options.out = {op.out[0], kNoTensor, dkv};
    for (const Op& variant : variants) {
      AttentionAttrs attrs = step.attrs;
      attrs.sinks = core.sinks;
      attrs.accumulate = !begins || std::get<RingAttrs>(variant.attrs).core.accumulate;
      if (begins) options.when = variant.when;
      std::vector<TensorId> reads = in;
      if (attrs.accumulate) reads.push_back(op.out[0]);
      options.out = b_.emit(kCrossAttentionGrad, path, reads, attrs, options);
      if (!begins) break;
    }
    return {options.out[1], options.out[2]};
  }

  TensorId add_parts(const std::string& path, const std::vector<TensorId>& parts, PartAttrs attrs, TensorId out) {
    EmitOptions options{.category = Category::kGradient, .out_path = path + ".out"};
    if (out != kNoTensor) options.out = {out};
    return b_.emit1(kAddParts, path, parts, attrs, options);
  }

  void backward(const std::vector<Op>& variants) {
    if (std::get<RingAttrs>(variants[0].attrs).gathered) return gathered_backward(variants);
    passing_backward(variants);
  }

  // Every step writes the gradient of its source's keys where those lie, for a reduce-scatter to add up.
  void gathered_backward(const std::vector<Op>& variants) {
    const Op& op = variants[0];
    const auto& a = std::get<RingAttrs>(op.attrs);
    const int64_t rows = b_.tensor(op.in[1]).shape[0];
    const int64_t key_rows = key_rows_of(a, op.in[2]);
    const size_t first_out = a.core.has_weight() ? 1 : 0;
    std::vector<TensorId> dq_parts;
    PartAttrs dq{rows, {}};
    for (int j = 0; j < a.size; ++j) {
      const Step step = *step_of(a, rows, key_rows, j, true);
      const std::string path = fmt::format("{}.dkv{}", op.path, j);
      const TensorId dkv = rows_of(op.out[first_out + 1], {source_of(a, j) * key_rows, key_rows}, path + ".out");
      const bool sees_all = step.keys.count == key_rows;
      const StepGrads grads = step_grads(variants, step, op.in[2], sees_all ? dkv : kNoTensor);
      if (!sees_all) add_parts(path, {grads.dkv}, {key_rows, {step.keys.first}}, dkv);
      dq_parts.push_back(grads.dq);
      dq.first_rows.push_back(step.queries.first);
    }
    add_parts(op.path + ".dq", dq_parts, dq, op.out[first_out]);
  }

  void passing_backward(const std::vector<Op>& variants) {
    const Op& op = variants[0];
    const auto& a = std::get<RingAttrs>(op.attrs);
    const int64_t rows = b_.tensor(op.in[1]).shape[0];
    const int64_t key_rows = b_.tensor(op.in[2]).shape[0];
    const size_t first_out = a.core.has_weight() ? 1 : 0;
    TensorId kv = op.in[2];
    TensorId travelling = kNoTensor;  // gradients of the keys held in this step, of all ranks before
    TensorId own = kNoTensor;
    std::vector<TensorId> dq_parts;
    PartAttrs dq{rows, {}};
    for (int j = 0; j < a.size; ++j) {
      const TensorId held = kv;
      if (j + 1 < a.size) kv = shift(a, fmt::format("{}.shift{}", op.path, j + 1), held, Category::kComm);
      // All ranks shift at the same steps, so a rank that adds nothing adds zeros.
      const Step step = *step_of(a, rows, key_rows, j, true);
      const StepGrads grads = step_grads(variants, step, held);
      dq_parts.push_back(grads.dq);
      dq.first_rows.push_back(step.queries.first);
      if (j == 0) {
        own = grads.dkv;
        continue;
      }
      std::vector<TensorId> parts{grads.dkv};
      PartAttrs sum{key_rows, {step.keys.first}};
      if (travelling != kNoTensor) parts.push_back(travelling), sum.first_rows.push_back(0);
      const TensorId so_far = add_parts(fmt::format("{}.dkv{}", op.path, j), parts, sum, kNoTensor);
      travelling = shift(a, fmt::format("{}.dkv_shift{}", op.path, j), so_far, Category::kComm);
    }
    add_parts(op.path + ".dq", dq_parts, dq, op.out[first_out]);
    add_parts(op.path + ".dkv", {own, travelling}, {key_rows, {0, 0}}, op.out[first_out + 1]);
  }

  Program& program_;
  Builder b_;
  int segment_;
  bool copy_engines_;
};

}  // namespace

void expand_ring_attention(Program& program, int forward, int backward, bool copy_engines) {
  Expansion(program, forward, copy_engines).run();
  Expansion(program, backward, copy_engines).run();
}

}  // namespace mbb::trainer
