// Routers' choices between launches (parallel.moe_router_replay = reference): the one-rank fp32 cell of the same work
// records them, cells in lower precision take them.
#pragma once

#include <filesystem>
#include <initializer_list>
#include <vector>

#include "baselines/store/bundle.h"
#include "trainer/run/config.h"

namespace mbb::suites {

inline constexpr const char* kRoutingFile = "routing.bin";                        // of a launch folder: recorded there
inline constexpr const char* kReferenceRoutingFile = "routing-of-reference.bin";  // to be replayed there

// Puts the reference's choices into the folder of `cell`'s launch where its configuration replays them. `among`: cells
// that ran. Without a reference that recorded, the cell is broken.
Status give_routing(baselines::BundleWriter& writer, const trainer::Config& config, baselines::Cell& cell, int launch,
                    std::initializer_list<const std::vector<baselines::Cell>*> among);

}  // namespace mbb::suites
