// Checks of one program, and of the programs of a world against each other.
#include "trainer/program/verify.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <compare>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>

#include "trainer/ops/message_peers.h"
#include "trainer/ops/table.h"
#include "trainer/program/rendezvous.h"
#include "trainer/program/walk.h"

namespace mbb::trainer {
namespace {

Status broken(const Op& op, const std::string& what) {
  return fail(ErrorCode::kMismatch, fmt::format("op {} ({}): {}", op.path, op.kind->name, what));
}

Status check_shapes(const Program& program, const Op& op) {
  if (op.kind->cpu == nullptr) return broken(op, "stands for other ops, which a pass should have put in its place");
  std::vector<const Tensor*> in;
  for (TensorId id : op.in) in.push_back(&program.tensor(id));
  auto specs = op.kind->shape(in, op.attrs);
  if (!specs) return broken(op, specs.error().what);
  if (specs->size() != op.out.size())
    return broken(op, fmt::format("{} outputs where the record says {}", op.out.size(), specs->size()));
  for (size_t i = 0; i < op.out.size(); ++i)
    if (program.tensor(op.out[i]).shape.elements() != (*specs)[i].shape.elements())
      return broken(op, fmt::format("output {} is {} where the record says {}", program.tensor(op.out[i]).path,
                                    program.tensor(op.out[i]).shape.str(), (*specs)[i].shape.str()));
  return {};
}

Status check_views(const Program& program) {
  for (const Tensor& t : program.tensors) {
    if (t.view_of == kNoTensor) continue;
    const Tensor& storage = program.tensor(t.view_of);
    if (storage.view_of != kNoTensor || t.view_offset_bytes < 0 || t.view_offset_bytes + t.bytes() > storage.bytes())
      return fail(ErrorCode::kMismatch, fmt::format("view {} does not lie inside {}", t.path, storage.path));
  }
  return {};
}

bool together(const Op& a, const Op& b) {
  for (const bool first : {false, true})
    for (const bool last : {false, true})
      if (runs(a.when, first, last) && runs(b.when, first, last)) return true;
  return false;
}

Status check_paths(const Segment& segment) {
  std::unordered_map<std::string_view, const Op*> last_of;
  std::vector<const Op*> before(segment.ops.size(), nullptr);  // of each op, the one before it that has its path
  last_of.reserve(segment.ops.size());
  for (const Op& op : segment.ops) {
    const Op*& last = last_of[op.path];
    const auto index = [&](const Op* of) { return static_cast<size_t>(of - segment.ops.data()); };
    for (const Op* other = last; other != nullptr; other = before[index(other)])
      if (together(op, *other)) return broken(op, "its path is taken in segment " + segment.name);
    before[index(&op)] = last;
    last = &op;
  }
  return {};
}

bool from_outside(const Tensor& t) {
  return t.scope == Scope::kPersistent || t.category == Category::kInput || t.category == Category::kStep;
}

// Follows the walk with what each tensor holds: per slot the micro-batch, or the call, whose value is in it.
class Flow {
 public:
  explicit Flow(const Program& program)
      : p_(program), sharing_(program.tensors.size()), known_(program.tensors.size()), lists_(program.segments.size()) {
    size_t slots = 0;
    for (size_t i = 0; i < known_.size(); ++i) {
      const Tensor& t = program.tensors[i];
      const TensorId storage = program.storage(static_cast<TensorId>(i));
      known_[i] = {slots,
                   t.view_offset_bytes,
                   t.view_offset_bytes + t.bytes(),
                   std::max(1, t.ring),
                   storage,
                   t.scope,
                   from_outside(t) || from_outside(program.tensor(storage))};
      slots += static_cast<size_t>(known_[i].ring);
      sharing_[static_cast<size_t>(storage)].push_back(static_cast<TensorId>(i));
    }
    for (std::vector<TensorId>& all : sharing_)
      std::stable_sort(all.begin(), all.end(), [&](TensorId a, TensorId b) { return known(a).begin < known(b).begin; });
    find_covered();
    held_.assign(slots, kNothing);
    storage_written_.resize(program.tensors.size());
  }

