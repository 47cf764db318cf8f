// mbbench tune: chooses the GEMM algorithms of a configuration under sustained load and keeps them in a file; with
// --overlap, how tensor-parallel collectives and the products beside them overlap.
#include <fmt/core.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <optional>
#include <vector>

#include "profiler/base/file.h"
#include "profiler/base/log.h"
#include "profiler/base/text.h"
#include "profiler/host/gpus.h"
#include "suites/cli/command.h"
#include "suites/cli/print.h"
#include "suites/cli/settings_of.h"
#include "suites/runner/command_cell.h"
#include "suites/runner/overlap_tuner.h"
#include "trainer/execute/executor.h"
#include "trainer/run/layout.h"
#include "trainer/run/step_programs.h"

namespace mbb::suites {
namespace {

Result<int> number_of(const Parsed& parsed, const char* option, int otherwise, int most) {
  const auto text = parsed.value(option);
  if (!text) return otherwise;
  const auto number = parse_int(*text);
  if (!number || *number < 1 || *number > most)
    return fail(ErrorCode::kBadArgument, fmt::format("{} {}: a number from 1 to {}", option, printable(*text), most));
  return static_cast<int>(*number);
}

// The configuration with the knobs of each --judge on top.
Result<std::vector<OverlapShape>> judged_shapes(const Parsed& parsed, const Settings& settings) {
  const auto given = parsed.values("--judge");
  if (given.empty()) return other_shapes(settings.config);
  std::vector<OverlapShape> shapes;
  for (const std::string& judge : given) {
    Parsed with = parsed;
    for (const auto knob : split(judge, ',')) with.knobs.emplace_back(trim(knob));
    MB_ASSIGN(const Settings other, settings_of(with));
    MB_TRY(trainer::resolve(other.config));
    shapes.push_back({printable(judge), other.config});
  }
  return shapes;
}

Result<OverlapTuneOptions> overlap_options(const Parsed& parsed, const Settings& settings) {
  OverlapTuneOptions tuning;
  if (const auto text = parsed.value("--sms")) {
    tuning.sms.clear();
    for (const auto part : split(*text, ',')) {
      const auto sms = parse_int(trim(part));
      if (!sms || *sms < 1 || *sms > 128)
        return fail(ErrorCode::kBadArgument, fmt::format("--sms {}: numbers from 1 to 128", printable(*text)),
                    "as in --sms 4,8,16");
      tuning.sms.push_back(static_cast<int>(*sms));
    }
  }
  MB_ASSIGN(tuning.seconds, number_of(parsed, "--seconds", 0, 1'000'000));
  MB_ASSIGN(tuning.shapes, judged_shapes(parsed, settings));
  return tuning;
}

// What is chosen is kept before hours of judging, under a name that nobody loads by mistake, and takes its own name
// when it is judged worth it; an older choice of that name stays until then.
Result<int> judge_and_keep(const Parsed& parsed, const Settings& settings, const RunOptions& options,
                           const OverlapTuneOptions& tuning, OverlapTuning& done) {
  const std::string file = parsed.value("--out").value_or("overlap.toml");
  const std::string unjudged = file + ".unjudged";
  MB_TRY(write_file(unjudged, overlap_toml(done)));
  const Status judged = judge_overlap(settings, options, tuning, done);
  print_tables(parsed, {overlap_table(done)});
  if (!judged) {
    say(fmt::format("{}: the choice, not judged\n", unjudged));
    MB_TRY(write_file(unjudged, overlap_toml(done)));
    return tl::unexpected(judged.error());
  }
  if (done.is_worth_it()) MB_TRY(write_file(file, overlap_toml(done)));
  std::filesystem::remove(unjudged);
  if (!done.is_worth_it()) {
    say("nothing is kept: on some shape the choice is not surely faster than no overlap, or slower than the "
        "defaults\n");
    return 2;
  }
  if (!parsed.flag("--json")) fmt::print("{}: written, as a table of mbbench.toml or of a suite's basis\n", file);
  return 0;
}

Status tune_gemms_of(const trainer::Config& config, bool brief) {
  MB_ASSIGN(const trainer::Layout layout, trainer::resolve(config));
  MB_ASSIGN(const trainer::StepPrograms programs, trainer::build_programs(layout));
  return trainer::tune_gemms(config.host, programs.programs[0], programs.plans[0], layout.mesh,
                             static_cast<uint64_t>(config.train.seed), brief);
}

// In a process of its own: this one must not hold a GPU that launches are timed on.
void tune_gemms_beside(const std::vector<trainer::Config>& configs) {
  constexpr unsigned kMostSeconds = 300;
  const pid_t parent = getpid(), child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, SIG_DFL);
    if (getppid() != parent) _exit(127);
    alarm(kMostSeconds);
    Status all;
    for (const trainer::Config& config : configs)
      if (const Status tuned = tune_gemms_of(config, true); !tuned && all) all = tuned;
    if (!all) say(fmt::format("GEMMs left to launches, which time them briefly: {}\n", all.error().what));
    _exit(0);
  }
  while (child > 0 && waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
}

Result<int> tune_the_overlap(const Parsed& parsed, const Settings& settings) {
  StopSignals signals;
  RunOptions options;
  options.command = "tune";
  options.argv = parsed.argv;
  options.runs_dir = settings.product.runs_dir;
  options.roles = roles_of(settings);
  options.facts = declared_facts(settings.product.gate);
  options.require_measured = true;
  options.twins = false;
  options.quiet = parsed.flag("--quiet");
  options.stop = signals.flag();
  MB_ASSIGN(options.launches, number_of(parsed, "--launches", 3, 100));
  if (options.launches < 2)
    return fail(ErrorCode::kBadArgument, "--launches 1 has no noise to compare with", "give 2 or more");
  MB_ASSIGN(OverlapTuneOptions tuning, overlap_options(parsed, settings));
  tuning.gpus_here = static_cast<int>(profiler::list_gpus().gpus.size());
  tuning.tune_gemms = tune_gemms_beside;
  MB_TRY(check_writable(parsed.value("--out").value_or("overlap.toml")));
  const auto chosen = [&]() -> Result<int> {
    MB_ASSIGN(OverlapTuning done, choose_overlap(settings, options, tuning));
    if (done.choice.overlaps()) return judge_and_keep(parsed, settings, options, tuning, done);
    print_tables(parsed, {overlap_table(done)});
    say("nothing is kept: at no site is an overlap surely faster than whole collectives\n");
    return 2;
  }();
  if (chosen || chosen.error().code != ErrorCode::kCancelled) return chosen;
  return signals.interrupted() ? kExitInterrupted : kExitStopped;
}

// Every cell of a suite that one GPU runs, by the file of the command line; what the file holds already is not timed
// again, so that cells of the same shapes cost little. Cells that do not fit are told and left out.
Result<int> tune_suite(const Parsed& parsed, const Settings& settings, const std::string& name) {
  MB_ASSIGN(const Suite suite, suite_of(parsed, settings, name));
  const std::string& file = settings.config.host.gemm_tuning_file;
  size_t tuned = 0, other = 0;
  std::optional<Error> refused;  // the first
  for (const Cell& cell : suite.cells) {
    trainer::Config config = cell.config;
    if (cell.skipped || cell.command || gpus_of(config) != 1) {
      ++other;
      continue;
    }
    config.host.device = trainer::Device::kCuda;
    config.host.gemm_tuning_file = file;
    if (const Status done = tune_gemms_of(config, parsed.flag("--brief")); !done) {
      if (!refused) refused = done.error();
      say(fmt::format("{}: left out, {}\n", cell.name, done.error().what));
      continue;
    }
    ++tuned;
    if (!parsed.flag("--quiet")) say(fmt::format("{}: tuned\n", cell.name));
  }
  if (tuned == 0 && refused) return tl::unexpected(*refused);
  if (tuned == 0)
    return fail(ErrorCode::kNotFound, fmt::format("suite {} has no cell of one GPU to tune", suite.name),
                "tuning takes one GPU: give a configuration's knobs instead of --suite");
  fmt::print("{}: written for {} cells of {} ({} others take no GPU's tuning: of several GPUs, skipped, or commands)\n",
             file, tuned, suite.name, other);
  return 0;
}

Result<int> tune(const Parsed& parsed) {
  MB_ASSIGN(Settings settings, settings_of(parsed));
  trainer::HostConfig& host = settings.config.host;
  if (host.gemm_tuning_file.empty()) host.gemm_tuning_file = "gemm-tuning.txt";
  const auto suite = parsed.value("--suite");
  if (suite && parsed.flag("--overlap"))
    return fail(ErrorCode::kBadArgument, "--suite chooses GEMMs, and --overlap does not go with it",
                "choose an overlap by the knobs of one cell");
  if (suite) return tune_suite(parsed, settings, *suite);
  for (const char* option : {"--judge", "--sms", "--launches", "--seconds", "--out"})
    if (!parsed.flag("--overlap") && parsed.value(option))
      return fail(ErrorCode::kBadArgument, fmt::format("{} without --overlap", option),
                  "a GEMM's algorithm is chosen alone, and kept in host.gemm_tuning_file");
  if (host.device != trainer::Device::kCuda)
    return fail(ErrorCode::kBadArgument, "tuning times a GPU's GEMMs, and host.device is cpu", "add host.device=cuda");
  if (parsed.flag("--overlap")) return tune_the_overlap(parsed, settings);
  MB_TRY(tune_gemms_of(settings.config, parsed.flag("--brief")));
  fmt::print("{}: written. A run reads it with host.gemm_tuning_file={}\n", host.gemm_tuning_file,
             host.gemm_tuning_file);
  return 0;
}

}  // namespace

