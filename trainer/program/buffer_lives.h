// When the buffers of a program are alive over the walk of its schedule, as sets of calls.
//
// A life is the calls it covers whole plus at most three sets of calls it covers in part: from an op on (where a
// micro-batch's value is first written), up to an op (where it is last read), and, of what leaves at a call's end in a
// batched message, the receives that the next call begins with: they are one exchange with it, in any order. Values
// inside one call cover a range of ops in every call of their segment. Few sets of calls are distinct (one a segment;
// three a pair of segments and slot), so they are numbered, and which of them meet is computed once: a conflict is then
// a few look-ups, whatever the number of micro-batches.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <utility>
#include <vector>

namespace mbb::trainer {

using CallBits = std::vector<uint64_t>;
inline constexpr int kOpEnd = std::numeric_limits<int>::max();

inline void set(CallBits& bits, int call) {
  bits[static_cast<size_t>(call) / 64] |= uint64_t{1} << (call % 64);
}

// The distinct sets of calls, by number; number 0 is the empty set.
class CallSets {
 public:
  explicit CallSets(size_t calls) : none_(calls / 64 + 1, 0) { number(none_); }

  const CallBits& none() const { return none_; }
  size_t number(const CallBits& bits) {
    const auto [at, added] = numbers_.try_emplace(bits, sets_.size());
    if (added) sets_.push_back(bits);
    return at->second;
  }
  bool contains(size_t number, int call) const {
    return (sets_[number][static_cast<size_t>(call) / 64] >> (call % 64)) & 1;
  }
  size_t size() const { return sets_.size(); }
  template <typename Visit>
  void each_call(size_t number, Visit&& visit) const {
    const CallBits& bits = sets_[number];
    for (size_t word = 0; word < bits.size(); ++word)
      for (uint64_t left = bits[word]; left != 0; left &= left - 1)
        visit(word * 64 + static_cast<size_t>(std::countr_zero(left)));
  }
  // Of those calls the ones that are in `among` too.
  template <typename Visit>
  void each_call(size_t number, const CallBits& among, Visit&& visit) const {
    const CallBits& bits = sets_[number];
    for (size_t word = 0; word < bits.size(); ++word)
      for (uint64_t left = bits[word] & among[word]; left != 0; left &= left - 1)
        visit(word * 64 + static_cast<size_t>(std::countr_zero(left)));
  }
  // After the last number(): meets() answers from here on.
  void compare_all();
  bool meets(size_t a, size_t b) const { return meets_[a * sets_.size() + b] != 0; }

 private:
  CallBits none_;
  std::map<CallBits, size_t> numbers_;
  std::vector<CallBits> sets_;
  std::vector<char> meets_;
};

// Calls (a number of CallSets) in which the buffer is alive from op `first` to op `last`.
struct LifePart {
  int first = 0;
  int last = kOpEnd;
  size_t calls = 0;
};

struct BufferLife {
  bool always = false;
  size_t family = 0;  // of LifeFamilies
  size_t whole = 0;   // calls in which it is alive from the first op to the last
  std::array<LifePart, 3> parts;

  // A range of ops in the calls of one segment, and nothing else.
  bool in_call() const { return whole == 0 && parts[1].calls == 0 && parts[2].calls == 0; }
};

// Lives of a family cover the same sets of calls, in parts that begin, or end, with the call or do not. There are some
// hundred families and thousands of buffers, so whether two buffers meet is one look-up for most pairs.
class LifeFamilies {
 public:
  enum class Verdict : uint8_t { kApart, kTogether, kByOps };
  using Sets = std::array<size_t, 4>;  // whole, and the parts

  // Gives `life` its family.
  void add(BufferLife& life);
  // After the last add().
  void compare_all(const CallSets& sets);

  // Of one family with each.
  const Verdict* verdicts(size_t family) const { return verdicts_.data() + family * list_.size(); }
  const Sets& sets(size_t family) const { return list_[family].first; }
  size_t size() const { return list_.size(); }

 private:
  using Ends = std::array<bool, 6>;  // of the parts: from a call's first op, to its last
  using Family = std::pair<Sets, Ends>;
  static Verdict compare(const CallSets& sets, const Family& a, const Family& b);

  std::map<Family, size_t> numbers_;
  std::vector<Family> list_;
  std::vector<Verdict> verdicts_;
};

// Whether lives meet whose families leave it open.
bool meet_by_ops(const CallSets& sets, const BufferLife& a, const BufferLife& b);

}  // namespace mbb::trainer