  Status visit(int call_index, const Call& call) {
    List& list = list_of(call);
    if (!list.made) list.touches = touches_of(call);
    for (const Touch& touch : list.touches) {
      if (!touch.writes) {
        if (!holds(touch.id, call_index, call)) return broken(*touch.op, unreadable(touch.id, call));
        continue;
      }
      const Known& t = known(touch.id);
      int64_t& held = held_[place(t, call)];
      const int64_t value = value_of(t, call_index, call);
      const bool lives_in_calls = t.scope != Scope::kPersistent && t.scope != Scope::kStep;
      if (lives_in_calls && held == value && !touch.updates)
        return broken(*touch.op, p_.tensor(touch.id).path + " has a second writer");
      held = value;
      storage_written_[static_cast<size_t>(t.storage)] = 1;
      for (TensorId lost : covered_[static_cast<size_t>(touch.id)]) {
        int64_t& there = held_[place(known(lost), call)];
        if (there != kNothing) there = kOverwritten;
      }
    }
    // What lives in one call alone goes the same way in all calls that run the same ops.
    if (!list.made)
      std::erase_if(list.touches, [&](const Touch& touch) { return ends_with_call(known(touch.id).storage); });
    list.made = true;
    return {};
  }

 private:
  static constexpr int64_t kNothing = -1;
  static constexpr int64_t kOverwritten = -2;

  // Of a tensor what the walk asks for, close together: it asks at every op of every call.
  struct Known {
    size_t first = 0;            // its slots in held_
    int64_t begin = 0, end = 0;  // its bytes of its storage
    int ring = 1;
    TensorId storage = kNoTensor;
    Scope scope = Scope::kCall;
    bool outside = false;  // it holds a value whatever the step does
  };

  // An op reads or writes a tensor.
  struct Touch {
    const Op* op = nullptr;
    TensorId id = kNoTensor;
    bool writes = false;
    bool updates = false;  // reads what it writes
  };
  // What calls of one segment touch that run the same of its ops: in order, without what always holds a value.
  struct List {
    bool made = false;
    std::vector<Touch> touches;
  };

  List& list_of(const Call& call) {
    auto& lists = lists_[static_cast<size_t>(call.segment)];
    if (!is_micro_batched(p_.segment(call).kind)) return lists[0];
    return lists[(call.micro_batch == 0 ? 1 : 0) + (call.micro_batch == p_.micro_batches - 1 ? 2 : 0)];
  }

  std::vector<Touch> touches_of(const Call& call) const {
    std::vector<Touch> touches;
    for (const Op& op : p_.segment(call).ops) {
      if (!runs_in(p_, call, op)) continue;
      for (const TensorId id : op.in)
        if (!known(id).outside) touches.push_back({&op, id, false, false});
      for (const TensorId id : op.out)
        touches.push_back({&op, id, true, std::find(op.in.begin(), op.in.end(), id) != op.in.end()});
    }
    return touches;
  }

  bool ends_with_call(TensorId storage) const {
    const std::vector<TensorId>& all = sharing_[static_cast<size_t>(storage)];
    return std::all_of(all.begin(), all.end(),
                       [&](TensorId id) { return known(id).scope == Scope::kCall && !known(id).outside; });
  }

  // Tensors that lose their value when one is written: those whose bytes all lie among its bytes.
  void find_covered() {
    covered_.resize(known_.size());
    for (size_t i = 0; i < known_.size(); ++i) {
      const Known& t = known_[i];
      // A flat bucket has a view a weight, and those are accumulated into, not overwritten: only values of a call or
      // of a micro-batch can be lost.
      if (t.scope == Scope::kStep || t.scope == Scope::kPersistent) continue;
      for (const TensorId other : sharing_[static_cast<size_t>(t.storage)])
        if (other != static_cast<TensorId>(i) && t.begin <= known(other).begin && known(other).end <= t.end)
          covered_[i].push_back(other);
    }
  }

  const Known& known(TensorId id) const { return known_[static_cast<size_t>(id)]; }
  static size_t place(const Known& t, const Call& call) {
    if (t.ring == 1 || t.scope != Scope::kMicroBatch) return t.first;
    return t.first + static_cast<size_t>(call.micro_batch % t.ring);
  }

