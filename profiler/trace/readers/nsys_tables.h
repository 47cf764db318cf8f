// The tables of an Nsight Systems export as rows: finds tables and columns whatever the schema's version.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "profiler/base/error.h"

namespace mbb::profiler {

// Values of one row, in the order of the columns asked for.
class NsysRow {
 public:
  virtual ~NsysRow() = default;
  virtual std::optional<int64_t> integer(size_t column) const = 0;  // nothing for NULL, an absent column, or a text
  virtual std::optional<std::string_view> text(size_t column) const = 0;
};

class NsysTables {
 public:
  static Result<NsysTables> open(const std::filesystem::path& path);
  NsysTables(NsysTables&&) noexcept;
  NsysTables& operator=(NsysTables&&) noexcept;
  ~NsysTables();

  // Calls `take` for each row of the table called `name`, or of its highest version `name`_V<n>; an absent table has no
  // rows. Columns that the table lacks read as NULL.
  Status rows(const std::string& name, const std::vector<std::string>& columns,
              const std::function<void(const NsysRow&)>& take) const;
  bool has(const std::string& name) const;

 private:
  struct Impl;
  explicit NsysTables(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace mbb::profiler
