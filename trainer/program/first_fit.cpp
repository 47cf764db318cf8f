// The search for each buffer's place, and what searches may skip.
#include "trainer/program/first_fit.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "trainer/program/memory_plan.h"

namespace mbb::trainer {
namespace {

using Verdict = LifeFamilies::Verdict;

int64_t aligned(int64_t bytes) {
  return (bytes + MemoryPlan::kAlign - 1) / MemoryPlan::kAlign * MemoryPlan::kAlign;
}

// A buffer that has its place: what the search for the next one's reads, close together.
struct Placed {
  int64_t offset = 0;
  int64_t end = 0;
  uint32_t family = 0;
  uint32_t fit = 0;
};

// By offset, in blocks: one more moves few others, and a search steps over blocks that end before it begins.
class PlacedList {
 public:
  void insert(const Placed& placed) {
    const auto later = [](int64_t at, const Placed& other) { return at < other.offset; };
    auto block = std::upper_bound(blocks_.begin(), blocks_.end(), placed.offset,
                                  [](int64_t at, const Block& b) { return at < b.list.front().offset; });
    if (block != blocks_.begin()) --block;
    if (block == blocks_.end()) block = blocks_.insert(block, Block{});
    std::vector<Placed>& list = block->list;
    list.insert(std::upper_bound(list.begin(), list.end(), placed.offset, later), placed);
    block->end = std::max(block->end, placed.end);
    for (auto each = block; each != blocks_.end() && each->reach < placed.end; ++each) each->reach = placed.end;
    if (list.size() < kMost) return;
    Block upper;
    upper.list.assign(list.begin() + kMost / 2, list.end());
    list.resize(kMost / 2);
    for (Block* half : {&*block, &upper}) {
      half->end = 0;
      for (const Placed& each : half->list) half->end = std::max(half->end, each.end);
    }
    upper.reach = block->reach;
    block->reach = block == blocks_.begin() ? block->end : std::max(std::prev(block)->reach, block->end);
    blocks_.insert(block + 1, std::move(upper));
  }

  // The lowest offset from `offset` on where `bytes` lie beside all that `meets`.
  template <typename Meets>
  int64_t lowest(int64_t offset, int64_t bytes, Meets&& meets) const {
    auto at = std::partition_point(blocks_.begin(), blocks_.end(), [&](const Block& b) { return b.reach <= offset; });
    for (; at != blocks_.end(); ++at) {
      const Block& block = *at;
      if (block.list.front().offset - offset >= bytes) break;
      if (block.end <= offset) continue;
      for (const Placed& other : block.list) {
        if (other.offset - offset >= bytes) return offset;
        if (other.end > offset && meets(other)) offset = other.end;
      }
    }
    return offset;
  }

 private:
  static constexpr size_t kMost = 64;
  struct Block {
    std::vector<Placed> list;  // never empty
    int64_t end = 0;           // the last
    int64_t reach = 0;         // the last of it and of all blocks before
  };
  std::vector<Block> blocks_;
};

// Buffers that live for a few ops of every call of a segment: by those ops, so that a search among thousands that lie
// at one place, each in its layer, meets its own layer's alone.
class BriefList {
 public:
  static bool holds(const BufferLife& life) {
    const LifePart& part = life.parts[0];
    return life.in_call() && part.last != kOpEnd && part.last / kOps - part.first / kOps <= kMostPieces;
  }

  void insert(const BufferLife& life, int64_t offset, int64_t end) {
    const LifePart& part = life.parts[0];
    std::vector<std::vector<Brief>>& pieces = by_calls_[part.calls];
    if (pieces.size() <= static_cast<size_t>(part.last / kOps))
      pieces.resize(static_cast<size_t>(part.last / kOps) + 1);
    for (int piece = part.first / kOps; piece <= part.last / kOps; ++piece)
      pieces[static_cast<size_t>(piece)].push_back({offset, end, part.first, part.last});
  }

