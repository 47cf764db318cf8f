// Sweeps of runs that vary in more than two knobs: what may stand side by side, and what is best among equals.
#include "baselines/store/bundle.h"
#include "baselines/store/fixture.h"
#include "viewer/app/stage_fixture_test.h"
#include "viewer/widgets/probe.h"

namespace mbb::viewer {
namespace {

using baselines::Cell;

class SweepTest : public StageTest {
 protected:
  struct Spec {
    const char* name;
    const char* model;
    std::int64_t tokens;
    const char* side_sms;
    const char* recipe;
    const char* bucket;
    double step_ms;
  };

  void open_cells(const std::vector<Spec>& specs) {
    baselines::Run run = baselines::make_synthetic_run({.seed = ++seed_, .cells = 1, .launches = 1});
    const Cell like = run.cells.front();
    run.cells.clear();
    run.planned_cells.clear();
    for (const Spec& spec : specs) {
      Cell cell = like;
      cell.index = static_cast<int>(run.cells.size());
      cell.name = spec.name;
      cell.model = spec.model;
      cell.work.tokens_per_step = spec.tokens;
      cell.launches.clear();
      cell.knobs = {{"model.name", spec.model, "suite", "", 0, true},
                    {"host.side_sms", spec.side_sms, "suite", "", 0, true},
                    {"precision.recipe", spec.recipe, "suite", "", 0, true},
                    {"data_parallel.bucket_size", spec.bucket, "suite", "", 0, true}};
      baselines::Metric step;
      step.name = "step_time";
      step.value = spec.step_ms * 1e6;
      step.unit = "ns";
      cell.metrics = {step};
      run.cells.push_back(cell);
      run.planned_cells.push_back(cell.name);
    }
    auto writer = baselines::BundleWriter::create(folder_, run);
    ASSERT_TRUE(writer.has_value()) << writer.error().what;
    for (const Cell& cell : run.cells) {
      ASSERT_TRUE(writer->begin_cell(cell).has_value());
      ASSERT_TRUE(writer->finish_cell(cell).has_value());
    }
    ASSERT_TRUE(writer->write_run(run).has_value());
    SourceSpec source;
    source.bundles = {writer->folder()};
    open(source);
  }

  std::uint64_t seed_ = 0;  // of the run's id
};

TEST_F(SweepTest, OtherModelsStandInMatricesOfTheirOwn) {
  open_cells({{"dense", "dense", 8192, "0", "bf16", "0", 240},
              {"dense-16", "dense", 8192, "16", "bf16", "0", 260},
              {"dense-fp8", "dense", 8192, "0", "fp8", "0", 190},
              {"dense-fp8-16", "dense", 8192, "16", "fp8", "0", 220},
              {"experts", "experts", 4096, "0", "bf16", "0", 120}});
  play(R"(
panel sweep
wait
expect sweep.matrices 1
expect sweep.alone 1
expect sweep.size 2x2
expect sweep.best dense-fp8
expect-item sweep.alone.0
hover sweep.cell.1.1
key Ctrl+C
clipboard ~ "★ 190.0 ms"
clipboard ~ "| alone: experts | bf16 | 120.0 ms |"
click sweep.alone.0
expect selection.cell experts
)");
}

TEST_F(SweepTest, ThirdKnobsSplitAndKnobsThatFollowDoNot) {
  // The bucket follows nothing: 0 goes with both settings of side_sms=0.
  open_cells({{"plain", "dense", 8192, "0", "bf16", "0", 240},
              {"plain-fp8", "dense", 8192, "0", "fp8", "0", 190},
              {"beside-0", "dense", 8192, "0", "bf16", "230", 250},
              {"beside-16", "dense", 8192, "16", "bf16", "230", 260},
              {"beside-16-fp8", "dense", 8192, "16", "fp8", "230", 220}});
  play(R"(
select knob_x=host.side_sms
select knob_y=precision.recipe
panel sweep
wait
expect sweep.matrices 2
expect sweep.best beside-16-fp8
expect sweep.best.1 plain-fp8
)");
  open_cells({{"off", "dense", 8192, "0", "bf16", "0", 240},
              {"on", "dense", 8192, "16", "bf16", "230", 260},
              {"off-fp8", "dense", 8192, "0", "fp8", "0", 190},
              {"on-fp8", "dense", 8192, "16", "fp8", "230", 220}});
  play(R"(
select knob_x=host.side_sms
select knob_y=precision.recipe
panel sweep
wait
expect sweep.matrices 1
expect sweep.best off-fp8
)");
}

TEST_F(SweepTest, UnequalWorkIsNoContest) {
  // An axis may change the work itself: then every setting has a best of its own.
  open_cells({{"small", "dense", 2048, "0", "bf16", "0", 60},
              {"small-fp8", "dense", 2048, "0", "fp8", "0", 50},
              {"large", "dense", 8192, "16", "bf16", "0", 240},
              {"large-fp8", "dense", 8192, "16", "fp8", "0", 190}});
  play(R"(
select knob_x=host.side_sms
select knob_y=precision.recipe
panel sweep
wait
expect sweep.matrices 1
expect sweep.best "small-fp8 large-fp8"
)");
}

}  // namespace
}  // namespace mbb::viewer
