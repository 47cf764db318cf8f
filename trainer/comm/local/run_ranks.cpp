// Threads, their edges, and the first failure.
#include "trainer/comm/local/run_ranks.h"

#include <fmt/format.h>
#include <pthread.h>

#include <system_error>
#include <thread>
#include <vector>

#include "trainer/comm/local/local_communicator.h"
#include "trainer/comm/rank_edge.h"

namespace mbb::trainer {
namespace {

Status check(int ranks, const LocalOptions& options) {
  if (ranks < 1 || ranks > kMostLocalRanks)
    return fail(ErrorCode::kBadArgument, fmt::format("{} ranks as threads", ranks),
                fmt::format("run 1 to {} ranks in one process", kMostLocalRanks));
  if (options.mailbox_messages < 1 || options.no_progress_ms < 0 || options.stuck_grace_ms < 0)
    return fail(ErrorCode::kBadArgument, "a mailbox without messages or a negative time in the local communicator");
  return {};
}

}  // namespace

Status run_ranks(int ranks, const std::function<Status(World&)>& rank_main, const LocalOptions& options) {
  MB_TRY(check(ranks, options));
  MB_ASSIGN(std::unique_ptr<Places> places, Places::create(ranks, options.places_file));
  Hub hub(std::move(places));
  LocalGroups groups(ranks);
  std::vector<std::jthread> threads;
  threads.reserve(static_cast<size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    try {
      threads.emplace_back([&, rank] {
        pthread_setname_np(pthread_self(), fmt::format("rank {}", rank).c_str());
        LocalWorld world(hub, groups, rank, options.mailbox_messages);
        Status status = guarded(rank_main, world);
        const HubLock lock = hub.lock();
        hub.finish(rank, std::move(status));
      });
    } catch (const std::system_error& error) {
      const HubLock lock = hub.lock();
      for (int missing = rank; missing < ranks; ++missing)
        hub.finish(missing, fail(ErrorCode::kUnavailable, fmt::format("starting its thread: {}", error.what()),
                                 "run fewer ranks, or raise the limit on threads"));
      break;
    }
  }
  HubLock lock = hub.lock();
  const auto limit_ms = [&] { return options.patience != nullptr ? options.patience->ms() : options.no_progress_ms; };
  hub.supervise(lock, limit_ms, options.stuck_grace_ms, options.on_stuck);
  lock.unlock();
  threads.clear();
  MB_TRY(hub.outcome());
  return groups.check_all_received();
}

}  // namespace mbb::trainer
