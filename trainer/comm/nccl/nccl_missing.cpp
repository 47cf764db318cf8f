// A build without NCCL's header.
#include "trainer/comm/nccl/nccl_groups.h"

namespace mbb::trainer::cuda {

Result<std::unique_ptr<NcclGroups>> NcclGroups::open(World&, std::function<cudaStream_t()>) {
  return fail(ErrorCode::kUnavailable, "this build has no NCCL: nccl.h was not found when it was configured",
              "install NCCL with its headers and configure again");
}

}  // namespace mbb::trainer::cuda
