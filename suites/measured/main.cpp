// mbbench-measured MEASURED RUNS: what a card measured (baselines/measured/h100-sxm) as bundles below RUNS/runs,
// indexed in RUNS/mbbench.sqlite.
#include <fmt/core.h>

#include "baselines/store/store.h"
#include "profiler/base/file.h"
#include "suites/measured/stored_measurements.h"
#include "suites/runner/runner.h"

namespace mbb::suites {
namespace {

Status store_measurements(const std::filesystem::path& measured, const std::filesystem::path& runs) {
  MB_ASSIGN(const auto folders, write_measured_bundles(measured, runs / "runs"));
  MB_ASSIGN(auto store, baselines::Store::open(store_file(runs)));
  for (const auto& folder : folders) {
    MB_ASSIGN(const auto report, store.index(folder));
    if (!report.troubles.empty()) return tl::unexpected<Error>(report.troubles.front());
    fmt::print("{}\n", folder.string());
  }
  return {};
}

}  // namespace
}  // namespace mbb::suites

int main(int argc, char** argv) {
  if (argc != 3) {
    fmt::print(stderr, "usage: mbbench-measured baselines/measured/h100-sxm RUNS\n");
    return 64;
  }
  const mbb::Status stored = mbb::suites::store_measurements(argv[1], argv[2]);
  if (stored) return 0;
  fmt::print(stderr, "{}\n", mbb::format(stored.error()));
  return 4;
}
