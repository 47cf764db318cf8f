// The edges of a rank: no exception passes, and groups hold distinct ranks of the world.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "trainer/comm/communicator.h"

namespace mbb::trainer {

// Runs `rank_main`; an exception becomes an error.
Status guarded(const std::function<Status(World&)>& rank_main, World& world);

// The place of `rank` in the group, or kBadArgument.
Result<int> member_of(int rank, int world_size, GroupKind kind, const std::vector<int>& members);

// "tp {0,1}"; of a large group the first members and how many there are.
std::string describe_group(GroupKind kind, const std::vector<int>& members);

}  // namespace mbb::trainer
