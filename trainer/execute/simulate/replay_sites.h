// The ops of a program as replay reads them: what each touches, by number, and how its span looks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "profiler/trace/trace.h"
#include "trainer/program/program.h"

namespace mbb::trainer {

// A tensor's bytes in a call: number `first` + micro-batch mod ring.
struct SlotKey {
  uint32_t first = 0;
  uint32_t ring = 0;  // of ReplaySites::rings
};

enum class Meeting : uint8_t { kNone, kCollective, kSend, kReceive };

struct ReplaySite {
  uint32_t in_begin = 0, out_begin = 0, out_end = 0;  // in keys: [in_begin, out_begin), out keys: [out_begin, out_end)
  When when = When::kAlways;
  Stream stream = Stream::kCompute;
  Stream track = Stream::kCompute;  // drawn on
  Meeting meets = Meeting::kNone;
  bool batched = false;
  const CommAttrs* comm = nullptr;  // of the program's op, where it communicates
  profiler::SpanKind kind = profiler::SpanKind::kCompute;
  profiler::Phase phase = profiler::Phase::kNone;
  profiler::StringId name = 0;  // of the path, once it ran
  int64_t ns = 0;               // duration, where it is the same in all calls
  double slows = 1;             // Contention
  bool slowed = false;
};

struct ReplaySites {
  explicit ReplaySites(const Program& program);

  std::vector<std::vector<ReplaySite>> segments;
  std::vector<SlotKey> keys;
  std::vector<uint32_t> rings = {1};  // the sizes that there are
  size_t slots = 0;

  std::span<const SlotKey> in(const ReplaySite& s) const {
    return {keys.data() + s.in_begin, s.out_begin - s.in_begin};
  }
  std::span<const SlotKey> out(const ReplaySite& s) const {
    return {keys.data() + s.out_begin, s.out_end - s.out_begin};
  }
};

}  // namespace mbb::trainer
