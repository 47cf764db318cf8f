// Event times by following each rank's walk; ranks wait for each other only at collectives and messages.
#include "trainer/execute/simulate/replay.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "trainer/execute/op_sites.h"
#include "trainer/ops/message_peers.h"
#include "trainer/ops/table.h"
#include "trainer/program/walk.h"

namespace mbb::trainer {
namespace {

bool is_batched(const Op& op) {
  const auto* attrs = std::get_if<CommAttrs>(&op.attrs);
  return attrs != nullptr && attrs->form == MessageForm::kBatched;
}

// The track an op is drawn on: its stream's; messages have those of their directions, for those of a batch overlap.
Stream track_of(const Op& op) {
  if (!sends(op) && !receives(op)) return op.stream;
  return message_stream(MessageForm::kOverlapped, std::get<CommAttrs>(op.attrs).direction, receives(op));
}

struct Position {
  Call call;
  const Op* op;
  SegmentKind segment;
};

struct RankState {
  const Program* program = nullptr;
  std::vector<Position> walk;
  size_t next = 0;
  std::array<int64_t, kStreams> stream_free{};
  std::array<int64_t, kStreams> batch_from{};           // when the stream came free for the batch it is in; -1: in none
  std::map<std::pair<TensorId, int>, int64_t> written;  // (storage, slot) -> end of the last write
  std::map<std::pair<TensorId, int>, int64_t> read;     // end of the last read
  std::array<uint32_t, kStreams> track{};
  std::map<GroupKind, uint64_t> collectives;  // calls so far
};

// A collective waits for its members; the last one to arrive lets all go on.
struct Meeting {
  size_t arrived = 0;
  int64_t ready_ns = 0;
  int64_t longest_ns = 0;
};

class Replayer {
 public:
  Replayer(const Mesh& mesh, std::span<const Program* const> programs, const DurationOf& duration)
      : mesh_(mesh), duration_(duration) {
    for (size_t rank = 0; rank < programs.size(); ++rank) {
      RankState state;
      state.program = programs[rank];
      state.batch_from.fill(-1);
      walk(*state.program, [&](int, const Call& call, int, const Op& op) {
        state.walk.push_back({call, &op, state.program->segment(call).kind});
      });
      for (int s = 0; s < kStreams; ++s) {
        state.track[static_cast<size_t>(s)] = static_cast<uint32_t>(result_.trace.tracks.size());
        result_.trace.tracks.push_back({static_cast<int32_t>(rank), stream_kind(static_cast<Stream>(s)),
                                        strings_.intern(name(static_cast<Stream>(s)))});
      }
      ranks_.push_back(std::move(state));
    }
  }