Command tune_command() {
  return {"tune",
          "choose the GEMM algorithms of a configuration under sustained load, into host.gemm_tuning_file",
          {},
          {{"--brief", nullptr, "about 0.1 s a GEMM instead of 2: so that all launches of a suite run the same ones"},
           {"--suite", "SUITE", "of every cell of a suite that one GPU runs (--only, --skip)"},
           {"--only", "CELL", "with --suite: cells that match (repeats)", true},
           {"--skip", "CELL", "with --suite: leave out cells that match (repeats)", true},
           {"--overlap", nullptr,
            "choose tp_comm_overlap_cfg by GEMM site instead: method x SMs x splits, from traced steps"},
           {"--judge", "KNOBS",
            "with --overlap: another shape its choice is judged on (repeats; default: half the sequence, with the same "
            "and twice the micro-batch)",
            true},
           {"--sms", "LIST", "with --overlap: SMs of collectives to try (default 4,8,16)"},
           {"--launches", "N", "with --overlap: fresh processes a candidate (default 3)"},
           {"--seconds", "N", "with --overlap: no round of the candidates' launches begins later; two are needed"},
           {"--out", "FILE", "with --overlap: where the choice goes (default overlap.toml)"},
           {"--quiet", nullptr, "no progress"},
           kJsonOption,
           kMarkdownOption},
          true,
          tune};
}

}  // namespace mbb::suites