  // Call-scoped values live in one call; the others in a micro-batch or in the step.
  static int64_t value_of(const Known& t, int call_index, const Call& call) {
    if (t.scope == Scope::kCall) return call_index;
    return t.scope == Scope::kMicroBatch ? call.micro_batch : 0;
  }
  bool holds(TensorId id, int call_index, const Call& call) const {
    const Known& t = known(id);
    const int64_t held = held_[place(t, call)];
    if (held == value_of(t, call_index, call)) return true;
    // A flat buffer counts as written when any of its views was.
    if (t.scope == Scope::kStep && storage_written_[static_cast<size_t>(t.storage)] != 0) return true;
    // A tensor nobody wrote by its own name: part of one that holds a value, or put together from such parts.
    if (held != kNothing) return false;
    int64_t end = t.begin;
    for (const TensorId other : sharing_[static_cast<size_t>(t.storage)]) {
      const Known& part = known(other);
      if (part.begin <= end && held_[place(part, call)] == value_of(part, call_index, call))
        end = std::max(end, part.end);
    }
    return end >= t.end;
  }
  std::string unreadable(TensorId id, const Call& call) const {
    const Tensor& t = p_.tensor(id);
    const int64_t value = held_[place(known(id), call)];
    if (value == kOverwritten) return "reads " + t.path + " after another value took its bytes";
    if (t.scope == Scope::kMicroBatch && value > call.micro_batch)
      return fmt::format("reads {} of micro-batch {} after micro-batch {} took slot {} of its {}", t.path,
                         call.micro_batch, value, slot(t, call), t.ring);
    return "reads " + t.path + " before anything wrote it";
  }

  const Program& p_;
  std::vector<std::vector<TensorId>> sharing_;  // of a storage: itself and its views, by offset
  std::vector<std::vector<TensorId>> covered_;
  std::vector<Known> known_;
  std::vector<int64_t> held_;  // by Known::first and slot
  std::vector<char> storage_written_;
  std::vector<std::array<List, 4>> lists_;  // of each segment, by whether the micro-batch is the first and the last
};

Status check_flow(const Program& program) {
  Flow flow(program);
  for (size_t c = 0; c < program.schedule.size(); ++c) MB_TRY(flow.visit(static_cast<int>(c), program.schedule[c]));
  return {};
}

// One communication of a rank, as the other members must see it too.
struct Message {
  std::string_view kind;
  int64_t bytes = 0;
  const Op* op = nullptr;
};

Message message_of(const Program& program, const Op& op) {
  const TensorId id = op.in.empty() ? op.out[0] : op.in[0];
  return {op.kind->name, program.tensor(id).bytes(), &op};
}

// What a program says, whichever rank runs it.
struct Talk {
  // One end of a channel of messages: towards which neighbour, and whether they arrive.
  struct End {
    GroupKind group = GroupKind::kPp;
    Direction direction = Direction::kForward;
    bool ring = false;
    bool received = false;
    auto operator<=>(const End&) const = default;
  };
  std::map<GroupKind, std::vector<Message>> collectives;
  std::map<End, std::vector<Message>> messages;
};

Talk talk_of(const Program& program) {
  Talk talk;
  walk(program, [&](int, const Call&, int, const Op& op) {
    if (!op.kind->communicates) return;
    const auto& attrs = std::get<CommAttrs>(op.attrs);
    if (sends(op) || receives(op))
      talk.messages[{attrs.group, attrs.direction, attrs.ring, receives(op)}].push_back(message_of(program, op));
    else
      talk.collectives[attrs.group].push_back(message_of(program, op));
  });
  return talk;
}

// Compares what ranks say, group by group. Ranks share programs, so each pair of programs is compared once and the work
// grows with the ranks, not with their square.
class WorldTalk {
 public:
  WorldTalk(const Mesh& mesh, std::span<const Program* const> programs) : mesh_(mesh), programs_(programs) {
    for (const Program* program : programs)
      if (!talks_.contains(program)) talks_.emplace(program, talk_of(*program));
  }

  Status check() {
    std::set<GroupKind> collectives;
    for (const auto& [program, talk] : talks_) {
      for (const auto& [group, list] : talk.collectives) collectives.insert(group);
    }
    for (const GroupKind kind : collectives)
      for (const std::vector<int>& members : mesh_.groups(kind)) MB_TRY(check_collectives(kind, members));
    for (int rank = 0; rank < mesh_.world_size(); ++rank) MB_TRY(check_ends(rank));
    for (int rank = 0; rank < mesh_.world_size(); ++rank) MB_TRY(check_messages(rank));
    return {};
  }

 private:
  const Talk& talk(int rank) const { return talks_.at(programs_[static_cast<size_t>(rank)]); }
  // True the first time that the two ranks' programs meet for this purpose.
  bool first_time(GroupKind kind, int a, int b) {
    return compared_.emplace(kind, programs_[static_cast<size_t>(a)], programs_[static_cast<size_t>(b)]).second;
  }

  Status check_collectives(GroupKind kind, const std::vector<int>& members) {
    int first = -1;
    size_t calling = 0;
    for (const int rank : members) {
      if (!talk(rank).collectives.contains(kind)) continue;
      ++calling;
      if (first < 0) first = rank;
      if (first_time(kind, first, rank)) MB_TRY(compare(kind, first, rank));
    }
    if (calling == 0 || calling == members.size()) return {};
    const std::vector<Message>& list = talk(first).collectives.at(kind);
    return fail(ErrorCode::kMismatch,
                fmt::format("group {}: {} of its {} members call its {} collectives, the others none ({} on rank {})",
                            name(kind), calling, members.size(), list.size(), list.front().op->path, first));
  }

