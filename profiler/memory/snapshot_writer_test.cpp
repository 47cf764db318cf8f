// What we write is read back whole by our strict reader, and holds no opcode that memory_viz does not know.
#include "profiler/memory/snapshot_writer.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>

namespace mbb::profiler {
namespace {

MemorySnapshot sample(int events) {
  MemorySnapshot s;
  s.stacks = {{{"fc1.fwd", "layers.3.mlp.fc1.fwd", 17}, {"mlp", "layers.3.mlp", 0}}, {{"init", "", 0}}};
  s.segments = {{0x7f00'0000'0000,
                 4096,
                 0,
                 7,
                 "large",
                 {{0x7f00'0000'0000, 1024, 1000, "active_allocated", 0}, {0x7f00'0000'0400, 3072, 0, "inactive", -1}}}};
  s.events.emplace_back();
  for (int i = 0; i < events; ++i) {
    s.events[0].push_back({MemoryAction::kAlloc, 0x7f00'0000'0000 + i * 512, 512, 7, 1'780'000'000'000'000 + i, i % 2});
    s.events[0].push_back({MemoryAction::kFreeRequested, 0x7f00'0000'0000 + i * 512, 512, 7, i, 1});
    s.events[0].push_back({MemoryAction::kFreeCompleted, 0x7f00'0000'0000 + i * 512, 512, 7, i, -1});
  }
  return s;
}

TEST(SnapshotWriter, TheStrictReaderGetsItBack) {
  for (const int events : {0, 1, 999, 2500}) {
    const MemorySnapshot s = sample(events);
    const auto back = parse_snapshot(snapshot_text(s));
    ASSERT_TRUE(back) << back.error().what;
    ASSERT_EQ(back->segments.size(), 1U);
    EXPECT_EQ(back->segments[0].address, s.segments[0].address);
    EXPECT_EQ(back->segments[0].blocks.size(), 2U);
    EXPECT_EQ(back->segments[0].blocks[0].requested_bytes, 1000);
    ASSERT_EQ(back->events.size(), 1U);
    ASSERT_EQ(back->events[0].size(), s.events[0].size());
    for (size_t i = 0; i < s.events[0].size(); ++i) {
      EXPECT_EQ(back->events[0][i].action, s.events[0][i].action);
      EXPECT_EQ(back->events[0][i].address, s.events[0][i].address);
      EXPECT_EQ(back->events[0][i].time_us, s.events[0][i].time_us);
    }
    EXPECT_EQ(replay(back->events[0]).peak_bytes, replay(s.events[0]).peak_bytes);
  }
}

// Steps through a pickle opcode by opcode, by the operand sizes of the opcodes in memory_viz's reader.
void expect_known_opcodes(const std::string& bytes) {
  const std::map<char, size_t> operand = {{'\x80', 1}, {'}', 0},    {'(', 0},    {'u', 0},    {']', 0},   {'e', 0},
                                          {'K', 1},    {'M', 2},    {'J', 4},    {'h', 1},    {'j', 4},   {'N', 0},
                                          {'.', 0},    {'\x94', 0}, {'\x88', 0}, {'\x89', 0}, {'\x86', 0}};
  size_t at = 0;
  while (at < bytes.size()) {
    const char op = bytes[at++];
    if (op == '\x8c' || op == '\x8a') {
      at += 1 + static_cast<unsigned char>(bytes[at]);
    } else if (op == 'X') {
      uint32_t size = 0;
      std::memcpy(&size, &bytes[at], 4);
      at += 4 + size;
    } else {
      const auto known = operand.find(op);
      ASSERT_NE(known, operand.end()) << "opcode " << static_cast<int>(static_cast<unsigned char>(op)) << " at " << at;
      at += known->second;
      if (op == '.') {
        EXPECT_EQ(at, bytes.size());
      }
    }
  }
  EXPECT_EQ(bytes.back(), '.');
}

TEST(SnapshotWriter, OnlyOpcodesThatMemoryVizKnows) {
  MemorySnapshot s = sample(1200);
  for (int i = 0; i < 400; ++i) s.stacks.push_back({{std::string(300, 'x'), "f", i}});
  for (int i = 0; i < 400; ++i) s.events[0][static_cast<size_t>(i)].stack = 2 + i;
  s.events[0][0].time_us = -5;
  expect_known_opcodes(snapshot_text(s));
  EXPECT_TRUE(parse_snapshot(snapshot_text(s)));
}

TEST(SnapshotWriter, AnUnwritablePathIsAnErrorThatNamesIt) {
  const Status status = write_snapshot("/no/such/folder/s.pickle", sample(1));
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().what.find("/no/such/folder"), std::string::npos);
}

}  // namespace
}  // namespace mbb::profiler
