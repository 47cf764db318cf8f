// The viewer's command line.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "profiler/base/error.h"
#include "viewer/load/source.h"
#include "viewer/theme/palette.h"

namespace mbb::viewer {

struct Options {
  SourceSpec source;
  std::string panel;                                         // empty: the one of last time
  std::optional<Theme> theme;                                // none: the one of last time
  std::vector<std::pair<std::string, std::string>> selects;  // --select K=V in order
  std::string run, other;                                    // positional RUN [OTHER]
  std::filesystem::path screenshot;
  std::filesystem::path script;
  int width = 1440;
  int height = 900;
  double scale = 0;  // 0: the screen's
  std::string help;  // text to print instead of opening anything
};

struct WindowSize {
  int width = 0;
  int height = 0;
};
// "1440x900"; zeros where the text is no size.
WindowSize parse_size(const std::string& text);

// Errors are kBadArgument (exit 64).
Result<Options> parse_options(int argc, const char* const* argv);

// The store this command would open without --store: the nearest mbbench-runs/mbbench.sqlite upward from here.
std::filesystem::path default_store();

}  // namespace mbb::viewer
