// Settings, runs and signals for the commands.
#include "suites/cli/settings_of.h"

#include <fmt/core.h>

#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "baselines/store/bundle.h"
#include "profiler/base/file.h"
#include "profiler/base/text.h"
#include "suites/runner/planning.h"
#include "trainer/models/hardware.h"
#include "trainer/run/layout.h"

namespace mbb::suites {
namespace {

std::atomic<bool> stop_flag = false;
std::atomic<int> stop_signal = 0;

void on_signal(int signal) {
  Planning::end_here(signal == SIGINT ? kExitInterrupted : kExitStopped);
  stop_signal = signal;
  stop_flag = true;
}

}  // namespace

Result<Settings> settings_of(const Parsed& parsed) {
  MB_ASSIGN(auto given, parse_arguments(parsed.knobs));
  return read_settings(find_places("."), std::move(given));
}

Result<trainer::Layout> layout_of(const Settings& settings) {
  auto layout = trainer::resolve(settings.config);
  if (layout) return layout;
  std::string places;
  for (const auto& [key, source] : settings.sources)
    if (source.layer != Layer::kCommandLine && layout.error().what.find(key) != std::string::npos)
      places += fmt::format("{}{} stands at {}", places.empty() ? "" : ", ", key, describe(source));
  std::string& hint = layout.error().hint;
  if (!places.empty()) hint += (hint.empty() ? "" : "; ") + places;
  return layout;
}

Status resolves(const trainer::Config& config) {
  const auto layout = trainer::resolve(config);
  return layout ? Status{} : tl::unexpected<Error>(layout.error());
}

Result<Suite> suite_of(const Parsed& parsed, const Settings& settings, const std::string& name_or_file) {
  return suite_of(settings, name_or_file, {parsed.values("--only"), parsed.values("--skip")});
}

Result<Suite> suite_of(const Settings& settings, const std::string& name_or_file, const SuiteFilter& filter) {
  auto opened = open_suite(name_or_file, settings, filter, resolves);
  // A bad value is a bad file when it stands in the suite, a bad command line when it was typed.
  const auto typed = [](const std::string& what) {
    return what.starts_with("argument") || what.starts_with("suite ") || what.starts_with("no suite ");
  };
  if (!opened && !typed(opened.error().what) && opened.error().code == ErrorCode::kBadArgument)
    opened.error().code = ErrorCode::kBadFile;
  return opened;
}

Result<std::string> card_of(const Parsed& parsed, const std::string& usual) {
  const std::string named = parsed.value("--hardware").value_or(usual);
  auto found = trainer::find_hardware(named);
  if (found) return named;
  return fail(ErrorCode::kBadArgument, std::move(found.error().what), std::move(found.error().hint));
}

Result<baselines::Store> open_to_read(const std::filesystem::path& file) {
  std::error_code error;
  if (std::filesystem::file_size(file, error) == 0 && !error)
    return fail(ErrorCode::kBadFile, fmt::format("store {}: the file is empty", file.string()),
                "`mbbench index` rebuilds it from the bundles beside it");
  const auto may_write = [](const std::filesystem::path& path) {
    return ::faccessat(AT_FDCWD, path.c_str(), W_OK, AT_EACCESS) == 0;
  };
  if (may_write(file) && may_write(file.has_parent_path() ? file.parent_path() : ".")) {
    auto opened = baselines::Store::open(file);
    // A disk may be full whoever may write it.
    if (opened || opened.error().code != ErrorCode::kIo) return opened;
  }
  return baselines::Store::open(file, {.read_only = true});
}

Result<std::string> tag_of(const Parsed& parsed) {
  std::string tag = parsed.value("--tag").value_or("");
  if (tag.empty() && parsed.flag("--tag"))
    return fail(ErrorCode::kBadArgument, "--tag is empty", "give the name that the run is found by, as @NAME");
  if (tag == "latest" || parse_int(tag))
    return fail(ErrorCode::kBadArgument, fmt::format("--tag {}: @{} is the name of another run already", tag, tag),
                "@latest is the newest run, @2 the one before it: choose a word of your own");
  return tag;
}

std::vector<std::string> unsaid_sizes(const Settings& settings) {
  std::vector<std::string> unsaid;
  if (settings.config.model.name == trainer::Config{}.model.name) return unsaid;
  for (const char* key : {"train.seq_length", "train.global_batch_size"})
    if (!settings.sources.contains(key)) unsaid.emplace_back(key);
  return unsaid;
}

Result<size_t> rows_of(const Parsed& parsed, size_t usual) {
  const auto text = parsed.value("--rows");
  if (!text) return usual;
  const auto rows = parse_int(*text);
  if (!rows || *rows < 1)
    return fail(ErrorCode::kBadArgument, fmt::format("--rows {}: a number from 1 on", printable(*text)));
  return static_cast<size_t>(*rows);
}

Result<baselines::Run> find_run(const Settings& settings, const std::string& spec) {
  const std::filesystem::path file = store_file(settings.product.runs_dir);
  const bool is_folder_of_run = !spec.starts_with('@') && baselines::looks_like_bundle(spec);
  if (is_folder_of_run || !file_exists(file)) return baselines::load_run(spec, nullptr);
  MB_ASSIGN(const auto store, open_to_read(file));
  return baselines::load_run(spec, &store);
}

Result<std::filesystem::path> find_bundle(const Settings& settings, const std::string& spec) {
  if (baselines::looks_like_bundle(spec)) return std::filesystem::path(spec);
  MB_ASSIGN(const baselines::Run run, find_run(settings, spec));  // its errors name the runs there are
  // Beside the store first: a runs folder that was copied is read from the copy.
  const std::filesystem::path beside = std::filesystem::path(settings.product.runs_dir) / "runs" / run.id;
  if (std::filesystem::exists(beside)) return beside;
  MB_ASSIGN(const auto store, open_to_read(store_file(settings.product.runs_dir)));
  MB_ASSIGN(const baselines::RunSummary summary, store.summary(run.id));
  if (std::filesystem::exists(summary.bundle)) return std::filesystem::path(summary.bundle);
  return fail(ErrorCode::kNotFound, fmt::format("the bundle of run {} is not at {}", run.id, summary.bundle),
              "mbbench index DIR, where it lies now");
}

StopSignals::StopSignals() {
  stop_flag = false;
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
}

StopSignals::~StopSignals() {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

const std::atomic<bool>* StopSignals::flag() const {
  return &stop_flag;
}
bool StopSignals::interrupted() const {
  return stop_signal == SIGINT;
}

}  // namespace mbb::suites
