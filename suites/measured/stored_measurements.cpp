// From lines of figures and traces to bundles.
#include "suites/measured/stored_measurements.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "analysis/exposure/op_rows.h"
#include "analysis/metrics/cell_metrics.h"
#include "baselines/store/bundle.h"
#include "profiler/base/file.h"
#include "profiler/base/text.h"
#include "profiler/trace/trace_file.h"
#include "suites/matrix/settings.h"
#include "suites/runner/memory_rows.h"
#include "suites/runner/op_records.h"
#include "suites/runner/sequence_work.h"
#include "trainer/program/explain.h"
#include "trainer/run/knobs.h"

namespace mbb::suites {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using baselines::Cell;
using baselines::Launch;
using baselines::Run;

constexpr const char* kDevice = "NVIDIA H100 80GB HBM3";
constexpr const char* kDriver = "580.159.04";
constexpr int64_t kDayUnixNs = 1'795'824'000'000'000'000;  // 2026-11-28 00:00 UTC
constexpr int64_t kMinuteNs = 60'000'000'000;
constexpr const char* kTraceFile = "trace.mbt";

// Which lines of which file were taken on one card in one call; lines count from 1.
struct Session {
  const char* file;
  int first, last;
  const char* tag;
};
constexpr Session kSessions[] = {{"steps-2026-11-28.jsonl", 1, 12, "first"},
                                 {"steps-2026-11-28-merged.jsonl", 1, 2, "merged"},
                                 {"steps-2026-11-28-tuned.jsonl", 1, 10, "tuned"},
                                 {"steps-2026-11-28-beside.jsonl", 1, 13, "beside"},
                                 {"steps-2026-11-28-beside.jsonl", 14, 22, "beside-2"}};

struct TracedCase {
  const char* file;
  const char* precision;
};
constexpr TracedCase kTraces[] = {{"llama3-8b-8-layers-bf16.mbt", "bf16"},
                                  {"llama3-8b-8-layers-fp8.mbt", "fp8-current"}};

std::string trace_name(const TracedCase& one) {
  return fmt::format("traced-{}", one.precision);
}

// One row of figures.
struct Figures {
  std::string model, precision, states, form;
  int64_t layers = 0, sequence = 0, micro_batch = 0, micro_batches = 0;
  double step_ns = 0, low_ns = 0, high_ns = 0, first_loss = 0, last_loss = 0;
};

Result<Figures> figures_of(const std::string& line) {
  try {
    const Json row = Json::parse(line);
    Figures f;
    row.at("case").get_to(f.model);
    row.at("prec").get_to(f.precision);
    row.at("layers").get_to(f.layers);
    row.at("seq").get_to(f.sequence);
    row.at("mbs").get_to(f.micro_batch);
    row.at("micro_batches").get_to(f.micro_batches);
    row.at("states").get_to(f.states);
    row.at("loss").get_to(f.last_loss);
    row.at("first_loss").get_to(f.first_loss);
    f.form = row.value("form", "");
    f.step_ns = row.at("step_ms").get<double>() * 1e6;
    f.low_ns = row.at("spread").at(0).get<double>() * 1e6;
    f.high_ns = row.at("spread").at(1).get<double>() * 1e6;
    return f;
  } catch (const Json::exception& error) {
    return fail(ErrorCode::kBadFile, printable(error.what(), 200));
  }
}

// "beside16b" and "beside16-fp8" are 16: SMs of the optimizer beside the next forward; -1: not beside it.
int64_t beside_sms(const std::string& form) {
  constexpr std::string_view kWord = "beside";
  if (!form.starts_with(kWord)) return -1;
  const size_t end = form.find_first_not_of("0123456789", kWord.size());
  return parse_int(std::string_view(form).substr(kWord.size(), end - kWord.size())).value_or(-1);
}

std::string recipe_of(const std::string& precision) {
  return precision == "fp8-current" ? "fp8_current" : precision;
}

// The knobs that a row's command line set, as `key=value` lines.
std::string knob_lines(const Figures& f, const fs::path& measured) {
  std::string lines = fmt::format(
      "model.name={}\nmodel.num_layers={}\ntrain.seq_length={}\ntrain.micro_batch_size={}\n"
      "train.global_batch_size={}\nprecision.recipe={}\nhost.device=cuda\n",
      f.model, f.layers, f.sequence, f.micro_batch, f.micro_batch * f.micro_batches, recipe_of(f.precision));
  if (const int64_t sms = beside_sms(f.form); sms >= 0)
    lines += fmt::format(
        "parallel.use_distributed_optimizer=false\ndata_parallel.overlap_optimizer_with_forward=true\n"
        "data_parallel.bucket_size=230000000\nhost.side_sms={}\n",
        sms);
  if (f.states.starts_with("bf16 main"))
    lines +=
        "optimizer.use_precision_aware_optimizer=true\noptimizer.main_params_dtype=bf16\n"
        "optimizer.exp_avg_dtype=bf16\noptimizer.exp_avg_sq_dtype=bf16\n";
  if (f.form.starts_with("tuned"))
    lines += fmt::format("host.gemm_tuning_file={}\n", (measured / "gemm-tuning-llama3-8b-bf16.txt").string());
  return lines;
}

std::string cell_name(const Figures& f) {
  std::string name = fmt::format("{}-{}", f.model, f.precision);
  if (const int64_t sms = beside_sms(f.form); sms >= 0) name += fmt::format("-beside{}", sms);
  if (f.states.starts_with("bf16 main")) name += "-bf16-states";
  if (f.form.starts_with("tuned")) name += "-tuned";
  if (f.micro_batches > 1) name += fmt::format("-mbs{}", f.micro_batch);
  return name;
}

struct Described {
  Cell cell;
  trainer::Layout layout;
  trainer::StepPrograms programs;
};

// What the knobs alone say of a cell on the card.
Result<Described> describe(const Run& run, const std::string& name, const std::string& lines) {
  trainer::Config config;
  KnobSources sources;
  MB_TRY(trainer::knobs().from_lines(config, sources, lines, Source{Layer::kCommandLine, "baselines/measured"}));
  Described out;
  MB_ASSIGN(out.layout, trainer::resolve(config));
  MB_ASSIGN(out.programs, trainer::build_programs(out.layout));
  Cell& cell = out.cell;
  cell.run = run.id;
  cell.name = name;
  cell.index = static_cast<int>(run.cells.size());
  cell.result_class = baselines::ResultClass::kMeasured;
  cell.device = kDevice;
  cell.devices = 1;
  cell.model = config.model.name;
  cell.ranks = cell.gpus = out.layout.mesh.world_size();
  for (const KnobState& state : knob_states(config, sources))
    cell.knobs.push_back({state.knob->key, state.value, mbb::name(state.source.layer), "", 0, splits_series(state)});
  cell.work = work_of(out.layout.tokens_per_step(), trainer::token_flops(out.layout, out.programs));
  cell.memory = memory_maps(out.layout, out.programs);
  cell.program_json = trainer::explain_json(out.layout, out.programs);
  cell.program_hash = trainer::program_hash(out.programs);
  cell.identity_hash = baselines::identity_hash(cell);
  return out;
}

Run new_run(const char* tag, const std::string& suite, int minute) {
  Run run;
  run.created_unix_ns = kDayUnixNs + minute * kMinuteNs;
  run.ended_unix_ns = run.created_unix_ns + kMinuteNs;
  run.id = baselines::new_run_id(run.created_unix_ns, static_cast<uint64_t>(minute));
  run.command = "run";
  run.suite = suite;
  run.spec = "# from baselines/measured: " + suite + "\n";
  run.tag = fmt::format("h100-{}", tag);
  run.fingerprint = profiler::make_fingerprint({{"gpu.model", kDevice, true},
                                                {"gpu.driver", kDriver, true},
                                                {"gpu.count", "1", true},
                                                {"library.cuda", "13.0", true}});
  return run;
}

void add_metric(Cell& cell, const char* id, double value) {
  cell.metrics.push_back({id, value, baselines::kNotMeasured, baselines::kNotMeasured, "", 1, ""});
}

// The step time of rows of one configuration: a mean over launches, or one launch with the spread of its steps.
analysis::StepTime step_time_of(const std::vector<Figures>& rows) {
  analysis::StepTime time;
  for (const Figures& row : rows) time.launch_medians.push_back(row.step_ns);
  time.estimate = analysis::over_launches(time.launch_medians);
  time.interval = fmt::format("95 % over {} launches", rows.size());
  if (rows.size() > 1) {
    time.launch_sigma = time.estimate.sigma / time.estimate.value;
    return time;
  }
  time.estimate.low = rows[0].low_ns;
  time.estimate.high = rows[0].high_ns;
  time.interval = "fastest and slowest step of one launch";
  return time;
}

Result<Cell> cell_of_figures(const Run& run, const std::vector<Figures>& rows, const fs::path& measured) {
  MB_ASSIGN(Described described, describe(run, cell_name(rows[0]), knob_lines(rows[0], measured)));
  Cell& cell = described.cell;
  for (size_t i = 0; i < rows.size(); ++i) {
    Launch launch;
    launch.index = static_cast<int>(i);
    launch.started_unix_ns = run.created_unix_ns;
    launch.ended_unix_ns = run.ended_unix_ns;
    cell.launches.push_back(std::move(launch));
  }
  MB_TRY(analysis::fill_metrics_of(cell, step_time_of(rows), {}, rows[0].precision != "bf16"));
  add_metric(cell, "first_loss", rows[0].first_loss);
  add_metric(cell, "last_loss", rows[0].last_loss);
  return std::move(cell);
}

Result<std::vector<std::vector<Figures>>> rows_of(const Session& session, const fs::path& measured) {
  const std::string path = measured / session.file;
  MB_ASSIGN(const std::string text, read_file(path));
  std::vector<std::vector<Figures>> cells;
  int number = 0;
  for (const std::string_view line : split(text, '\n')) {
    ++number;
    if (number < session.first || number > session.last) continue;
    Result<Figures> row = figures_of(std::string(line));
    if (!row) return tl::unexpected<Error>(std::move(row.error()).during(fmt::format("{} line {}", path, number)));
    const auto same = std::find_if(cells.begin(), cells.end(),
                                   [&](const auto& rows) { return cell_name(rows[0]) == cell_name(*row); });
    if (same == cells.end())
      cells.push_back({std::move(*row)});
    else
      same->push_back(std::move(*row));
  }
  return cells;
}

Result<fs::path> write_session(const Session& session, int minute, const fs::path& measured, const fs::path& runs) {
  Run run = new_run(session.tag, session.file, minute);
  MB_ASSIGN(const auto cells, rows_of(session, measured));
  for (const auto& rows : cells) {
    MB_ASSIGN(Cell cell, cell_of_figures(run, rows, measured));
    run.planned_cells.push_back(cell.name);
    run.cells.push_back(std::move(cell));
  }
  MB_ASSIGN(auto writer, baselines::BundleWriter::create(runs, run));
  for (const Cell& cell : run.cells) {
    MB_TRY(writer.begin_cell(cell));
    MB_TRY(writer.finish_cell(cell));
  }
  return writer.folder();
}

// Steps of the first rank, all of them traced.
std::vector<baselines::Step> steps_of(const profiler::Trace& trace, int64_t tokens) {
  std::vector<baselines::Step> steps;
  for (const profiler::StepWindow& window : trace.steps) {
    baselines::Step step;
    step.index = window.step;
    step.wall_ns = window.end_ns - window.start_ns;
    step.tokens = tokens;
    step.flags = baselines::kStepProfiled;
    steps.push_back(step);
  }
  return steps;
}

Result<fs::path> write_traced(const TracedCase& one, int minute, const fs::path& measured, const fs::path& runs) {
  Run run = new_run(trace_name(one).c_str(), one.file, minute);
  const fs::path file = measured / "traces" / one.file;
  MB_ASSIGN(const profiler::Trace trace, profiler::read_trace(file));
  const Figures asked{.model = "llama3-8b",
                      .precision = one.precision,
                      .layers = 8,
                      .sequence = 8192,
                      .micro_batch = 1,
                      .micro_batches = 1};
  MB_ASSIGN(Described described, describe(run, cell_name(asked), knob_lines(asked, measured)));
  Cell& cell = described.cell;
  Launch launch;
  launch.started_unix_ns = run.created_unix_ns;
  launch.ended_unix_ns = run.ended_unix_ns;
  launch.steps = steps_of(trace, cell.work.tokens_per_step);
  launch.trace_files = {kTraceFile};
  const auto times = analysis::break_down(trace);
  analysis::fill_op_rows(launch, trace, times, [&](int32_t rank) { return rank_class_name(described.layout, rank); });
  complete_op_rows(launch, described.layout, described.programs);
  const auto unknown = std::count_if(launch.ops.begin(), launch.ops.end(), [](const baselines::OpRow& row) {
    return row.kind.empty() && row.path != analysis::kIdlePath;
  });
  launch.counts.push_back({"dropped_records", static_cast<int64_t>(trace.dropped_spans)});
  launch.counts.push_back({"ops of the trace that this build's program has not", unknown});
  std::vector<double> walls;
  for (const baselines::Step& step : launch.steps) walls.push_back(static_cast<double>(step.wall_ns));
  analysis::StepTime time;
  time.launch_medians = {analysis::median(walls)};
  time.estimate = analysis::median_of_steps(walls);
  time.interval = fmt::format("{} traced steps of one launch", walls.size());
  std::vector<analysis::StepBreakdown> breakdowns;
  for (const auto& step : times) breakdowns.push_back(step.breakdown);
  cell.launches.push_back(std::move(launch));
  MB_TRY(analysis::fill_metrics_of(cell, time, breakdowns, asked.precision != "bf16"));
  run.planned_cells = {cell.name};
  MB_ASSIGN(auto writer, baselines::BundleWriter::create(runs, run));
  MB_TRY(writer.begin_cell(cell));
  MB_ASSIGN(const fs::path folder, writer.launch_folder(cell.name, 0));
  MB_TRY(profiler::write_trace(folder / kTraceFile, trace));
  MB_TRY(writer.finish_cell(cell));
  return writer.folder();
}

}  // namespace

Result<std::vector<fs::path>> write_measured_bundles(const fs::path& measured, const fs::path& runs) {
  std::vector<fs::path> folders;
  int minute = 0;
  for (const Session& session : kSessions) {
    MB_ASSIGN(fs::path folder, write_session(session, minute++, measured, runs));
    folders.push_back(std::move(folder));
  }
  for (const TracedCase& one : kTraces) {
    MB_ASSIGN(fs::path folder, write_traced(one, minute++, measured, runs));
    folders.push_back(std::move(folder));
  }
  return folders;
}

}  // namespace mbb::suites
