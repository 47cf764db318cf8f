// The text of explain for the quickstart model on TP2 and PP2, whole, against a file.
#include <fstream>
#include <sstream>

#include "trainer/program/explain.h"
#include "trainer/program/sample_programs_test.h"

namespace mbb::trainer {
namespace {

TEST(ExplainGolden, QuickstartOnTp2Pp2) {
  const Built b = build(mapped(2, 2, 1, 2));
  Explain e = explain(b.layout, b.programs);
  e.program_hash = "0123456789abcdef";  // every change of the builder changes it; its own test covers it
  const auto text = to_text(e, {.stage = 1, .segment = "ward", .capacity_bytes = 720'000});
  ASSERT_TRUE(text.has_value()) << text.error().what;
  const std::string path = std::string(MBB_SOURCE_DIR) + "/trainer/program/goldens/explain_quickstart_tp2_pp2.txt";
  if (std::getenv("MBBENCH_UPDATE_GOLDENS")) std::ofstream(path) << *text;
  std::stringstream golden;
  golden << std::ifstream(path).rdbuf();
  EXPECT_EQ(*text, golden.str()) << "if the new text is right, run this test with MBBENCH_UPDATE_GOLDENS=1";
}

}  // namespace
}  // namespace mbb::trainer
