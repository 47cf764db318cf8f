// zlib's file reader behind our errors.
#include "profiler/trace/readers/gzip_stream.h"

#include <zlib.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/core.h>

namespace mbb::profiler {

struct GzipStream::Impl {
  Impl(std::filesystem::path of, gzFile handle) : path(std::move(of)), file(handle) {}
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() { gzclose(file); }

  std::filesystem::path path;
  gzFile file;
};

GzipStream::GzipStream(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GzipStream::GzipStream(GzipStream&&) noexcept = default;
GzipStream& GzipStream::operator=(GzipStream&&) noexcept = default;
GzipStream::~GzipStream() = default;

Result<GzipStream> GzipStream::open(const std::filesystem::path& path) {
  std::error_code failed;
  const auto status = std::filesystem::status(path, failed);
  if (!std::filesystem::exists(status))
    return fail(ErrorCode::kNotFound, fmt::format("{}: no such file", path.string()));
  if (!std::filesystem::is_regular_file(status))
    return fail(ErrorCode::kBadFile, fmt::format("{} is not a file", path.string()));
  const gzFile file = gzopen(path.c_str(), "rb");
  if (file == nullptr) return fail(ErrorCode::kIo, fmt::format("opening {}: {}", path.string(), std::strerror(errno)));
  gzbuffer(file, 1U << 18U);
  return GzipStream(std::make_unique<Impl>(path, file));
}

Result<size_t> GzipStream::read(std::span<char> to) {
  const int got = gzread(impl_->file, to.data(), static_cast<unsigned>(to.size()));
  int code = Z_OK;
  const char* why = gzerror(impl_->file, &code);
  // A file cut inside its last member reads to the end and only then reports Z_BUF_ERROR.
  if (got < 0 || (code != Z_OK && code != Z_STREAM_END))
    return fail(ErrorCode::kBadFile, fmt::format("{}: damaged or cut off: {}", impl_->path.string(), why),
                "copy or record the file again");
  return static_cast<size_t>(got);
}

}  // namespace mbb::profiler
