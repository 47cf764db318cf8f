// Lifetimes by walking the program; times from the trace.
#include "suites/runner/memory_history.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <tuple>

#include "suites/export/export.h"
#include "trainer/execute/graph_memory.h"
#include "trainer/execute/op_sites.h"
#include "trainer/program/walk.h"

namespace mbb::suites {
namespace {

using trainer::Program;

struct Instant {
  int64_t start = 0;
  int64_t end = 0;
};

// A rank's first traced step: start and end of each walk position, and its length.
struct TracedStep {
  std::vector<Instant> at;
  int64_t length_ns = 0;
};

// Nothing when no step was traced or a position has no span.
std::optional<TracedStep> instants(const Program& program, const trainer::Mesh& mesh, int rank,
                                   const profiler::Trace& trace) {
  const profiler::StepWindow* window = nullptr;
  for (const profiler::StepWindow& one : trace.steps)
    if (one.rank == rank && (window == nullptr || one.step < window->step)) window = &one;
  if (window == nullptr) return std::nullopt;
  std::map<std::pair<std::string, int32_t>, Instant> seen;  // (op, micro-batch)
  for (const profiler::Span& span : trace.spans) {
    if (trace.rank_of(span) != rank || span.step != window->step || span.kind == profiler::SpanKind::kHost) continue;
    const int64_t start = span.start_ns - window->start_ns, end = span.end_ns - window->start_ns;
    const auto [entry, added] = seen.try_emplace({trace.text(span.op), span.micro_batch}, Instant{start, end});
    entry->second.start = std::min(entry->second.start, start);
    entry->second.end = std::max(entry->second.end, end);
  }
  TracedStep all;
  all.length_ns = window->end_ns - window->start_ns;
  for (const profiler::OpSite& site : trainer::op_sites(program, mesh, rank)) {
    const auto found = seen.find({site.path, site.micro_batch});
    if (found != seen.end())
      all.at.push_back(found->second);
    else if (site.phase != profiler::Phase::kData)
      return std::nullopt;
  }
  return all;
}

// One value in one buffer: a tensor of a call, a slot of a micro-batch, or a tensor of the step.
struct Lifetime {
  trainer::TensorId tensor = trainer::kNoTensor;
  int slot = 0;
  int generation = 0;             // of the slot: call, or micro-batch
  int64_t first = -1, last = -1;  // walk positions
  bool from_start = false;        // alive before the first op: state, and what the host wrote
  const trainer::Op* writer = nullptr;
  const trainer::Op* reader = nullptr;
};

// Whether its bytes are nobody else's for the whole step, whatever ops need of it: what survives the step, and what the
// host writes of all micro-batches before it.
bool is_kept(const trainer::Tensor& t) {
  return t.scope == trainer::Scope::kPersistent || t.category == trainer::Category::kInput;
}

// By tensor, slot and time.
std::vector<Lifetime> lifetimes_of(const Program& program, int64_t& positions) {
  std::vector<Lifetime> all;
  constexpr size_t kNone = std::numeric_limits<size_t>::max();
  std::vector<std::vector<size_t>> newest(program.tensors.size());  // by storage and slot, in `all`
  int64_t position = 0;
  trainer::walk(program, [&](int index, const trainer::Call& call, int, const trainer::Op& op) {
    const auto touch = [&](trainer::TensorId id, bool write) {
      const trainer::TensorId storage = program.storage(id);
      const trainer::Tensor& t = program.tensor(storage);
      const int slot = trainer::slot(t, call);
      const int generation = t.scope == trainer::Scope::kCall         ? index
                             : t.scope == trainer::Scope::kMicroBatch ? call.micro_batch
                                                                      : 0;
      std::vector<size_t>& slots = newest[static_cast<size_t>(storage)];
      if (slots.size() <= static_cast<size_t>(slot)) slots.resize(static_cast<size_t>(slot) + 1, kNone);
      size_t& at = slots[static_cast<size_t>(slot)];
      if (at == kNone || all[at].generation != generation) {
        at = all.size();
        all.push_back({.tensor = storage, .slot = slot, .generation = generation, .first = position});
      }
      Lifetime& life = all[at];
      life.last = position;
      if (write && life.writer == nullptr) life.writer = &op;
      if (!write) life.reader = &op;
    };
    for (const trainer::TensorId id : op.in) touch(id, false);
    for (const trainer::TensorId id : op.out) touch(id, true);
    ++position;
  });
  positions = position;
  for (Lifetime& life : all) {
    // The step's own record is written before it.
    const trainer::Tensor& t = program.tensor(life.tensor);
    if (is_kept(t)) life.from_start = true, life.last = position - 1;
    if (t.category == trainer::Category::kStep) life.from_start = true;
  }
  std::sort(all.begin(), all.end(), [](const Lifetime& a, const Lifetime& b) {
    return std::tie(a.tensor, a.slot, a.generation) < std::tie(b.tensor, b.slot, b.generation);
  });
  return all;
}

constexpr const char* kGraphs = "graphs";  // the category of what is planned and taken for CUDA graphs

class MapBuilder {
 public:
  MapBuilder(const Program& program, const trainer::MemoryPlan& plan) : program_(program), plan_(plan) {}

