// Tests of interval arithmetic: hand cases, and random sets against a bitmap.
#include "analysis/exposure/intervals.h"

#include <gtest/gtest.h>

#include <array>
#include <random>

namespace mbb::analysis {
namespace {

constexpr int kClock = 200;
using Bitmap = std::array<bool, kClock>;

Bitmap paint(const std::vector<TimeInterval>& list) {
  Bitmap bits{};
  for (const TimeInterval& one : list)
    for (int64_t t = one.start_ns; t < one.end_ns; ++t) bits[static_cast<size_t>(t)] = true;
  return bits;
}

std::vector<TimeInterval> random_list(std::mt19937& random) {
  std::vector<TimeInterval> list(random() % 30);
  for (TimeInterval& one : list) {
    one.start_ns = random() % (kClock - 12);
    one.end_ns = one.start_ns + static_cast<int64_t>(random() % 12);
  }
  return list;
}

void expect_canonical(const Intervals& set) {
  for (size_t i = 0; i < set.size(); ++i) {
    EXPECT_LT(set[i].start_ns, set[i].end_ns);
    if (i > 0) {
      EXPECT_LT(set[i - 1].end_ns, set[i].start_ns);
    }
  }
}

TEST(Intervals, UnionMergesTouchingAndDropsEmpty) {
  EXPECT_EQ(unite_all({{5, 7}, {1, 3}, {3, 4}, {9, 9}, {12, 10}}), (Intervals{{1, 4}, {5, 7}}));
  EXPECT_EQ(unite_all({{1, 10}, {2, 3}, {9, 12}}), (Intervals{{1, 12}}));
  EXPECT_TRUE(unite_all({}).empty());
}

TEST(Intervals, DifferenceKeepsWhatOneLongHoleLeaves) {
  EXPECT_EQ(subtract({{0, 10}, {20, 30}}, {{5, 25}}), (Intervals{{0, 5}, {25, 30}}));
  EXPECT_EQ(subtract({{0, 10}}, {{2, 3}, {5, 6}}), (Intervals{{0, 2}, {3, 5}, {6, 10}}));
  EXPECT_TRUE(subtract({{2, 3}}, {{0, 10}}).empty());
}

TEST(Intervals, AgreeWithABitmapOnRandomSets) {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    const auto list_a = random_list(random);
    const auto list_b = random_list(random);
    const Intervals a = unite_all(list_a);
    const Intervals b = unite_all(list_b);
    const Bitmap in_a = paint(list_a);
    const Bitmap in_b = paint(list_b);
    Bitmap any{};
    Bitmap both{};
    Bitmap only{};
    Bitmap window{};
    for (size_t t = 0; t < kClock; ++t) {
      any[t] = in_a[t] || in_b[t];
      both[t] = in_a[t] && in_b[t];
      only[t] = in_a[t] && !in_b[t];
      window[t] = in_a[t] && t >= 50 && t < 120;
    }
    for (const Intervals& set : {a, b, unite(a, b), intersect(a, b), subtract(a, b), clip(a, {50, 120})})
      expect_canonical(set);
    ASSERT_EQ(paint(a), in_a);
    ASSERT_EQ(paint(unite(a, b)), any);
    ASSERT_EQ(paint(intersect(a, b)), both);
    ASSERT_EQ(paint(subtract(a, b)), only);
    ASSERT_EQ(paint(clip(a, {50, 120})), window);
    ASSERT_EQ(length_ns(unite(a, b)), length_ns(a) + length_ns(b) - length_ns(intersect(a, b)));
  }
}

TEST(Intervals, SortedRunsOfTracksAreMerged) {
  std::vector<TimeInterval> tracks;
  for (int64_t track = 0; track < 5; ++track)
    for (int64_t i = 0; i < 1000; ++i) tracks.push_back({i * 10 + track, i * 10 + track + 1});
  const Intervals set = unite_all(tracks);
  EXPECT_EQ(set.size(), 1000u);
  EXPECT_EQ(length_ns(set), 5000);
}

}  // namespace
}  // namespace mbb::analysis
