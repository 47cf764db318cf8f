// KIND@RANK, and what each kind does.
#include "trainer/run/inject_fault.h"

#include <fmt/core.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <optional>
#include <string_view>
#include <thread>
#include <vector>

#include "profiler/base/text.h"

namespace mbb::trainer {
namespace {

struct Fault {
  std::string_view kind;
  int64_t rank = 0;
};

std::optional<Fault> parsed(std::string_view text) {
  const size_t cut = text.find('@');
  if (cut == std::string_view::npos) return std::nullopt;
  const auto rank = parse_int(text.substr(cut + 1));
  if (!rank) return std::nullopt;
  return Fault{text.substr(0, cut), *rank};
}

}  // namespace

Status check_fault(const std::string& fault, int world_size, bool on_gpu) {
  if (fault.empty()) return {};
  const auto asked = parsed(fault);
  bool known = false;
  for (const std::string_view kind : {"exception", "error", "return", "hang", "kill"})
    known = known || (asked && asked->kind == kind);
  known = known || (asked && asked->kind == "trap" && on_gpu);
  if (known && asked->rank >= 0 && asked->rank < world_size) return {};
  return fail(ErrorCode::kBadArgument,
              fmt::format("debug.inject_fault = {} with ranks 0 to {}", printable(fault), world_size - 1),
              "give exception, error, return, hang, kill or, on GPUs, trap, then @ and a rank: hang@1");
}

Result<bool> inject_fault(const std::string& fault, int rank, int64_t step, int64_t steps,
                          const std::function<Status()>& plant_trap) {
  if (fault.empty() || step != (steps > 1 ? 1 : 0)) return false;
  const auto asked = parsed(fault);
  if (!asked || asked->rank != rank) return false;
  // The others wait by then, and have said so: as in a run of hours.
  constexpr auto kSettles = std::chrono::milliseconds(500);
  std::this_thread::sleep_for(kSettles);
  if (asked->kind == "return") return true;
  if (asked->kind == "trap") return plant_trap().map([] { return false; });
  if (asked->kind == "kill") {
    // Of threads the signal ends all, and what is left of them does not say whose it was.
    fmt::print(stderr, "rank {} is killed: debug.inject_fault = {}\n", rank, fault);
    std::fflush(stderr);
    std::raise(SIGKILL);
  }
  while (asked->kind == "hang") std::this_thread::sleep_for(std::chrono::seconds(1));
  if (asked->kind == "exception") static_cast<void>(std::vector<int>().at(0));
  return fail(ErrorCode::kRankFailed, fmt::format("debug.inject_fault = {}", fault));
}

}  // namespace mbb::trainer
