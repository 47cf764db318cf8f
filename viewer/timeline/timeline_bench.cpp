// How fast a trace opens and how much a frame costs while panning and zooming: timeline_bench [million spans] (10).
#include <fmt/core.h>
#include <imgui.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "profiler/base/clock.h"
#include "profiler/trace/trace_file.h"
#include "viewer/app/stage.h"
#include "viewer/load/traces.h"
#include "viewer/theme/style.h"
#include "viewer/timeline/canvas.h"
#include "viewer/timeline/generate.h"

namespace mbb::viewer {
namespace {

constexpr int kFrames = 300;

struct Spread {
  std::vector<double> ms;
  double at(double share) {
    std::sort(ms.begin(), ms.end());
    return ms[static_cast<std::size_t>(share * static_cast<double>(ms.size() - 1))];
  }
};

// CPU time of the frame that ImGui and the canvas take; no pixels are drawn.
void report_frames(Stage& stage, const TimelineModel& model, const char* what, double share, double pan_px,
                   double zoom) {
  Canvas canvas;
  TimeView view;
  const double length = static_cast<double>(model.end_ns - model.start_ns);
  view.fit(length * 0.3, length * (0.3 + share), 1480);
  Spread spread;
  for (int i = 0; i < kFrames; ++i) {
    view.pan(i % 100 < 50 ? -pan_px : pan_px);
    view.zoom(i % 100 < 50 ? zoom : 1 / zoom, 700);
    const std::int64_t before = thread_cpu_ns();
    stage.frame({}, [&] {
      ImGui::SetNextWindowPos(ImVec2(0, 0));
      ImGui::SetNextWindowSize(ImVec2(1600, 1000));
      ImGui::Begin("bench", nullptr, ImGuiWindowFlags_NoDecoration);
      canvas.draw("canvas", model, ImVec2(1580, 980), view, {.origin_ns = model.start_ns});
      ImGui::End();
    });
    if (i >= 20) spread.ms.push_back(static_cast<double>(thread_cpu_ns() - before) * 1e-6);
  }
  fmt::print("{:<34} p50 {:.2f} ms   p99 {:.2f} ms   max {:.2f} ms of CPU a frame\n", what, spread.at(0.5),
             spread.at(0.99), spread.at(1));
}

int run(std::int64_t spans) {
  const std::filesystem::path file = std::filesystem::temp_directory_path() / "mbb-timeline-bench.mbtrace";
  {
    const profiler::Trace made = generate_trace({.spans = spans, .ranks = 8, .steps = 10, .micro_batches = 8});
    const Status written = profiler::write_trace(file, made);
    if (!written.has_value()) {
      fmt::print(stderr, "{}\n", format(written.error()));
      return 4;
    }
    fmt::print("{} spans on {} tracks, {} MiB on disk\n", made.spans.size(), made.tracks.size(),
               std::filesystem::file_size(file) >> 20U);
  }
  const std::int64_t cpu_start = process_cpu_ns();
  const Stopwatch watch;
  const std::atomic<bool> go_on{false};
  Result<profiler::Trace> trace = read_traces({file}, go_on);
  std::filesystem::remove(file);
  if (!trace.has_value()) {
    fmt::print(stderr, "{}\n", format(trace.error()));
    return 4;
  }
  const double read_s = static_cast<double>(watch.elapsed_ns()) * 1e-9;
  const double read_cpu_s = static_cast<double>(process_cpu_ns() - cpu_start) * 1e-9;
  const Result<TimelineModel> model =
      build_timeline(std::make_shared<const profiler::Trace>(std::move(*trace)), ColorBy::kWork, go_on);
  const double all_s = static_cast<double>(watch.elapsed_ns()) * 1e-9;
  const double all_cpu_s = static_cast<double>(process_cpu_ns() - cpu_start) * 1e-9;
  fmt::print("open: read {:.2f} s (CPU {:.2f}), arrange {:.2f} s (CPU {:.2f}), together {:.2f} s\n", read_s, read_cpu_s,
             all_s - read_s, all_cpu_s - read_cpu_s, all_s);
  const std::unique_ptr<Stage> stage = open_headless({.width = 1600, .height = 1000});
  load_fonts(1);
  apply_style(Theme::kDark, 1);
  report_frames(*stage, *model, "all of it, panning", 1, 7, 1);
  report_frames(*stage, *model, "one step of ten, panning", 0.1, 7, 1);
  report_frames(*stage, *model, "1 % of it, panning", 0.01, 7, 1);
  report_frames(*stage, *model, "0.1 % of it, panning", 0.001, 7, 1);
  report_frames(*stage, *model, "zooming in and out", 0.5, 0, 0.9);
  return 0;
}

}  // namespace
}  // namespace mbb::viewer

int main(int argc, char** argv) {
  const long millions = argc > 1 ? std::strtol(argv[1], nullptr, 10) : 10;
  if (millions < 1 || millions > 200) {
    fmt::print(stderr, "usage: timeline_bench [1..200 million spans]\n");
    return 64;
  }
  return mbb::viewer::run(millions * 1'000'000);
}