  // Bytes, by offset, of those that are alive when `life`, which is brief too, is.
  void find(const CallSets& sets, const BufferLife& life, std::vector<std::pair<int64_t, int64_t>>& found) const {
    const LifePart& part = life.parts[0];
    found.clear();
    for (const auto& [calls, pieces] : by_calls_) {
      if (!sets.meets(calls, part.calls)) continue;
      const int last = std::min(part.last / kOps, static_cast<int>(pieces.size()) - 1);
      for (int piece = part.first / kOps; piece <= last; ++piece)
        for (const Brief& other : pieces[static_cast<size_t>(piece)])
          if (other.first <= part.last && part.first <= other.last) found.emplace_back(other.offset, other.end);
    }
    std::sort(found.begin(), found.end());
  }

 private:
  static constexpr int kOps = 32, kMostPieces = 3;
  struct Brief {
    int64_t offset = 0;
    int64_t end = 0;
    int first = 0;
    int last = 0;
  };
  std::map<size_t, std::vector<std::vector<Brief>>> by_calls_;  // by set of calls, and piece of its segment
};

// Bytes that are taken, as ranges that do not touch.
class TakenBytes {
 public:
  // Nothing of it is taken.
  void insert(int64_t begin, int64_t end) {
    auto next = ranges_.upper_bound(begin);
    if (next != ranges_.end() && next->first == end) {
      end = next->second;
      next = ranges_.erase(next);
    }
    if (next != ranges_.begin() && std::prev(next)->second == begin)
      std::prev(next)->second = end;
    else
      ranges_.emplace_hint(next, begin, end);
  }

  // The lowest offset from `offset` on where `bytes` are free.
  int64_t lowest(int64_t offset, int64_t bytes) const {
    auto next = ranges_.upper_bound(offset);
    if (next != ranges_.begin()) offset = std::max(offset, std::prev(next)->second);
    for (; next != ranges_.end() && next->first - offset < bytes; ++next) offset = next->second;
    return offset;
  }

 private:
  std::map<int64_t, int64_t> ranges_;  // ends, by begin
};

// Buffers of one size and family. Where they are told apart by ops, many of those placed before stay alive from an op
// to the end of the call, or from its begin to an op: what keeps one buffer of the class from a place then keeps the
// later, or the earlier, ones of the call from it too.
struct SizeClass {
  std::vector<uint32_t> fits;  // in the order of placing
  bool searched_back = false, searched_back_brief = false;
  int64_t lowest = 0;    // nothing fits lower: none of the class,
  int64_t of_brief = 0;  // and none of the brief ones that end at or behind op `last`
  int last = -1;
  std::map<int, TakenBytes> until;  // of those that wait for an op of their call, by it: they all meet there
};

class FirstFit {
 public:
  FirstFit(const CallSets& sets, const LifeFamilies& families, std::vector<Fit>& fits)
      : sets_(sets), families_(families), fits_(fits) {}

  int64_t place_all(int64_t start) {
    std::vector<uint32_t> order(fits_.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<uint32_t>(i);
    std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
      if (life(a).always != life(b).always) return life(a).always;
      return fits_[a].bytes > fits_[b].bytes;
    });
    int64_t end = start;
    auto next = order.begin();
    for (; next != order.end() && life(*next).always; ++next) {
      fits_[*next].offset = end;
      end += aligned(fits_[*next].bytes);
    }
    bottoms_.assign(fits_.size(), end);
    full_.assign(families_.size(), end);
    for (auto i = next; i != order.end(); ++i) {
      SizeClass& of = classes_[{aligned(fits_[*i].bytes), life(*i).family}];
      of.fits.push_back(*i);
      of.lowest = of.of_brief = end;
    }
    for (; next != order.end(); ++next) end = std::max(end, place(*next));
    return end;
  }

 private:
  const BufferLife& life(uint32_t fit) const { return *fits_[fit].life; }

