// Lifetimes from the op lists and the first and last call in which an op runs; the step is never unrolled.
#include "trainer/program/lifetimes.h"

#include <algorithm>
#include <array>
#include <utility>

#include "trainer/program/walk.h"

namespace mbb::trainer {
namespace {

constexpr int kWhens = 5;

// First and last call in which ops of a segment with a flag run; -1: in none.
struct Calls {
  int64_t first = -1;
  int64_t last = -1;
};

std::vector<std::array<Calls, kWhens>> calls_of(const Program& program) {
  std::vector<std::array<Calls, kWhens>> calls(program.segments.size());
  for (size_t c = 0; c < program.schedule.size(); ++c) {
    const Call& call = program.schedule[c];
    for (int when = 0; when < kWhens; ++when) {
      Op flagged;
      flagged.when = static_cast<When>(when);
      if (!runs_in(program, call, flagged)) continue;
      Calls& of = calls[static_cast<size_t>(call.segment)][static_cast<size_t>(when)];
      of.last = static_cast<int64_t>(c);
      if (of.first < 0) of.first = of.last;
    }
  }
  return calls;
}

// A moment of the walk; earlier ones compare less.
using Moment = std::pair<int64_t, size_t>;  // call, op

struct Ends {
  Moment written{-1, 0}, read{-1, 0}, used{-1, 0};
};

}  // namespace

std::vector<Lifetime> lifetimes(const Program& program) {
  const auto calls = calls_of(program);
  std::vector<Lifetime> lives(program.tensors.size());
  std::vector<Ends> ends(program.tensors.size());
  size_t most_ops = 1;
  for (const Segment& segment : program.segments) most_ops = std::max(most_ops, segment.ops.size());
  const auto both = [&](TensorId id, auto&& visit) {
    visit(static_cast<size_t>(id));
    if (const TensorId storage = program.storage(id); storage != id) visit(static_cast<size_t>(storage));
  };
  for (size_t s = 0; s < program.segments.size(); ++s) {
    const std::vector<Op>& ops = program.segments[s].ops;
    for (size_t o = 0; o < ops.size(); ++o) {
      const Calls& run = calls[s][static_cast<size_t>(ops[o].when)];
      if (run.first < 0) continue;
      const Moment first{run.first, o}, last{run.last, o};
      const auto use = [&](size_t i) {
        if (ends[i].used.first < 0 || first < ends[i].used) ends[i].used = first;
      };
      for (const TensorId id : ops[o].in)
        both(id, [&](size_t i) {
          use(i);
          if (lives[i].last_reader != nullptr && last < ends[i].read) return;
          ends[i].read = last;
          lives[i].last_reader = &ops[o];
        });
      for (const TensorId id : ops[o].out)
        both(id, [&](size_t i) {
          use(i);
          if (lives[i].first_writer != nullptr && ends[i].written < first) return;
          ends[i].written = first;
          lives[i].first_writer = &ops[o];
        });
    }
  }
  for (size_t i = 0; i < lives.size(); ++i)
    if (ends[i].used.first >= 0)
      lives[i].first_use =
          ends[i].used.first * static_cast<int64_t>(most_ops) + static_cast<int64_t>(ends[i].used.second);
  return lives;
}

}  // namespace mbb::trainer