  baselines::MemoryMap run(const std::optional<TracedStep>& times, const std::vector<trainer::OutsideBytes>& outside) {
    int64_t positions = 0;
    const std::vector<Lifetime> lifetimes = lifetimes_of(program_, positions);
    map_.unit = times ? "ns" : "op";
    end_ = times ? times->length_ns : positions;
    for (const Lifetime& life : lifetimes) add(life, times);
    if (times) end_before_next_writer();
    for (const trainer::OutsideBytes& one : outside) {
      const char* category = one.what == trainer::kCapturedGraphs ? kGraphs : "outside the arena";
      map_.tensors.push_back({one.what, category, -1, one.bytes, "", "", 0, end_});
    }
    peak_and_curve();
    categories();
    return std::move(map_);
  }

  baselines::MemoryMap run_coarse(int64_t at) {
    int64_t positions = 0;
    const std::vector<Lifetime> lifetimes = lifetimes_of(program_, positions);
    map_.unit = "op";
    end_ = positions;
    for (size_t i = 0, nearest = 0; i < lifetimes.size(); ++i) {
      const Lifetime& life = lifetimes[i];
      if (away(life, at) < away(lifetimes[nearest], at) || life.tensor != lifetimes[nearest].tensor ||
          life.slot != lifetimes[nearest].slot)
        nearest = i;
      const bool last =
          i + 1 == lifetimes.size() || lifetimes[i + 1].tensor != life.tensor || lifetimes[i + 1].slot != life.slot;
      if (last) add(lifetimes[nearest], std::nullopt);
    }
    curve_of_calls(lifetimes);
    return std::move(map_);
  }

 private:
  struct Placed {
    size_t row = 0;               // of map_.tensors
    int64_t first = 0, last = 0;  // walk positions
    bool from_start = false;
  };
  struct Later {
    int64_t end = 0;   // of the bytes
    int64_t from = 0;  // when its life begins
    int64_t first = 0;
    bool from_start = false;
  };

  // Walk positions between a lifetime and `at`; 0 within it.
  static int64_t away(const Lifetime& life, int64_t at) {
    return at < life.first ? life.first - at : std::max<int64_t>(0, at - life.last);
  }

  // Bytes by category at the fullest moment of each call.
  void curve_of_calls(const std::vector<Lifetime>& lifetimes) {
    using Bytes = std::array<int64_t, trainer::kCategories>;
    std::vector<Bytes> changes(static_cast<size_t>(end_) + 1, Bytes{});
    for (const Lifetime& life : lifetimes) {
      const trainer::Tensor& t = program_.tensor(life.tensor);
      if (plan_.offsets[static_cast<size_t>(life.tensor)].empty() || t.space == trainer::Space::kHost) continue;
      const auto category = static_cast<size_t>(t.category);
      changes[life.from_start ? 0 : static_cast<size_t>(life.first)][category] += t.bytes();
      if (!is_kept(t)) changes[static_cast<size_t>(life.last) + 1][category] -= t.bytes();
    }
    Bytes alive{}, told{}, fullest{};
    int64_t most = -1, most_at = 0, position = 0;
    int call_now = 0;
    const auto tell = [&] {
      for (size_t c = 0; c < told.size() && most >= 0; ++c)
        if (fullest[c] != told[c])
          map_.curve.push_back({most_at, trainer::name(static_cast<trainer::Category>(c)), fullest[c]});
      told = fullest;
      map_.peak_bytes = std::max(map_.peak_bytes, most);
      most = -1;
    };
    trainer::walk(program_, [&](int call, const trainer::Call&, int, const trainer::Op&) {
      if (call != call_now) tell();
      call_now = call;
      int64_t sum = 0;
      for (size_t c = 0; c < alive.size(); ++c) sum += alive[c] += changes[static_cast<size_t>(position)][c];
      if (sum > most) most = sum, most_at = position, fullest = alive;
      ++position;
    });
    tell();
  }

