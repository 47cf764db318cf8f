// Loads beside the frames: values arrive, superseded ones do not, errors and exceptions are states.
#include "viewer/load/query.h"

#include <gtest/gtest.h>

#include <chrono>
#include <latch>
#include <stdexcept>

namespace mbb::viewer {
namespace {

template <typename T>
void until_done(Query<T>& query, Worker& worker, const std::string& key, const typename Query<T>::Load& load) {
  for (int i = 0; i < 5000; ++i) {
    query.want(worker, key, load);
    if (!query.loading()) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  FAIL() << "no answer for " << key;
}

TEST(LoadQuery, DeliversAndWakes) {
  std::atomic<int> woken{0};
  Worker worker([&] { ++woken; });
  Query<int> query;
  until_done<int>(query, worker, "a", [](const auto&) { return Result<int>(41); });
  ASSERT_NE(query.value(), nullptr);
  EXPECT_EQ(*query.value(), 41);
  while (worker.pending() > 0) std::this_thread::yield();
  until_done<int>(query, worker, "a", [](const auto&) { return Result<int>(0); });
  EXPECT_EQ(*query.value(), 41) << "the same key loads once";
}

TEST(LoadQuery, QuietLoadsWakeNobody) {
  std::atomic<int> woken{0};
  Worker worker([&] { ++woken; });
  Query<int> query;
  for (int i = 0; i < 5000 && query.value() == nullptr; ++i) {
    query.want(
        worker, "q", [](const auto&) { return Result<int>(5); }, true);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ASSERT_NE(query.value(), nullptr);
  while (worker.pending() > 0) std::this_thread::yield();
  EXPECT_EQ(woken.load(), 0);
}

TEST(LoadQuery, KeepsTheOldValueWhileTheNextLoads) {
  Worker worker({});
  Query<int> query;
  until_done<int>(query, worker, "1", [](const auto&) { return Result<int>(1); });
  std::latch go(1);
  query.want(worker, "2", [&](const auto&) {
    go.wait();
    return Result<int>(2);
  });
  EXPECT_TRUE(query.loading());
  EXPECT_EQ(*query.value(), 1);
  EXPECT_EQ(query.value_key(), "1");
  go.count_down();
  until_done<int>(query, worker, "2", [](const auto&) { return Result<int>(0); });
  EXPECT_EQ(*query.value(), 2);
}

TEST(LoadQuery, SupersededLoadsAreCancelledAndIgnored) {
  Worker worker({}, 2);
  Query<int> query;
  std::atomic<bool> saw_cancel{false};
  query.want(worker, "slow", [&](const std::atomic<bool>& cancelled) {
    for (int i = 0; i < 10000 && !cancelled.load(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    saw_cancel = cancelled.load();
    return Result<int>(-1);
  });
  while (worker.pending() == 0) std::this_thread::yield();
  until_done<int>(query, worker, "fast", [](const auto&) { return Result<int>(7); });
  EXPECT_EQ(*query.value(), 7);
  while (worker.pending() > 0) std::this_thread::yield();
  EXPECT_EQ(*query.value(), 7);
}

TEST(LoadQuery, ErrorsAndExceptionsAreStates) {
  Worker worker({});
  Query<int> query;
  until_done<int>(query, worker, "e", [](const auto&) -> Result<int> { return fail(ErrorCode::kBadFile, "torn"); });
  ASSERT_NE(query.error(), nullptr);
  EXPECT_EQ(query.error()->what, "torn");
  until_done<int>(query, worker, "b", [](const auto&) -> Result<int> { throw std::bad_alloc(); });
  EXPECT_EQ(query.error()->code, ErrorCode::kOutOfMemory);
  until_done<int>(query, worker, "x", [](const auto&) -> Result<int> { throw std::runtime_error("odd"); });
  EXPECT_NE(query.error()->what.find("odd"), std::string::npos);
  until_done<int>(query, worker, "ok", [](const auto&) { return Result<int>(1); });
  EXPECT_EQ(query.error(), nullptr);
}

TEST(LoadQuery, AWorkerEndsWithJobsInItsQueue) {
  std::atomic<int> ran{0};
  {
    Worker worker({}, 1);
    for (int i = 0; i < 100; ++i) {
      worker.submit(std::make_shared<std::atomic<bool>>(false), [&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        ++ran;
      });
    }
  }
  EXPECT_LT(ran.load(), 100);
}

}  // namespace
}  // namespace mbb::viewer
