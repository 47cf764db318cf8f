// Parsing with CLI11.
#include "viewer/app/options.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>

#include "baselines/store/bundle.h"
#include "profiler/base/text.h"
#include "viewer/panels/panel.h"

namespace mbb::viewer {
namespace {

namespace fs = std::filesystem;

constexpr int kMinSide = 320;
constexpr int kMaxSide = 8192;

std::string panel_names() {
  std::vector<std::string> names;
  for (const PanelEntry& entry : panels()) names.emplace_back(entry.name);
  return join(names, ", ");
}

Status take_size(const std::string& text, Options& options) {
  const WindowSize size = parse_size(text);
  if (size.width < kMinSide || size.height < kMinSide || size.width > kMaxSide || size.height > kMaxSide) {
    return fail(ErrorCode::kBadArgument, fmt::format("--size {}: not a size", printable(text)),
                fmt::format("WxH from {} to {}, such as 1440x900", kMinSide, kMaxSide));
  }
  options.width = size.width;
  options.height = size.height;
  return {};
}

struct Raw {
  std::string store, baselines, panel, theme, screenshot, script, size;
  std::vector<std::string> runs, selects, product, environment;
  double scale = 0;
};

Status check(const Raw& raw, Options& options) {
  if (!raw.panel.empty() && find_panel(raw.panel) == nullptr) {
    return fail(ErrorCode::kBadArgument, fmt::format("--panel {}: no such panel", printable(raw.panel)),
                "panels: " + panel_names());
  }
  if (!raw.theme.empty() && raw.theme != "dark" && raw.theme != "light") {
    return fail(ErrorCode::kBadArgument, fmt::format("--theme {}: no such theme", printable(raw.theme)),
                "themes: dark, light");
  }
  if (raw.scale != 0 && (raw.scale < 0.5 || raw.scale > 4)) {
    return fail(ErrorCode::kBadArgument, fmt::format("--scale {}: out of range", raw.scale), "0.5 to 4");
  }
  if (!raw.size.empty()) MB_TRY(take_size(raw.size, options));
  for (const std::string& select : raw.selects) {
    const std::size_t equals = select.find('=');
    if (equals == std::string::npos || equals == 0) {
      return fail(ErrorCode::kBadArgument, fmt::format("--select {}: needs FIELD=VALUE", printable(select)),
                  "such as --select cell=tp2");
    }
    options.selects.emplace_back(select.substr(0, equals), select.substr(equals + 1));
  }
  if (raw.runs.size() > 2) return fail(ErrorCode::kBadArgument, "more than two runs", "mbbench view [RUN [OTHER]]");
  return {};
}

}  // namespace

WindowSize parse_size(const std::string& text) {
  const std::size_t by = text.find('x');
  if (by == std::string::npos) return {};
  const std::int64_t width = parse_int(text.substr(0, by)).value_or(0);
  const std::int64_t height = parse_int(text.substr(by + 1)).value_or(0);
  constexpr std::int64_t kAny = 1 << 20;
  if (width <= 0 || height <= 0 || width > kAny || height > kAny) return {};
  return {static_cast<int>(width), static_cast<int>(height)};
}

fs::path default_store() {
  std::error_code error;
  for (fs::path at = fs::current_path(error); !error && !at.empty(); at = at.parent_path()) {
    const fs::path store = at / "mbbench-runs" / "mbbench.sqlite";
    if (fs::exists(store, error)) return store;
    if (at == at.parent_path()) break;
  }
  return fs::path("mbbench-runs") / "mbbench.sqlite";
}

Result<Options> parse_options(int argc, const char* const* argv) {
  Raw raw;
  CLI::App app("Looks at runs: timelines, memory, comparisons, history. Reads a store and bundles, changes nothing.",
               "mbbench view");
  app.add_option("RUN", raw.runs, "run A and run B: @latest, @2, @tag, an id, or a bundle folder");
  app.add_option("--store", raw.store, "store file (default: mbbench-runs/mbbench.sqlite here or in a folder above)");
  app.add_option("--baselines", raw.baselines, "file of accepted baselines, shown in the history");
  app.add_option("--product", raw.product, "PATTERN of facts that are the product's, as `mbbench gate` takes them")
      ->allow_extra_args(false);
  app.add_option("--environment", raw.environment, "PATTERN of facts that are the environment's")
      ->allow_extra_args(false);
  app.add_option("--panel", raw.panel, "panel in front: " + panel_names());
  app.add_option("--select", raw.selects,
                 "FIELD=VALUE of the selection: run, other, cell, op, launch, step, rank, ...");
  app.add_option("--theme", raw.theme, "dark or light");
  app.add_option("--size", raw.size, "window size, WxH");
  app.add_option("--scale", raw.scale, "size of text and controls; 1 is 96 dpi (default: the screen's)");
  app.add_option("--screenshot", raw.screenshot, "write the panel as PNG and end");
  app.add_option("--script", raw.script, "play a script of keys, clicks and expectations, and end");
  Options options;
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    options.help = app.help();
    return options;
  } catch (const CLI::ParseError& error) {
    return fail(ErrorCode::kBadArgument, error.what(), "mbbench view --help lists the options");
  }
  MB_TRY(check(raw, options));
  options.panel = raw.panel;
  options.source.baselines = raw.baselines;
  options.source.roles = {raw.product, raw.environment};
  if (!raw.theme.empty()) options.theme = raw.theme == "light" ? Theme::kLight : Theme::kDark;
  options.screenshot = raw.screenshot;
  options.script = raw.script;
  options.scale = raw.scale;
  for (const std::string& run : raw.runs) {
    if (baselines::looks_like_bundle(run) || run.find('/') != std::string::npos)
      options.source.bundles.emplace_back(run);
  }
  if (!raw.runs.empty()) options.run = raw.runs[0];
  if (raw.runs.size() > 1) options.other = raw.runs[1];
  const bool only_bundles =
      !options.source.bundles.empty() && options.source.bundles.size() == raw.runs.size() && raw.store.empty();
  if (!only_bundles) options.source.store = raw.store.empty() ? default_store() : fs::path(raw.store);
  return options;
}

}  // namespace mbb::viewer
