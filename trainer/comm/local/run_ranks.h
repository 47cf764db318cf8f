// Ranks as threads of this process: the front door of the local backend, the CPU oracle's communication.
//
// Waits sleep on a condition variable and never spin, so a rank's thread CPU time is its own work. send() copies into a
// bounded mailbox and returns; it waits only while `mailbox_messages` messages of that channel are unread. A pipeline
// rank has at most p·(v+1) micro-batches in flight towards one neighbour (p stages, v virtual), so 1F1B and interleaved
// schedules cannot deadlock below that depth; deeper floods are slowed by the receiver.
//
// What ends the world, at once, naming rank, op path and call of everyone: a rank that returns an error or throws, a
// rank that returns while another waits for it, members that disagree on a collective or message (op, count, dtype,
// root), ranks that all wait for each other, and a time without sign of life. Peers' calls then fail with kRankFailed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "trainer/comm/communicator.h"
#include "trainer/comm/patience.h"

namespace mbb::trainer {

struct LocalOptions {
  // The world ends with kTimeout when no rank called World::at or the communicator for this long; 0: never.
  int64_t no_progress_ms = 300'000;
  const Patience* patience = nullptr;  // asked instead, where the time follows what the ranks do; outlives the call
  // Unread messages that a channel (source, destination, direction) of a communicator holds.
  size_t mailbox_messages = 256;
  // A thread cannot be killed: when ranks have not returned this long after the world ended, on_stuck is told once, and
  // may end the process. run_ranks goes on waiting for them.
  int64_t stuck_grace_ms = 5'000;
  std::function<void(const Error&)> on_stuck = {};
  // Where the ranks' places lie (trainer/comm/places.h), for a reader after this process was killed; empty: nowhere.
  std::string places_file;
};

inline constexpr int kMostLocalRanks = 1024;

// Runs `rank_main` once per rank, each on a thread of its own, and joins them all. Returns the first failure, not the
// failures that followed from it: the rank's own error with "rank N at PATH (call C): " before it and where all stood
// behind it. An exception becomes an error. Messages that nobody received are an error (kMismatch).
Status run_ranks(int ranks, const std::function<Status(World&)>& rank_main, const LocalOptions& options = {});

}  // namespace mbb::trainer
