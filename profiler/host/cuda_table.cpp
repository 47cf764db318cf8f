// Opens libmbbench_cuda.so from beside the running program.
#include "profiler/host/cuda_table.h"

#include <dlfcn.h>
#include <fmt/core.h>

#include <filesystem>
#include <mutex>
#include <optional>

namespace mbb::profiler {
namespace {

std::filesystem::path beside_program() {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? std::filesystem::path("libmbbench_cuda.so") : program.parent_path() / "libmbbench_cuda.so";
}

Result<const CudaTable*> open_table() {
  const auto path = beside_program();
  if (std::error_code error; !std::filesystem::exists(path, error))
    return fail(ErrorCode::kUnavailable, fmt::format("CUDA: {} is not there", path.string()),
                "build with MBB_CUDA=ON (CUDA 13.0 or newer), or use host.device = cpu");
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    return fail(ErrorCode::kUnavailable, fmt::format("CUDA: opening {}: {}", path.string(), dlerror()),
                "libcublasLt.so.13 and the NVIDIA driver must be found by the loader (LD_LIBRARY_PATH)");
  using Entry = const CudaTable* (*)();
  const auto entry = reinterpret_cast<Entry>(dlsym(library, "mbbench_cuda_table"));
  const CudaTable* table = entry != nullptr ? entry() : nullptr;
  if (table == nullptr || table->abi != kCudaTableAbi || table->bytes != sizeof(CudaTable))
    return fail(ErrorCode::kMismatch, fmt::format("CUDA: {} comes from another build", path.string()),
                "build program and library together");
  return table;
}

}  // namespace

Result<const CudaTable*> cuda_table() {
  static std::once_flag once;
  static std::optional<Result<const CudaTable*>> opened;
  std::call_once(once, [] { opened = open_table(); });
  return *opened;
}

Status cuda_answer(bool good, const CudaText& error) {
  if (good) return {};
  const std::string text(error.text);
  const auto cut = text.find('\n');
  return fail(error.code, text.substr(0, cut), cut == std::string::npos ? "" : text.substr(cut + 1));
}

}  // namespace mbb::profiler
