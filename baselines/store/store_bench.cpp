// Speed of the store: one cell of 10 k step and op rows in, and the history of a series of 10 k runs out.
#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "baselines/store/fixture.h"
#include "baselines/store/store.h"
#include "profiler/base/check.h"

namespace mbb::baselines {
namespace {

class TemporaryStore {
 public:
  TemporaryStore() {
    std::string pattern = std::filesystem::temp_directory_path() / "mbb-bench-XXXXXX";
    MB_CHECK(::mkdtemp(pattern.data()) != nullptr, "no temporary folder");
    folder_ = pattern;
  }
  TemporaryStore(const TemporaryStore&) = delete;
  TemporaryStore& operator=(const TemporaryStore&) = delete;
  ~TemporaryStore() { std::filesystem::remove_all(folder_); }
  Store open() const {
    auto store = Store::open(folder_ / "store.sqlite");
    MB_CHECK(store.has_value(), store.error().what);
    return std::move(*store);
  }

 private:
  std::filesystem::path folder_;
};

void must(const Status& status) {
  MB_CHECK(status.has_value(), status.error().what);
}

// 5 launches of 1000 steps and 1008 op rows: 10 k rows, as a cell of a real suite has them.
void insert_cell_10k_rows(benchmark::State& state) {
  const TemporaryStore files;
  Store store = files.open();
  SyntheticOptions options;
  options.cells = 1;
  options.launches = 5;
  options.steps = 1000;
  options.layers = 42;
  Run run = make_synthetic_run(options);
  Cell cell = run.cells[0];
  for (Launch& launch : cell.launches) launch.memory.clear();
  must(store.put_run(run, ""));
  int number = 0;
  for (auto _ : state) {
    cell.name = fmt::format("cell{}", number++);
    must(store.put_cell(cell));
  }
}
BENCHMARK(insert_cell_10k_rows)->Unit(benchmark::kMillisecond);

void history_of_10k_runs(benchmark::State& state) {
  const TemporaryStore files;
  Store store = files.open();
  SyntheticOptions options;
  options.cells = 1;
  options.launches = 0;
  Run run = make_synthetic_run(options);
  for (int i = 0; i < 10'000; ++i) {
    run.id = fmt::format("r-{:06}", i);
    run.created_unix_ns += 86'400'000'000'000;
    must(store.put_run(run, ""));
    run.cells[0].run = run.id;
    must(store.put_cell(run.cells[0]));
  }
  const SeriesKey key = store.list_series().value()[0].key;
  for (auto _ : state) {
    const auto points = store.series(key);
    MB_CHECK(points && points->size() == 10'000, "the series is not whole");
  }
}
BENCHMARK(history_of_10k_runs)->Unit(benchmark::kMillisecond);

void list_10k_runs(benchmark::State& state) {
  const TemporaryStore files;
  Store store = files.open();
  SyntheticOptions options;
  options.cells = 0;
  Run run = make_synthetic_run(options);
  for (int i = 0; i < 10'000; ++i) {
    run.id = fmt::format("r-{:06}", i);
    must(store.put_run(run, ""));
  }
  for (auto _ : state) {
    const auto runs = store.list_runs();
    MB_CHECK(runs && runs->size() == 10'000, "runs are missing");
  }
}
BENCHMARK(list_10k_runs)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace mbb::baselines
