// What is said of ranks that were told different things.
#include "trainer/run/agree.h"

#include <gtest/gtest.h>

#include <vector>

namespace mbb::trainer {
namespace {

std::string said(const std::vector<std::string>& of_rank) {
  const Status status = check_equal(of_rank);
  return status ? "" : status.error().what;
}

TEST(Agree, RanksThatAreAlikeDo) {
  EXPECT_EQ(said({"a=1\nb=2"}), "");
  EXPECT_EQ(said({"a=1\nb=2", "a=1\nb=2", "a=1\nb=2"}), "");
}

TEST(Agree, AllThatDiffersIsNamed) {
  EXPECT_EQ(said({"a=1\nb=2\nc=3", "a=1\nb=2\nc=3", "a=2\nb=2\nc=1"}), "rank 2 has a=2, c=1 where rank 0 has a=1, c=3");
  EXPECT_EQ(said({"a=1", "a=2", "a=1", "a=3"}), "rank 1 has a=2 where rank 0 has a=1; 1 more differ from rank 0");
  EXPECT_EQ(said({"a=1\nb=2", "a=1"}), "rank 1 has nothing where rank 0 has b=2");
  EXPECT_EQ(said({"a\nb\nc\nd\ne\nf\ng\nh", "1\n2\n3\n4\n5\n6\n7\n8"}),
            "rank 1 has 1, 2, 3, 4, 5, 6 and 2 more where rank 0 has a, b, c, d, e, f and 2 more");
}

// Of another build also the knobs may be others, and other knobs make another program.
TEST(Agree, NothingIsSaidThatFollowsFromTheRest) {
  EXPECT_EQ(said({"build.commit=x\na=1", "build.commit=y\na=2\nb=3"}),
            "rank 1 has build.commit=y where rank 0 has build.commit=x");
  EXPECT_EQ(said({"a=1\nprogram=x", "a=2\nprogram=y"}), "rank 1 has a=2 where rank 0 has a=1");
  EXPECT_EQ(said({"a=1\nprogram=x", "a=1\nprogram=y"}), "rank 1 has program=y where rank 0 has program=x");
}

}  // namespace
}  // namespace mbb::trainer
