// Environment and command line as they may be stored.
#include "profiler/host/captured.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>

namespace mbb::profiler {
namespace {

// Variables that shape performance and hold no secrets. A name is added here only when both are true.
constexpr std::array<std::string_view, 34> kPlainNames = {
    "CUBLASLT_LOG_LEVEL",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_CACHE_DISABLE",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "CUDA_VISIBLE_DEVICES",
    "GOMP_CPU_AFFINITY",
    "LANG",
    "LC_ALL",
    "LOCAL_RANK",
    "MALLOC_ARENA_MAX",
    "MKL_NUM_THREADS",
    "NCCL_ALGO",
    "NCCL_BUFFSIZE",
    "NCCL_CROSS_NIC",
    "NCCL_DEBUG",
    "NCCL_IB_DISABLE",
    "NCCL_MAX_CTAS",
    "NCCL_MIN_CTAS",
    "NCCL_NET_GDR_C2C",
    "NCCL_NET_GDR_LEVEL",
    "NCCL_NVLS_ENABLE",
    "NCCL_P2P_DISABLE",
    "NCCL_PROTO",
    "NCCL_SHM_DISABLE",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
    "OMP_PLACES",
    "OMP_PROC_BIND",
    "OPENBLAS_NUM_THREADS",
    "RANK",
    "WORLD_SIZE",
};

bool is_plain(std::string_view name) {
  return std::find(kPlainNames.begin(), kPlainNames.end(), name) != kPlainNames.end();
}

CapturedValue captured(std::string_view name, std::string_view value, bool plain) {
  return {std::string(name), plain ? std::string(value) : short_hash(value), !plain};
}

bool is_option(std::string_view argument) {
  // "-5" is a number, "-" and "--" are no options.
  return argument.size() > 1 && argument[0] == '-' && argument != "--" && !(argument[1] >= '0' && argument[1] <= '9');
}

std::string_view without_dashes(std::string_view option) {
  return option.substr(std::min(option.find_first_not_of('-'), option.size()));
}

// A value may be an address with a password in it, whoever's option it is.
bool is_address(std::string_view text) {
  return text.find("://") != std::string_view::npos;
}

}  // namespace

std::string short_hash(std::string_view value) {
  return fmt::format("{:06x}", XXH3_64bits(value.data(), value.size()) & 0xffffffU);
}

std::vector<CapturedValue> capture_environment(const std::vector<std::pair<std::string, std::string>>& variables,
                                               const IsKnown& is_known) {
  std::vector<CapturedValue> result;
  for (const auto& [name, value] : variables) {
    result.push_back(captured(name, value, (is_plain(name) || is_known(name)) && !is_address(value)));
  }
  std::sort(result.begin(), result.end(),
            [](const CapturedValue& a, const CapturedValue& b) { return a.name < b.name; });
  return result;
}

std::vector<CapturedValue> capture_arguments(const std::vector<std::string>& arguments, const IsKnown& is_known) {
  std::vector<CapturedValue> result;
  bool after_unknown = false;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string_view argument = arguments[i];
    if (argument == "--") {
      result.push_back({"--", "", false});
      for (++i; i < arguments.size(); ++i) result.push_back(captured("", arguments[i], false));
      break;
    }
    const std::size_t equals = argument.find('=');
    const std::string_view name = argument.substr(0, equals);
    if (is_option(argument) || equals != std::string_view::npos) {
      const bool known = is_known(without_dashes(name));
      after_unknown = !known && equals == std::string_view::npos;
      if (equals == std::string_view::npos) {
        // "-pSECRET": a short option may carry its value.
        const bool carries = !known && argument[1] != '-' && argument.size() > 2;
        result.push_back(carries ? captured(argument.substr(0, 2), argument.substr(2), false)
                                 : CapturedValue{std::string(argument), "", false});
      } else {
        const std::string_view value = argument.substr(equals + 1);
        result.push_back(captured(name, value, known && !is_address(value)));
      }
      continue;
    }
    result.push_back(captured("", argument, !after_unknown && !is_address(argument)));
    after_unknown = false;
  }
  return result;
}

}  // namespace mbb::profiler
