// Checks of one program, and of the programs of a world against each other.
#include "trainer/program/verify.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <set>

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

// Follows the walk with the set of written (tensor, micro-batch) values.
class Flow {
 public:
  explicit Flow(const Program& program) : p_(program) {}

  Status visit(const Call& call, const Op& op) {
    for (TensorId id : op.in)
      if (!is_written(id, call)) return broken(op, "reads " + p_.tensor(id).path + " before anything wrote it");
    for (TensorId id : op.out) {
      const Tensor& t = p_.tensor(id);
      const bool update = std::find(op.in.begin(), op.in.end(), id) != op.in.end();
      if (!update && t.scope != Scope::kPersistent && t.scope != Scope::kStep &&
          !written_.insert({id, key(t, call)}).second)
        return broken(op, t.path + " has a second writer");
      written_.insert({id, key(t, call)});
      storages_.insert(p_.storage(id));
    }
    return {};
  }
  void end_call() { ++call_; }

 private:
  // Call-scoped values live in one call; the others in a micro-batch or in the step.
  int64_t key(const Tensor& t, const Call& call) const {
    if (t.scope == Scope::kCall) return -1 - call_;
    return t.scope == Scope::kMicroBatch ? call.micro_batch : 0;
  }
  // A flat buffer counts as written when any of its views was.
  bool is_written(TensorId id, const Call& call) const {
    const Tensor& t = p_.tensor(id);
    if (from_outside(t) || from_outside(p_.tensor(p_.storage(id)))) return true;
    if (written_.contains({id, key(t, call)})) return true;
    return t.scope == Scope::kStep && storages_.contains(p_.storage(id));
  }

  const Program& p_;
  std::set<std::pair<TensorId, int64_t>> written_;
  std::set<TensorId> storages_;
  int64_t call_ = 0;
};

Status check_flow(const Program& program) {
  Flow flow(program);
  int current = 0;
  return walk(program, [&](int c, const Call& call, int, const Op& op) -> Status {
    for (; current < c; ++current) flow.end_call();
    return flow.visit(call, op);
  });
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

using Channel = std::pair<int, int>;  // (from, to) for messages

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
  std::map<std::pair<GroupKind, int>, std::pair<int, std::vector<Message>>> collectives;  // by group and lowest member
  std::map<std::tuple<Channel, Direction, bool>, std::vector<Message>> messages;          // bool: received
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    const Program& program = *program_of_rank[static_cast<size_t>(rank)];
    std::map<GroupKind, std::vector<Message>> mine;
    walk(program, [&](int, const Call&, int, const Op& op) {
      if (!op.kind->communicates) return;
      const auto& attrs = std::get<CommAttrs>(op.attrs);
      if (op.kind != &kSend && op.kind != &kRecv) {
        mine[attrs.group].push_back(message_of(program, op));
        return;
      }
      const std::vector<int> members = mesh.group(attrs.group, rank);
      const bool received = op.kind == &kRecv;
      const int step = (attrs.direction == Direction::kForward ? 1 : -1) * (received ? -1 : 1);
      const int peer = members[static_cast<size_t>(mesh.group_index(attrs.group, rank) + step)];
      const Channel channel = received ? Channel{peer, rank} : Channel{rank, peer};
      messages[{channel, attrs.direction, received}].push_back(message_of(program, op));
    });
    for (auto& [group, list] : mine) {
      const int lowest = mesh.group(group, rank).front();
      auto& [first_rank, expected] = collectives.try_emplace({group, lowest}, rank, list).first->second;
      if (list.size() != expected.size())
        return fail(ErrorCode::kMismatch, fmt::format("group {}: rank {} calls {} collectives, rank {} calls {}",
                                                      name(group), rank, list.size(), first_rank, expected.size()));
      for (size_t i = 0; i < list.size(); ++i)
        if (list[i].kind != expected[i].kind || list[i].bytes != expected[i].bytes)
          return fail(
              ErrorCode::kMismatch,
              fmt::format(
                  "group {}, collective {}: rank {} calls {} of {} bytes ({}), rank {} calls {} of {} bytes ({})",
                  name(group), i, rank, list[i].kind, list[i].bytes, list[i].op->path, first_rank, expected[i].kind,
                  expected[i].bytes, expected[i].op->path));
    }
  }
  for (const auto& [key, list] : messages) {
    const auto& [channel, direction, received] = key;
    const auto other = messages.find({channel, direction, !received});
    const size_t met = other == messages.end() ? 0 : other->second.size();
    if (met != list.size())
      return fail(ErrorCode::kMismatch,
                  fmt::format("ranks {} -> {}: {} messages {}, {} on the other side", channel.first, channel.second,
                              list.size(), received ? "received" : "sent", met));
    for (size_t i = 0; i < list.size(); ++i)
      if (list[i].bytes != other->second[i].bytes)
        return fail(ErrorCode::kMismatch, fmt::format("message {} of ranks {} -> {} has {} bytes at {} and {} at {}", i,
                                                      channel.first, channel.second, list[i].bytes, list[i].op->path,
                                                      other->second[i].bytes, other->second[i].op->path));
  }
  return {};
}

}  // namespace mbb::trainer
