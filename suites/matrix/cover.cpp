// Greedy pairwise covering: for an uncovered pair, the best of some random completions that are allowed.
#include "suites/matrix/cover.h"

#include <array>
#include <map>
#include <set>

namespace mbb::suites {
namespace {

// splitmix64: the same numbers on every machine, which std::distributions do not promise.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  size_t below(size_t bound) {
    state_ += 0x9e3779b97f4a7c15ULL;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return static_cast<size_t>((z ^ (z >> 31)) % bound);
  }

 private:
  uint64_t state_;
};

using PairKey = std::array<size_t, 4>;

class Coverer {
 public:
  Coverer(const std::vector<size_t>& sizes, const std::function<bool(const Combination&)>& allowed, uint64_t seed)
      : sizes_(sizes), allowed_(allowed), random_(seed) {
    for (size_t a = 0; a < sizes.size(); ++a)
      for (size_t b = a + 1; b < sizes.size(); ++b)
        for (size_t i = 0; i < sizes[a]; ++i)
          for (size_t j = 0; j < sizes[b]; ++j) open_.insert({a, i, b, j});
  }

  Cover run(size_t total) {
    while (!open_.empty()) cover_one(*open_.begin());
    out_.covering = out_.combinations.size();
    constexpr size_t kTries = 64;  // a combination wanted: most draws are new and allowed, else the axes are used up
    for (size_t tries = 0; out_.combinations.size() < total && tries < kTries * total; ++tries) {
      Combination drawn = draw();
      if (!taken_.contains(drawn) && is_allowed(drawn)) take(std::move(drawn));
    }
    return std::move(out_);
  }

 private:
  Combination draw() {
    Combination c(sizes_.size());
    for (size_t i = 0; i < c.size(); ++i) c[i] = random_.below(sizes_[i]);
    return c;
  }

  bool is_allowed(const Combination& c) {
    const auto [known, added] = verdicts_.try_emplace(c, false);
    if (added) known->second = allowed_(c);
    return known->second;
  }

  size_t open_pairs(const Combination& c) const {
    size_t count = 0;
    for (size_t a = 0; a < c.size(); ++a)
      for (size_t b = a + 1; b < c.size(); ++b) count += open_.count({a, c[a], b, c[b]});
    return count;
  }

  void take(Combination c) {
    for (size_t a = 0; a < c.size(); ++a)
      for (size_t b = a + 1; b < c.size(); ++b) open_.erase({a, c[a], b, c[b]});
    taken_.insert(c);
    out_.combinations.push_back(std::move(c));
  }

  void cover_one(const PairKey& pair) {
    constexpr size_t kDraws = 24;
    Combination best;
    size_t most = 0;
    const auto consider = [&](Combination c) {
      c[pair[0]] = pair[1];
      c[pair[2]] = pair[3];
      const size_t gains = open_pairs(c);
      if (gains > most && is_allowed(c)) {
        most = gains;
        best = std::move(c);
      }
    };
    for (size_t i = 0; i < kDraws; ++i) consider(draw());
    // Nothing drawn was allowed: the first value of the other axes is the plain one, and then every one by itself.
    if (best.empty()) consider(Combination(sizes_.size(), 0));
    for (size_t axis = 0; axis < sizes_.size() && best.empty(); ++axis)
      for (size_t value = 1; value < sizes_[axis] && best.empty(); ++value) {
        Combination c(sizes_.size(), 0);
        c[axis] = value;
        consider(std::move(c));
      }
    if (best.empty()) {
      out_.uncovered.push_back({pair[0], pair[1], pair[2], pair[3]});
      open_.erase(PairKey(pair));
      return;
    }
    take(std::move(best));
  }

  const std::vector<size_t>& sizes_;
  const std::function<bool(const Combination&)>& allowed_;
  Random random_;
  std::set<PairKey> open_;
  std::set<Combination> taken_;
  std::map<Combination, bool> verdicts_;
  Cover out_;
};

}  // namespace

Cover cover_pairs(const std::vector<size_t>& sizes, const std::function<bool(const Combination&)>& allowed,
                  size_t total, uint64_t seed) {
  return Coverer(sizes, allowed, seed).run(total);
}

}  // namespace mbb::suites
