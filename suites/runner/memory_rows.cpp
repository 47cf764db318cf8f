// From memory plans to stored rows.
#include "suites/runner/memory_rows.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <map>
#include <string_view>

#include "suites/runner/memory_history.h"
#include "trainer/program/walk.h"

namespace mbb::suites {
namespace {

// Walk position of the plan's fullest moment.
int64_t peak_position(const trainer::Program& program, const trainer::MemoryPlan& plan) {
  int64_t position = 0, found = 0;
  trainer::walk(program, [&](int call, const trainer::Call&, int op_index, const trainer::Op&) {
    if (call == plan.peak_call && op_index == plan.peak_op) found = position;
    ++position;
  });
  return found;
}

using ByPath = std::multimap<std::string_view, const baselines::TensorBytes*>;

// The lifetime of a buffer's value at `position`; of its nearest value where the plan keeps the place in between.
const baselines::TensorBytes* value_at(const ByPath& values, const std::string& path, int64_t position) {
  const baselines::TensorBytes* best = nullptr;
  int64_t nearest = std::numeric_limits<int64_t>::max();
  for (auto [at, end] = values.equal_range(path); at != end; ++at) {
    const baselines::TensorBytes& v = *at->second;
    const int64_t away = position < v.from ? v.from - position : std::max<int64_t>(0, position - v.to + 1);
    if (away < nearest) best = &v, nearest = away;
  }
  return best;
}

}  // namespace

std::vector<baselines::MemoryMap> memory_maps(const trainer::Layout& layout, const trainer::StepPrograms& programs) {
  int64_t values = 0;
  for (const trainer::Program& program : programs.programs) values += count_values(program);
  const bool whole = values <= kMostPlanValues;
  // The peak, its categories and its live set are the plan's, which rounds up to its alignment and keeps a slot between
  // two micro-batches.
  std::vector<baselines::MemoryMap> maps;
  if (whole) maps = memory_history(layout, programs, nullptr, {});
  for (size_t i = 0; i < programs.programs.size(); ++i) {
    const trainer::Program& program = programs.programs[i];
    const trainer::MemoryPlan& plan = programs.plans[i];
    const int64_t peak = peak_position(program, plan);
    if (!whole) {
      maps.push_back(coarse_history(program, plan, peak));
      maps.back().rank_class = fmt::format("stage{}", program.rank_class.pp);
    }
    baselines::MemoryMap& map = maps[i];
    map.peak_bytes = plan.device_bytes();
    map.categories.clear();
    for (int c = 0; c < trainer::kCategories; ++c) {
      const int64_t bytes = plan.peak_by_category[static_cast<size_t>(c)];
      if (bytes > 0) map.categories.push_back({trainer::name(static_cast<trainer::Category>(c)), bytes, -1});
    }
    const int64_t slack = plan.arena_bytes - plan.peak_live_bytes;
    if (slack > 0) map.categories.push_back({"slack", slack, -1});
    if (plan.graph_bytes > 0) map.categories.push_back({"graphs", plan.graph_bytes, -1});
    map.live_at_peak.clear();
    ByPath by_path;
    for (const auto& value : map.tensors) by_path.emplace(value.path, &value);
    for (const trainer::LiveBuffer& buffer : plan.live_at_peak(program)) {
      const trainer::Tensor& t = program.tensor(buffer.tensor);
      const std::string path = t.ring > 1 ? fmt::format("{}[{}]", t.path, buffer.slot) : t.path;
      baselines::TensorBytes row;
      if (const auto* value = value_at(by_path, path, peak)) row = *value;
      row.path = path;
      row.category = trainer::name(t.category);
      row.offset = buffer.offset;
      row.bytes = buffer.bytes;
      map.live_at_peak.push_back(std::move(row));
    }
    if (!whole) map.tensors.clear();
  }
  return maps;
}

}  // namespace mbb::suites
