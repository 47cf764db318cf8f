// Goldens of the three forms of a table and of the suite table.
#include "analysis/report/table.h"

#include <gtest/gtest.h>

#include "analysis/report/suite_table.h"

namespace mbb::analysis {
namespace {

Table small() {
  Table table{.id = "t", .title = "Größe", .columns = {}, .rows = {}, .footer = {"2 rows"}};
  table.columns = {{"name", "name"}, {"value", "±", Align::kRight, "ns"}, {"more", "more"}};
  table.rows.push_back({{{.text = "µ-batch"}, {.text = "1.0 ms", .number = 1e6}, {.text = "a|b"}}});
  table.rows.push_back({{{.text = "x"}, {.text = "-"}}, "left\tout"});
  return table;
}

TEST(TableGolden, Text) {
  EXPECT_EQ(to_text(small()),
            "Größe\n"
            "name          ±  more\n"
            "µ-batch  1.0 ms  a|b\n"
            "x             -  left\\x09out\n"
            "2 rows\n");
}

TEST(TableGolden, ColourOnlyAddsEscapes) {
  Table table = small();
  table.rows[0].values[1].tone = Tone::kBad;
  const std::string coloured = to_text(table, {.color = true, .indent = 0});
  EXPECT_NE(coloured.find("\033[31m1.0 ms\033[0m"), std::string::npos);
  std::string bare;
  for (size_t i = 0; i < coloured.size(); ++i) {
    if (coloured[i] == '\033') {
      i = coloured.find('m', i);
    } else {
      bare += coloured[i];
    }
  }
  EXPECT_EQ(bare, to_text(small()));
}

TEST(TableGolden, Markdown) {
  EXPECT_EQ(to_markdown(small()),
            "**Größe**\n\n"
            "| name | ± | more |\n"
            "|---|---:|---|\n"
            "| µ-batch | 1.0 ms | a\\|b |\n"
            "| x | - | left\\x09out |\n"
            "\n2 rows  \n");
}

TEST(TableGolden, Json) {
  EXPECT_EQ(to_json(small()),
            "{\"table\": \"t\", \"title\": \"Größe\", \"columns\": [{\"id\": \"name\", \"title\": \"name\", \"unit\": "
            "\"\"}, {\"id\": \"value\", \"title\": \"±\", \"unit\": \"ns\"}, {\"id\": \"more\", \"title\": \"more\", "
            "\"unit\": \"\"}], \"rows\": [{\"name\": \"µ-batch\", \"value\": 1000000, \"more\": \"a|b\"}, {\"name\": "
            "\"x\", \"value\": null, \"more\": null, \"note\": \"left\\tout\"}], \"footer\": [\"2 rows\"]}\n");
}

baselines::Cell cell_with(const std::string& cell_name, double step_ns, double half_ns, int launches) {
  baselines::Cell cell;
  cell.name = cell_name;
  cell.device = "cpu";
  const std::string over = launches > 1 ? "95 % over launches" : "95 % over 29 steps of one launch";
  cell.metrics.push_back({"step_time", step_ns, step_ns - half_ns, step_ns + half_ns, "ns", launches, over});
  cell.metrics.push_back({.name = "tokens_per_second", .value = 1024e9 / step_ns, .unit = "tokens/s"});
  cell.metrics.push_back({.name = "exposed_comm", .value = 4.06, .unit = "%"});
  cell.metrics.push_back({.name = "bubble", .value = 0, .unit = "%"});
  cell.metrics.push_back({.name = "peak_memory", .value = 3.5 * 1048576, .unit = "bytes"});
  return cell;
}

TEST(SuiteTableGolden, StatusesReasonsAndOneLaunch) {
  baselines::Cell skipped;
  skipped.name = "tp8";
  skipped.status = baselines::CellStatus::kSkipped;
  skipped.reason = "needs 8 GPUs";
  baselines::Cell broken;
  broken.name = "pp2";
  broken.status = baselines::CellStatus::kBroken;
  broken.reason = "loss differs at step 3";
  EXPECT_EQ(
      to_text(suite_table({cell_with("one-rank", 171.9e6, 1.2e6, 1), skipped, broken})),
      "cell      status   class                        step  tokens/s  exposed comm  bubble     peak\n"
      "one-rank  ok       functional/cpu  171.9 ms ±1.20 ms      5957         4.1 %   0.0 %  3.5 MiB\n"
      "tp8       skipped  functional/cpu  needs 8 GPUs\n"
      "pp2       broken   functional/cpu  loss differs at step 3\n"
      "1 ok, 1 skipped, 1 broken.\n"
      "One launch: not evidence. ± of such a cell covers 95 % over the steps of that launch, not the next launch.\n"
      "functional/cpu: the numerics are right, the times say nothing about a GPU; exposed comm and bubble are "
      "replayed with a processor for every rank.\n");
}

TEST(SuiteTableGolden, ProjectedRowsShowRatesByGpuTheirTwinAndWhatIsPublished) {
  baselines::Cell cell = cell_with("tp4-pp8-vpp5", 20e9, 0.8e9, 0);
  cell.metrics[0].interval = "80 % of projections";
  cell.result_class = baselines::ResultClass::kProjected;
  cell.metrics.push_back({.name = "tokens_per_second_per_gpu", .value = 1638, .unit = "tokens/s"});
  cell.metrics.push_back({.name = "tflops_per_gpu_causal", .value = 736, .unit = "TFLOP/s"});
  cell.published = "1639 tokens/s/GPU";
  baselines::VerdictRow twin;
  twin.subject = "twin";
  twin.verdict = baselines::Verdict::kSame;
  cell.verdicts.push_back(twin);
  baselines::Cell other = cell;
  other.name = "tp2";
  other.published.clear();
  other.verdicts[0].verdict = baselines::Verdict::kInconclusive;
  EXPECT_EQ(
      to_text(suite_table({cell, other})),
      "cell          status  class                  step  tokens/s/GPU  TFLOP/s/GPU (causal)  MFU (bf16)  exposed comm "
      " "
      "bubble     peak  twin          published\n"
      "tp4-pp8-vpp5  ok      projected  20.0 s ±800.0 ms          1638                 736.0           -         4.1 % "
      " "
      " 0.0 %  3.5 MiB  ok            1639 tokens/s/GPU\n"
      "tp2           ok      projected  20.0 s ±800.0 ms          1638                 736.0           -         4.1 % "
      " "
      " 0.0 %  3.5 MiB  inconclusive  -\n"
      "2 ok, 0 broken.\n"
      "projected: simulated from cost tables, not measured; ± covers 80 % of projections.\n"
      "twin: the cell's structure in small, trained by CPU ranks, equals one rank (`mbbench show` says how small).\n");
}

TEST(SuiteTable, FooterNamesLaunchesAndTheirSigma) {
  // Five launches, half width 0.447 %: sigma = 0.447 % · √5 / 2.776 = 0.36 %.
  const auto cell = cell_with("a", 100e6, 0.447e6, 5);
  EXPECT_NEAR(pooled_launch_sigma({cell}), 0.0036, 1e-5);
  const Table table = suite_table({cell, cell_with("b", 50e6, 0.2235e6, 5)});
  ASSERT_EQ(table.footer.size(), 3u);
  EXPECT_EQ(table.footer[1],
            "Step: median of a launch's steady steps, mean over launches; ± covers 95 % over 5 launches a cell, launch "
            "sigma 0.36 %.");
}

TEST(SuiteTable, ARunShowsWhatIsMissingOrMadeUp) {
  baselines::Run run;
  run.id = "r-1";
  run.command = "suite";
  run.suite = "quickstart";
  run.synthetic = "a demonstration";
  run.planned_cells = {"a", "b"};
  run.cells = {cell_with("a", 1e6, 1e4, 2)};
  const Table table = suite_table(run);
  EXPECT_EQ(table.title, "quickstart r-1");
  ASSERT_EQ(table.rows.size(), 2u);
  EXPECT_EQ(table.rows[1].note, "not run yet");
  EXPECT_NE(to_text(table).find("SYNTHETIC: a demonstration"), std::string::npos);
  EXPECT_NE(to_text(table).find("1 planned cell is missing: `mbbench suite SUITE --resume` goes on."),
            std::string::npos);
  run.command = "run";
  EXPECT_NE(to_text(suite_table(run)).find("start `mbbench run` again"), std::string::npos) << "it has no --resume";
}

TEST(SuiteTable, UnknownMetricsAreDashesAndNull) {
  baselines::Cell cell;
  cell.name = "bare";
  const Table table = suite_table({cell});
  EXPECT_NE(to_text(table).find("-"), std::string::npos);
  EXPECT_NE(to_json(table).find("\"step_time\": null"), std::string::npos);
}

}  // namespace
}  // namespace mbb::analysis
