// Kineto traces with the process groups of the cell's own mesh.
#include <fmt/core.h>

#include <map>
#include <memory>
#include <set>

#include "profiler/base/file.h"
#include "profiler/trace/trace_file.h"
#include "profiler/trace/writers/kineto_writer.h"
#include "suites/export/export.h"
#include "trainer/ops/op_kind.h"
#include "trainer/run/knobs.h"
#include "trainer/run/layout.h"
#include "trainer/run/step_programs.h"

namespace mbb::suites {
namespace {

// Names as PyTorch's profiler gives them.
std::string collective_name(std::string_view kind) {
  constexpr std::pair<std::string_view, std::string_view> kNames[] = {{"all_reduce", "allreduce"},
                                                                      {"all_gather", "_allgather_base"},
                                                                      {"reduce_scatter", "_reduce_scatter_base"},
                                                                      {"all_to_all", "all_to_allv"}};
  for (const auto& [ours, theirs] : kNames)
    if (kind == ours) return std::string(theirs);
  return std::string(kind);
}

std::string dtype_name(trainer::DType dtype) {
  switch (dtype) {
    case trainer::DType::kF32: return "Float";
    case trainer::DType::kBf16: return "BFloat16";
    case trainer::DType::kF64: return "Double";
    default: return trainer::name(dtype);
  }
}

// The layout a cell ran with, and what each of its collectives is, on demand.
class CellGroups {
 public:
  static Result<std::unique_ptr<CellGroups>> of(const baselines::Cell& cell) {
    auto groups = std::make_unique<CellGroups>();
    trainer::Config config;
    KnobSources sources;
    for (const baselines::KnobValue& knob : cell.knobs)
      if (trainer::knobs().has(knob.key))
        MB_TRY(trainer::knobs().set_text(config, sources, knob.key, knob.value, Source{Layer::kSuite, "stored run"}));
    MB_ASSIGN(groups->layout_, trainer::resolve(config));
    MB_ASSIGN(groups->programs_, trainer::build_programs(groups->layout_));
    return groups;
  }

  int world_size() const { return layout_.mesh.world_size(); }

  std::vector<profiler::KinetoGroup> groups(int rank) const {
    std::set<trainer::GroupKind> kinds;
    for (const auto& segment : programs_.of_rank(layout_.mesh, rank).segments)
      for (const trainer::Op& op : segment.ops)
        if (op.kind->communicates) kinds.insert(std::get<trainer::CommAttrs>(op.attrs).group);
    std::vector<profiler::KinetoGroup> all;
    for (const trainer::GroupKind kind : kinds) all.push_back({trainer::name(kind), members(kind, rank)});
    return all;
  }

  std::optional<profiler::KinetoCollective> collective(int rank, const std::string& path) const {
    const trainer::Program& program = programs_.of_rank(layout_.mesh, rank);
    for (const auto& segment : program.segments)
      for (const trainer::Op& op : segment.ops)
        if (op.path == path && op.kind->communicates) return describe(program, op, rank);
    return std::nullopt;
  }

 private:
  std::vector<int32_t> members(trainer::GroupKind kind, int rank) const {
    const std::vector<int> of = layout_.mesh.group(kind, rank);
    return {of.begin(), of.end()};
  }

  profiler::KinetoCollective describe(const trainer::Program& program, const trainer::Op& op, int rank) const {
    const trainer::GroupKind kind = std::get<trainer::CommAttrs>(op.attrs).group;
    profiler::KinetoCollective c;
    c.name = collective_name(op.kind->name);
    c.group = c.description = trainer::name(kind);
    std::string list;
    for (const int32_t member : members(kind, rank)) list += (list.empty() ? "" : ", ") + std::to_string(member);
    c.ranks = "[" + list + "]";
    c.group_size = layout_.mesh.group_size(kind, rank);
    const std::vector<trainer::TensorId>& operands = op.in.empty() ? op.out : op.in;
    if (!operands.empty()) {
      const trainer::Tensor& t = program.tensor(operands.front());
      c.dtype = dtype_name(t.dtype);
      c.in_elements = t.shape.elements();
    }
    return c;
  }

  trainer::Layout layout_;
  trainer::StepPrograms programs_;
};

// `synthetic`: why the run is made up; empty for one that is not.
Status write_ranks(const profiler::Trace& trace, const baselines::Cell& cell, const std::string& synthetic,
                   const CellGroups* groups, const std::filesystem::path& folder, std::vector<std::string>& files) {
  for (const int32_t rank : profiler::ranks(trace)) {
    profiler::KinetoWriteOptions options;
    options.rank = rank;
    options.world_size = groups != nullptr ? groups->world_size() : cell.ranks;
    options.trace_name = fmt::format("{} {}", cell.run, cell.name);
    options.note = class_label(cell) + (synthetic.empty() ? "" : kSyntheticNote + synthetic);
    std::map<std::string, std::optional<profiler::KinetoCollective>> known;
    if (groups != nullptr) {
      options.groups = groups->groups(rank);
      options.collective = [&](const std::string& op) {
        const auto [entry, added] = known.try_emplace(op);
        if (added) entry->second = groups->collective(rank, op);
        return entry->second;
      };
    }
    const std::string file = folder / fmt::format("rank{}.json.gz", rank);
    MB_TRY(profiler::write_kineto(file, trace, options));
    files.push_back(file);
  }
  return {};
}

}  // namespace

Result<std::vector<std::string>> export_kineto(const ExportSource& source, const std::filesystem::path& to) {
  std::vector<std::string> files;
  for (const baselines::Cell& cell : source.run.cells) {
    if (!source.cell.empty() && cell.name != source.cell) continue;
    // A bundle of another version may hold knobs we do not know: its groups are then left out, its times are not.
    const auto groups = CellGroups::of(cell);
    for (const baselines::Launch& launch : cell.launches)
      for (const std::string& name : launch.trace_files) {
        MB_ASSIGN(const profiler::Trace trace,
                  profiler::read_trace(source.reader.launch_file(cell.name, launch.index, name)));
        const std::filesystem::path folder = to / cell.name / fmt::format("launch{}", launch.index);
        MB_TRY(make_dirs(folder));
        MB_TRY(write_ranks(trace, cell, source.run.synthetic, groups ? groups->get() : nullptr, folder, files));
      }
  }
  if (files.empty())
    return fail(ErrorCode::kNotFound, fmt::format("run {} holds no trace", source.run.id),
                "profile some steps: profiling.profile_step_start below profiling.profile_step_end");
  return files;
}

}  // namespace mbb::suites
