// The list of log formats, the reader that tries them all, and whole files.
#include "suites/foreign/training_log.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "profiler/base/text.h"
#include "profiler/trace/readers/gzip_stream.h"
#include "suites/foreign/log_text.h"

namespace mbb::suites {
namespace {

constexpr std::array kFormats = {
    LogFormat{"megatron-lm", "Megatron-LM's iteration lines, and its argument dump", megatron_reader},
    LogFormat{"megatron-bridge", "Megatron-Bridge: the same lines, its step times and its configuration",
              megatron_reader},
    LogFormat{"nemo", "NeMo 2 (Lightning): train_step_timing lines", nemo_reader},
    LogFormat{"torchtitan", "torchtitan's step lines", torchtitan_reader},
    LogFormat{"llm.q", "llm.q's console and its log.json", llmq_reader},
    LogFormat{"jsonl", "one JSON object a step: step, step_time_s, loss, tokens, tflops_per_gpu, memory_bytes, ...",
              jsonl_reader},
};

constexpr size_t kLongestLine = size_t{1} << 20U;

// Asks every reader; the one that found most steps answers, the first of equals.
class Auto : public LogReader {
 public:
  Auto() {
    for (const LogFormat& format : kFormats)
      if (readers_.empty() || format.make != last_) readers_.push_back({(last_ = format.make)()});
  }

  bool line(std::string_view text) override {
    size_t most = 0;
    for (const Reader& reader : readers_) most = std::max(most, reader.steps);
    bool grew = false;
    for (Reader& reader : readers_)
      if (reader.reader->line(text) && ++reader.steps > most) grew = true;
    return grew;
  }

  const TrainingLog& so_far() const override {
    const auto most = std::max_element(readers_.begin(), readers_.end(),
                                       [](const Reader& a, const Reader& b) { return a.steps < b.steps; });
    return most->reader->so_far();
  }

  TrainingLog finish() override {
    std::vector<TrainingLog> logs;
    for (Reader& reader : readers_) logs.push_back(reader.reader->finish());
    size_t best = 0;
    const auto found = [](const TrainingLog& log) { return std::pair(log.steps.size(), log.timeless_lines); };
    for (size_t i = 1; i < logs.size(); ++i)
      if (found(logs[i]) > found(logs[best])) best = i;
    return std::move(logs[best]);
  }

 private:
  struct Reader {
    std::unique_ptr<LogReader> reader;
    size_t steps = 0;
  };
  std::unique_ptr<LogReader> (*last_)() = nullptr;
  std::vector<Reader> readers_;
};

}  // namespace

int64_t TrainingLog::interval() const {
  std::vector<int64_t> gaps;
  for (size_t i = 1; i < steps.size(); ++i) gaps.push_back(steps[i].index - steps[i - 1].index);
  if (gaps.empty()) return std::max<int64_t>(1, steps.empty() ? 1 : steps.front().index);
  std::nth_element(gaps.begin(), gaps.begin() + static_cast<std::ptrdiff_t>(gaps.size() / 2), gaps.end());
  return std::max<int64_t>(1, gaps[gaps.size() / 2]);
}

int64_t TrainingLog::missing_lines() const {
  std::vector<int64_t> printed;  // in any order, as after a restart
  for (const LoggedStep& step : steps) printed.push_back(step.index);
  std::sort(printed.begin(), printed.end());
  const int64_t every = interval();
  int64_t missing = 0;
  for (size_t i = 1; i < printed.size(); ++i)
    missing += std::max<int64_t>(0, (printed[i] - printed[i - 1]) / every - 1);
  return missing;
}

std::span<const LogFormat> log_formats() {
  return kFormats;
}

std::string log_format_names() {
  std::vector<std::string> names{kAutoFormat};
  for (const LogFormat& format : kFormats) names.emplace_back(format.name);
  return join(names, ", ");
}

Result<std::unique_ptr<LogReader>> make_log_reader(const std::string& format) {
  if (format == kAutoFormat) return std::unique_ptr<LogReader>(std::make_unique<Auto>());
  std::vector<std::string> names{kAutoFormat};
  for (const LogFormat& known : kFormats) {
    if (format == known.name) return known.make();
    names.emplace_back(known.name);
  }
  const auto near = nearest(format, names);
  return fail(ErrorCode::kBadArgument, fmt::format("no log format is called '{}'", printable(format)),
              near ? fmt::format("did you mean '{}'?", *near) : "formats: " + log_format_names());
}

Error no_step_error(const std::string& what, const TrainingLog& log, const std::string& format) {
  const bool automatic = format == kAutoFormat;
  if (log.timeless_lines > 0)
    return {ErrorCode::kBadFile,
            fmt::format("{}: no step found in {} line{}: {} of {} have a step whose time is no number above 0", what,
                        log.lines, log.lines == 1 ? "" : "s", log.timeless_lines, log.format),
            "times are in the unit that stands beside them, as numbers: {\"step\": 1, \"step_time_s\": 0.5}"};
  return {ErrorCode::kBadFile,
          fmt::format("{}: no step found in {} line{} ({})", what, log.lines, log.lines == 1 ? "" : "s",
                      automatic ? "tried " + log_format_names().substr(6) : "read as " + format),
          automatic
              ? "name its format, or write a line of JSON a step: {\"step\": 1, \"step_time_s\": 0.5, \"loss\": 2.5}"
              : "leave the format to 'auto', or check that the trainer logs its steps"};
}

Result<TrainingLog> read_log(const std::filesystem::path& path, const std::string& format) {
  MB_ASSIGN(const auto reader, make_log_reader(format));
  MB_ASSIGN(auto stream, profiler::GzipStream::open(path));
  std::string pending;
  std::vector<char> buffer(size_t{1} << 16U);
  const auto take = [&](std::string_view line) { reader->line(plain_line(line)); };
  for (;;) {
    MB_ASSIGN(const size_t got, stream.read(buffer));
    if (got == 0) break;
    pending.append(buffer.data(), got);
    size_t begin = 0;
    for (size_t end = 0; (end = pending.find('\n', begin)) != std::string::npos; begin = end + 1)
      take(std::string_view(pending).substr(begin, end - begin));
    pending.erase(0, begin);
    if (pending.size() > kLongestLine)
      return fail(ErrorCode::kBadFile,
                  fmt::format("{}: a line of more than {} bytes: no training log", path.string(), kLongestLine));
  }
  if (!pending.empty()) take(pending);
  TrainingLog log = reader->finish();
  if (log.steps.empty()) return tl::unexpected<Error>(no_step_error(path.string(), log, format));
  return log;
}

}  // namespace mbb::suites
