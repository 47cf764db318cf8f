// dlopen, dlinfo and PATH.
#include "profiler/host/library.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>
#include <unistd.h>

#include <filesystem>

#include "profiler/base/env.h"
#include "profiler/base/text.h"

namespace mbb::profiler {
namespace {

std::string path_of(void* library) {
  link_map* map = nullptr;
  return dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr ? map->l_name : "";
}

long version_number(void* library, const VersionCall& call) {
  void* function = dlsym(library, call.function);
  if (function == nullptr) return 0;
  if (call.shape == VersionCall::Shape::kReturnsSize)
    return static_cast<long>(reinterpret_cast<std::size_t (*)()>(function)());
  int number = 0;
  return reinterpret_cast<int (*)(int*)>(function)(&number) == 0 ? number : 0;
}

std::string version_of(void* library, const VersionCall& call) {
  if (call.shape == VersionCall::Shape::kNone) return "";
  long number = version_number(library, call);
  if (number == 0) return "";
  std::string text;
  for (const long factor : call.factors) {
    if (factor == 0) break;
    text += fmt::format("{}{}", text.empty() ? "" : ".", number / factor);
    number %= factor;
  }
  return text.empty() ? std::to_string(number) : text;
}

}  // namespace

Result<LibraryFacts> find_library(const std::vector<std::string>& names, const VersionCall& call) {
  std::string reason;
  for (const std::string& name : names) {
    // It stays loaded: what it keeps for the process's life is then still its own, and no leak.
    void* library = dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE);
    if (library == nullptr) {
      const char* said = dlerror();
      if (reason.empty() && said != nullptr) reason = said;
      continue;
    }
    LibraryFacts facts{path_of(library), version_of(library, call)};
    dlclose(library);
    return facts;
  }
  return fail(ErrorCode::kUnavailable, reason);
}

std::string find_program(const std::string& name) {
  const std::string path = env_text("PATH").value_or("/usr/local/bin:/usr/bin:/bin");
  for (const auto folder : split(path, ':')) {
    if (folder.empty()) continue;
    const std::string file = (std::filesystem::path(folder) / name).string();
    if (::access(file.c_str(), X_OK) == 0 && std::filesystem::is_regular_file(file)) return file;
  }
  return "";
}

std::string cupti_holder() {
  // What a tool injects into its target; Nsight Systems and Compute are told by the file's path.
  for (const char* variable : {"CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "LD_PRELOAD"}) {
    const std::string value = env_text(variable).value_or("");
    const std::string low = to_lower(value);
    if (low.empty()) continue;
    for (const auto& [mark, tool] :
         {std::pair{"nsight-systems", "Nsight Systems"}, std::pair{"toolsinjection", "Nsight Systems"},
          std::pair{"nsys", "Nsight Systems"}, std::pair{"nsight-compute", "Nsight Compute"},
          std::pair{"ncu", "Nsight Compute"}, std::pair{"cupti", "another CUPTI client"}})
      if (low.find(mark) != std::string::npos) return fmt::format("{} ({})", tool, variable);
    if (std::string_view(variable) == "CUDA_INJECTION64_PATH") return fmt::format("an injected tool ({})", variable);
  }
  return "";
}

}  // namespace mbb::profiler
