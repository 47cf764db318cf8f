// How many slots a micro-batch's values need.
#pragma once

#include <map>
#include <set>
#include <utility>

#include "trainer/program/program.h"

namespace mbb::trainer {

// A value's life within a micro-batch: written in a call of segment `first`, read last in one of segment `second`.
using LifeSpan = std::pair<int, int>;

// Slots of each span, from walking the schedule. By itself a span gets as many as the widest window of micro-batches in
// which its values are alive, the fewest that work. Where several chunks take turns, their windows are widest at
// different times, and slots could share bytes if only they had one period: then all spans get the one, from the widest
// window to a group of micro-batches above it, that leaves least to place, if that is less than their own.
std::map<LifeSpan, int> ring_sizes(const Program& program, const std::set<LifeSpan>& spans);

}  // namespace mbb::trainer
