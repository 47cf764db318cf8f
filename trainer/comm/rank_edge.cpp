// What every backend does before and around a rank's own code.
#include "trainer/comm/rank_edge.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <new>

namespace mbb::trainer {

Status guarded(const std::function<Status(World&)>& rank_main, World& world) {
  try {
    return rank_main(world);
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::kOutOfMemory, "the host has no memory left", "use fewer ranks, or a smaller configuration");
  } catch (const std::exception& exception) {
    return fail(ErrorCode::kRankFailed, fmt::format("exception: {}", exception.what()));
  } catch (...) {
    return fail(ErrorCode::kRankFailed, "an exception of unknown type");
  }
}

Result<int> member_of(int rank, int world_size, GroupKind kind, const std::vector<int>& members) {
  std::vector<int> sorted = members;
  std::sort(sorted.begin(), sorted.end());
  const bool distinct = std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end();
  const auto own = std::find(members.begin(), members.end(), rank);
  if (!distinct || own == members.end() || sorted.front() < 0 || sorted.back() >= world_size)
    return fail(ErrorCode::kBadArgument,
                fmt::format("rank {} of {} joins a {} group of ranks {{{}}}", rank, world_size, name(kind),
                            fmt::join(members, ",")),
                "members are distinct ranks of the world, and this rank is one of them");
  return static_cast<int>(own - members.begin());
}

std::string describe_group(GroupKind kind, const std::vector<int>& members) {
  constexpr size_t kMostListed = 8;
  if (members.size() <= kMostListed) return fmt::format("{} {{{}}}", name(kind), fmt::join(members, ","));
  return fmt::format("{} {{{},...}} of {}", name(kind), fmt::join(members.begin(), members.begin() + kMostListed, ","),
                     members.size());
}

}  // namespace mbb::trainer
