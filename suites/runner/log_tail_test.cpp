// The reason of a failed process begins with a whole line and holds its error.
#include "suites/runner/log_tail.h"

#include <gtest/gtest.h>

namespace mbb::suites {
namespace {

TEST(LogTail, LinesAreWholeAndJoined) {
  EXPECT_EQ(last_lines(""), "");
  EXPECT_EQ(last_lines("\n \n"), "");
  EXPECT_EQ(last_lines("one\ntwo\n\nthree\n"), "one | two | three");
  EXPECT_EQ(last_lines("first line\nsecond\nthird\n", 14), "second | third");
  EXPECT_EQ(last_lines("only a long line", 6), "only a...");
}

TEST(LogTail, AnErrorAboveTheLastLinesIsThere) {
  std::string text = "step 1\nRuntimeError: NCCL error in: x.cpp:12, unhandled cuda error\n";
  for (int i = 0; i < 30; ++i) text += "rank " + std::to_string(i) + " was sent SIGTERM by the launcher\n";
  text += "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: train.py FAILED\n";
  const std::string said = last_lines(text);
  EXPECT_TRUE(said.starts_with("RuntimeError: NCCL error in: x.cpp:12, unhandled cuda error | rank 0 was sent"))
      << said;
  EXPECT_TRUE(said.ends_with("by the launcher | ...")) << said;
  EXPECT_EQ(said.find("\\x0a"), std::string::npos) << said;
}

TEST(LogTail, AnErrorOfThisProgramIsReadAsItWasPrinted) {
  const Error printed{ErrorCode::kTimeout, "ranks 1, 3 of 4 did not come", "look at what they say"};
  const auto read = error_said("error: an earlier one\n" + format(printed) + "\nNCCL WARN late\n");
  ASSERT_TRUE(read);
  EXPECT_EQ(read->what, printed.what);
  EXPECT_EQ(read->hint, printed.hint);
  EXPECT_EQ(error_said("error: no remedy\n")->hint, "");
  EXPECT_FALSE(error_said("Segmentation fault\n"));
}

}  // namespace
}  // namespace mbb::suites
