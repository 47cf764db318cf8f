// Checks of one program, and of the programs of a world against each other.
#include "trainer/program/verify.h"

#include <fmt/core.h>

#include <algorithm>
#include <compare>
#include <map>

#include "trainer/ops/table.h"
#include "trainer/program/walk.h"

namespace mbb::trainer {
namespace {

Status broken(const Op& op, const std::string& what) {
  return fail(ErrorCode::kMismatch, fmt::format("op {} ({}): {}", op.path, op.kind->name, what));
}

Status check_shapes(const Program& program, const Op& op) {
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
  std::map<std::string_view, std::vector<const Op*>> by_path;
  for (const Op& op : segment.ops) {
    for (const Op* other : by_path[op.path])
      if (together(op, *other)) return broken(op, "its path is taken in segment " + segment.name);
    by_path[op.path].push_back(&op);
  }
  return {};
}

bool from_outside(const Tensor& t) {
  return t.scope == Scope::kPersistent || t.category == Category::kInput || t.category == Category::kStep;
}

// Tensors that lose their value when `id` is written: those whose bytes all lie among its bytes.
std::vector<std::vector<TensorId>> covered_by(const Program& program) {
  std::vector<std::vector<TensorId>> sharing(program.tensors.size());
  for (size_t i = 0; i < program.tensors.size(); ++i)
    if (program.tensors[i].view_of != kNoTensor)
      sharing[static_cast<size_t>(program.tensors[i].view_of)].push_back(static_cast<TensorId>(i));
  const auto covers = [&](const Tensor& whole, const Tensor& part) {
    return whole.view_offset_bytes <= part.view_offset_bytes &&
           part.view_offset_bytes + part.bytes() <= whole.view_offset_bytes + whole.bytes();
  };
  std::vector<std::vector<TensorId>> covered(program.tensors.size());
  for (size_t i = 0; i < program.tensors.size(); ++i) {
    const Tensor& t = program.tensors[i];
    // A flat bucket has a view a weight, and those are accumulated into, not overwritten: only values of a call or of
    // a micro-batch can be lost.
    if (t.scope == Scope::kStep || t.scope == Scope::kPersistent) continue;
    const TensorId storage = program.storage(static_cast<TensorId>(i));
    std::vector<TensorId> others = sharing[static_cast<size_t>(storage)];
    others.push_back(storage);
    for (TensorId other : others)
      if (other != static_cast<TensorId>(i) && covers(t, program.tensor(other))) covered[i].push_back(other);
  }
  return covered;
}

// Follows the walk with what each tensor holds: per slot the micro-batch, or the call, whose value is in it.
class Flow {
 public:
  explicit Flow(const Program& program) : p_(program), covered_(covered_by(program)) {
    held_.resize(program.tensors.size());
    for (size_t i = 0; i < held_.size(); ++i)
      held_[i].assign(static_cast<size_t>(std::max(1, program.tensors[i].ring)), kNothing);
    storage_written_.resize(program.tensors.size());
  }

  Status visit(int call_index, const Call& call, const Op& op) {
    for (TensorId id : op.in)
      if (!holds(id, call_index, call)) return broken(op, unreadable(id, call));
    for (TensorId id : op.out) {
      const Tensor& t = p_.tensor(id);
      const bool update = std::find(op.in.begin(), op.in.end(), id) != op.in.end();
      int64_t& held = held_[static_cast<size_t>(id)][static_cast<size_t>(slot(t, call))];
      const int64_t value = value_of(t, call_index, call);
      if (!update && t.scope != Scope::kPersistent && t.scope != Scope::kStep && held == value)
        return broken(op, t.path + " has a second writer");
      held = value;
      storage_written_[static_cast<size_t>(p_.storage(id))] = true;
      for (TensorId lost : covered_[static_cast<size_t>(id)])
        held_[static_cast<size_t>(lost)][static_cast<size_t>(slot(p_.tensor(lost), call))] = kOverwritten;
    }
    return {};
  }

 private:
  static constexpr int64_t kNothing = -1;
  static constexpr int64_t kOverwritten = -2;

  // Call-scoped values live in one call; the others in a micro-batch or in the step.
  static int64_t value_of(const Tensor& t, int call_index, const Call& call) {
    if (t.scope == Scope::kCall) return call_index;
    return t.scope == Scope::kMicroBatch ? call.micro_batch : 0;
  }
  int64_t held(TensorId id, const Call& call) const {
    return held_[static_cast<size_t>(id)][static_cast<size_t>(slot(p_.tensor(id), call))];
  }
  // A flat buffer counts as written when any of its views was.
  bool holds(TensorId id, int call_index, const Call& call) const {
    const Tensor& t = p_.tensor(id);
    if (from_outside(t) || from_outside(p_.tensor(p_.storage(id)))) return true;
    if (held(id, call) == value_of(t, call_index, call)) return true;
    return t.scope == Scope::kStep && storage_written_[static_cast<size_t>(p_.storage(id))];
  }
  std::string unreadable(TensorId id, const Call& call) const {
    const Tensor& t = p_.tensor(id);
    const int64_t value = held(id, call);
    if (value == kOverwritten) return "reads " + t.path + " after another value took its bytes";
    if (t.scope == Scope::kMicroBatch && value > call.micro_batch)
      return fmt::format("reads {} of micro-batch {} after micro-batch {} took slot {} of its {}", t.path,
                         call.micro_batch, value, slot(t, call), t.ring);
    return "reads " + t.path + " before anything wrote it";
  }

