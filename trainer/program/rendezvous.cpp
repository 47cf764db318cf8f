// A graph of calls and messages; what cannot be sorted by it waits in a circle.
#include "trainer/program/rendezvous.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "trainer/ops/message_peers.h"
#include "trainer/program/walk.h"

namespace mbb::trainer {
namespace {

using Nodes = std::vector<int>;

// What a segment does with message buffers, in program order: messages, and between them the compute that touches them.
struct Step {
  const Op* message = nullptr;  // null: compute
  std::vector<TensorId> in, out;
};

std::vector<std::vector<Step>> steps_of(const Program& program) {
  std::set<TensorId> buffers;
  const auto is_message = [](const Op& op) { return sends(op) || receives(op); };
  for (const Segment& segment : program.segments)
    for (const Op& op : segment.ops)
      if (is_message(op))
        for (TensorId id : receives(op) ? op.out : op.in) buffers.insert(program.storage(id));
  std::vector<std::vector<Step>> all(program.segments.size());
  for (size_t s = 0; s < all.size(); ++s) {
    std::vector<Step>& steps = all[s];
    for (const Op& op : program.segments[s].ops) {
      const bool message = is_message(op);
      const auto touched = [&](const std::vector<TensorId>& ids, std::vector<TensorId>& into) {
        for (TensorId id : ids)
          if (buffers.contains(program.storage(id))) into.push_back(id);
      };
      // What other streams do apart from message buffers does not come between messages of the compute stream.
      const auto touches = [&](TensorId id) { return buffers.contains(program.storage(id)); };
      const bool apart = !message && op.stream != Stream::kCompute &&
                         std::none_of(op.in.begin(), op.in.end(), touches) &&
                         std::none_of(op.out.begin(), op.out.end(), touches);
      if (apart) continue;
      if (message || steps.empty() || steps.back().message != nullptr)
        steps.push_back({message ? &op : nullptr, {}, {}});
      touched(op.in, steps.back().in);
      touched(op.out, steps.back().out);
    }
  }
  return all;
}

class Graph {
 public:
  explicit Graph(const Mesh& mesh) : mesh_(mesh) {}

  void add(int rank, const Program& program, const std::vector<std::vector<Step>>& steps) {
    Rank r{rank, program, {}, {}, {}, {}, {}};
    for (const Call& call : program.schedule) {
      if (!is_micro_batched(program.segment(call).kind)) continue;
      for (const Step& step : steps[static_cast<size_t>(call.segment)]) place(r, call, step);
    }
  }

  // Sorts the graph; the first node that cannot be is the answer.
  Status check() const {
    std::vector<int> waits(after_.size(), 0);
    for (const Nodes& next : after_)
      for (int n : next) ++waits[static_cast<size_t>(n)];
    Nodes ready;
    for (size_t n = 0; n < waits.size(); ++n)
      if (waits[n] == 0) ready.push_back(static_cast<int>(n));
    size_t done = 0;
    for (; !ready.empty(); ++done) {
      const int node = ready.back();
      ready.pop_back();
      for (int next : after_[static_cast<size_t>(node)])
        if (--waits[static_cast<size_t>(next)] == 0) ready.push_back(next);
    }
    if (done == after_.size()) return {};
    for (size_t n = 0; n < waits.size(); ++n) {
      const auto& [rank, op, micro_batch] = where_[n];
      if (waits[n] == 0 || op == nullptr) continue;
      return fail(ErrorCode::kMismatch,
                  fmt::format("ranks wait for each other in a circle: rank {} stands at {}, micro-batch {}", rank,
                              op->path, micro_batch),
                  "give both directions streams of their own, or let messages that cross go in one batch");
    }
    return {};
  }

 private:
  using Slot = std::pair<TensorId, int>;
  struct Rank {
    int rank;
    const Program& program;
    std::array<Nodes, kStreams> last;  // what the next op of a stream waits for
    std::array<Nodes, kStreams> batch_from;
    std::array<bool, kStreams> in_batch;
    std::map<Slot, Nodes> writers, readers;
  };
  struct Where {
    int rank = 0;
    const Op* op = nullptr;
    int micro_batch = 0;
  };

  void place(Rank& r, const Call& call, const Step& step) {
    const Op* op = step.message;
    const auto stream = static_cast<size_t>(op == nullptr ? Stream::kCompute : op->stream);
    const Nodes nodes = op == nullptr ? Nodes{node(r.rank, nullptr, call)} : message_nodes(r, call, *op);
    const bool batched = op != nullptr && std::get<CommAttrs>(op->attrs).form == MessageForm::kBatched;
    const bool joins = batched && r.in_batch[stream];
    for (int n : nodes) {
      wait(n, joins ? r.batch_from[stream] : r.last[stream]);
      for (TensorId id : step.in) wait(n, r.writers[slot_of(r, call, id)]);
      for (TensorId id : step.out) wait(n, r.writers[slot_of(r, call, id)]), wait(n, r.readers[slot_of(r, call, id)]);
    }
    r.in_batch[stream] = batched;
    if (batched && !joins) r.batch_from[stream] = r.last[stream];
    if (!joins) r.last[stream].clear();
    r.last[stream].insert(r.last[stream].end(), nodes.begin(), nodes.end());
    for (TensorId id : step.in) {
      Nodes& readers = r.readers[slot_of(r, call, id)];
      readers.insert(readers.end(), nodes.begin(), nodes.end());
    }
    for (TensorId id : step.out) {
      r.writers[slot_of(r, call, id)] = nodes;
      r.readers[slot_of(r, call, id)].clear();
    }
  }

  static Slot slot_of(const Rank& r, const Call& call, TensorId id) {
    return {r.program.storage(id), slot(r.program.tensor(id), call)};
  }
  void wait(int node, const Nodes& before) {
    for (int b : before)
      if (b != node) after_[static_cast<size_t>(b)].push_back(node);
  }
  int node(int rank, const Op* op, const Call& call) {
    after_.emplace_back();
    where_.push_back({rank, op, call.micro_batch});
    return static_cast<int>(after_.size()) - 1;
  }

  // Both ends of the n-th message of a channel are one node.
  Nodes message_nodes(const Rank& r, const Call& call, const Op& op) {
    const auto& attrs = std::get<CommAttrs>(op.attrs);
    const bool receiving = receives(op);
    Nodes nodes;
    for (const int peer : message_peers(mesh_, attrs, receiving, r.rank)) {
      const Channel channel{receiving ? peer : r.rank, receiving ? r.rank : peer, attrs.group, attrs.direction};
      const size_t number = counts_[{channel, receiving}]++;
      Nodes& known = messages_[channel];
      if (number == known.size()) known.push_back(node(r.rank, &op, call));
      nodes.push_back(known[number]);
    }
    return nodes;
  }

  using Channel = std::tuple<int, int, GroupKind, Direction>;  // from, to
  const Mesh& mesh_;
  std::vector<Nodes> after_;
  std::vector<Where> where_;
  std::map<Channel, Nodes> messages_;
  std::map<std::pair<Channel, bool>, size_t> counts_;
};

}  // namespace

Status check_rendezvous(const Mesh& mesh, std::span<const Program* const> program_of_rank) {
  std::map<const Program*, std::vector<std::vector<Step>>> steps;
  Graph graph(mesh);
  for (const int rank : mesh.group(GroupKind::kModel, 0)) {
    const Program* program = program_of_rank[static_cast<size_t>(rank)];
    if (!steps.contains(program)) steps.emplace(program, steps_of(*program));
    graph.add(rank, *program, steps.at(program));
  }
  return graph.check();
}

}  // namespace mbb::trainer
