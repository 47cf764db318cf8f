// dlopen, dlinfo and PATH.
#include "profiler/host/library.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>
#include <unistd.h>

#include <filesystem>
#include <span>
#include <string_view>

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

namespace {

struct ToolMark {
  const char* mark;  // in a path, lower-case
  const char* tool;
};
constexpr ToolMark kTools[] = {
    {"nsight-systems", "Nsight Systems"}, {"toolsinjection", "Nsight Systems"}, {"nsight-compute", "Nsight Compute"}};
// Short names that paths of other libraries hold, too: only where a tool was put on purpose.
constexpr ToolMark kInjected[] = {
    {"nsys", "Nsight Systems"}, {"ncu", "Nsight Compute"}, {"cupti", "another CUPTI client"}};

const char* tool_in(std::string_view path, std::span<const ToolMark> marks) {
  const std::string low = to_lower(path);
  for (const ToolMark& one : marks)
    if (low.find(one.mark) != std::string::npos) return one.tool;
  return nullptr;
}

// Stops at the first loaded library of a tool.
int find_tool(dl_phdr_info* info, size_t, void* found) {
  const std::string_view path = info->dlpi_name != nullptr ? info->dlpi_name : "";
  const char* const tool = tool_in(path, kTools);
  if (tool == nullptr) return 0;
  *static_cast<std::string*>(found) = fmt::format("{} ({})", tool, std::filesystem::path(path).filename().string());
  return 1;
}

}  // namespace

std::string cupti_holder() {
  // What a tool injects into its target; Nsight Systems and Compute are told by the file's path.
  for (const char* variable : {"CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "LD_PRELOAD"}) {
    const std::string value = env_text(variable).value_or("");
    if (value.empty()) continue;
    for (const std::span<const ToolMark> marks :
         {std::span<const ToolMark>(kTools), std::span<const ToolMark>(kInjected)})
      if (const char* const tool = tool_in(value, marks)) return fmt::format("{} ({})", tool, variable);
    if (std::string_view(variable) == "CUDA_INJECTION64_PATH") return fmt::format("an injected tool ({})", variable);
  }
  // nsys gives its targets the session's number and takes its other variables away again.
  constexpr const char* kSession = "NSYS_PROFILING_SESSION_ID";
  if (env_text(kSession)) return fmt::format("Nsight Systems ({})", kSession);
  std::string loaded;
  dl_iterate_phdr(find_tool, &loaded);
  return loaded;
}

std::string cupti_holder(std::string_view said) {
  const bool named = !said.empty() && said.find("not provided") == std::string_view::npos;
  if (named) return std::string(said);
  std::string holder = cupti_holder();
  return holder.empty() ? "another tool, which does not give its name" : holder;
}

}  // namespace mbb::profiler
