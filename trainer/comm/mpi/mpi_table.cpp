// Opens libmbbench_mpi.so from beside the running program.
#include "trainer/comm/mpi/mpi_table.h"

#include <dlfcn.h>
#include <fmt/core.h>

#include <filesystem>
#include <mutex>
#include <optional>

namespace mbb::trainer {
namespace {

constexpr const char* kLibrary = "libmbbench_mpi.so";

Result<const MpiTable*> open_table() {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::filesystem::path path = error ? std::filesystem::path(kLibrary) : program.parent_path() / kLibrary;
  if (!std::filesystem::exists(path, error))
    return fail(ErrorCode::kUnavailable, fmt::format("MPI: {} is not there", path.string()),
                "install libopenmpi-dev and build again, or run ranks as threads: without mpirun");
  // Open MPI's own plug-ins look for its symbols among the global ones.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr)
    return fail(ErrorCode::kUnavailable, fmt::format("MPI: opening {}: {}", path.string(), dlerror()),
                "libmpi must be found by the loader (LD_LIBRARY_PATH)");
  using Entry = const MpiTable* (*)();
  const auto entry = reinterpret_cast<Entry>(dlsym(library, "mbbench_mpi_table"));
  const MpiTable* table = entry != nullptr ? entry() : nullptr;
  if (table == nullptr || table->abi != kMpiTableAbi || table->bytes != sizeof(MpiTable))
    return fail(ErrorCode::kMismatch, fmt::format("MPI: {} comes from another build", path.string()),
                "build program and library together");
  return table;
}

}  // namespace

Result<const MpiTable*> mpi_table() {
  static std::once_flag once;
  static std::optional<Result<const MpiTable*>> opened;
  std::call_once(once, [] { opened = open_table(); });
  return *opened;
}

Status mpi_answer(bool good, const MpiText& error) {
  if (good) return {};
  return fail(ErrorCode::kRankFailed, fmt::format("MPI: {}", error.text));
}

}  // namespace mbb::trainer