  Result<Replay> run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t rank = 0; rank < ranks_.size(); ++rank)
        while (advance(static_cast<int>(rank))) moved = true;
    }
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      const RankState& r = ranks_[rank];
      if (r.next < r.walk.size())
        return fail(ErrorCode::kMismatch,
                    fmt::format("replay stands still: rank {} waits at {}", rank, r.walk[r.next].op->path));
      for (int64_t end : r.stream_free) result_.step_ns = std::max(result_.step_ns, end);
    }
    for (size_t rank = 0; rank < ranks_.size(); ++rank)
      result_.trace.steps.push_back({static_cast<int32_t>(rank), 0, 0, result_.step_ns});
    result_.trace.strings = strings_.strings();
    return std::move(result_);
  }

 private:
  // Runs the next op of a rank if nobody else must arrive first.
  bool advance(int rank) {
    RankState& r = ranks_[static_cast<size_t>(rank)];
    if (r.next == r.walk.size()) return false;
    const Position& at = r.walk[r.next];
    const int64_t ready = ready_ns(r, at);
    const int64_t duration = duration_(rank, r.next);
    int64_t end = ready + duration;
    uint64_t collective = 0;
    if (at.op->kind->communicates && !meet(rank, r, *at.op, ready, duration, end, collective)) return false;
    finish(r, at, ready, end, collective);
    ++r.next;
    return true;
  }

  int64_t ready_ns(const RankState& r, const Position& at) const {
    const auto stream = static_cast<size_t>(at.op->stream);
    const bool joins = is_batched(*at.op) && r.batch_from[stream] >= 0;
    int64_t ready = joins ? r.batch_from[stream] : r.stream_free[stream];
    const auto after = [&](const auto& times, TensorId id) {
      const auto found = times.find(key(*r.program, id, at.call));
      if (found != times.end()) ready = std::max(ready, found->second);
    };
    for (TensorId id : at.op->in) after(r.written, id);
    for (TensorId id : at.op->out) after(r.written, id), after(r.read, id);
    return ready;
  }

  static std::pair<TensorId, int> key(const Program& program, TensorId id, const Call& call) {
    return {program.storage(id), slot(program.tensor(id), call)};
  }

  bool meet(int rank, RankState& r, const Op& op, int64_t ready, int64_t duration, int64_t& end, uint64_t& collective) {
    const auto& attrs = std::get<CommAttrs>(op.attrs);
    if (sends(op) || receives(op)) return message(rank, op, attrs, ready, duration, end, collective);
    const std::vector<int> members = mesh_.group(attrs.group, rank);
    const uint64_t count = r.collectives[attrs.group];
    auto& [meeting, id] = meetings_.try_emplace({attrs.group, members.front(), count}, Meeting{}, 0).first->second;
    if (id == 0) id = ++last_id_;
    if (!arrived_.contains({id, rank})) {
      arrived_.insert({id, rank});
      ++meeting.arrived;
      meeting.ready_ns = std::max(meeting.ready_ns, ready);
      meeting.longest_ns = std::max(meeting.longest_ns, duration);
    }
    if (meeting.arrived < members.size()) return false;
    ++r.collectives[attrs.group];
    end = meeting.ready_ns + meeting.longest_ns;
    collective = id;
    return true;
  }

  bool message(int rank, const Op& op, const CommAttrs& attrs, int64_t ready, int64_t duration, int64_t& end,
               uint64_t& collective) {
    const bool receiving = receives(op);
    const std::vector<int> peers = message_peers(mesh_, attrs, receiving, rank);
    if (!receiving) {
      collective = ++last_id_;
      for (const int peer : peers) channels_[{rank, peer, attrs.direction}].push_back({end, collective});
      return true;
    }
    for (const int peer : peers)
      if (received_[{peer, rank, attrs.direction}] == channels_[{peer, rank, attrs.direction}].size()) return false;
    int64_t sent_ns = 0;
    for (const int peer : peers) {
      const auto& [ended_ns, id] = channels_[{peer, rank, attrs.direction}][received_[{peer, rank, attrs.direction}]++];
      sent_ns = std::max(sent_ns, ended_ns);
      collective = id;
    }
    end = std::max(ready, sent_ns) + duration;
    return true;
  }

  void finish(RankState& r, const Position& at, int64_t start, int64_t end, uint64_t collective) {
    const auto stream = static_cast<size_t>(at.op->stream);
    if (!is_batched(*at.op))
      r.batch_from[stream] = -1;
    else if (r.batch_from[stream] < 0)
      r.batch_from[stream] = r.stream_free[stream];
    r.stream_free[stream] = std::max(r.stream_free[stream], end);
    for (TensorId id : at.op->in) {
      int64_t& last = r.read[key(*r.program, id, at.call)];
      last = std::max(last, end);
    }
    for (TensorId id : at.op->out) r.written[key(*r.program, id, at.call)] = end;
    profiler::Span span;
    span.start_ns = start;
    span.end_ns = end;
    span.collective = collective;
    span.track = r.track[static_cast<size_t>(track_of(*at.op))];
    span.name = span.op = strings_.intern(at.op->path);
    span.step = 0;
    span.micro_batch = is_micro_batched(at.segment) ? at.call.micro_batch : profiler::kNoMicroBatch;
    span.kind = span_kind(*at.op);
    span.phase = phase_of(at.segment, *at.op);
    result_.trace.spans.push_back(span);
  }

  const Mesh& mesh_;
  const DurationOf& duration_;
  std::vector<RankState> ranks_;
  std::map<std::tuple<GroupKind, int, uint64_t>, std::pair<Meeting, uint64_t>> meetings_;
  std::set<std::pair<uint64_t, int>> arrived_;
  std::map<std::tuple<int, int, Direction>, std::vector<std::pair<int64_t, uint64_t>>> channels_;
  std::map<std::tuple<int, int, Direction>, size_t> received_;
  uint64_t last_id_ = 0;
  profiler::StringTable strings_;
  Replay result_;
};

}  // namespace

Result<Replay> replay(const Mesh& mesh, std::span<const Program* const> program_of_rank, const DurationOf& duration) {
  return Replayer(mesh, program_of_rank, duration).run();
}

}  // namespace mbb::trainer
