// Places against a search that looks at every buffer placed before.
#include "trainer/program/first_fit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "trainer/program/memory_plan.h"

namespace mbb::trainer {
namespace {

bool meet(const CallSets& sets, const BufferLife& a, const BufferLife& b) {
  const auto whole = [&](size_t calls, const BufferLife& of) {
    return sets.meets(calls, of.whole) ||
           std::any_of(of.parts.begin(), of.parts.end(), [&](const LifePart& p) { return sets.meets(calls, p.calls); });
  };
  return a.always || b.always || whole(a.whole, b) || whole(b.whole, a) || meet_by_ops(sets, a, b);
}

std::vector<int64_t> plain_offsets(const CallSets& sets, const std::vector<Fit>& fits) {
  std::vector<size_t> order(fits.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (fits[a].life->always != fits[b].life->always) return fits[a].life->always;
    return fits[a].bytes > fits[b].bytes;
  });
  const auto aligned = [](int64_t bytes) {
    return (bytes + MemoryPlan::kAlign - 1) / MemoryPlan::kAlign * MemoryPlan::kAlign;
  };
  std::vector<int64_t> offsets(fits.size(), 0);
  std::vector<size_t> placed;
  for (const size_t i : order) {
    std::sort(placed.begin(), placed.end(), [&](size_t a, size_t b) { return offsets[a] < offsets[b]; });
    int64_t offset = 0;
    for (const size_t other : placed)
      if (offsets[other] < offset + aligned(fits[i].bytes) && offset < offsets[other] + aligned(fits[other].bytes) &&
          meet(sets, *fits[i].life, *fits[other].life))
        offset = offsets[other] + aligned(fits[other].bytes);
    offsets[i] = offset;
    placed.push_back(i);
  }
  return offsets;
}

// Forward and backward of `layers` layers in calls 0 and 1 (and 2 and 3, of another slot): what is kept between them,
// what lives in one of them, and some that live otherwise.
TEST(FirstFit, PlacesAsASearchOverAllBuffersDoes) {
  for (unsigned seed = 0; seed < 30; ++seed) {
    std::mt19937 random(seed);
    const auto draw = [&](int most) { return static_cast<int>(random() % static_cast<unsigned>(most)); };
    CallSets sets(5);
    const auto calls = [&](std::initializer_list<int> each) {
      CallBits bits = sets.none();
      for (const int call : each) set(bits, call);
      return sets.number(bits);
    };
    const size_t forward = calls({0, 2}), backward = calls({1, 3}), last = calls({4});
    const size_t first_slot[] = {calls({0}), calls({1})}, second_slot[] = {calls({2}), calls({3})};
    const int ops = seed % 3 == 0 ? 60 : 500;
    std::vector<BufferLife> lives;
    for (int i = 0; i < 400; ++i) {
      BufferLife life;
      const int kind = draw(10), at = draw(ops), length = draw(draw(6) == 0 ? 300 : 4);
      const size_t* slot = draw(2) == 0 ? first_slot : second_slot;
      if (kind < 4) {
        life.parts = {LifePart{at, kOpEnd, slot[0]}, LifePart{0, draw(5) == 0 ? draw(ops) : ops - 1 - at, slot[1]},
                      LifePart{}};
        if (draw(8) == 0) life.whole = last;
      } else if (kind < 9) {
        life.parts[0] = {at, draw(9) == 0 ? kOpEnd : std::min(ops - 1, at + length), kind < 6 ? forward : backward};
        // What waits for the record at the end of a segment, or for one before.
        if (seed % 2 == 1 && draw(2) == 0) life.parts[0].last = std::max(at, draw(8) == 0 ? ops - 150 : ops - 2);
        if (draw(9) == 0) life.parts[2] = {0, 1, backward};
      } else {
        life.always = draw(2) == 0;
        life.whole = last;
      }
      lives.push_back(life);
    }
    LifeFamilies families;
    sets.compare_all();
    for (BufferLife& life : lives) families.add(life);
    families.compare_all(sets);
    std::vector<Fit> fits;
    for (const BufferLife& life : lives) fits.push_back({int64_t{256} * (1 + draw(seed % 2 == 0 ? 3 : 40)), &life, 0});
    const int64_t end = first_fit(sets, families, 0, fits);
    const std::vector<int64_t> plain = plain_offsets(sets, fits);
    int64_t longest = 0;
    for (size_t i = 0; i < fits.size(); ++i) {
      ASSERT_EQ(fits[i].offset, plain[i]) << "seed " << seed << ", buffer " << i;
      longest = std::max(longest, fits[i].offset + fits[i].bytes);
    }
    EXPECT_EQ(end, longest);
  }
}

// Scales of a segment of thousands of layers wait for the op that records them, over each layer's own buffer: they lie
// one above the other, each at the lowest place there is.
TEST(FirstFit, ManyThatWaitForOneOpLieOneAboveTheOther) {
  const int layers = 20000;
  CallSets sets(2);
  CallBits bits = sets.none();
  set(bits, 0);
  const size_t forward = sets.number(bits);
  std::vector<BufferLife> lives(static_cast<size_t>(2 * layers));
  for (int i = 0; i < layers; ++i) {
    lives[static_cast<size_t>(2 * i)].parts[0] = {4 * i, 4 * i + 1, forward};
    lives[static_cast<size_t>(2 * i) + 1].parts[0] = {4 * i, 4 * layers, forward};
  }
  LifeFamilies families;
  sets.compare_all();
  for (BufferLife& life : lives) families.add(life);
  families.compare_all(sets);
  std::vector<Fit> fits;
  for (size_t i = 0; i < lives.size(); ++i) fits.push_back({i % 2 == 0 ? 1024 : 4, &lives[i], 0});
  const int64_t end = first_fit(sets, families, 0, fits);
  EXPECT_LE(end, 1024 + int64_t{256} * layers);
  for (size_t i = 0; i < fits.size(); i += 2) ASSERT_EQ(fits[i].offset, 0) << i;
  for (size_t i = 1; i + 2 < fits.size(); i += 2) ASSERT_EQ(fits[i].offset, 1024 + int64_t{128} * (i - 1)) << i;
}

}  // namespace
}  // namespace mbb::trainer
