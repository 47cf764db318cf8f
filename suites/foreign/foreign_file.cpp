// Looks at the first bytes, then asks the reader.
#include "suites/foreign/foreign_file.h"

#include <fmt/core.h>
#include <limits>

#include <algorithm>
#include <fstream>

#include "profiler/base/file.h"
#include "profiler/trace/readers/gzip_stream.h"
#include "profiler/trace/readers/kineto.h"
#include "profiler/trace/readers/nsys.h"
#include "suites/foreign/foreign_config.h"

namespace mbb::suites {
namespace {

namespace fs = std::filesystem;

constexpr size_t kHead = size_t{1} << 16U;
constexpr size_t kLargestConfig = size_t{16} << 20U;

Result<std::string> head_of(const fs::path& path) {
  MB_ASSIGN(auto stream, profiler::GzipStream::open(path));
  std::string head(kHead, '\0');
  size_t filled = 0;
  while (filled < kHead) {
    MB_ASSIGN(const size_t got, stream.read({head.data() + filled, kHead - filled}));
    if (got == 0) break;
    filled += got;
  }
  head.resize(filled);
  return head;
}

bool is_chrome_trace(std::string_view head) {
  const bool object =
      head.find_first_not_of(" \n\r\t") != std::string_view::npos && head[head.find_first_not_of(" \n\r\t")] == '{';
  return object && (head.find("\"traceEvents\"") != std::string_view::npos ||
                    head.find("\"deviceProperties\"") != std::string_view::npos);
}

// Of a host with GPUs of several models nobody knows which of them it was.
std::string only_one(const std::vector<std::string>& devices) {
  return devices.size() == 1 ? devices.front() : std::string();
}

// Reads of a trace say what is wrong; which file it is, not always.
template <typename T>
Result<T> naming(const fs::path& path, Result<T> read) {
  if (read || read.error().what.find(path.string()) != std::string::npos) return read;
  return tl::unexpected<Error>(std::move(read.error()).during(path.string()));
}

Result<ForeignFile> read_kineto_file(ForeignFile file) {
  file.kind = ForeignKind::kKineto;
  MB_ASSIGN(const profiler::KinetoTrace kineto, profiler::read_kineto(file.path));
  MB_ASSIGN(file.trace, naming(file.path, profiler::to_trace(kineto)));
  file.device = only_one(kineto.devices);
  file.left_out = kineto.malformed_events;
  file.rank = kineto.rank;
  file.world_size = kineto.world_size;
  file.note = kineto.note;
  file.zero_ns = std::numeric_limits<int64_t>::max();
  for (const profiler::KinetoEvent& event : kineto.events)
    if (event.duration_ns >= 0) file.zero_ns = std::min(file.zero_ns, event.start_ns);
  return file;
}

Result<ForeignFile> read_nsys_file(ForeignFile file) {
  file.kind = ForeignKind::kNsys;
  MB_ASSIGN(profiler::NsysTrace nsys, naming(file.path, profiler::read_nsys(file.path)));
  file.device = only_one(nsys.devices);
  file.trace = std::move(nsys.trace);
  file.left_out = nsys.malformed_rows;
  return file;
}

// A log; without a step in it, a configuration.
Result<ForeignFile> read_text_file(ForeignFile file, const std::string& log_format) {
  auto log = read_log(file.path, log_format);
  if (log) {
    file.log = std::move(*log);
    return file;
  }
  const auto text = read_file(file.path, kLargestConfig);
  const ConfigKind kind = text ? config_kind(*text) : ConfigKind::kNone;
  if (kind == ConfigKind::kNone) return tl::unexpected<Error>(log.error());
  file.kind = ForeignKind::kConfig;
  if (kind == ConfigKind::kArguments) {
    file.settings = read_argument_dump(*text);
    if (file.settings.empty())
      return fail(ErrorCode::kBadFile, fmt::format("{}: an argument dump without an argument", file.path.string()),
                  "its lines are \"  name ........ value\", as Megatron prints them");
    return file;
  }
  auto settings = read_yaml(*text);
  if (!settings) return tl::unexpected<Error>(std::move(settings.error()).during(file.path.string()));
  file.settings = std::move(*settings);
  return file;
}

}  // namespace

const char* name(ForeignKind kind) {
  switch (kind) {
    case ForeignKind::kLog: return "training log";
    case ForeignKind::kConfig: return "configuration";
    case ForeignKind::kKineto: return "Kineto trace";
    case ForeignKind::kNsys: return "nsys export";
    case ForeignKind::kSnapshot: return "memory snapshot";
  }
  return "file";
}

Result<ForeignFile> read_foreign(const fs::path& path, const std::string& log_format) {
  MB_TRY(make_log_reader(log_format));
  MB_ASSIGN(const std::string head, head_of(path));
  ForeignFile file;
  file.path = path;
  if (head.empty()) return fail(ErrorCode::kBadFile, fmt::format("{} is empty", path.string()));
  if (head.starts_with("SQLite format 3")) return read_nsys_file(std::move(file));
  if (is_chrome_trace(head)) return read_kineto_file(std::move(file));
  if (head[0] == '\x80') {
    file.kind = ForeignKind::kSnapshot;
    MB_ASSIGN(file.snapshot, profiler::read_snapshot(path));
    return file;
  }
  return read_text_file(std::move(file), log_format);
}

Result<std::vector<fs::path>> foreign_files(const fs::path& path) {
  if (!file_exists(path.string()))
    return fail(ErrorCode::kNotFound, fmt::format("no file or folder {}", path.string()));
  if (!is_folder(path.string())) return std::vector<fs::path>{path};
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator at(path, error), end; !error && at != end; at.increment(error))
    if (at->is_regular_file()) files.push_back(at->path());
  if (error) return fail(ErrorCode::kIo, fmt::format("listing {}: {}", path.string(), error.message()));
  if (files.empty()) return fail(ErrorCode::kNotFound, fmt::format("{} holds no file", path.string()));
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace mbb::suites
