// A finished run's bundle at another place: whole and verified there, or nothing.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "baselines/store/bundle.h"

namespace mbb::baselines {

struct BundleSize {
  int64_t cells = 0;
  int64_t files = 0;
  int64_t bytes = 0;
};

// A folder that appears under its name only when what is in it is whole: it is made beside, and removed unless kept.
class NewBundle {
 public:
  // Nothing may be at `to`, which may not lie in `from`; the folder it shall lie in is made.
  static Result<NewBundle> beside(const std::filesystem::path& to, const std::filesystem::path& from);
  NewBundle(NewBundle&& other) noexcept : to_(std::move(other.to_)), part_(std::exchange(other.part_, {})) {}
  NewBundle& operator=(NewBundle&&) = delete;
  ~NewBundle();

  const std::filesystem::path& part() const { return part_; }  // to write below

  // Verifies the bundle `made`, which lies at or below part(), puts it on the disk and renames it.
  Result<BundleSize> keep(const std::filesystem::path& made);

 private:
  NewBundle(std::filesystem::path to, std::filesystem::path part) : to_(std::move(to)), part_(std::move(part)) {}
  std::filesystem::path to_;
  std::filesystem::path part_;  // empty once it is kept
};

// The names of all cells, each verified; an error where the run has not ended or a cell is unfinished or damaged.
Result<std::vector<std::string>> whole_cells(const BundleReader& reader);

// Copies what the checksums list, and nothing that lies beside it.
Result<BundleSize> copy_bundle(const BundleReader& from, const std::filesystem::path& to);

}  // namespace mbb::baselines
