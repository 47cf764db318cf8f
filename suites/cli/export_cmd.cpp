// mbbench export: a stored run as files that other tools open.
#include <fmt/core.h>

#include <algorithm>
#include <set>

#include "baselines/store/bundle_copy.h"
#include "profiler/base/text.h"
#include "suites/cli/command.h"
#include "suites/cli/run_page.h"
#include "suites/cli/settings_of.h"
#include "suites/export/export.h"
#include "suites/export/redact_bundle.h"
#include "suites/export/redaction.h"

namespace mbb::suites {
namespace {

using Export = Result<std::vector<std::string>> (*)(const ExportSource&, const std::filesystem::path&);

struct Format {
  const char* name;
  const char* ending;  // of the default output: a folder without one
  Export write;
};

constexpr Format kFormats[] = {
    {"kineto", "-kineto", export_kineto}, {"memory", "-memory", export_memory}, {"csv", "-csv", export_csv},
    {"json", ".json", export_json},       {"html", ".html", nullptr},           {"bundle", "-bundle", nullptr},
};

// A run's own folder, to be copied, attached, archived.
Result<int> export_bundle(const Parsed& parsed, const baselines::BundleReader& reader,
                          const std::filesystem::path& to) {
  if (parsed.flag("--cell"))
    return fail(ErrorCode::kBadArgument, "--cell with --format bundle: a bundle is the whole run", "leave --cell out");
  RedactedBundle out;
  if (parsed.flag("--redact")) {
    std::set<std::string> words;
    for (const Command& command : commands()) {
      add_words(words, command.name);
      for (const OptionSpec& option : command.options) add_words(words, option.flag);
    }
    MB_ASSIGN(out, redact_bundle(reader, to, std::move(words)));
  } else {
    MB_ASSIGN(out.size, baselines::copy_bundle(reader, to));
  }
  fmt::print("{}\n{} cells, {} files, {}, verified; `mbbench index {}` brings it into a store\n", to.string(),
             out.size.cells, out.size.files, format_bytes(static_cast<double>(out.size.bytes)), to.string());
  if (!parsed.flag("--redact")) return 0;
  fmt::print("redacted  {}; the same name is the same placeholder everywhere\nleft out  {}\n", out.replaced,
             out.left_out.empty() ? "nothing" : join(out.left_out, ", "));
  return 0;
}

Result<int> export_run(const Parsed& parsed) {
  MB_ASSIGN(const Settings settings, settings_of(parsed));
  const std::string wanted = parsed.value("--format").value_or("");
  const auto format =
      std::find_if(std::begin(kFormats), std::end(kFormats), [&](const Format& f) { return wanted == f.name; });
  if (format == std::end(kFormats))
    return fail(ErrorCode::kBadArgument,
                wanted.empty() ? "export needs --format" : fmt::format("no export format '{}'", printable(wanted)),
                "one of kineto, memory, csv, json, html, bundle");
  if (wanted != "html" && parsed.flag("--against"))
    return fail(ErrorCode::kBadArgument, fmt::format("--against with --format {}: it would do nothing", wanted),
                "a page has a run above another: --format html");
  if (wanted != "bundle" && parsed.flag("--redact"))
    return fail(ErrorCode::kBadArgument, fmt::format("--redact with --format {}: it would do nothing", wanted),
                "what is redacted is a bundle: --format bundle; export it again from there");
  if (parsed.flag("--output") && parsed.value("--output").value_or("").empty())
    return fail(ErrorCode::kBadArgument, "--output is empty", "name a folder, for json and html a file");
  MB_ASSIGN(const std::filesystem::path bundle, find_bundle(settings, parsed.positionals[0]));
  MB_ASSIGN(const auto reader, baselines::BundleReader::open(bundle));
  const std::filesystem::path to = parsed.value("--output").value_or(reader.run().id + format->ending);
  if (wanted == "bundle") return export_bundle(parsed, reader, to);
  MB_ASSIGN(const baselines::Run run, reader.read_all());
  ExportSource source{run, reader, parsed.value("--cell").value_or("")};
  const bool has = source.cell.empty() || std::any_of(run.cells.begin(), run.cells.end(),
                                                      [&](const auto& c) { return c.name == source.cell; });
  if (!has)
    return fail(ErrorCode::kNotFound, fmt::format("run {} has no finished cell '{}'", run.id, printable(source.cell)));
  if (wanted == "html") {
    MB_TRY(write_page(settings, source, to, parsed.value("--against")));
    fmt::print("{}\n", to.string());
    return 0;
  }
  MB_ASSIGN(const auto files, format->write(source, to));
  for (const std::string& file : files) fmt::print("{}\n", file);
  return 0;
}

}  // namespace

Command export_command() {
  Command c{"export",
            "write a run for other tools (HTA and Perfetto, memory_viz, spreadsheets, scripts) or other machines",
            {{"RUN", "@latest, @2, @tag, id, prefix of an id, or bundle folder"}},
            {{"--format", "NAME", "kineto, memory, csv, json, html or bundle"},
             {"--output", "PATH", "folder to write to, for json and html a file (default: named after the run)"},
             {"--cell", "NAME", "only this cell"},
             {"--redact", nullptr, "bundle: without what names people, machines, paths and jobs"},
             {"--against", "RUN", "html: the run to stand above in timelines; default: its baseline's"}},
            true,
            export_run};
  c.settings_alone = true;
  return c;
}

}  // namespace mbb::suites
