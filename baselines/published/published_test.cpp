// The table of published speeds: whole, found by question, and refused when bent.
#include "baselines/published/published.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <random>

#include "profiler/base/csv.h"
#include "profiler/base/file.h"

namespace mbb::baselines {
namespace {

TEST(Published, FindsRowsByQuestion) {
  const auto rows = find_published({"llama3-70b", "H100", "fp8", 64});
  const auto row =
      std::find_if(rows.begin(), rows.end(), [](const PublishedRow& r) { return r.release == "26.02.01"; });
  ASSERT_NE(row, rows.end());
  EXPECT_EQ(row->tokens_per_s_per_gpu, 1639);
  EXPECT_EQ(row->tflops_per_gpu, 736);
  EXPECT_EQ(row->date, "2026-02");
  EXPECT_EQ(row->attention_flops, "causal");
  for (std::size_t i = 1; i < rows.size(); ++i) EXPECT_GE(rows[i - 1].date, rows[i].date);
  for (const PublishedRow& r : rows) EXPECT_TRUE(r.variant.empty());
  EXPECT_GT(find_published({"llama3-70b", "", "", 0, true}).size(), find_published({"llama3-70b"}).size());
  EXPECT_TRUE(find_published({"no-such-model"}).empty());
  for (const PublishedRow& r : find_published({"", "", "bf16"})) EXPECT_EQ(r.precision, "bf16");
}

TEST(Published, EveryRowSaysItsSourceAndAFigure) {
  EXPECT_GT(published_rows().size(), 400U);
  for (const PublishedRow& row : published_rows()) {
    EXPECT_FALSE(row.source.empty() || row.model_id.empty() || row.precision.empty() || row.attention_flops.empty());
    EXPECT_TRUE(row.tokens_per_s_per_gpu > 0 || row.tflops_per_gpu > 0 || row.mfu_percent > 0 || !row.note.empty())
        << row.source << ' ' << row.model;
    EXPECT_TRUE(row.date.empty() || (row.date.size() >= 7 && row.date > "2024" && row.date < "2027")) << row.date;
  }
}

// The facts equal those of the data folder beside the project, where it is there.
TEST(Published, AgreesWithTheDataFolder) {
  const char* given = std::getenv("MBBENCH_TEST_DATA");
  const std::filesystem::path data = given != nullptr ? given : MBB_SOURCE_DIR "/../shared/data";
  const auto text = read_file(data / "published_perf.csv");
  if (!text) GTEST_SKIP() << "no " << (data / "published_perf.csv").string();
  const CsvTable table = CsvTable::parse(*text).value();
  for (std::size_t i = 0; i < table.rows(); ++i) {
    double tokens = std::nan("");
    std::int64_t gpus = 0;
    ASSERT_TRUE(table.read(i, table.column("tokens_per_s_gpu"), tokens));
    ASSERT_TRUE(table.read(i, table.column("gpus"), gpus));
    const auto same = std::count_if(published_rows().begin(), published_rows().end(), [&](const PublishedRow& row) {
      return row.model == table.text(i, table.column("model")) &&
             row.hardware == table.text(i, table.column("hardware")) &&
             row.release == table.text(i, table.column("release")) && row.gpus == gpus &&
             (row.tokens_per_s_per_gpu == tokens || (std::isnan(row.tokens_per_s_per_gpu) && std::isnan(tokens)));
    });
    EXPECT_GE(same, 1) << "line " << table.line(i);
  }
}

TEST(Published, BentTablesAreErrors) {
  EXPECT_EQ(parse_published("source,date\n").error().what, "line 1: the column release is missing");
  const std::string text = read_file(MBB_SOURCE_DIR "/baselines/published/training_speeds.csv").value();
  std::mt19937 random(3);
  for (int round = 0; round < 60; ++round) {
    std::string bent = text;
    for (int flips = 0; flips < 20; ++flips) bent[random() % bent.size()] = static_cast<char>(random());
    (void)parse_published(bent);
    (void)parse_published(std::string_view(text).substr(0, random() % text.size()));
  }
}

}  // namespace
}  // namespace mbb::baselines
