// A file, plain or gzip, read a piece at a time.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>

#include "profiler/base/error.h"

namespace mbb::profiler {

class GzipStream {
 public:
  static Result<GzipStream> open(const std::filesystem::path& path);
  GzipStream(GzipStream&&) noexcept;
  GzipStream& operator=(GzipStream&&) noexcept;
  ~GzipStream();

  // Bytes read; 0 at the end. A damaged or truncated gzip file is an error.
  Result<size_t> read(std::span<char> to);

 private:
  struct Impl;
  explicit GzipStream(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace mbb::profiler
