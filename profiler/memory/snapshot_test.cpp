// Tests of the pickle reader and of PyTorch memory snapshots: a real one, hostile ones, damaged ones.
#include "profiler/memory/snapshot.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <random>
#include <sstream>

#include "profiler/memory/pickle.h"

namespace mbb::profiler {
namespace {

using namespace std::string_literals;

std::string real_snapshot() {
  const char* set = std::getenv("MBBENCH_TEST_DATA");
  const std::filesystem::path data = set != nullptr ? set : MBB_SOURCE_DIR "/../shared/data";
  std::ifstream in(data / "memory/mini_snapshot.pickle", std::ios::binary);
  std::stringstream all;
  all << in.rdbuf();
  return all.str();
}

TEST(Pickle, PlainData) {
  // {'a': [1, 2], 'b': (True, None, -1)} and a shared list.
  const std::string bytes =
      "\x80\x04}(\x8c\x01"s + "a](K\x01K\x02" + "e\x94\x8c\x01" + "b\x88N\x8a\x01\xff\x87\x8c\x01" + "ch\x00u."s;
  const auto pickle = Pickle::parse(bytes);
  ASSERT_TRUE(pickle) << pickle.error().what;
  const PickleValue& root = pickle->root();
  ASSERT_EQ(root.items.size(), 6u);
  EXPECT_EQ(pickle->find(root, "a")->items.size(), 2u);
  EXPECT_EQ(pickle->find(root, "a"), pickle->find(root, "c"));
  const PickleValue* tuple = pickle->find(root, "b");
  ASSERT_EQ(tuple->items.size(), 3u);
  EXPECT_EQ(pickle->at(tuple->items[2]).integer, -1);
  EXPECT_EQ(pickle->find(root, "z"), nullptr);
}

TEST(Pickle, CodeIsRefusedByName) {
  const auto global = Pickle::parse(
      "\x80\x04"
      "cos\nsystem\n(\x8c\x02"
      "idtR.");
  ASSERT_FALSE(global);
  EXPECT_NE(global.error().what.find("GLOBAL at byte 2 would run code: refused"), std::string::npos);
  const auto reduce = Pickle::parse("\x80\x04N)R.");
  ASSERT_FALSE(reduce);
  EXPECT_NE(reduce.error().what.find("REDUCE"), std::string::npos);
}

TEST(Pickle, BrokenProgramsAreErrors) {
  const std::array<std::string, 12> kBroken = {""s,
                                               "."s,
                                               "N"s,
                                               "NN."s,
                                               "(."s,
                                               "K"s,
                                               "e."s,
                                               "Na."s,
                                               "\x8c\xff"
                                               "ab."s,
                                               "h\x07."s,
                                               "](K\x01u."s,
                                               "\x8a\x09"
                                               "12345678."s};
  for (const std::string& bytes : kBroken) EXPECT_FALSE(Pickle::parse(bytes)) << testing::PrintToString(bytes);
  const auto big = Pickle::parse(
      "\x8a\x09"
      "12345678\x00."s);
  ASSERT_TRUE(big) << "integers beyond 64 bits are kept as bytes";
  EXPECT_EQ(big->root().kind, PickleValue::Kind::kBigInt);
  EXPECT_TRUE(
      Pickle::parse("]\x94h\x00"
                    "a."s))
      << "a list that holds itself is held, not followed";
}

TEST(Snapshot, TheRealOne) {
  const std::string bytes = real_snapshot();
  if (bytes.empty()) GTEST_SKIP() << "mini_snapshot.pickle is not in the data folder (set MBBENCH_TEST_DATA)";
  const auto snapshot = parse_snapshot(bytes);
  ASSERT_TRUE(snapshot) << snapshot.error().what;
  EXPECT_EQ(snapshot->segments.size(), 14u);
  EXPECT_EQ(snapshot->reserved_bytes(), 421527552);
  ASSERT_EQ(snapshot->events.size(), 1u);
  std::array<int, kMemoryActions> counts{};
  for (const SnapshotEvent& event : snapshot->events[0]) ++counts[static_cast<size_t>(event.action)];
  EXPECT_EQ(counts[static_cast<size_t>(MemoryAction::kAlloc)], 28);
  EXPECT_EQ(counts[static_cast<size_t>(MemoryAction::kSegmentAlloc)], 14);
  EXPECT_EQ(counts[static_cast<size_t>(MemoryAction::kFreeRequested)], 4);
  EXPECT_EQ(counts[static_cast<size_t>(MemoryAction::kFreeCompleted)], 4);
  for (const SnapshotSegment& segment : snapshot->segments)
    for (const SnapshotBlock& block : segment.blocks) EXPECT_EQ(block.state, "inactive");
  const MemoryReplay found = replay(snapshot->events[0]);
  EXPECT_EQ(found.peak_bytes, 402752512);
  EXPECT_EQ(found.live_bytes, 402719744);
  EXPECT_EQ(found.live_blocks, 24);
  EXPECT_EQ(found.unknown_frees, 0);
  EXPECT_FALSE(snapshot->stacks.empty());
}

TEST(Snapshot, DamageIsAnErrorOrDataNeverACrash) {
  const std::string whole = real_snapshot();
  if (whole.empty()) GTEST_SKIP() << "mini_snapshot.pickle is not in the data folder (set MBBENCH_TEST_DATA)";
  for (size_t size = 0; size < whole.size(); size += 97) ASSERT_FALSE(parse_snapshot(whole.substr(0, size)));
  std::mt19937 random(2);
  for (int round = 0; round < 300; ++round) {
    std::string bytes = whole;
    for (int flips = 0; flips < 4; ++flips) bytes[random() % bytes.size()] = static_cast<char>(random());
    const auto snapshot = parse_snapshot(bytes);
    if (!snapshot) continue;
    for (const auto& events : snapshot->events) EXPECT_GE(replay(events).peak_bytes, 0);
  }
}

TEST(Snapshot, BlocksMustSumToTheirSegment) {
  // One segment of 8 bytes at 0 with one block of 4.
  const std::string bytes =
      "}\x8c\x08segments]}(\x8c\x07"
      "address"
      "K\x00"
      "\x8c\x0atotal_size"
      "K\x08\x8c\x06"
      "blocks]}(\x8c\x04sizeK\x04uauas."s;
  const auto snapshot = parse_snapshot(bytes);
  ASSERT_FALSE(snapshot);
  EXPECT_EQ(snapshot.error().what, "memory snapshot: the blocks of a segment do not sum to it");
}

TEST(Snapshot, ASmallFileThatStandsForEndlessDataIsRefused) {
  // A list of 100 segments that are one dict whose blocks list repeats one empty block a hundred times.
  std::string bytes =
      "}\x8c\x08segments](}(\x8c\x0atotal_size"
      "K\x00\x8c\x06"
      "blocks](}(\x8c\x04sizeK\x00u\x94"s;
  for (int i = 0; i < 100; ++i) bytes += "h\x00"s;
  bytes += "eu\x94"s;
  for (int i = 0; i < 100; ++i) bytes += "h\x01"s;
  bytes += "es."s;
  const auto snapshot = parse_snapshot(bytes);
  ASSERT_FALSE(snapshot);
  EXPECT_EQ(snapshot.error().what, "memory snapshot: it lists more items than it has bytes");
}

TEST(Snapshot, FreesOfEarlierBlocksAreCounted) {
  const MemoryReplay found = replay({{MemoryAction::kFreeCompleted, 16, 8, 0, 0, -1},
                                     {MemoryAction::kAlloc, 32, 100, 0, 0, -1},
                                     {MemoryAction::kFreeRequested, 32, 100, 0, 0, -1}});
  EXPECT_EQ(found.unknown_frees, 1);
  EXPECT_EQ(found.live_bytes, 100);
  EXPECT_EQ(found.live_blocks, 1);
}

}  // namespace
}  // namespace mbb::profiler
