// Moving reductions, gathers and AdamW to where compute hides them.
#include "trainer/passes/overlap_data_parallel.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>

#include "trainer/ops/table.h"
#include "trainer/passes/layers.h"
#include "trainer/passes/op_lists.h"
#include "trainer/program/walk.h"

namespace mbb::trainer {
namespace {

bool among(const Program& program, const std::vector<TensorId>& ids, TensorId storage) {
  return std::any_of(ids.begin(), ids.end(), [&](TensorId id) { return program.storage(id) == storage; });
}

bool touches(const Program& program, const Op& op, TensorId storage) {
  return among(program, op.in, storage) || among(program, op.out, storage);
}

// Takes the ops that `wanted` names out of a segment, in order.
template <typename Wanted>
std::vector<Op> take(Segment& segment, Wanted&& wanted) {
  std::vector<Op> taken, kept;
  for (Op& op : segment.ops) (wanted(op) ? taken : kept).push_back(std::move(op));
  segment.ops = std::move(kept);
  return taken;
}

Segment& segment_of(Program& program, int segment) {
  return program.segments[static_cast<size_t>(segment)];
}

int find_segment(const Program& program, SegmentKind kind, int chunk) {
  for (size_t s = 0; s < program.segments.size(); ++s)
    if (program.segments[s].kind == kind && program.segments[s].chunk == chunk) return static_cast<int>(s);
  MB_CHECK(false, fmt::format("no segment {} of chunk {}", name(kind), chunk));
}

// Where micro-batches' segments write each storage, by storage and segment.
std::map<TensorId, std::map<int, Span>> written_in(const Program& program) {
  std::map<TensorId, std::map<int, Span>> written;
  for (size_t s = 0; s < program.segments.size(); ++s) {
    if (!is_micro_batched(program.segments[s].kind)) continue;
    const std::vector<Op>& ops = program.segments[s].ops;
    for (size_t o = 0; o < ops.size(); ++o)
      for (const TensorId id : ops[o].out) written[program.storage(id)][static_cast<int>(s)].add(o);
  }
  return written;
}

// The ops of a segment that touch each storage, in order.
std::map<TensorId, std::vector<size_t>> touching(const Program& program, const Segment& segment) {
  std::map<TensorId, std::vector<size_t>> ops;
  for (size_t o = 0; o < segment.ops.size(); ++o)
    for (const std::vector<TensorId>* ids : {&segment.ops[o].in, &segment.ops[o].out})
      for (const TensorId id : *ids) {
        std::vector<size_t>& of = ops[program.storage(id)];
        if (of.empty() || of.back() != o) of.push_back(o);
      }
  return ops;
}

// The buckets of a chunk by their first use in its forward, with the place where what a bucket needs is put: the first
// use of the bucket before it.
struct FirstUse {
  const Bucket* bucket = nullptr;
  size_t first = 0;
  size_t place = 0;
};

std::vector<FirstUse> first_uses(const Program& program, const std::vector<Bucket>& buckets, int chunk) {
  const Segment& forward = program.segments[static_cast<size_t>(find_segment(program, SegmentKind::kForward, chunk))];
  const auto touched = touching(program, forward);
  std::vector<FirstUse> uses;
  for (const Bucket& bucket : buckets) {
    if (bucket.chunk != chunk) continue;
    const auto found = touched.find(bucket.weights);
    MB_CHECK(found != touched.end(), "no forward reads bucket " + bucket.path);
    uses.push_back({&bucket, found->second.front(), 0});
  }
  std::stable_sort(uses.begin(), uses.end(), [](const FirstUse& a, const FirstUse& b) { return a.first < b.first; });
  for (size_t i = 1; i < uses.size(); ++i) uses[i].place = uses[i - 1].first;
  return uses;
}

std::set<int> chunks_of(const std::vector<Bucket>& buckets) {
  std::set<int> chunks;
  for (const Bucket& bucket : buckets) chunks.insert(bucket.chunk);
  return chunks;
}

bool gathers(const Program& program, const Op& op, const Bucket& bucket) {
  return op.kind == &kAllGather && touches(program, op, bucket.weights);
}

// The gathers of these buckets out of a segment, by the weights they gather.
std::map<TensorId, std::vector<Op>> take_gathers(Program& program, int segment, const std::vector<FirstUse>& uses) {
  std::set<TensorId> weights;
  for (const FirstUse& use : uses) weights.insert(use.bucket->weights);
  std::map<TensorId, std::vector<Op>> taken;
  std::vector<Op> kept;
  for (Op& op : segment_of(program, segment).ops) {
    const TensorId of = op.kind == &kAllGather ? program.storage(op.out[0]) : kNoTensor;
    (weights.contains(of) ? taken[of] : kept).push_back(std::move(op));
  }
  segment_of(program, segment).ops = std::move(kept);
  return taken;
}

// The backward ends with reductions that nothing is left to hide: under them run the squares, for the norm, of what was
// reduced before.
void square_under_last_reductions(Program& program, const std::vector<Bucket>& buckets) {
  const auto last = std::min_element(program.segments.begin(), program.segments.end(), [](auto& a, auto& b) {
    const auto rank = [](const Segment& s) { return std::pair(s.kind != SegmentKind::kBackward, s.chunk); };
    return rank(a) < rank(b);
  });
  if (last == program.segments.end() || last->kind != SegmentKind::kBackward) return;
  std::vector<Op>& ops = last->ops;
  const auto on_compute = [](const Op& op) { return op.stream == Stream::kCompute; };
  const auto end = static_cast<size_t>(ops.rend() - std::find_if(ops.rbegin(), ops.rend(), on_compute));
  if (end == ops.size()) return;
  const auto written = written_in(program);
  const auto synced = touching(program, segment_of(program, find_segment(program, SegmentKind::kGradSync, 0)));
  Segment& optimizer = segment_of(program, find_segment(program, SegmentKind::kOptimizer, 0));
  for (const Bucket& bucket : buckets) {
    const auto found = written.find(bucket.main_grads);
    if (found == written.end() || found->second.size() != 1 || synced.contains(bucket.main_grads)) continue;
    const auto& [segment, span] = *found->second.begin();
    if (segment != last - program.segments.begin() || span.last >= end) continue;
    for (Op& op : take(optimizer, [&](const Op& o) {
           return o.kind == &kGradSquareSum && touches(program, o, bucket.main_grads);
         })) {
      op.when = When::kLast;
      ops.push_back(std::move(op));
    }
  }
}

TensorId persistent_copy(Builder& b, const std::string& path, TensorId of, Init::Kind init) {
  Tensor t = b.tensor(of);
  t.path = path;
  t.scope = Scope::kPersistent;
  t.init = {init, 0};
  const TensorId copy = b.declare(std::move(t));
  b.emit(kCopy, path + ".copy", {of}, NoAttrs{}, {.out = {copy}});
  return copy;
}

}  // namespace

void overlap_grad_reduce(Program& program, const std::vector<Bucket>& buckets) {
  Segment& sync = segment_of(program, find_segment(program, SegmentKind::kGradSync, 0));
  const auto written = written_in(program);
  const auto touched = touching(program, sync);
  std::vector<const Bucket*> moved(sync.ops.size(), nullptr);  // whose chain an op of the sync joins
  std::vector<std::pair<const Bucket*, std::pair<int, size_t>>> places;
  for (const Bucket& bucket : buckets) {
    const auto found = written.find(bucket.main_grads);
    if (found == written.end() || found->second.size() != 1) continue;
    const std::string own = "grad_sync." + bucket.path + ".";
    const auto mine = touched.find(bucket.main_grads);
    const std::vector<size_t> chain = mine == touched.end() ? std::vector<size_t>{} : mine->second;
    if (std::any_of(chain.begin(), chain.end(), [&](size_t o) { return !sync.ops[o].path.starts_with(own); })) continue;
    for (const size_t o : chain) moved[o] = &bucket;
    const auto& [segment, span] = *found->second.begin();
    places.push_back({&bucket, {segment, span.last + 1}});
  }
  std::map<const Bucket*, std::vector<Op>> chains;
  std::vector<Op> kept;
  for (size_t o = 0; o < sync.ops.size(); ++o) {
    Op& op = sync.ops[o];
    if (moved[o] == nullptr) {
      kept.push_back(std::move(op));
      continue;
    }
    op.when = When::kLast;
    if (op.stream == Stream::kCompute) op.stream = Stream::kDp;
    chains[moved[o]].push_back(std::move(op));
  }
  sync.ops = std::move(kept);
  // Of buckets that are complete at one op the last in order goes first.
  std::map<int, Insertions> insertions;
  for (auto place = places.rbegin(); place != places.rend(); ++place)
    insertions[place->second.first].before(place->second.second, std::move(chains[place->first]));
  for (auto& [segment, inserted] : insertions) inserted.apply(segment_of(program, segment));
  square_under_last_reductions(program, buckets);
}

void put_wgrads_behind_embedding(Program& program, int backward) {
  Segment& segment = segment_of(program, backward);
  const auto embedding =
      std::find_if(segment.ops.rbegin(), segment.ops.rend(), [](const Op& op) { return op.kind == &kEmbeddingGrad; });
  const auto before =
      std::find_if(embedding, segment.ops.rend(), [](const Op& op) { return !layer_of(op.path).empty(); });
  if (before == segment.ops.rend()) return;
  // What other segments or stages add to is reduced after all of them, and its bucket with it.
  if (written_in(program)[program.storage(embedding->out[0])].size() != 1) return;
  if (std::any_of(program.tensors.begin(), program.tensors.end(), [](const Tensor& t) { return t.sharing.shared(); }))
    return;
  const std::string layer(layer_of(before->path));
  std::vector<Op> wgrads = take(
      segment, [&](const Op& op) { return layer_of(op.path) == layer && gives_weight_gradients_only(program, op); });
  std::move(wgrads.begin(), wgrads.end(), std::back_inserter(segment.ops));
}

void overlap_param_gather(Builder& b, DataParallel& dp, const ParamGather& how) {
  Program& program = b.program();
  for (const int chunk : chunks_of(dp.buckets)) {
    const int forward = find_segment(program, SegmentKind::kForward, chunk);
    const std::vector<FirstUse> uses = first_uses(program, dp.buckets, chunk);
    Insertions insertions;
    std::vector<Op> aligned;
    std::map<TensorId, std::vector<Op>> taken = take_gathers(program, dp.optimizer, uses);
    for (size_t i = 0; i < uses.size(); ++i) {
      const Bucket& bucket = *uses[i].bucket;
      Segment& optimizer = segment_of(program, dp.optimizer);
      std::vector<Op> gather = std::move(taken[bucket.weights]);
      for (Op& op : gather) op.stream = Stream::kDp;
      if (how.first_with_optimizer && chunk == 0 && i == 0) {
        // Its AdamW goes first, and the others' run under its gather.
        std::vector<Op> adamw = take(optimizer, [&](const Op& op) { return updates(op, bucket); });
        std::move(gather.begin(), gather.end(), std::back_inserter(adamw));
        const auto first =
            std::find_if(optimizer.ops.begin(), optimizer.ops.end(), [](const Op& op) { return op.kind == &kAdamW; });
        Insertions early;
        early.before(static_cast<size_t>(first - optimizer.ops.begin()), std::move(adamw));
        early.apply(optimizer);
      } else if (how.align) {
        std::move(gather.begin(), gather.end(), std::back_inserter(aligned));
      } else {
        for (Op& op : gather) op.when = When::kFirst;
        insertions.before(uses[i].place, std::move(gather));
      }
    }
    insertions.apply(segment_of(program, forward));
    if (aligned.empty()) continue;
    const int gather = b.add_segment(fmt::format("chunk{}.param_gather", chunk), SegmentKind::kParamGather, chunk);
    segment_of(program, gather).ops = std::move(aligned);
    dp.param_gathers.push_back(gather);
  }
}

void schedule_aligned_gathers(Program& program, const std::vector<int>& gathers, int stage) {
  // Number of the forward call with which each chunk begins.
  std::map<int, int> begins;
  int forwards = 0;
  for (const Call& call : program.schedule) {
    if (program.segment(call).kind != SegmentKind::kForward) continue;
    begins.try_emplace(program.segment(call).chunk, forwards);
    ++forwards;
  }
  std::map<int, std::vector<Call>> before;  // forward call
  for (int gather : gathers) {
    const int chunk = segment_of(program, gather).chunk;
    before[chunk < 2 ? 0 : std::max(0, begins.at(chunk - 1) - stage)].push_back({gather, 0});
  }
  std::vector<Call> schedule;
  forwards = 0;
  for (const Call& call : program.schedule) {
    if (program.segment(call).kind == SegmentKind::kForward) {
      const std::vector<Call>& due = before[forwards++];
      schedule.insert(schedule.end(), due.begin(), due.end());
    }
    schedule.push_back(call);
  }
  program.schedule = std::move(schedule);
}

void overlap_optimizer_with_forward(Builder& b, DataParallel& dp) {
  Program& program = b.program();
  b.enter(dp.optimizer);
  // Before the first step nothing is pending: a scale of ones says that its gradients were not finite.
  const TensorId record = persistent_copy(b, "optimizer.pending_record", program.ports.step_record, Init::Kind::kZeros);
  const TensorId scale = persistent_copy(b, "optimizer.pending_scale", program.ports.grad_scale, Init::Kind::kOnes);
  for (const int chunk : chunks_of(dp.buckets)) {
    const int forward = find_segment(program, SegmentKind::kForward, chunk);
    Insertions insertions;
    for (const FirstUse& use : first_uses(program, dp.buckets, chunk)) {
      std::vector<Op> adamw =
          take(segment_of(program, dp.optimizer), [&](const Op& op) { return updates(op, *use.bucket); });
      for (Op& op : adamw) {
        op.when = When::kFirst;
        op.stream = Stream::kDp;
        std::replace(op.in.begin(), op.in.end(), program.ports.step_record, record);
        std::replace(op.in.begin(), op.in.end(), program.ports.grad_scale, scale);
      }
      program.tensor(use.bucket->main_grads).scope = Scope::kPersistent;
      // Right before a gather of the bucket: what the gather of the bucket before it waits for is its own AdamW only.
      const bool gathered = gathers(program, segment_of(program, forward).ops[use.first], *use.bucket);
      insertions.before(gathered ? use.first : use.place, std::move(adamw));
    }
    insertions.apply(segment_of(program, forward));
  }
}

int defer_head_wgrad(Builder& b, int chunk) {
  Program& program = b.program();
  const int backward = find_segment(program, SegmentKind::kBackward, chunk);
  std::vector<Op>& ops = segment_of(program, backward).ops;
  std::set<size_t> moved;
  const auto accumulates = [&](const Op& op) {
    return std::any_of(op.out.begin(), op.out.end(),
                       [&](TensorId id) { return program.tensor(id).category == Category::kMainGrad; });
  };
  for (size_t i = 0; i < ops.size(); ++i)
    if (ops[i].path.starts_with("lm_head.") && (ops[i].role == Role::kWgrad || accumulates(ops[i]))) moved.insert(i);
  if (moved.empty()) return -1;
  // What only they read (the input gathered again) goes with them.
  const auto read_elsewhere = [&](TensorId id) {
    for (size_t s = 0; s < program.segments.size(); ++s)
      for (size_t o = 0; o < program.segments[s].ops.size(); ++o)
        if (!(static_cast<int>(s) == backward && moved.contains(o)) &&
            std::find(program.segments[s].ops[o].in.begin(), program.segments[s].ops[o].in.end(), id) !=
                program.segments[s].ops[o].in.end())
          return true;
    return false;
  };
  for (size_t i = ops.size(); i-- > 0;) {
    if (moved.contains(i) || ops[i].out.empty() || !ops[i].path.starts_with("lm_head.")) continue;
    if (std::none_of(ops[i].out.begin(), ops[i].out.end(), read_elsewhere)) moved.insert(i);
  }
  std::vector<Op> deferred, kept;
  for (size_t i = 0; i < ops.size(); ++i) (moved.contains(i) ? deferred : kept).push_back(std::move(ops[i]));
  ops = std::move(kept);
  const int segment = b.add_segment(fmt::format("chunk{}.deferred_wgrad", chunk), SegmentKind::kWgrad, chunk);
  segment_of(program, segment).ops = std::move(deferred);
  return segment;
}

}  // namespace mbb::trainer
