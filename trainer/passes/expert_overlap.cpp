// Weight gradients delayed, and op lists of two micro-batches merged.
#include "trainer/passes/expert_overlap.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "trainer/ops/op_kind.h"
#include "trainer/passes/op_lists.h"

namespace mbb::trainer {
namespace {

// Where an exchange has been started and what comes next does not belong to it.
bool ends_exchange(const Op& before, const Op& next) {
  return before.kind->communicates && before.stream == Stream::kEp && next.stream != Stream::kEp;
}

// The pieces of a segment; the first keeps its place.
std::vector<int> cut(Program& program, int segment) {
  std::vector<std::vector<Op>> pieces(1);
  for (Op& op : program.segments[static_cast<size_t>(segment)].ops) {
    if (!pieces.back().empty() && ends_exchange(pieces.back().back(), op)) pieces.emplace_back();
    pieces.back().push_back(std::move(op));
  }
  std::vector<int> ids{segment};
  program.segments[static_cast<size_t>(segment)].ops = std::move(pieces[0]);
  for (size_t i = 1; i < pieces.size(); ++i) {
    Segment piece = program.segments[static_cast<size_t>(segment)];
    piece.name += fmt::format(".piece{}", i);
    piece.ops = std::move(pieces[i]);
    ids.push_back(static_cast<int>(program.segments.size()));
    program.segments.push_back(std::move(piece));
  }
  return ids;
}

}  // namespace

void delay_weight_gradients(Program& program, int backward) {
  auto& ops = program.segments[static_cast<size_t>(backward)].ops;
  std::vector<Op> kept, delayed;
  const auto flush = [&] {
    std::move(delayed.begin(), delayed.end(), std::back_inserter(kept));
    delayed.clear();
  };
  for (Op& op : ops) {
    if (gives_weight_gradients_only(program, op)) {
      delayed.push_back(std::move(op));
      continue;
    }
    if (!kept.empty() && ends_exchange(kept.back(), op)) flush();
    kept.push_back(std::move(op));
  }
  flush();
  ops = std::move(kept);
}

void pair_micro_batches(Program& program) {
  std::map<int, std::vector<int>> pieces;  // of each segment that runs forward or backward
  const size_t segments = program.segments.size();
  for (size_t s = 0; s < segments; ++s) {
    const SegmentKind kind = program.segments[s].kind;
    if (kind == SegmentKind::kForward || kind == SegmentKind::kBackward)
      pieces[static_cast<int>(s)] = cut(program, static_cast<int>(s));
  }
  const auto kind_of = [&](const Call& call) { return program.segments[static_cast<size_t>(call.segment)].kind; };
  const std::vector<Call> calls = std::move(program.schedule);
  program.schedule.clear();
  for (size_t c = 0; c < calls.size(); ++c) {
    if (!pieces.contains(calls[c].segment)) {
      program.schedule.push_back(calls[c]);
      continue;
    }
    const bool paired = kind_of(calls[c]) == SegmentKind::kBackward && c + 1 < calls.size() &&
                        kind_of(calls[c + 1]) == SegmentKind::kForward;
    const std::vector<int>& mine = pieces[calls[c].segment];
    const std::vector<int> none;
    const std::vector<int>& others = paired ? pieces[calls[c + 1].segment] : none;
    for (size_t i = 0; i < std::max(mine.size(), others.size()); ++i) {
      if (i < mine.size()) program.schedule.push_back({mine[i], calls[c].micro_batch});
      if (i < others.size()) program.schedule.push_back({others[i], calls[c + 1].micro_batch});
    }
    if (paired) ++c;
  }
}

}  // namespace mbb::trainer
