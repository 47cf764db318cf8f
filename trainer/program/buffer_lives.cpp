// Which sets of calls, families and lives meet.
#include "trainer/program/buffer_lives.h"

namespace mbb::trainer {
namespace {

bool meet(const CallBits& a, const CallBits& b) {
  for (size_t i = 0; i < a.size(); ++i)
    if (a[i] & b[i]) return true;
  return false;
}

}  // namespace

void CallSets::compare_all() {
  meets_.assign(sets_.size() * sets_.size(), 0);
  for (size_t a = 0; a < sets_.size(); ++a)
    for (size_t b = a; b < sets_.size(); ++b)
      meets_[a * sets_.size() + b] = meets_[b * sets_.size() + a] = meet(sets_[a], sets_[b]) ? 1 : 0;
}

void LifeFamilies::add(BufferLife& life) {
  Family family{{life.whole, life.parts[0].calls, life.parts[1].calls, life.parts[2].calls}, {}};
  for (size_t i = 0; i < life.parts.size(); ++i) {
    family.second[2 * i] = life.parts[i].first == 0;
    family.second[2 * i + 1] = life.parts[i].last == kOpEnd;
  }
  life.family = numbers_.try_emplace(family, numbers_.size()).first->second;
  if (life.family == list_.size()) list_.push_back(family);
}

void LifeFamilies::compare_all(const CallSets& sets) {
  verdicts_.resize(list_.size() * list_.size());
  for (size_t a = 0; a < list_.size(); ++a)
    for (size_t b = a; b < list_.size(); ++b)
      verdicts_[a * list_.size() + b] = verdicts_[b * list_.size() + a] = compare(sets, list_[a], list_[b]);
}

LifeFamilies::Verdict LifeFamilies::compare(const CallSets& sets, const Family& a, const Family& b) {
  for (size_t i = 0; i < a.first.size(); ++i)
    if (sets.meets(a.first[0], b.first[i]) || sets.meets(a.first[i], b.first[0])) return Verdict::kTogether;
  Verdict verdict = Verdict::kApart;
  for (size_t i = 0; i < 3; ++i)
    for (size_t j = 0; j < 3; ++j) {
      if (!sets.meets(a.first[i + 1], b.first[j + 1])) continue;
      // What begins with a call meets what does so too; and so at its end.
      if ((a.second[2 * i] && b.second[2 * j]) || (a.second[2 * i + 1] && b.second[2 * j + 1]))
        return Verdict::kTogether;
      verdict = Verdict::kByOps;
    }
  return verdict;
}

bool meet_by_ops(const CallSets& sets, const BufferLife& a, const BufferLife& b) {
  for (const LifePart& p : a.parts)
    for (const LifePart& q : b.parts)
      if (p.first <= q.last && q.first <= p.last && sets.meets(p.calls, q.calls)) return true;
  return false;
}

}  // namespace mbb::trainer
