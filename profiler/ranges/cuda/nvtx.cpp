// NVTX 3 is headers only: a tool that injects itself fills its table of functions.
#include "profiler/ranges/cuda/nvtx.h"

#include <nvtx3/nvToolsExt.h>

#include <map>
#include <mutex>

namespace mbb::profiler::nvtx {
namespace {

nvtxDomainHandle_t domain() {
  static nvtxDomainHandle_t const handle = nvtxDomainCreateA("mbbench");
  return handle;
}

}  // namespace

bool listening() {
  return domain() != nullptr;
}

Text text(const std::string& name) {
  if (!listening()) return nullptr;
  static std::mutex mutex;
  static auto* const texts = new std::map<std::string, nvtxStringHandle_t>;
  const std::lock_guard lock(mutex);
  nvtxStringHandle_t& handle = (*texts)[name];
  if (handle == nullptr) handle = nvtxDomainRegisterStringA(domain(), name.c_str());
  return handle;
}

void push(Text name, int64_t payload) {
  nvtxEventAttributes_t attributes{};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
  attributes.message.registered = static_cast<nvtxStringHandle_t>(name);
  attributes.payloadType = NVTX_PAYLOAD_TYPE_INT64;
  attributes.payload.llValue = payload;
  nvtxDomainRangePushEx(domain(), &attributes);
}

void pop() {
  nvtxDomainRangePop(domain());
}

}  // namespace mbb::profiler::nvtx