  int64_t place(uint32_t fit) {
    const BufferLife& mine = life(fit);
    const int64_t bytes = aligned(fits_[fit].bytes);
    SizeClass& of = classes_.find({bytes, mine.family})->second;
    const bool brief = BriefList::holds(mine);
    const int64_t bottom = brief ? bottom_of_brief(fit, of, bytes) : bottom_of_long(fit, of, bytes);
    const int64_t offset = brief ? lowest_of_brief(mine, bottom, bytes) : lowest_of_long(mine, of, bottom, bytes);
    fits_[fit].offset = offset;
    const Placed placed{offset, offset + bytes, static_cast<uint32_t>(mine.family), fit};
    all_.insert(placed);
    if (brief)
      brief_.insert(mine, offset, offset + bytes);
    else
      long_.insert(placed);
    return offset + bytes;
  }

  int64_t lowest(const PlacedList& among, const BufferLife& mine, int64_t bottom, int64_t bytes) const {
    const Verdict* verdicts = families_.verdicts(mine.family);
    return among.lowest(bottom, bytes, [&](const Placed& other) {
      const Verdict verdict = verdicts[other.family];
      return verdict == Verdict::kTogether || (verdict == Verdict::kByOps && meet_by_ops(sets_, mine, life(other.fit)));
    });
  }

  // Past the long-lived and the brief in turns, until neither is in the way.
  int64_t lowest_of_brief(const BufferLife& mine, int64_t bottom, int64_t bytes) {
    brief_.find(sets_, mine, found_);
    int64_t offset = bottom;
    while (true) {
      const int64_t beside_long = lowest(long_, mine, offset, bytes);
      offset = beside_long;
      for (const auto& [begin, end] : found_) {
        if (begin - offset >= bytes) break;
        offset = std::max(offset, end);
      }
      if (offset == beside_long) return offset;
    }
  }

  // Alive up to an op of the call, from far before it: what a delayed scale's record at the end of a segment reads,
  // from every layer.
  static bool waits_in_call(const BufferLife& life) {
    return life.in_call() && life.parts[0].calls != 0 && !BriefList::holds(life);
  }

  // Those that wait for the same op are stepped over at once, and the rest in turns with them.
  int64_t lowest_of_long(const BufferLife& mine, SizeClass& of, int64_t bottom, int64_t bytes) {
    if (!waits_in_call(mine)) return lowest(all_, mine, bottom, bytes);
    TakenBytes& own = of.until[mine.parts[0].last];
    int64_t offset = bottom;
    while (true) {
      const int64_t beside_own = own.lowest(offset, bytes);
      offset = lowest(all_, mine, beside_own, bytes);
      if (offset == beside_own) break;
    }
    own.insert(offset, offset + bytes);
    return offset;
  }

  int64_t bottom_of_long(uint32_t fit, SizeClass& of, int64_t bytes) {
    const Verdict* verdicts = families_.verdicts(life(fit).family);
    const auto always = [&](const Placed& other) { return verdicts[other.family] == Verdict::kTogether; };
    if (!of.searched_back) {
      int64_t& full = full_[life(fit).family];
      full = all_.lowest(full, std::min(bytes, MemoryPlan::kAlign), always);
      of.lowest = full;
    }
    of.lowest = all_.lowest(of.lowest, bytes, always);
    if (!of.searched_back) {
      of.searched_back = true;
      search_back_long(of, bytes);
      search_back_waiting(of, bytes);
    }
    return std::max(of.lowest, bottoms_[fit]);
  }

  // A bottom for each of the class that is kept from an op to the end of the call and from another call's begin on,
  // from the last that is kept to the first: what meets one meets all that are kept for longer at both ends.
  void search_back_long(SizeClass& of, int64_t bytes) {
    std::vector<uint32_t> back;
    for (const uint32_t fit : of.fits)
      if (const BufferLife& each = life(fit); !BriefList::holds(each) && each.parts[0].last == kOpEnd &&
                                              each.parts[1].first == 0 && each.parts[2].calls == 0)
        back.push_back(fit);
    std::stable_sort(back.begin(), back.end(),
                     [&](uint32_t a, uint32_t b) { return life(a).parts[0].first > life(b).parts[0].first; });
    int64_t bottom = of.lowest;
    int last = -1;
    for (const uint32_t fit : back) {
      const BufferLife& each = life(fit);
      if (each.parts[1].last < last) bottom = of.lowest;  // not kept for longer
      last = each.parts[1].last;
      bottoms_[fit] = bottom = lowest(all_, each, bottom, bytes);
    }
  }

