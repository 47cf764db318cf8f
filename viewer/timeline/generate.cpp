// The rule: per rank and step, forward and backward of each micro-batch layer by layer, then gradients and optimizer.
#include "viewer/timeline/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace mbb::viewer {
namespace {

using profiler::Phase;
using profiler::Span;
using profiler::SpanKind;
using profiler::StreamKind;

struct OpRule {
  const char* path;
  SpanKind kind;
  std::int64_t ns;
};
constexpr std::array kForward = {OpRule{"attn.norm.rmsnorm", SpanKind::kCompute, 9'000},
                                 OpRule{"attn.qkv.gemm", SpanKind::kCompute, 61'000},
                                 OpRule{"attn.core.attention", SpanKind::kCompute, 88'000},
                                 OpRule{"attn.proj.gemm", SpanKind::kCompute, 40'000},
                                 OpRule{"attn.proj.reduce_scatter", SpanKind::kCommTp, 31'000},
                                 OpRule{"mlp.norm.rmsnorm", SpanKind::kCompute, 9'000},
                                 OpRule{"mlp.fc1.gemm", SpanKind::kCompute, 140'000},
                                 OpRule{"mlp.swiglu", SpanKind::kCompute, 18'000},
                                 OpRule{"mlp.fc2.gemm", SpanKind::kCompute, 71'000},
                                 OpRule{"mlp.fc2.all_gather", SpanKind::kCommTp, 27'000}};

constexpr std::array kStreams = {StreamKind::kHost, StreamKind::kCompute, StreamKind::kTp,
                                 StreamKind::kPp,   StreamKind::kDp,      StreamKind::kCopy};

class Generator {
 public:
  explicit Generator(const GeneratedTrace& options) : options_(options), state_(options.seed * 2654435761U + 1) {
    const std::int64_t per_layer =
        static_cast<std::int64_t>(kForward.size()) * 2 * 2;  // forward, backward; device, host
    const std::int64_t visits = static_cast<std::int64_t>(options.ranks) * options.steps * options.micro_batches;
    layers_ = std::max<std::int64_t>(1, options.spans / std::max<std::int64_t>(1, visits * per_layer));
  }

  profiler::Trace run() {
    for (int rank = 0; rank < options_.ranks; ++rank) {
      for (const StreamKind stream : kStreams) trace_.tracks.push_back({rank, stream, strings_.intern(name(stream))});
    }
    lists_.resize(trace_.tracks.size());
    for (int step = 0; step < options_.steps; ++step) make_step(step);
    for (std::vector<Span>& list : lists_) {
      std::stable_sort(list.begin(), list.end(), [](const Span& a, const Span& b) { return a.start_ns < b.start_ns; });
      trace_.spans.insert(trace_.spans.end(), list.begin(), list.end());
      list = {};
    }
    trace_.strings = strings_.strings();
    return std::move(trace_);
  }

 private:
  std::int64_t jitter(std::int64_t ns) {
    state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
    const double share = static_cast<double>(state_ >> 40U) / static_cast<double>(1U << 24U);
    return std::max<std::int64_t>(1, static_cast<std::int64_t>(static_cast<double>(ns) * (0.95 + 0.1 * share)));
  }

  std::uint32_t track(int rank, StreamKind stream) const {
    const auto at = std::find(kStreams.begin(), kStreams.end(), stream) - kStreams.begin();
    return static_cast<std::uint32_t>(rank * static_cast<int>(kStreams.size()) + static_cast<int>(at));
  }

  // Starts no earlier than `from`, nor before what ran last on its stream; returns its end.
  std::int64_t put(int rank, StreamKind stream, Span span, std::int64_t from, std::int64_t ns) {
    std::vector<Span>& list = lists_[track(rank, stream)];
    span.track = track(rank, stream);
    span.start_ns = list.empty() ? from : std::max(from, list.back().end_ns);
    span.end_ns = span.start_ns + ns;
    list.push_back(span);
    return span.end_ns;
  }

  std::int64_t op(int rank, int step, int micro_batch, Phase phase, profiler::StringId path, const OpRule& rule,
                  std::int64_t at) {
    Span span;
    span.step = step;
    span.micro_batch = micro_batch;
    span.phase = phase;
    span.op = path;
    span.name = path;
    span.correlation = ++correlation_;
    Span launch = span;
    launch.kind = SpanKind::kHost;
    put(rank, StreamKind::kHost, launch, at - 12'000, jitter(3'000));
    span.kind = rule.kind;
    std::int64_t ns = jitter(phase == Phase::kBackward ? rule.ns * 2 : rule.ns);
    if (rule.kind == SpanKind::kCompute && std::string_view(rule.path).ends_with("gemm"))
      ns = static_cast<std::int64_t>(static_cast<double>(ns) * options_.stretch);
    if (rule.kind == SpanKind::kCompute) return put(rank, StreamKind::kCompute, span, at, ns) + 1'500;
    span.collective = static_cast<std::uint64_t>(step + 1) * 1'000'000'000ULL +
                      static_cast<std::uint64_t>(micro_batch) * 10'000'000ULL + path * 4ULL +
                      static_cast<std::uint64_t>(rank / 2);
    const std::int64_t end = put(rank, StreamKind::kTp, span, at, ns);
    return at + (end - at) * 6 / 10;  // a part of it stays exposed
  }

  std::int64_t pass(int rank, int step, int micro_batch, Phase phase, std::int64_t at) {
    const bool backward = phase == Phase::kBackward;
    for (std::int64_t i = 0; i < layers_; ++i) {
      const std::int64_t layer = backward ? layers_ - 1 - i : i;
      for (std::size_t k = 0; k < kForward.size(); ++k) {
        const std::size_t which = backward ? kForward.size() - 1 - k : k;
        const profiler::StringId path = path_of(rank, layer, which, backward);
        at = op(rank, step, micro_batch, phase, path, kForward[which], at);
      }
    }
    return at;
  }

  profiler::StringId path_of(int rank, std::int64_t layer, std::size_t which, bool backward) {
    const std::size_t key =
        ((static_cast<std::size_t>(rank) * static_cast<std::size_t>(layers_) + static_cast<std::size_t>(layer)) *
             kForward.size() +
         which) *
            2 +
        (backward ? 1 : 0);
    if (paths_.size() <= key) paths_.resize(key + 1, 0);
    if (paths_[key] == 0) {
      paths_[key] = strings_.intern(
          fmt::format("layers.{}.{}.{}", rank * layers_ + layer, kForward[which].path, backward ? "bwd" : "fwd"));
    }
    return paths_[key];
  }

  void make_step(int step) {
    const std::int64_t begin = next_step_ns_;
    const auto ranks = static_cast<std::size_t>(options_.ranks);
    std::vector<std::int64_t> free(ranks, begin + 40'000);
    std::vector<std::vector<std::int64_t>> forward_end(
        ranks, std::vector<std::int64_t>(static_cast<std::size_t>(options_.micro_batches), begin));
    for (std::size_t m = 0; m < static_cast<std::size_t>(options_.micro_batches); ++m) {
      for (std::size_t r = 0; r < ranks; ++r) {
        const std::int64_t from = std::max(
            free[r], r == 0 ? begin : send(static_cast<int>(r), step, static_cast<int>(m), forward_end[r - 1][m]));
        free[r] = forward_end[r][m] = pass(static_cast<int>(r), step, static_cast<int>(m), Phase::kForward, from);
      }
    }
    std::int64_t last = begin;
    for (std::size_t m = 0; m < static_cast<std::size_t>(options_.micro_batches); ++m) {
      std::int64_t from = begin;
      for (std::size_t r = ranks; r-- > 0;) {
        free[r] = pass(static_cast<int>(r), step, static_cast<int>(m), Phase::kBackward, std::max(free[r], from));
        from = free[r];
      }
    }
    for (std::size_t r = 0; r < ranks; ++r) last = std::max(last, finish(static_cast<int>(r), step, free[r]));
    for (int rank = 0; rank < options_.ranks; ++rank) trace_.steps.push_back({rank, step, begin, last});
    next_step_ns_ = last + 20'000;
  }

  std::int64_t send(int rank, int step, int micro_batch, std::int64_t at) {
    Span span;
    span.step = step;
    span.micro_batch = micro_batch;
    span.phase = Phase::kForward;
    span.kind = SpanKind::kCommPp;
    span.name = span.op = strings_.intern("pp.recv.activation");
    span.collective = 9'000'000'000'000ULL + static_cast<std::uint64_t>((step * 4096 + micro_batch) * 64 + rank);
    return put(rank, StreamKind::kPp, span, at, jitter(22'000));
  }

  std::int64_t finish(int rank, int step, std::int64_t at) {
    Span span;
    span.step = step;
    span.phase = Phase::kGradSync;
    span.kind = SpanKind::kCommDp;
    span.name = span.op = strings_.intern("grads.reduce_scatter");
    span.collective = 8'000'000'000'000ULL + static_cast<std::uint64_t>(step);
    const std::int64_t synced = put(rank, StreamKind::kDp, span, at - 200'000, jitter(600'000));
    span.collective = 0;
    span.kind = SpanKind::kCompute;
    span.phase = Phase::kOptimizer;
    span.name = span.op = strings_.intern("optimizer.adamw");
    const std::int64_t done = put(rank, StreamKind::kCompute, span, synced, jitter(350'000));
    span.kind = SpanKind::kCopy;
    span.name = span.op = strings_.intern("metrics.copy_to_host");
    return put(rank, StreamKind::kCopy, span, done, jitter(12'000));
  }

  GeneratedTrace options_;
  std::uint64_t state_;
  std::int64_t layers_ = 1;
  std::int64_t next_step_ns_ = 1'000'000;
  std::uint32_t correlation_ = 0;
  profiler::StringTable strings_;
  profiler::Trace trace_;
  std::vector<std::vector<Span>> lists_;
  std::vector<profiler::StringId> paths_;
};

}  // namespace

profiler::Trace generate_trace(const GeneratedTrace& options) {
  return Generator(options).run();
}

}  // namespace mbb::viewer
