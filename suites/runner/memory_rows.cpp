// From memory plans to stored rows.
#include "suites/runner/memory_rows.h"

#include <fmt/core.h>

#include <map>

#include "trainer/program/walk.h"

namespace mbb::suites {
namespace {

struct Touch {
  int64_t first = -1;
  int64_t last = -1;
  const trainer::Op* writer = nullptr;
  const trainer::Op* reader = nullptr;
};

// First and last use of each (storage, slot), in walk positions.
std::map<std::pair<trainer::TensorId, int>, Touch> touches(const trainer::Program& program) {
  std::map<std::pair<trainer::TensorId, int>, Touch> all;
  int64_t position = 0;
  trainer::walk(program, [&](int, const trainer::Call& call, int, const trainer::Op& op) {
    const auto touch = [&](trainer::TensorId id, bool write) {
      Touch& t = all[{program.storage(id), trainer::slot(program.tensor(id), call)}];
      if (t.first < 0) t.first = position;
      t.last = position;
      if (write && !t.writer) t.writer = &op;
      if (!write) t.reader = &op;
    };
    for (trainer::TensorId id : op.in) touch(id, false);
    for (trainer::TensorId id : op.out) touch(id, true);
    ++position;
  });
  return all;
}

}  // namespace

std::vector<baselines::MemoryMap> memory_maps(const trainer::Layout& layout, const trainer::StepPrograms& programs) {
  std::vector<baselines::MemoryMap> maps;
  for (size_t i = 0; i < programs.programs.size(); ++i) {
    const trainer::Program& program = programs.programs[i];
    const trainer::MemoryPlan& plan = programs.plans[i];
    baselines::MemoryMap map;
    map.rank_class = fmt::format("stage{}", layout.mesh.rank_class(layout.mesh.representative(static_cast<int>(i))).pp);
    map.peak_bytes = plan.arena_bytes;
    for (int c = 0; c < trainer::kCategories; ++c) {
      const int64_t bytes = plan.peak_by_category[static_cast<size_t>(c)];
      if (bytes > 0) map.categories.push_back({trainer::name(static_cast<trainer::Category>(c)), bytes, -1});
    }
    const int64_t slack = plan.arena_bytes - plan.peak_live_bytes;
    if (slack > 0) map.categories.push_back({"slack", slack, -1});
    const auto used = touches(program);
    for (const trainer::LiveBuffer& buffer : plan.live_at_peak(program)) {
      const trainer::Tensor& t = program.tensor(buffer.tensor);
      baselines::TensorBytes row;
      row.path = t.ring > 1 ? fmt::format("{}[{}]", t.path, buffer.slot) : t.path;
      row.category = trainer::name(t.category);
      row.offset = buffer.offset;
      row.bytes = buffer.bytes;
      if (const auto found = used.find({buffer.tensor, buffer.slot}); found != used.end()) {
        row.from = found->second.first;
        row.to = found->second.last;
        if (found->second.writer) row.first_writer = found->second.writer->path;
        if (found->second.reader) row.last_reader = found->second.reader->path;
      }
      map.live_at_peak.push_back(std::move(row));
    }
    maps.push_back(std::move(map));
  }
  return maps;
}

}  // namespace mbb::suites