  // A bottom for each of the class that waits for an op of its call, from the last that begins to the first: what meets
  // one meets all that wait for the same op for longer.
  void search_back_waiting(SizeClass& of, int64_t bytes) {
    std::vector<uint32_t> back;
    for (const uint32_t fit : of.fits)
      if (waits_in_call(life(fit))) back.push_back(fit);
    std::stable_sort(back.begin(), back.end(), [&](uint32_t a, uint32_t b) {
      const LifePart &x = life(a).parts[0], &y = life(b).parts[0];
      return x.last != y.last ? x.last < y.last : x.first > y.first;
    });
    int64_t bottom = of.lowest;
    int last = -1;
    for (const uint32_t fit : back) {
      const BufferLife& each = life(fit);
      if (each.parts[0].last != last) bottom = of.lowest;
      last = each.parts[0].last;
      bottoms_[fit] = bottom = lowest(all_, each, bottom, bytes);
    }
  }

  int64_t bottom_of_brief(uint32_t fit, SizeClass& of, int64_t bytes) {
    const LifePart& part = life(fit).parts[0];
    const Verdict* verdicts = families_.verdicts(life(fit).family);
    if (!of.searched_back_brief) search_back(of, bytes, verdicts);
    if (part.last < of.last) return bottoms_[fit];
    of.of_brief = long_.lowest(of.of_brief, bytes, [&](const Placed& other) {
      return meets_always(verdicts, other, part,
                          [&](const LifePart& p) { return p.last == kOpEnd && p.first <= part.last; });
    });
    of.last = part.last;
    return std::max(bottoms_[fit], of.of_brief);
  }

  // Whether `other` meets a buffer that is alive in `part`, as it meets others of its class that `reaches` holds for.
  template <typename Reaches>
  bool meets_always(const Verdict* verdicts, const Placed& other, const LifePart& part, Reaches&& reaches) const {
    const Verdict verdict = verdicts[other.family];
    if (verdict != Verdict::kByOps) return verdict == Verdict::kTogether;
    const auto& parts = life(other.fit).parts;
    return std::any_of(parts.begin(), parts.end(),
                       [&](const LifePart& p) { return reaches(p) && sets_.meets(p.calls, part.calls); });
  }

  // A bottom for each of the class, from the last in the call to the first: what is alive from the call's begin to an
  // op behind one is alive at all before it.
  void search_back(SizeClass& of, int64_t bytes, const Verdict* verdicts) {
    of.searched_back_brief = true;
    std::vector<uint32_t> back = of.fits;
    std::stable_sort(back.begin(), back.end(),
                     [&](uint32_t a, uint32_t b) { return life(a).parts[0].first > life(b).parts[0].first; });
    int64_t lowest = of.lowest;
    for (const uint32_t fit : back) {
      const LifePart& part = life(fit).parts[0];
      if (!BriefList::holds(life(fit))) continue;
      lowest = long_.lowest(lowest, bytes, [&](const Placed& other) {
        return meets_always(verdicts, other, part,
                            [&](const LifePart& p) { return p.first == 0 && part.first <= p.last; });
      });
      bottoms_[fit] = lowest;
    }
  }

  const CallSets& sets_;
  const LifeFamilies& families_;
  std::vector<Fit>& fits_;
  PlacedList all_, long_;
  BriefList brief_;
  std::vector<std::pair<int64_t, int64_t>> found_;           // by the search at hand
  std::map<std::pair<int64_t, size_t>, SizeClass> classes_;  // by size and family
  std::vector<int64_t> full_;                                // of each family: below, all bytes are taken
  std::vector<int64_t> bottoms_;                             // of each buffer: nothing fits lower
};

}  // namespace

int64_t first_fit(const CallSets& sets, const LifeFamilies& families, int64_t start, std::vector<Fit>& fits) {
  return FirstFit(sets, families, fits).place_all(start);
}

}  // namespace mbb::trainer
