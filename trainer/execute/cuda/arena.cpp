// The driver's calls are found at run time, so that the library needs no libcuda to be loaded.
#include "trainer/execute/cuda/arena.h"

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>
#include <fmt/core.h>

#include <algorithm>
#include <numeric>

#include "trainer/ops/cuda/driver_entry.h"
#include "trainer/ops/cuda/status.h"

namespace mbb::trainer::cuda {
namespace {

// The calls of one mapping.
struct Driver {
  PFN_cuMemGetAllocationGranularity_v10020 granularity = nullptr;
  PFN_cuMemAddressReserve_v10020 reserve = nullptr;
  PFN_cuMemCreate_v10020 create = nullptr;
  PFN_cuMemMap_v10020 map = nullptr;
  PFN_cuMemSetAccess_v10020 set_access = nullptr;
  PFN_cuMemUnmap_v10020 unmap = nullptr;
  PFN_cuMemRelease_v10020 release = nullptr;
  PFN_cuMemAddressFree_v10020 free = nullptr;
  bool complete = false;
};

template <typename Function>
bool find(const char* name, Function* to) {
  *to = driver_entry<Function>(name, 10020);
  return *to != nullptr;
}

const Driver& driver() {
  static const Driver found = [] {
    Driver d;
    d.complete = find("cuMemGetAllocationGranularity", &d.granularity) && find("cuMemAddressReserve", &d.reserve) &&
                 find("cuMemCreate", &d.create) && find("cuMemMap", &d.map) && find("cuMemSetAccess", &d.set_access) &&
                 find("cuMemUnmap", &d.unmap) && find("cuMemRelease", &d.release) && find("cuMemAddressFree", &d.free);
    return d;
  }();
  return found;
}

Status good(CUresult status, const char* doing) {
  if (status == CUDA_SUCCESS) return {};
  return fail(status == CUDA_ERROR_OUT_OF_MEMORY ? ErrorCode::kOutOfMemory : ErrorCode::kUnavailable,
              fmt::format("{}: CUDA driver error {}", doing, static_cast<int>(status)));
}

CUdeviceptr address(const std::byte* data) {
  return static_cast<CUdeviceptr>(reinterpret_cast<uintptr_t>(data));
}

}  // namespace

Result<std::unique_ptr<Arena>> Arena::open(const MemoryPlan& plan, int device, int readers) {
  std::unique_ptr<Arena> arena(new Arena());
  arena->shared_ = plan.options.registered;
  if (plan.options.one_range) {
    const int64_t bytes = std::max<int64_t>(plan.arena_bytes, MemoryPlan::kAlign);
    if (const Status mapped = arena->map(device, readers, bytes); !mapped) {
      if (mapped.error().code == ErrorCode::kOutOfMemory) return tl::unexpected<Error>(mapped.error());
      arena->note_ = mapped.error().what + "; the arena is one allocation";
      MB_TRY(arena->allocate(bytes));
    }
    arena->bases_.fill(arena->blocks_.front().data);
    return arena;
  }
  int64_t begin = 0;
  for (size_t c = 0; c < plan.slab_bytes.size(); ++c) {
    if (plan.slab_bytes[c] == 0) continue;
    MB_TRY(arena->allocate(plan.slab_bytes[c]));
    arena->bases_[c] = arena->blocks_.back().data - begin;
    begin += plan.slab_bytes[c];
  }
  return arena;
}

Arena::~Arena() {
  for (const Block& block : blocks_) {
    if (!mapped_) {
      cudaFree(block.data);
      continue;
    }
    driver().unmap(address(block.data), static_cast<size_t>(block.allocated));
    driver().release(handle_);
    driver().free(address(block.data), static_cast<size_t>(block.allocated));
  }
}

Status Arena::allocate(int64_t bytes) {
  Block block{nullptr, bytes, bytes};
  MB_TRY(ok(cudaMalloc(reinterpret_cast<void**>(&block.data), static_cast<size_t>(bytes)), "allocating the arena"));
  blocks_.push_back(block);
  return {};
}

Status Arena::map(int device, int readers, int64_t bytes) {
  const Driver& d = driver();
  if (!d.complete) return fail(ErrorCode::kUnavailable, "the driver maps no memory into a range of addresses");
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
  if (shared_) properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  size_t page = 0;
  MB_TRY(good(d.granularity(&page, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED), "asking for the page size"));
  const size_t size = (static_cast<size_t>(bytes) + page - 1) / page * page;
  CUdeviceptr range = 0;
  MB_TRY(good(d.reserve(&range, size, 0, 0, 0), "reserving addresses for the arena"));
  CUmemGenericAllocationHandle handle = 0;
  Status status = good(d.create(&handle, size, &properties, 0), "allocating the arena");
  bool mapped = false;
  if (status) {
    status = good(d.map(range, size, 0, handle, 0), "mapping the arena");
    mapped = status.has_value();
    std::vector<CUmemAccessDesc> access{{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE}};
    for (int reader = 0; reader < readers; ++reader)
      if (reader != device)
        access.push_back({{CU_MEM_LOCATION_TYPE_DEVICE, {reader}}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
    if (mapped) status = good(d.set_access(range, size, access.data(), access.size()), "opening the arena to devices");
    if (!status && mapped) d.unmap(range, size);
    if (!status) d.release(handle);
  }
  if (!status) {
    d.free(range, size);
    return status;
  }
  mapped_ = true;
  handle_ = handle;
  blocks_.push_back({reinterpret_cast<std::byte*>(static_cast<uintptr_t>(range)), bytes, static_cast<int64_t>(size)});
  return {};
}

int64_t Arena::slack_bytes() const {
  return std::accumulate(blocks_.begin(), blocks_.end(), int64_t{0},
                         [](int64_t sum, const Block& block) { return sum + block.allocated - block.bytes; });
}

}  // namespace mbb::trainer::cuda
