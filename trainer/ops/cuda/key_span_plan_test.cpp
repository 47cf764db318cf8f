// Blocks of the flash kernels visit every pair that is seen, and their masks keep no other.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "trainer/ops/cuda/key_span.h"

namespace mbb::trainer::cuda {
namespace {

std::vector<int32_t> random_pack(int64_t seq, std::mt19937_64& random) {
  std::vector<int32_t> own(static_cast<size_t>(seq));
  std::uniform_int_distribution<int> draw(0, 40);
  int32_t start = 0;
  for (size_t i = 0; i < own.size(); ++i) {
    if (i > 0 && draw(random) == 0) start = static_cast<int32_t>(i);
    own[i] = start;
  }
  return own;
}

bool sees(const KeySpan& span, int64_t query, int64_t key) {
  const int64_t own = span.own == nullptr ? 0 : span.own[query];
  return key <= query && key >= own && (span.window == 0 || query - key < span.window);
}

TEST(KeySpan, BlocksVisitEveryPairThatIsSeen) {
  std::mt19937_64 random(std::random_device{}());
  for (int round = 0; round < 40; ++round) {
    const int64_t seq = std::uniform_int_distribution<int64_t>(1, 400)(random);
    const std::vector<int32_t> own = random_pack(seq, random);
    for (const int window : {0, 1, 7, 64, 1000}) {
      for (const bool packed : {false, true}) {
        const KeySpan span{packed ? own.data() : nullptr, nullptr, seq, window};
        for (int64_t query = 0; query < seq; ++query)
          for (int64_t key = 0; key < seq; ++key)
            ASSERT_EQ(sees(span, query, key), key >= span.begin(query) && key < span.end(query)) << query << " " << key;
        // A block of queries begins at the keys of its first one, and masks from where its last one's keys begin.
        for (int64_t first = 0; first < seq; first += 128)
          for (int64_t query = first; query < std::min(seq, first + 128); ++query) {
            ASSERT_GE(span.begin(query), span.begin(first));
            ASSERT_LE(span.begin(query), span.begin(first + 127));
          }
        for (int64_t first = 0; first < seq; first += 64) {
          ASSERT_EQ(span.queries_begin(first), first);
          const int64_t last = std::min(seq, first + 64) - 1, end = span.queries_end(first + 63);
          ASSERT_GT(end, last);  // its own queries are among them
          for (int64_t query = first; query < seq; ++query) {
            bool any = false;
            for (int64_t key = first; key <= last; ++key) any = any || sees(span, query, key);
            ASSERT_TRUE(!any || query < end) << query << " of " << end;
            // No visit in vain: behind its own queries, every one in front of the end sees the last key.
            if (query > last && query < end) {
              ASSERT_TRUE(any) << query << " of " << end;
            }
          }
        }
      }
    }
  }
}

// The same of packs that look both ways, which have no window.
TEST(KeySpan, BlocksVisitEveryPairThatIsSeenBothWays) {
  std::mt19937_64 random(std::random_device{}());
  for (int round = 0; round < 40; ++round) {
    const int64_t seq = std::uniform_int_distribution<int64_t>(1, 400)(random);
    const std::vector<int32_t> own = random_pack(seq, random);
    std::vector<int32_t> past(own.size(), static_cast<int32_t>(seq));
    for (size_t i = own.size() - 1; i-- > 0;)
      past[i] = own[i + 1] == own[i] ? past[i + 1] : static_cast<int32_t>(i + 1);
    const KeySpan span{own.data(), past.data(), seq, 0};
    for (int64_t first = 0; first < seq; first += 64) {
      const int64_t last = std::min(seq, first + 64) - 1;
      for (int64_t query = 0; query < seq; ++query) {
        bool any = false;
        for (int64_t key = first; key <= last; ++key) {
          const bool seen = own[static_cast<size_t>(key)] == own[static_cast<size_t>(query)];
          ASSERT_EQ(seen, key >= span.begin(query) && key < span.end(query)) << query << " " << key;
          any = any || seen;
        }
        ASSERT_EQ(any, query >= span.queries_begin(first) && query < span.queries_end(first + 63)) << query;
      }
    }
  }
}

}  // namespace
}  // namespace mbb::trainer::cuda
