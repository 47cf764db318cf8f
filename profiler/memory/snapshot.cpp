// From a snapshot's pickle to its structs, and the replay of its trace.
#include "profiler/memory/snapshot.h"

#include <algorithm>
#include <array>
#include <limits>
#include <unordered_map>

#include <fmt/core.h>

#include "profiler/base/file.h"
#include "profiler/memory/pickle.h"

namespace mbb::profiler {

namespace {

using Kind = PickleValue::Kind;

constexpr std::array<const char*, kMemoryActions> kActionNames = {
    "alloc",       "free_requested", "free_completed", "segment_alloc", "segment_free",
    "segment_map", "segment_unmap",  "snapshot",       "oom",           "other"};
constexpr int64_t kByteLimit = int64_t{1} << 56U;  // of one block or segment: sums of what a file can list fit 64 bits

MemoryAction action_of(std::string_view text) {
  for (size_t i = 0; i < kActionNames.size(); ++i)
    if (text == kActionNames[i]) return static_cast<MemoryAction>(i);
  return MemoryAction::kOther;
}

tl::unexpected<Error> bad(const std::string& why) {
  return fail(ErrorCode::kBadFile, "memory snapshot: " + why, "write it again with torch.cuda.memory._dump_snapshot");
}

class Reader {
 public:
  // Lists may share their members, so a short file could stand for endless data: no more items than bytes are taken.
  Reader(const Pickle& pickle, size_t budget) : pickle_(pickle), budget_(budget) {}

  Result<MemorySnapshot> read() {
    const PickleValue& root = pickle_.root();
    const PickleValue* segments = list(root, "segments");
    if (segments == nullptr) return bad("no list of segments");
    for (const PickleId id : segments->items) MB_TRY(read_segment(pickle_.at(id)));
    if (const PickleValue* traces = list(root, "device_traces"); traces != nullptr) {
      for (const PickleId device : traces->items) {
        out_.events.emplace_back();
        for (const PickleId id : pickle_.at(device).items) MB_TRY(read_event(pickle_.at(id)));
      }
    }
    return std::move(out_);
  }

 private:
  const PickleValue* list(const PickleValue& dict, std::string_view key) const {
    const PickleValue* value = pickle_.find(dict, key);
    return value != nullptr && value->kind == Kind::kList ? value : nullptr;
  }

  Status spend() {
    if (budget_ == 0) return bad("it lists more items than it has bytes");
    --budget_;
    return {};
  }

  Result<int64_t> bytes(const PickleValue& dict, std::string_view key) const {
    const int64_t value = pickle_.integer(dict, key, -1);
    if (value < 0 || value > kByteLimit) return bad(fmt::format("an impossible or missing '{}'", key));
    return value;
  }

  Status read_segment(const PickleValue& dict) {
    MB_TRY(spend());
    SnapshotSegment segment;
    segment.address = pickle_.integer(dict, "address", 0);
    MB_ASSIGN(segment.bytes, bytes(dict, "total_size"));
    segment.device = pickle_.integer(dict, "device", 0);
    segment.stream = pickle_.integer(dict, "stream", 0);
    segment.type = pickle_.text(dict, "segment_type");
    int64_t sum = 0;
    if (const PickleValue* blocks = list(dict, "blocks"); blocks != nullptr) {
      for (const PickleId id : blocks->items) {
        MB_TRY(spend());
        const PickleValue& from = pickle_.at(id);
        SnapshotBlock block;
        MB_ASSIGN(block.bytes, bytes(from, "size"));
        if (block.bytes > segment.bytes - sum) return bad("the blocks of a segment exceed it");
        block.address = pickle_.integer(from, "address", segment.address + sum);
        block.requested_bytes = pickle_.integer(from, "requested_size", block.bytes);
        block.state = pickle_.text(from, "state");
        if (block.address - sum != segment.address) return bad("the blocks of a segment leave a gap or overlap");
        sum += block.bytes;
        segment.blocks.push_back(std::move(block));
      }
      if (sum != segment.bytes) return bad("the blocks of a segment do not sum to it");
    }
    out_.segments.push_back(std::move(segment));
    return {};
  }

  Status read_event(const PickleValue& dict) {
    MB_TRY(spend());
    if (dict.kind != Kind::kDict) return bad("a trace entry that is no dict");
    SnapshotEvent event;
    event.action = action_of(pickle_.text(dict, "action"));
    event.address = pickle_.integer(dict, "addr", 0);
    event.bytes = pickle_.integer(dict, "size", 0);
    if (event.bytes < 0 || event.bytes > kByteLimit) return bad("a trace entry of impossible size");
    event.stream = pickle_.integer(dict, "stream", 0);
    event.time_us = pickle_.integer(dict, "time_us", 0);
    if (const PickleValue* frames = list(dict, "frames"); frames != nullptr && !frames->items.empty()) {
      MB_ASSIGN(event.stack, stack_of(*frames));
    }
    out_.events.back().push_back(event);
    return {};
  }

  // Stacks are shared in the file and stay shared here.
  Result<int32_t> stack_of(const PickleValue& frames) {
    const auto [entry, added] = stacks_.try_emplace(&frames, static_cast<int32_t>(out_.stacks.size()));
    if (!added) return entry->second;
    std::vector<SnapshotFrame> stack;
    for (const PickleId id : frames.items) {
      MB_TRY(spend());
      const PickleValue& frame = pickle_.at(id);
      stack.push_back({std::string(pickle_.text(frame, "name")), std::string(pickle_.text(frame, "filename")),
                       pickle_.integer(frame, "line", 0)});
    }
    out_.stacks.push_back(std::move(stack));
    return entry->second;
  }

  const Pickle& pickle_;
  size_t budget_;
  MemorySnapshot out_;
  std::unordered_map<const PickleValue*, int32_t> stacks_;
};

}  // namespace

const char* name(MemoryAction action) {
  return kActionNames[static_cast<size_t>(action)];
}

int64_t MemorySnapshot::reserved_bytes() const {
  int64_t sum = 0;
  for (const SnapshotSegment& segment : segments) sum += segment.bytes;
  return sum;
}

MemoryReplay replay(const std::vector<SnapshotEvent>& events) {
  MemoryReplay out;
  std::unordered_map<int64_t, int64_t> live;  // address -> bytes
  for (size_t i = 0; i < events.size(); ++i) {
    const SnapshotEvent& event = events[i];
    if (event.action == MemoryAction::kAlloc) {
      int64_t& bytes = live[event.address];
      out.live_bytes += event.bytes - bytes;  // a trace that lost the free of this address replaces it
      bytes = event.bytes;
      if (out.live_bytes > out.peak_bytes) {
        out.peak_bytes = out.live_bytes;
        out.peak_event = i;
      }
    } else if (event.action == MemoryAction::kFreeCompleted) {
      const auto found = live.find(event.address);
      if (found == live.end()) {
        ++out.unknown_frees;
        continue;
      }
      out.live_bytes -= found->second;
      live.erase(found);
    }
  }
  out.live_blocks = static_cast<int64_t>(live.size());
  return out;
}

Result<MemorySnapshot> parse_snapshot(std::string_view bytes) {
  MB_ASSIGN(const Pickle pickle, Pickle::parse(bytes));
  return Reader(pickle, bytes.size()).read();
}

Result<MemorySnapshot> read_snapshot(const std::filesystem::path& path) {
  MB_ASSIGN(const std::string bytes, read_file(path.string()));
  auto snapshot = parse_snapshot(bytes);
  if (!snapshot) return tl::unexpected(std::move(snapshot.error()).during(path.string()));
  return snapshot;
}

}  // namespace mbb::profiler
