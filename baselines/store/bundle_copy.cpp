// Copies a bundle file by file, verifies the copy, renames it into its place.
#include "baselines/store/bundle_copy.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <system_error>
#include <utility>
#include <vector>

#include "baselines/store/checksums.h"
#include "profiler/base/descriptor.h"
#include "profiler/base/file.h"
#include "profiler/base/text.h"

namespace mbb::baselines {
namespace {

namespace fs = std::filesystem;

tl::unexpected<Error> cannot(const char* doing, const fs::path& path, const std::error_code& error) {
  return fail(ErrorCode::kIo, fmt::format("{} {}: {}", doing, path.string(), error.message()),
              "is there room, and may it be written?");
}

// Whether `inner` is `outer` or lies in it.
bool lies_in(const fs::path& inner, const fs::path& outer) {
  std::error_code error;
  const fs::path relative = fs::weakly_canonical(inner, error).lexically_relative(fs::weakly_canonical(outer, error));
  return !relative.empty() && *relative.begin() != "..";
}

Result<std::vector<fs::path>> files_of(const fs::path& bundle, const std::vector<std::string>& cells) {
  std::vector<fs::path> files = {"run.json"};
  for (const std::string& name : cells) {
    const fs::path cell = fs::path("cells") / name;
    files.push_back(cell / kChecksumFile);
    MB_ASSIGN(const auto listed, listed_files(bundle / cell));
    for (const std::string& file : listed) files.push_back(cell / file);
  }
  return files;
}

// In pieces: a trace may be of many gigabytes.
Status copy_bytes(const fs::path& from, const fs::path& to) {
  Descriptor file(open_retry(to.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0644));
  int failed = file.get() < 0 ? errno : 0;
  if (failed == 0)
    MB_TRY(read_file_in_pieces(from, [&](std::string_view piece) {
      if (failed == 0 && !write_all(file.get(), piece)) failed = errno;
    }));
  if (failed == 0 && !file.close()) failed = errno;
  return failed == 0 ? Status{} : cannot("writing", to, {failed, std::generic_category()});
}

// All that was written below, and the names: one flush for a thousand files.
Status flush_all(const fs::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const int failed = fd < 0 ? errno : ::syncfs(fd) != 0 ? errno : 0;
  if (fd >= 0) ::close(fd);
  return failed == 0 ? Status{} : cannot("flushing", folder, {failed, std::generic_category()});
}

}  // namespace

Result<NewBundle> NewBundle::beside(const fs::path& to, const fs::path& from) {
  if (lies_in(to, from))
    return fail(ErrorCode::kBadArgument, fmt::format("{} lies in the bundle that it would copy", to.string()),
                "choose an --output outside of it");
  std::error_code error;
  if (fs::exists(fs::symlink_status(to, error)))
    return fail(ErrorCode::kBadArgument, fmt::format("{} is already there", printable(to.string(), 4096)),
                "a bundle is never written over another one: choose another --output, or remove it first");
  const fs::path whole = fs::absolute(to, error).lexically_normal();
  const fs::path named = whole.has_filename() ? whole : whole.parent_path();
  MB_TRY(make_dirs(named.parent_path()));
  const fs::path part = fmt::format("{}{}{}", named.string(), kTemporarySuffix, ::getpid());
  fs::remove_all(part, error);  // of a killed process of the same id
  if (!fs::create_directory(part, error)) return cannot("making folder", part, error);
  return NewBundle(named, part);
}

NewBundle::~NewBundle() {
  std::error_code ignored;
  if (!part_.empty()) fs::remove_all(part_, ignored);
}

Result<BundleSize> NewBundle::keep(const fs::path& made) {
  MB_ASSIGN(const auto reader, BundleReader::open(made));
  MB_ASSIGN(const auto cells, whole_cells(reader));
  MB_ASSIGN(const auto files, files_of(made, cells));
  BundleSize size{static_cast<int64_t>(cells.size()), static_cast<int64_t>(files.size()), 0};
  std::error_code error;
  for (const fs::path& file : files) {
    size.bytes += static_cast<int64_t>(fs::file_size(made / file, error));
    if (error) return cannot("reading", made / file, error);
  }
  MB_TRY(flush_all(made));
  if (fs::exists(fs::symlink_status(to_, error)))
    return fail(ErrorCode::kBadArgument, fmt::format("{} came to be meanwhile", to_.string()));
  fs::rename(made, to_, error);
  if (error) return cannot("renaming", made, error);
  if (made != part_) fs::remove_all(part_, error);
  part_.clear();
  MB_TRY(sync_folder(to_.parent_path()));
  return size;
}

Result<std::vector<std::string>> whole_cells(const BundleReader& reader) {
  MB_ASSIGN(const auto entries, reader.cells());
  std::vector<std::string> cells, lacking;
  for (const CellEntry& entry : entries) {
    if (entry.state == CellState::kDamaged) return tl::unexpected<Error>(entry.trouble);
    (entry.state == CellState::kFinished ? cells : lacking).push_back(entry.name);
  }
  const Run& run = reader.run();
  if (!lacking.empty())
    return fail(ErrorCode::kNotFound,
                fmt::format("run {} is not finished: {} of its {} cells lack, {}", run.id, lacking.size(),
                            entries.size(), printable(join(lacking, ", "))),
                "finish it with --resume");
  if (run.ended_unix_ns == 0 || reader.being_written())
    return fail(ErrorCode::kNotFound, fmt::format("run {} has not ended", run.id),
                "wait for it; one that was cut off goes on with --resume");
  if (cells.empty()) return fail(ErrorCode::kNotFound, fmt::format("run {} holds no finished cell", run.id));
  return cells;
}

Result<BundleSize> copy_bundle(const BundleReader& from, const fs::path& to) {
  MB_ASSIGN(const auto cells, whole_cells(from));
  MB_ASSIGN(const auto files, files_of(from.folder(), cells));
  MB_ASSIGN(NewBundle place, NewBundle::beside(to, from.folder()));
  for (const fs::path& file : files) {
    const fs::path target = place.part() / file;
    MB_TRY(make_dirs(target.parent_path()));
    MB_TRY(copy_bytes(from.folder() / file, target));
  }
  return place.keep(place.part());
}

}  // namespace mbb::baselines