  void add(const Lifetime& life, const std::optional<TracedStep>& times) {
    const trainer::Tensor& t = program_.tensor(life.tensor);
    if (plan_.offsets[static_cast<size_t>(life.tensor)].empty()) return;
    baselines::TensorBytes row;
    row.path = t.ring > 1 ? fmt::format("{}[{}]", t.path, life.slot) : t.path;
    const bool host = t.space == trainer::Space::kHost;
    row.category = host ? kPinnedHost : trainer::name(t.category);
    row.offset = host ? -1 : plan_.offset(program_, life.tensor, life.slot);
    row.bytes = t.bytes();
    if (life.writer != nullptr) row.first_writer = life.writer->path;
    if (life.reader != nullptr) row.last_reader = life.reader->path;
    const bool to_end = is_kept(t);
    const auto first = static_cast<size_t>(life.first), last = static_cast<size_t>(life.last);
    row.from = life.from_start ? 0 : times ? times->at[first].start : life.first;
    row.to = to_end ? end_ : times ? times->at[last].end : life.last + 1;
    if (row.offset >= 0 && row.bytes > 0)
      in_arena_.push_back({map_.tensors.size(), life.first, life.last, life.from_start});
    map_.tensors.push_back(std::move(row));
  }

  // The plan gives a tensor's bytes on when its last op has run. A device's clock may show that op and the next one
  // overlapping by a little, so the order comes from the walk: a life ends no later than the next one in its bytes
  // begins. From the last life to the first, so that the next one's beginning is known.
  void end_before_next_writer() {
    std::stable_sort(in_arena_.begin(), in_arena_.end(),
                     [](const Placed& a, const Placed& b) { return a.first > b.first; });
    std::map<int64_t, Later> later;  // by offset: who has these bytes next; ranges do not overlap
    for (const Placed& placed : in_arena_) {
      baselines::TensorBytes& t = map_.tensors[placed.row];
      const int64_t begin = t.offset, end = t.offset + t.bytes;
      auto at = later.upper_bound(begin);
      if (at != later.begin() && std::prev(at)->second.end > begin) --at;
      while (at != later.end() && at->first < end) {
        const auto [next_begin, next] = *at;
        if (next.first > placed.last && !next.from_start) {
          t.to = std::min(t.to, next.from);
          t.from = std::min(t.from, t.to);
        }
        at = later.erase(at);
        // What of the range lies beside ours stays the later one's.
        if (next_begin < begin) later.emplace(next_begin, Later{begin, next.from, next.first, next.from_start});
        if (next.end > end) at = later.emplace(end, Later{next.end, next.from, next.first, next.from_start}).first;
      }
      later.emplace(begin, Later{end, t.from, placed.first, placed.from_start});
    }
  }

