// mbbench import: other trainers' logs and configurations, traces and memory snapshots become a run, or knobs.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "analysis/metrics/cell_metrics.h"
#include "analysis/metrics/peaks.h"
#include "analysis/report/suite_table.h"
#include "baselines/store/bundle.h"
#include "profiler/base/file.h"
#include "profiler/base/log.h"
#include "profiler/base/text.h"
#include "suites/cli/command.h"
#include "suites/cli/print.h"
#include "suites/cli/settings_of.h"
#include "suites/runner/import.h"
#include "suites/runner/runner.h"
#include "trainer/models/hardware.h"

namespace mbb::suites {
namespace {

using analysis::Table;

// Words behind the first file are files too, as far as they are no knobs: no '=', no dashes, no value of "--name".
std::vector<std::string> take_files(Parsed& parsed) {
  std::vector<std::string> files = parsed.positionals, knobs;
  for (size_t i = 0; i < parsed.knobs.size(); ++i) {
    const std::string& word = parsed.knobs[i];
    const bool follows_name = i > 0 && parsed.knobs[i - 1].starts_with("--") &&
                              parsed.knobs[i - 1].find('=') == std::string::npos && !file_exists(word);
    const bool file = !word.starts_with("-") && word.find('=') == std::string::npos && !follows_name;
    (file ? files : knobs).push_back(word);
  }
  parsed.knobs = knobs;
  return files;
}

// `alone`: a configuration without a log, which would say the GPUs.
Table knobs_table(const ImportedSettings& imported, bool alone) {
  Table table{"imported_knobs",
              fmt::format("knobs from {}", imported.file.string()),
              {{"knob", "knob"}, {"value", "value"}, {"from", "from"}},
              {},
              {}};
  for (const ImportedKnob& knob : imported.knobs.knobs) {
    const std::string place =
        knob.from.line > 0 ? fmt::format("{} (line {})", knob.from.key, knob.from.line) : knob.from.key;
    table.rows.push_back({{{knob.key}, {knob.value}, {place}}});
  }
  if (alone && !imported.knobs.gpus_note.empty()) table.footer.push_back("GPUs: " + imported.knobs.gpus_note + ".");
  if (alone && !imported.knobs.no_model_note.empty())
    table.footer.push_back("Model: " + imported.knobs.no_model_note + ".");
  if (!imported.knobs.model_note.empty()) table.footer.push_back("Model: " + imported.knobs.model_note + ".");
  return table;
}

// Every key that became no knob: first those that say something, then the unset ones.
Table not_understood_table(const ImportedSettings& imported) {
  Table table{"not_understood",
              fmt::format("not understood in {}", imported.file.string()),
              {{"key", "key"}, {"value", "value"}, {"why", "why"}},
              {},
              {}};
  for (const RefusedSetting& one : imported.knobs.refused)
    table.rows.push_back({{{one.from.key}, {printable(one.from.value, 60)}, {one.reason}}});
  size_t unset = 0;
  for (const bool say_nothing : {false, true})
    for (const ForeignSetting& one : imported.knobs.not_understood) {
      if (is_unset(one.value) != say_nothing) continue;
      unset += say_nothing ? 1 : 0;
      table.rows.push_back(
          {{{one.key}, {one.value.empty() ? "(empty)" : printable(one.value, 60)}, {"no knob of that name"}}});
    }
  table.footer.push_back(fmt::format("{} settings became knobs; {} did not, {} of them unset, {} refused.",
                                     imported.knobs.knobs.size(), table.rows.size(), unset,
                                     imported.knobs.refused.size()));
  return table;
}

Result<std::vector<ForeignFile>> read_all(const std::vector<std::string>& paths, const std::string& format) {
  std::vector<ForeignFile> files;
  for (const std::string& path : paths) {
    if (baselines::looks_like_bundle(path))
      return fail(ErrorCode::kBadFile, fmt::format("{} is a bundle of this program", printable(path, 4096)),
                  fmt::format("mbbench index {} brings it into the store", printable(path, 4096)));
    MB_ASSIGN(const auto found, foreign_files(path));
    size_t read = 0;
    for (const std::filesystem::path& file : found) {
      auto one = read_foreign(file, format);
      if (!one && found.size() == 1 && !is_folder(path)) return tl::unexpected<Error>(std::move(one.error()));
      if (!one) {  // of a folder the others are read, and this one is named
        say(fmt::format("left out: {}\n", one.error().what));
        continue;
      }
      ++read;
      files.push_back(std::move(*one));
    }
    if (read == 0)
      return fail(ErrorCode::kBadFile, fmt::format("{}: none of its {} files can be imported", path, found.size()),
                  "logs of " + log_format_names() + "; run_config.yaml; Kineto and nsys traces; memory snapshots");
  }
  return files;
}

// Options that the files at hand give nothing to do.
Status check_options(const Parsed& parsed, const std::vector<ForeignFile>& files) {
  const auto any = [&](auto&& is) { return std::any_of(files.begin(), files.end(), is); };
  const bool logs = any([](const ForeignFile& file) { return file.kind == ForeignKind::kLog; });
  const bool stores = any([](const ForeignFile& file) { return file.kind != ForeignKind::kConfig; });
  for (const char* option : {"--cell", "--log"})
    if (!logs && parsed.value(option))
      return fail(ErrorCode::kBadArgument, fmt::format("{}: none of the files is a log, and it is for logs", option),
                  "leave it out");
  for (const char* option : {"--tag", "--on"})
    if (!stores && parsed.value(option))
      return fail(ErrorCode::kBadArgument,
                  fmt::format("{}: a configuration alone becomes knobs, and no run is stored", option), "leave it out");
  return {};
}

Status write_suite(const Parsed& parsed, const ImportOutcome& outcome) {
  const auto output = parsed.value("--output");
  if (!output) return {};
  if (outcome.settings.size() != 1)
    return fail(ErrorCode::kBadArgument,
                fmt::format("--output {}: a suite file is written of one configuration, and {} were imported",
                            printable(*output), outcome.settings.size()));
  const ImportedSettings& one = outcome.settings.front();
  return write_file(*output, imported_toml(one.knobs, one.file.filename().string()));
}

// The table of what came, with what a log's steps do not say by their numbers alone.
Table cells_table(const baselines::Run& run) {
  constexpr double kAnotherRun = 0.2;  // no formula counts so differently: a wrong model, batch or number of GPUs
  Table table = analysis::suite_table(run);
  for (const baselines::Cell& cell : run.cells) {
    for (const baselines::VerdictRow& row : cell.verdicts)
      if (row.subject == "batch" || row.subject == "updates" ||
          (row.subject == "TFLOP/s" && std::abs(row.change) > kAnotherRun))
        table.footer.push_back(fmt::format("{}: {}.", cell.name, row.text));
    if (cell.status == baselines::CellStatus::kOk && cell.result_class == baselines::ResultClass::kMeasured &&
        analysis::find(cell, "step_time") != nullptr && !analysis::peaks_of(cell.device))
      table.footer.push_back(
          fmt::format("{}: no peak of '{}' is known, so that it has no MFU and its rate is held "
                      "against nothing; --on takes a name of `mbbench list hardware`.",
                      cell.name, printable(cell.device)));
  }
  return table;
}

Result<int> import(const Parsed& given) {
  Parsed parsed = given;
  const std::vector<std::string> paths = take_files(parsed);
  ImportRequest request;
  MB_ASSIGN(request.settings, settings_of(parsed));
  MB_ASSIGN(request.files, read_all(paths, parsed.value("--log").value_or(kAutoFormat)));
  MB_TRY(check_options(parsed, request.files));
  request.cell = parsed.value("--cell").value_or("");
  request.device = trainer::device_name_of(parsed.value("--on").value_or(""));
  MB_ASSIGN(request.tag, tag_of(parsed));
  request.argv = parsed.argv;
  MB_ASSIGN(const ImportOutcome outcome, import_files(request));
  MB_TRY(write_suite(parsed, outcome));
  std::vector<Table> tables;
  if (!outcome.run.id.empty()) tables.push_back(cells_table(outcome.run));
  for (const ImportedSettings& one : outcome.settings) {
    tables.push_back(knobs_table(one, outcome.run.id.empty()));
    tables.push_back(not_understood_table(one));
  }
  print_tables(parsed, tables);
  if (!parsed.flag("--json") && !outcome.run.id.empty())
    fmt::print("run {}  {}\n", outcome.run.id, outcome.bundle.string());
  return import_status(outcome.run);
}

}  // namespace

Command import_command() {
  return {"import",
          "read other trainers' logs and configurations, traces and memory snapshots",
          {{"FILE", "a file or folder; more may follow"}},
          {{"--log", "FORMAT", "how logs are read (default auto)"},
           {"--cell", "NAME", "all logs are launches of one cell of this name"},
           {"--on", "DEVICE", "GPU model they ran on, where the log does not say: a name of `mbbench list hardware`"},
           {"--tag", "NAME", "find the run later as @NAME"},
           {"--output", "FILE", "write the knobs of a configuration as a suite file"},
           kJsonOption,
           kMarkdownOption},
          true,
          import};
}

}  // namespace mbb::suites
