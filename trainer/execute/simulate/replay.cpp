// Event times by following each rank's walk; ranks wait for each other only at collectives and messages.
#include "trainer/execute/simulate/replay.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <numeric>

#include "trainer/execute/op_sites.h"
#include "trainer/execute/simulate/replay_sites.h"
#include "trainer/ops/message_peers.h"
#include "trainer/program/walk.h"

namespace mbb::trainer {
namespace {

// Where a rank stands in its walk.
struct Cursor {
  size_t call = 0;
  size_t op = 0;
  size_t index = 0;                          // walk position
  std::vector<ReplaySite>* sites = nullptr;  // of the call
};

// When a slot's bytes were last used.
struct SlotTimes {
  int64_t written = 0;  // end of the last write
  int64_t read = 0;     // and of the last read
};

// When something ran that slows what runs beside it.
struct Slowing {
  int64_t start = 0, end = 0;
  double by = 1;
};

struct RankState {
  int rank = 0;  // of the world
  const Program* program = nullptr;
  ReplaySites* sites = nullptr;
  Cursor at;
  bool arrived = false;  // at the collective it stands before
  int64_t issued = 0;    // when the host has issued the ops so far
  std::array<int64_t, kStreams> stream_free{};
  std::array<int64_t, kStreams> batch_from{};  // when the stream came free for the batch it is in; -1: in none
  std::vector<Slowing> slowing;                // what may reach into what compute runs next
  std::vector<SlotTimes> slots;
  std::vector<uint32_t> turn;  // of each ring: micro-batch of the call mod its size
  uint32_t first_track = 0;
  std::array<size_t, kGroupKinds.size()> collectives{};  // calls so far
};

// A collective waits for its members; the last one to arrive lets all go on.
struct Collective {
  size_t arrived = 0;
  int64_t ready_ns = 0;
  int64_t longest_ns = 0;
  uint64_t id = 0;
};

// Those of the simulated ranks that meet in a group, and their calls in order.
struct Group {
  size_t members = 0;
  std::vector<Collective> calls;
};

// Which simulated ranks stand for the members of groups and the ends of messages.
class Cast {
 public:
  virtual ~Cast() = default;
  virtual int size() const = 0;
  virtual int rank(int player) const = 0;
  virtual int player(int rank) const = 0;
  // One player of the group of each, the same for all that meet in it, and how many they are.
  virtual std::pair<int, size_t> meeting(GroupKind kind, int player) = 0;
};

class EveryRank : public Cast {
 public:
  explicit EveryRank(const Mesh& mesh) : mesh_(mesh) {}
  int size() const override { return mesh_.world_size(); }
  int rank(int player) const override { return player; }
  int player(int rank) const override { return rank; }
  std::pair<int, size_t> meeting(GroupKind kind, int player) override {
    const std::vector<int> members = mesh_.group(kind, player);
    return {members.front(), members.size()};
  }

 private:
  const Mesh& mesh_;
};

// One rank a class. Groups of two ranks of a class may hold different sets of classes; classes that any group joins
// wait for each other.
class EveryClass : public Cast {
 public:
  explicit EveryClass(const Mesh& mesh) : mesh_(mesh) {}
  int size() const override { return mesh_.rank_class_count(); }
  int rank(int player) const override { return mesh_.representative(player); }
  int player(int rank) const override { return mesh_.rank_class_index(rank); }
  std::pair<int, size_t> meeting(GroupKind kind, int player) override {
    std::vector<int>& root = roots_[static_cast<size_t>(kind)];
    if (root.empty()) join(kind, root);
    const int mine = root[static_cast<size_t>(player)];
    return {mine, static_cast<size_t>(std::count(root.begin(), root.end(), mine))};
  }

 private:
  void join(GroupKind kind, std::vector<int>& root) {
    root.resize(static_cast<size_t>(size()));
    if (kind == GroupKind::kWorld) {
      std::fill(root.begin(), root.end(), 0);
      return;
    }
    std::iota(root.begin(), root.end(), 0);
    for (int c = 0; c < size(); ++c)
      for (const int member : mesh_.group(kind, rank(c))) {
        const int mine = root[static_cast<size_t>(c)], other = root[static_cast<size_t>(player(member))];
        if (mine != other) std::replace(root.begin(), root.end(), std::max(mine, other), std::min(mine, other));
      }
  }