  // Bytes alive over time, by category; the live set where their sum is largest.
  void peak_and_curve() {
    std::map<int64_t, std::map<std::string, int64_t>> changes;
    for (const auto& t : map_.tensors) {
      if (t.category == kPinnedHost) continue;
      changes[t.from][t.category] += t.bytes;
      if (t.to < end_) changes[t.to][t.category] -= t.bytes;
    }
    std::map<std::string, int64_t> alive;
    int64_t sum = 0, peak_at = 0;
    for (const auto& [at, by_category] : changes) {
      for (const auto& [category, bytes] : by_category) {
        if (bytes == 0) continue;
        alive[category] += bytes;
        sum += bytes;
        map_.curve.push_back({at, category, alive[category]});
      }
      if (sum <= map_.peak_bytes) continue;
      map_.peak_bytes = sum;
      peak_at = at;
      at_peak_ = alive;
    }
    for (const auto& t : map_.tensors)
      if (t.category != kPinnedHost && t.from <= peak_at && (peak_at < t.to || t.to == end_))
        map_.live_at_peak.push_back(t);
    std::stable_sort(map_.live_at_peak.begin(), map_.live_at_peak.end(),
                     [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  }

  void categories() {
    std::map<std::string, baselines::CategoryBytes> rows;
    for (int c = 0; c < trainer::kCategories; ++c)
      if (const int64_t bytes = plan_.peak_by_category[static_cast<size_t>(c)]; bytes > 0) {
        const std::string name = trainer::name(static_cast<trainer::Category>(c));
        rows[name] = {name, bytes, 0};
      }
    if (plan_.graph_bytes > 0) rows[kGraphs] = {kGraphs, plan_.graph_bytes, 0};
    for (const auto& [category, bytes] : at_peak_) {
      if (bytes == 0 && !rows.contains(category)) continue;  // it lives at another time
      baselines::CategoryBytes& one =
          rows.try_emplace(category, baselines::CategoryBytes{category, -1, 0}).first->second;
      one.measured_bytes = bytes;
    }
    for (auto& [name, one] : rows) map_.categories.push_back(one);
  }

  const Program& program_;
  const trainer::MemoryPlan& plan_;
  baselines::MemoryMap map_;
  int64_t end_ = 0;
  std::vector<Placed> in_arena_;
  std::map<std::string, int64_t> at_peak_;
};

}  // namespace

std::vector<baselines::MemoryMap> memory_history(const trainer::Layout& layout, const trainer::StepPrograms& programs,
                                                 const profiler::Trace* trace,
                                                 const std::vector<trainer::OutsideBytes>& outside) {
  std::vector<baselines::MemoryMap> maps;
  for (size_t i = 0; i < programs.programs.size(); ++i) {
    const int rank = layout.mesh.representative(static_cast<int>(i));
    std::optional<TracedStep> times;
    if (trace != nullptr) times = instants(programs.programs[i], layout.mesh, rank, *trace);
    baselines::MemoryMap map = MapBuilder(programs.programs[i], programs.plans[i]).run(times, outside);
    map.rank_class = fmt::format("stage{}", layout.mesh.rank_class(rank).pp);
    maps.push_back(std::move(map));
  }
  return maps;
}

int64_t count_values(const trainer::Program& program) {
  std::vector<int64_t> calls(program.segments.size(), 0);
  for (const trainer::Call& call : program.schedule) ++calls[static_cast<size_t>(call.segment)];
  std::vector<bool> counted(program.tensors.size(), false);
  int64_t values = 0;
  for (size_t s = 0; s < program.segments.size(); ++s)
    for (const trainer::Op& op : program.segments[s].ops)
      for (const std::vector<trainer::TensorId>* list : {&op.in, &op.out})
        for (const trainer::TensorId id : *list) {
          const auto storage = static_cast<size_t>(program.storage(id));
          if (counted[storage]) continue;
          counted[storage] = true;
          const trainer::Scope scope = program.tensors[storage].scope;
          values += scope == trainer::Scope::kCall         ? calls[s]
                    : scope == trainer::Scope::kMicroBatch ? program.micro_batches
                                                           : 1;
        }
  return values;
}

baselines::MemoryMap coarse_history(const trainer::Program& program, const trainer::MemoryPlan& plan, int64_t at) {
  return MapBuilder(program, plan).run_coarse(at);
}

std::string snapshot_file(const std::string& knob, const std::string& folder, const std::string& rank_class,
                          bool several) {
  std::filesystem::path path = knob;
  if (several) path.replace_filename(path.stem().string() + "." + rank_class + path.extension().string());
  return path.is_absolute() ? path.string() : (std::filesystem::path(folder) / path).string();
}

}  // namespace mbb::suites
