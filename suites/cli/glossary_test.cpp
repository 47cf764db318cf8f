// Every class, status and verdict that a table may print is explained.
#include "suites/cli/glossary.h"

#include <gtest/gtest.h>

#include <set>

#include "baselines/store/records.h"

namespace mbb::suites {
namespace {

TEST(Glossary, ExplainsEveryWordOfTheRecords) {
  using baselines::CellStatus;
  using baselines::ResultClass;
  using baselines::Verdict;
  for (const auto one :
       {ResultClass::kMeasured, ResultClass::kGhost, ResultClass::kProjected, ResultClass::kFunctionalCpu})
    EXPECT_NE(find_term(name(one)), nullptr) << name(one);
  for (const auto one : {CellStatus::kOk, CellStatus::kSkipped, CellStatus::kBroken, CellStatus::kUnstable})
    EXPECT_NE(find_term(name(one)), nullptr) << name(one);
  for (const auto one : {Verdict::kSlower, Verdict::kSame, Verdict::kFaster, Verdict::kNew, Verdict::kInconclusive,
                         Verdict::kUnstable, Verdict::kIncomparable, Verdict::kBroken})
    EXPECT_NE(find_term(name(one)), nullptr) << name(one);
  for (const char* subject : {"unproven", "loss", "learning", "gradients", "drift", "machine", "twin", "class"})
    EXPECT_NE(find_term(subject), nullptr) << subject;
}

TEST(Glossary, WordsAreToldOnceAndFoundInAnyCase) {
  std::set<std::string_view> seen;
  for (const Term& term : glossary()) {
    EXPECT_TRUE(seen.insert(term.word).second) << term.word;
    EXPECT_TRUE(term.meaning.ends_with(".") || term.meaning.ends_with("`.")) << term.word;
  }
  EXPECT_EQ(find_term("Ghost"), find_term("ghost"));
  EXPECT_EQ(find_term("gost"), nullptr);
}

}  // namespace
}  // namespace mbb::suites