  const Mesh& mesh_;
  std::array<std::vector<int>, kGroupKinds.size()> roots_;
};

class Replayer {
 public:
  // `by_position`: durations by player and walk position; nullptr: each site's own, from `by_site`.
  Replayer(const Mesh& mesh, Cast& cast, const std::function<const Program*(int player)>& program,
           const DurationOf* by_position, const SiteDuration* by_site, const ClassReplayOptions& options)
      : mesh_(mesh), cast_(cast), by_position_(by_position), options_(options) {
    for (int player = 0; player < cast.size(); ++player) {
      RankState state;
      state.rank = cast.rank(player);
      state.program = program(player);
      std::unique_ptr<ReplaySites>& sites = sites_[state.program];
      if (!sites) {
        sites = std::make_unique<ReplaySites>(*state.program);
        if (by_site != nullptr) set_durations(*sites, player, *by_site);
        if (options.contention) set_contention(*sites, player);
      }
      state.sites = sites.get();
      state.slots.resize(sites->slots);
      state.turn.resize(sites->rings.size());
      state.batch_from.fill(-1);
      state.first_track = static_cast<uint32_t>(result_.trace.tracks.size());
      for (int s = 0; s < kStreams; ++s)
        result_.trace.tracks.push_back(
            {state.rank, stream_kind(static_cast<Stream>(s)), strings_.intern(name(static_cast<Stream>(s)))});
      settle(state);
      ranks_.push_back(std::move(state));
    }
    groups_.resize(ranks_.size());
    if (options.spans) result_.trace.spans.reserve(most_spans());
  }

