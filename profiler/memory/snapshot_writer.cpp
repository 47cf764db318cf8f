// A small pickler for dicts, lists, texts and integers.
#include "profiler/memory/snapshot_writer.h"

#include <algorithm>
#include <map>

#include "profiler/base/file.h"

namespace mbb::profiler {
namespace {

class Pickler {
 public:
  Pickler() { out_ = "\x80\x04"; }

  void dict() { out_ += "}("; }
  void end_dict() { out_ += 'u'; }
  void list() { out_ += ']'; }
  // Items of a list go in batches, which keeps memory_viz's stack short.
  void begin_batch() { out_ += '('; }
  void end_batch() { out_ += 'e'; }
  void boolean(bool value) { out_ += value ? '\x88' : '\x89'; }
  void pair(int64_t a, int64_t b) {
    integer(a);
    integer(b);
    out_ += '\x86';
  }

  void integer(int64_t value) {
    if (value >= 0 && value < 0x100) {
      out_ += 'K';
      bytes(value, 1);
    } else if (value >= 0 && value < 0x10000) {
      out_ += 'M';
      bytes(value, 2);
    } else if (value >= INT32_MIN && value <= INT32_MAX) {
      out_ += 'J';
      bytes(value, 4);
    } else {
      out_ += "\x8a\x08";
      bytes(value, 8);
    }
  }

  void text(std::string_view value) {
    if (value.size() < 0x100) {
      out_ += '\x8c';
      bytes(static_cast<int64_t>(value.size()), 1);
    } else {
      out_ += 'X';
      bytes(static_cast<int64_t>(value.size()), 4);
    }
    out_ += value;
  }

  // Remembers what was just written; recall() writes it again.
  uint32_t memoize() {
    out_ += '\x94';
    return memos_++;
  }
  void recall(uint32_t memo) {
    if (memo < 0x100) {
      out_ += 'h';
      bytes(memo, 1);
    } else {
      out_ += 'j';
      bytes(memo, 4);
    }
  }

  void field(std::string_view key, int64_t value) {
    text(key);
    integer(value);
  }
  void field(std::string_view key, std::string_view value) {
    text(key);
    text(value);
  }

  std::string take() {
    out_ += '.';
    return std::move(out_);
  }

 private:
  void bytes(int64_t value, int width) {
    for (int i = 0; i < width; ++i) out_ += static_cast<char>(static_cast<uint64_t>(value) >> (8 * i));
  }

  std::string out_;
  uint32_t memos_ = 0;
};

class SnapshotText {
 public:
  explicit SnapshotText(const MemorySnapshot& snapshot) : snapshot_(snapshot) {}

  std::string run() {
    p_.dict();
    p_.text("segments");
    list_of(snapshot_.segments, [&](const SnapshotSegment& s) { segment(s); });
    p_.text("device_traces");
    list_of(snapshot_.events, [&](const std::vector<SnapshotEvent>& events) {
      list_of(events, [&](const SnapshotEvent& e) { event(e); });
    });
    p_.text("allocator_settings");
    p_.dict();
    p_.text("expandable_segments");
    p_.boolean(false);
    p_.end_dict();
    p_.end_dict();
    return p_.take();
  }

 private:
  template <typename T, typename Write>
  void list_of(const std::vector<T>& items, Write write) {
    constexpr size_t kBatch = 1000;
    p_.list();
    for (size_t from = 0; from < items.size(); from += kBatch) {
      p_.begin_batch();
      for (size_t i = from; i < std::min(items.size(), from + kBatch); ++i) write(items[i]);
      p_.end_batch();
    }
  }

  void segment(const SnapshotSegment& s) {
    int64_t active = 0, requested = 0;
    for (const SnapshotBlock& block : s.blocks) {
      if (block.state == "inactive") continue;
      active += block.bytes;
      requested += block.requested_bytes;
    }
    p_.dict();
    p_.field("device", s.device);
    p_.field("address", s.address);
    p_.field("total_size", s.bytes);
    p_.field("allocated_size", active);
    p_.field("active_size", active);
    p_.field("requested_size", requested);
    p_.field("stream", s.stream);
    p_.field("segment_type", s.type);
    p_.text("segment_pool_id");
    p_.pair(0, 0);
    p_.text("is_expandable");
    p_.boolean(false);
    frames(-1);
    p_.text("blocks");
    list_of(s.blocks, [&](const SnapshotBlock& block) {
      p_.dict();
      p_.field("address", block.address);
      p_.field("size", block.bytes);
      p_.field("requested_size", block.requested_bytes);
      p_.field("state", block.state);
      frames(block.stack);
      p_.end_dict();
    });
    p_.end_dict();
  }

  void event(const SnapshotEvent& e) {
    p_.dict();
    p_.field("action", name(e.action));
    p_.field("addr", e.address);
    p_.field("size", e.bytes);
    p_.field("stream", e.stream);
    p_.field("time_us", e.time_us);
    frames(e.stack);
    p_.end_dict();
  }

  void frames(int32_t stack) {
    p_.text("frames");
    if (const auto known = memo_of_.find(stack); known != memo_of_.end()) {
      p_.recall(known->second);
      return;
    }
    static const std::vector<SnapshotFrame> kNone;
    const bool has = stack >= 0 && static_cast<size_t>(stack) < snapshot_.stacks.size();
    list_of(has ? snapshot_.stacks[static_cast<size_t>(stack)] : kNone, [&](const SnapshotFrame& frame) {
      p_.dict();
      p_.field("name", frame.function);
      p_.field("filename", frame.file);
      p_.field("line", frame.line);
      p_.end_dict();
    });
    memo_of_[stack] = p_.memoize();
  }

  const MemorySnapshot& snapshot_;
  Pickler p_;
  std::map<int32_t, uint32_t> memo_of_;
};

}  // namespace

std::string snapshot_text(const MemorySnapshot& snapshot) {
  return SnapshotText(snapshot).run();
}

Status write_snapshot(const std::filesystem::path& path, const MemorySnapshot& snapshot) {
  return write_file(path, snapshot_text(snapshot));
}

}  // namespace mbb::profiler
