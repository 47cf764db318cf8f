// From knobs to variables of NCCL and CUDA.
#include "trainer/run/launch_environment.h"

namespace mbb::trainer {

std::vector<std::pair<std::string, std::string>> launch_environment(const Config& config) {
  const MemoryConfig& m = config.memory;
  std::vector<std::pair<std::string, std::string>> all{{"NCCL_NVLS_ENABLE", m.nccl_nvls_enable ? "1" : "0"}};
  constexpr const char* kLevels[] = {"", "LOC", "PIX", "PXB", "PHB", "SYS"};
  if (m.nccl_net_gdr_level != GdrLevel::kAsFound)
    all.emplace_back("NCCL_NET_GDR_LEVEL", kLevels[static_cast<int>(m.nccl_net_gdr_level)]);
  if (m.nccl_net_gdr_c2c) all.emplace_back("NCCL_NET_GDR_C2C", *m.nccl_net_gdr_c2c ? "1" : "0");
  if (m.nccl_ub) {
    all.emplace_back("NCCL_LOCAL_REGISTER", *m.nccl_ub ? "1" : "0");
    all.emplace_back("NCCL_GRAPH_REGISTER", *m.nccl_ub ? "1" : "0");
  }
  constexpr const char* kPolicies[] = {"", "0", "1", "2"};
  if (m.nccl_cta_policy != CtaPolicy::kAsFound)
    all.emplace_back("NCCL_CTA_POLICY", kPolicies[static_cast<int>(m.nccl_cta_policy)]);
  if (const int64_t queues = config.overlap.cuda_device_max_connections; queues > 0)
    all.emplace_back("CUDA_DEVICE_MAX_CONNECTIONS", std::to_string(queues));
  return all;
}

}  // namespace mbb::trainer