  const Program& p_;
  std::vector<std::vector<TensorId>> covered_;
  std::vector<std::vector<int64_t>> held_;  // [tensor][slot]
  std::vector<bool> storage_written_;
};

Status check_flow(const Program& program) {
  Flow flow(program);
  return walk(program, [&](int c, const Call& call, int, const Op& op) -> Status { return flow.visit(c, call, op); });
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

// What the ranks of a world say to each other, collected rank by rank and compared.
class WorldTalk {
 public:
  explicit WorldTalk(const Mesh& mesh) : mesh_(mesh) {}

  // Collects what a rank calls and compares its collectives with those of members seen before.
  Status add(int rank, const Program& program) {
    std::map<GroupKind, std::vector<Message>> mine;
    Status alone;
    walk(program, [&](int, const Call&, int, const Op& op) {
      if (!op.kind->communicates) return;
      if (op.kind != &kSend && op.kind != &kRecv)
        mine[std::get<CommAttrs>(op.attrs).group].push_back(message_of(program, op));
      else if (alone.has_value())
        alone = add_message(rank, program, op);
    });
    MB_TRY(alone);
    for (auto& [group, list] : mine) MB_TRY(compare(group, rank, std::move(list)));
    return {};
  }

  // After the last rank: every member of a group was there, and every message has two ends.
  Status finish() const {
    for (const auto& [key, group] : groups_) MB_TRY(check_members(key.first, group));
    for (const auto& [key, sent_or_received] : messages_) MB_TRY(check_channel(key, sent_or_received));
    return {};
  }

 private:
  struct Group {
    int first_rank = 0;
    std::vector<Message> list;
    int members = 0;  // that call it
  };
  struct Channel {
    int from = 0, to = 0;
    Direction direction = Direction::kForward;
    bool received = false;
    auto operator<=>(const Channel&) const = default;
  };

  Status add_message(int rank, const Program& program, const Op& op) {
    const auto& attrs = std::get<CommAttrs>(op.attrs);
    const bool received = op.kind == &kRecv;
    const int step = (attrs.direction == Direction::kForward ? 1 : -1) * (received ? -1 : 1);
    const std::vector<int> members = mesh_.group(attrs.group, rank);
    const int place = mesh_.group_index(attrs.group, rank) + step;
    if (place < 0 || place >= static_cast<int>(members.size()))
      return broken(op, fmt::format("rank {} has no {} stage to {}", rank, step > 0 ? "next" : "previous",
                                    received ? "receive from" : "send to"));
    const int peer = members[static_cast<size_t>(place)];
    messages_[{received ? peer : rank, received ? rank : peer, attrs.direction, received}].push_back(
        message_of(program, op));
    return {};
  }

  Status compare(GroupKind group, int rank, std::vector<Message> list) {
    Group& seen = groups_.try_emplace({group, mesh_.group(group, rank).front()}, Group{rank, list, 0}).first->second;
    ++seen.members;
    if (list.size() != seen.list.size())
      return fail(ErrorCode::kMismatch, fmt::format("group {}: rank {} calls {} collectives, rank {} calls {}",
                                                    name(group), rank, list.size(), seen.first_rank, seen.list.size()));
    for (size_t i = 0; i < list.size(); ++i) {
      const Message& mine = list[i];
      const Message& theirs = seen.list[i];
      if (mine.kind == theirs.kind && mine.bytes == theirs.bytes) continue;
      return fail(ErrorCode::kMismatch,
                  fmt::format("group {}, collective {}: rank {} calls {} of {} bytes ({}), rank {} calls {} of {} "
                              "bytes ({})",
                              name(group), i, rank, mine.kind, mine.bytes, mine.op->path, seen.first_rank, theirs.kind,
                              theirs.bytes, theirs.op->path));
    }
    return {};
  }

  Status check_members(GroupKind kind, const Group& group) const {
    const int size = mesh_.group_size(kind, group.first_rank);
    if (group.members == size) return {};
    return fail(
        ErrorCode::kMismatch,
        fmt::format("group {}: {} of its {} members call its {} collectives, the others none ({} on rank {})",
                    name(kind), group.members, size, group.list.size(), group.list.front().op->path, group.first_rank));
  }

  Status check_channel(const Channel& channel, const std::vector<Message>& list) const {
    Channel other = channel;
    other.received = !channel.received;
    const auto found = messages_.find(other);
    const size_t met = found == messages_.end() ? 0 : found->second.size();
    if (met != list.size())
      return fail(ErrorCode::kMismatch,
                  fmt::format("ranks {} -> {}: {} messages {}, {} on the other side", channel.from, channel.to,
                              list.size(), channel.received ? "received" : "sent", met));
    for (size_t i = 0; i < list.size(); ++i) {
      const Message& there = found->second[i];
      if (list[i].bytes == there.bytes) continue;
      return fail(ErrorCode::kMismatch,
                  fmt::format("message {} of ranks {} -> {} has {} bytes at {} and {} at {}", i, channel.from,
                              channel.to, list[i].bytes, list[i].op->path, there.bytes, there.op->path));
    }
    return {};
  }

  const Mesh& mesh_;
  std::map<std::pair<GroupKind, int>, Group> groups_;  // by lowest member
  std::map<Channel, std::vector<Message>> messages_;
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
  WorldTalk talk(mesh);
  for (int rank = 0; rank < mesh.world_size(); ++rank)
    MB_TRY(talk.add(rank, *program_of_rank[static_cast<size_t>(rank)]));
  return talk.finish();
}

}  // namespace mbb::trainer