  Status compare(GroupKind kind, int first, int rank) const {
    const std::vector<Message>& seen = talk(first).collectives.at(kind);
    const std::vector<Message>& list = talk(rank).collectives.at(kind);
    if (list.size() != seen.size())
      return fail(ErrorCode::kMismatch, fmt::format("group {}: rank {} calls {} collectives, rank {} calls {}",
                                                    name(kind), rank, list.size(), first, seen.size()));
    for (size_t i = 0; i < list.size(); ++i) {
      const Message& mine = list[i];
      const Message& theirs = seen[i];
      if (mine.kind == theirs.kind && mine.bytes == theirs.bytes) continue;
      return fail(ErrorCode::kMismatch,
                  fmt::format("group {}, collective {}: rank {} calls {} of {} bytes ({}), rank {} calls {} of {} "
                              "bytes ({})",
                              name(kind), i, rank, mine.kind, mine.bytes, mine.op->path, first, theirs.kind,
                              theirs.bytes, theirs.op->path));
    }
    return {};
  }

  std::vector<int> peers_of(int rank, const Talk::End& end, const std::vector<Message>& list) const {
    return message_peers(mesh_, std::get<CommAttrs>(list.front().op->attrs), end.received, rank);
  }

  Status check_ends(int rank) const {
    for (const auto& [end, list] : talk(rank).messages) {
      if (!peers_of(rank, end, list).empty()) continue;
      const bool next = (end.direction == Direction::kForward) != end.received;
      return broken(*list.front().op, fmt::format("rank {} has no {} stage to {}", rank, next ? "next" : "previous",
                                                  end.received ? "receive from" : "send to"));
    }
    return {};
  }

  Status check_messages(int rank) {
    for (const auto& [end, list] : talk(rank).messages) {
      const std::vector<int> peers = peers_of(rank, end, list);
      for (const int peer : peers) MB_TRY(check_channel(end, rank, peer, list, static_cast<int64_t>(peers.size())));
    }
    return {};
  }

  // `slices`: peers that share each of this rank's messages.
  Status check_channel(Talk::End end, int rank, int peer, const std::vector<Message>& list, int64_t slices) {
    const int from = end.received ? peer : rank;
    const int to = end.received ? rank : peer;
    const bool received = end.received;
    if (!channels_.emplace(end, programs_[static_cast<size_t>(from)], programs_[static_cast<size_t>(to)]).second)
      return {};
    end.received = !received;
    const auto found = talk(peer).messages.find(end);
    const size_t met = found == talk(peer).messages.end() ? 0 : found->second.size();
    if (met != list.size())
      return fail(ErrorCode::kMismatch, fmt::format("ranks {} -> {}: {} messages {}, {} on the other side", from, to,
                                                    list.size(), received ? "received" : "sent", met));
    const auto slices_there = static_cast<int64_t>(peers_of(peer, end, found->second).size());
    for (size_t i = 0; i < list.size(); ++i) {
      const Message& there = found->second[i];
      if (list[i].bytes / slices == there.bytes / slices_there) continue;
      return fail(ErrorCode::kMismatch,
                  fmt::format("message {} of ranks {} -> {} has {} bytes at {} and {} at {}", i, from, to,
                              list[i].bytes / slices, list[i].op->path, there.bytes / slices_there, there.op->path));
    }
    return {};
  }

  const Mesh& mesh_;
  std::span<const Program* const> programs_;
  std::map<const Program*, Talk> talks_;
  std::set<std::tuple<GroupKind, const Program*, const Program*>> compared_;
  std::set<std::tuple<Talk::End, const Program*, const Program*>> channels_;  // by end, sender, receiver
};

}  // namespace

Status verify(const Program& program) {
  MB_TRY(check_views(program));
  for (const Segment& segment : program.segments) {
    MB_TRY(check_paths(segment));
    for (const Op& op : segment.ops) MB_TRY(check_shapes(program, op));
  }
  return check_flow(program);
}

Status verify_world(const Mesh& mesh, std::span<const Program* const> program_of_rank) {
  MB_TRY(WorldTalk(mesh, program_of_rank).check());
  return check_rendezvous(mesh, program_of_rank);
}

}  // namespace mbb::trainer