  Result<Replay> run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t player = 0; player < ranks_.size(); ++player)
        while (advance(static_cast<int>(player))) moved = true;
    }
    for (const RankState& r : ranks_) {
      if (!done(r))
        return fail(ErrorCode::kMismatch,
                    fmt::format("replay stands still: rank {} waits at {}", r.rank,
                                r.program->segment(r.program->schedule[r.at.call]).ops[r.at.op].path));
      for (int64_t end : r.stream_free) result_.step_ns = std::max(result_.step_ns, end);
    }
    for (const RankState& r : ranks_) result_.trace.steps.push_back({r.rank, 0, 0, result_.step_ns});
    result_.trace.strings = strings_.strings();
    return std::move(result_);
  }

 private:
  static void set_durations(ReplaySites& sites, int player, const SiteDuration& by_site) {
    for (size_t s = 0; s < sites.segments.size(); ++s)
      for (size_t op = 0; op < sites.segments[s].size(); ++op)
        sites.segments[s][op].ns = by_site(player, static_cast<int>(s), static_cast<int>(op));
  }

  void set_contention(ReplaySites& sites, int player) const {
    for (size_t s = 0; s < sites.segments.size(); ++s)
      for (size_t op = 0; op < sites.segments[s].size(); ++op) {
        const Contention found = options_.contention(player, static_cast<int>(s), static_cast<int>(op));
        sites.segments[s][op].slows = found.slows;
        sites.segments[s][op].slowed = found.slowed && sites.segments[s][op].stream == Stream::kCompute;
      }
  }

  static bool done(const RankState& r) { return r.at.call == r.program->schedule.size(); }

  // Ops that the walk may run, where every one of a segment does.
  size_t most_spans() const {
    size_t spans = 0;
    for (const RankState& r : ranks_)
      for (const Call& call : r.program->schedule)
        if (!is_micro_batched(r.program->segment(call).kind) || call.micro_batch < micro_batches(*r.program))
          spans += r.program->segment(call).ops.size();
    return spans;
  }

  int micro_batches(const Program& program) const {
    const int all = program.micro_batches;
    return options_.micro_batches > 0 ? std::min(options_.micro_batches, all) : all;
  }

  // Moves on to the next op that runs, from where the cursor stands.
  void settle(RankState& r) const {
    const Program& program = *r.program;
    const int count = micro_batches(program);
    for (; r.at.call < program.schedule.size(); ++r.at.call, r.at.op = 0) {
      const Call& call = program.schedule[r.at.call];
      const bool batched = is_micro_batched(program.segment(call).kind);
      if (batched && call.micro_batch >= count) continue;
      std::vector<ReplaySite>& sites = r.sites->segments[static_cast<size_t>(call.segment)];
      if (r.at.op == 0) enter(r, sites, call);
      for (; r.at.op < sites.size(); ++r.at.op)
        if (!batched || runs(sites[r.at.op].when, call.micro_batch == 0, call.micro_batch == count - 1)) return;
    }
  }

  static void enter(RankState& r, std::vector<ReplaySite>& sites, const Call& call) {
    r.at.sites = &sites;
    for (size_t i = 0; i < r.turn.size(); ++i) r.turn[i] = static_cast<uint32_t>(call.micro_batch) % r.sites->rings[i];
  }

  // Runs the next op of a rank if nobody else must arrive first.
  bool advance(int player) {
    RankState& r = ranks_[static_cast<size_t>(player)];
    if (done(r)) return false;
    const Call& call = r.program->schedule[r.at.call];
    ReplaySite& site = (*r.at.sites)[r.at.op];
    const int64_t ready = std::max(ready_ns(r, site), r.issued + options_.issue_ns);
    const int64_t duration = by_position_ != nullptr ? (*by_position_)(player, r.at.index) : site.ns;
    int64_t end = site.slowed ? slowed_end(r, ready, duration) : ready + duration;
    uint64_t collective = 0;
    if (site.meets != Meeting::kNone && !meet(player, r, site, ready, duration, end, collective)) return false;
    r.issued += options_.issue_ns;
    if (site.slows > 1) r.slowing.push_back({ready, end, site.slows});
    finish(r, site, call, ready, end, collective);
    r.arrived = false;
    ++r.at.op;
    ++r.at.index;
    if (r.at.op == r.at.sites->size() || (*r.at.sites)[r.at.op].when != When::kAlways) settle(r);
    return true;
  }

  // When an op of the compute stream ends that takes so long alone; of what runs beside it at once, the worst counts.
  static int64_t slowed_end(RankState& r, int64_t from, int64_t alone_ns) {
    std::erase_if(r.slowing, [&](const Slowing& s) { return s.end <= from; });
    auto left = static_cast<double>(alone_ns);
    for (int64_t now = from;;) {
      double by = 1;
      int64_t change = std::numeric_limits<int64_t>::max();
      for (const Slowing& s : r.slowing) {
        if (s.start <= now && now < s.end) by = std::max(by, s.by);
        if (s.start > now) change = std::min(change, s.start);
        if (s.end > now) change = std::min(change, s.end);
      }
      const auto until_change = static_cast<double>(change - now);
      if (left * by <= until_change) return now + std::llround(left * by);
      left -= until_change / by;
      now = change;
    }
  }

  static SlotTimes& slot(RankState& r, const SlotKey& key) { return r.slots[key.first + r.turn[key.ring]]; }

  static int64_t ready_ns(RankState& r, const ReplaySite& site) {
    const auto stream = static_cast<size_t>(site.stream);
    const bool joins = site.batched && r.batch_from[stream] >= 0;
    int64_t ready = joins ? r.batch_from[stream] : r.stream_free[stream];
    for (const SlotKey& key : r.sites->in(site)) ready = std::max(ready, slot(r, key).written);
    for (const SlotKey& key : r.sites->out(site)) {
      const SlotTimes& times = slot(r, key);
      ready = std::max({ready, times.written, times.read});
    }
    return ready;
  }

  Group& group(GroupKind kind, int player) {
    std::array<Group*, kGroupKinds.size()>& mine = groups_[static_cast<size_t>(player)];
    Group*& found = mine[static_cast<size_t>(kind)];
    if (found == nullptr) {
      const auto [who, members] = cast_.meeting(kind, player);
      std::unique_ptr<Group>& made = meetings_[{kind, who}];
      if (!made) made = std::make_unique<Group>(Group{members, {}});
      found = made.get();
    }
    return *found;
  }

  bool meet(int player, RankState& r, const ReplaySite& site, int64_t ready, int64_t duration, int64_t& end,
            uint64_t& collective) {
    const CommAttrs& attrs = *site.comm;
    if (site.meets != Meeting::kCollective)
      return message(player, attrs, site.meets == Meeting::kReceive, ready, duration, end, collective);
    Group& meets = group(attrs.group, player);
    if (meets.members == 1) {
      collective = ++last_id_;
      return true;
    }
    size_t& count = r.collectives[static_cast<size_t>(attrs.group)];
    if (meets.calls.size() <= count) meets.calls.resize(count + 1);
    Collective& meeting = meets.calls[count];
    if (meeting.id == 0) meeting.id = ++last_id_;
    if (!r.arrived) {
      r.arrived = true;
      ++meeting.arrived;
      meeting.ready_ns = std::max(meeting.ready_ns, ready);
      meeting.longest_ns = std::max(meeting.longest_ns, duration);
    }
    if (meeting.arrived < meets.members) return false;
    ++count;
    end = meeting.ready_ns + meeting.longest_ns;
    collective = meeting.id;
    return true;
  }

  // Players at the other end, each once.
  const std::vector<int>& peers_of(const CommAttrs& attrs, bool receiving, int player) {
    const auto [found, added] = peers_.try_emplace({player, &attrs});
    std::vector<int>& peers = found->second;
    if (!added) return peers;
    for (const int rank : message_peers(mesh_, attrs, receiving, cast_.rank(player)))
      if (const int peer = cast_.player(rank); std::find(peers.begin(), peers.end(), peer) == peers.end())
        peers.push_back(peer);
    return peers;
  }

  bool message(int player, const CommAttrs& attrs, bool receiving, int64_t ready, int64_t duration, int64_t& end,
               uint64_t& collective) {
    const std::vector<int>& peers = peers_of(attrs, receiving, player);
    if (!receiving) {
      collective = ++last_id_;
      for (const int peer : peers) channels_[{player, peer, attrs.direction}].push_back({end, collective});
      return true;
    }
    for (const int peer : peers)
      if (received_[{peer, player, attrs.direction}] == channels_[{peer, player, attrs.direction}].size()) return false;
    int64_t sent_ns = 0;
    for (const int peer : peers) {
      const auto& [ended_ns, id] =
          channels_[{peer, player, attrs.direction}][received_[{peer, player, attrs.direction}]++];
      sent_ns = std::max(sent_ns, ended_ns);
      collective = id;
    }
    end = std::max(ready, sent_ns) + duration;
    return true;
  }

  void finish(RankState& r, ReplaySite& site, const Call& call, int64_t start, int64_t end, uint64_t collective) {
    const auto stream = static_cast<size_t>(site.stream);
    if (!site.batched)
      r.batch_from[stream] = -1;
    else if (r.batch_from[stream] < 0)
      r.batch_from[stream] = r.stream_free[stream];
    r.stream_free[stream] = std::max(r.stream_free[stream], end);
    for (const SlotKey& key : r.sites->in(site)) {
      int64_t& last = slot(r, key).read;
      last = std::max(last, end);
    }
    for (const SlotKey& key : r.sites->out(site)) slot(r, key).written = end;
    if (!options_.spans) return;
    const Segment& segment = r.program->segment(call);
    if (site.name == 0 && options_.paths) site.name = strings_.intern(segment.ops[r.at.op].path);
    profiler::Span span;
    span.start_ns = start;
    span.end_ns = end;
    span.collective = collective;
    span.track = r.first_track + static_cast<uint32_t>(site.track);
    span.name = span.op = site.name;
    span.step = 0;
    span.micro_batch = is_micro_batched(segment.kind) ? call.micro_batch : profiler::kNoMicroBatch;
    span.kind = site.kind;
    span.phase = site.phase;
    result_.trace.spans.push_back(span);
  }

  const Mesh& mesh_;
  Cast& cast_;
  const DurationOf* by_position_;
  ClassReplayOptions options_;
  std::vector<RankState> ranks_;
  std::map<const Program*, std::unique_ptr<ReplaySites>> sites_;
  std::map<std::pair<GroupKind, int>, std::unique_ptr<Group>> meetings_;
  std::vector<std::array<Group*, kGroupKinds.size()>> groups_;          // by player
  std::map<std::pair<int, const CommAttrs*>, std::vector<int>> peers_;  // an op either sends or receives
  std::map<std::tuple<int, int, Direction>, std::vector<std::pair<int64_t, uint64_t>>> channels_;
  std::map<std::tuple<int, int, Direction>, size_t> received_;
  uint64_t last_id_ = 0;
  profiler::StringTable strings_;
  Replay result_;
};

}  // namespace

Result<Replay> replay(const Mesh& mesh, std::span<const Program* const> program_of_rank, const DurationOf& duration) {
  EveryRank cast(mesh);
  const auto program = [&](int rank) { return program_of_rank[static_cast<size_t>(rank)]; };
  return Replayer(mesh, cast, program, &duration, nullptr, {}).run();
}

Result<Replay> replay_classes(const Mesh& mesh, std::span<const Program> programs, const SiteDuration& duration,
                              const ClassReplayOptions& options) {
  EveryClass cast(mesh);
  const auto program = [&](int player) { return &programs[static_cast<size_t>(player)]; };
  return Replayer(mesh, cast, program, nullptr, &duration, options).run();
}

}  // namespace mbb::trainer
