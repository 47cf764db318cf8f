// mbbench-floor: measures what a training step cannot beat on this GPU: GEMMs by role, attention, memory-bound ops,
// copies.
#include <fmt/core.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "profiler/base/file.h"
#include "profiler/host/gpus.h"
#include "suites/micro/cuda/floor_bench.h"
#include "trainer/ops/cuda/status.h"

namespace mbb::suites {
namespace {

using nlohmann::json;

struct Options {
  std::string out;
  std::string only;
  std::string cases;  // comma-separated names; empty: all
  double seconds = 0.5;
};

constexpr const char* kUsage =
    "mbbench-floor [--out FILE] [--seconds S] [--only TEXT] [--cases NAME,...]\n"
    "  Measures GEMMs (the best of the algorithms that cuBLASLt offers), attention, our memory-bound kernels, grouped "
    "products and "
    "the "
    "copy bandwidth.\n"
    "  --seconds S    sustained time of each measurement, a quarter of it warm-up (default 0.5)\n"
    "  --only TEXT    only rows whose section, name or use contains TEXT, e.g. attention or \"fc1 fprop\"\n";

Result<Options> parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string flag = argv[i];
    if (i + 1 >= argc) return fail(ErrorCode::kBadArgument, flag + " needs a value", kUsage);
    const std::string value = argv[i + 1];
    if (flag == "--out") {
      options.out = value;
    } else if (flag == "--only") {
      options.only = value;
    } else if (flag == "--cases") {
      options.cases = "," + value + ",";
    } else if (flag == "--seconds") {
      char* end = nullptr;
      options.seconds = std::strtod(value.c_str(), &end);
      if (*end != '\0' || !(options.seconds > 0.0 && options.seconds <= 60.0))
        return fail(ErrorCode::kBadArgument, "--seconds " + value + ": a number above 0 and at most 60");
    } else {
      return fail(ErrorCode::kBadArgument, "unknown flag " + flag, kUsage);
    }
  }
  return options;
}

json to_json(const FloorRow& row) {
  json j{
      {"section", row.section}, {"name", row.name}, {"uses", row.uses}, {row.is_bytes ? "bytes" : "flops", row.work}};
  if (row.seq > 0) j["seq"] = row.seq, j["head_dim"] = row.head_dim;
  if (!row.skipped.empty()) {
    j["skipped"] = row.skipped;
    return j;
  }
  j["ms"] = row.timing.ms;
  j["ms_min"] = row.timing.ms_min;
  j["ms_max"] = row.timing.ms_max;
  j["calls"] = row.timing.calls;
  j[row.is_bytes ? "tb_s" : "tflop_s"] = row.rate();
  j["sm_mhz"] = row.timing.sm_mhz;
  j["power_w"] = row.timing.power_w;
  j["throttle_reasons"] = row.timing.throttle_reasons;
  if (row.candidates > 0) {
    j["first_ms"] = row.first_ms;
    j["candidates"] = row.candidates;
    j["algorithm"] = row.algorithm;
  }
  return j;
}

void print(const FloorRow& row, double copy_tb_s) {
  if (!row.skipped.empty()) {
    fmt::print("{:<9} {:<58} skipped: {}\n", row.section, row.name, row.skipped);
    return;
  }
  const std::string share =
      row.is_bytes && copy_tb_s > 0 ? fmt::format(" {:3.0f} % of copy", 100.0 * row.rate() / copy_tb_s) : "";
  const std::string gain = row.candidates > 0 ? fmt::format(" first {:.4f} ms", row.first_ms) : "";
  fmt::print("{:<9} {:<58} {:9.4f} ms {:8.{}f} {} {:4.0f} MHz {:3.0f} W{}{}  {}\n", row.section, row.name,
             row.timing.ms, row.rate(), row.is_bytes ? 3 : 1, row.is_bytes ? "TB/s   " : "TFLOP/s", row.timing.sm_mhz,
             row.timing.power_w, share, gain, row.uses);
}

json environment(const profiler::Nvml* nvml) {
  json env;
  cudaDeviceProp properties{};
  int driver = 0, runtime = 0;
  cudaGetDeviceProperties(&properties, 0);
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  env["device"] = properties.name;
  env["sms"] = properties.multiProcessorCount;
  env["l2_bytes"] = properties.l2CacheSize;
  env["memory_bytes"] = properties.totalGlobalMem;
  env["cuda_driver_api"] = driver;
  env["cuda_runtime"] = runtime;
  env["cublaslt"] = trainer::cuda::cublaslt_version();
  if (nvml != nullptr) {
    if (const auto version = nvml->driver_version()) env["driver"] = *version;
    const int gpu = profiler::nvml_index_of(0);
    if (const auto limit = nvml->power_limit_w(gpu)) env["power_limit_w"] = *limit;
    if (const auto now = nvml->sample(gpu)) {
      env["temperature_c"] = now->temperature_c;
      env["memory_mhz"] = now->memory_mhz;
    }
  }
  return env;
}

Status run(const Options& options) {
  cudaStream_t stream = nullptr;
  MB_TRY(trainer::cuda::ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "opening the device"));
  trainer::cuda::Launch launch{stream, {}};
  MB_TRY(trainer::cuda::ok(cudaDeviceGetAttribute(&launch.sms.count, cudaDevAttrMultiProcessorCount, 0),
                           "reading the SM count"));
  MB_ASSIGN(const auto pool, FloorPool::make(int64_t{10} << 30, int64_t{24} << 30, stream, launch));
  Stopwatch watch(stream);
  json document{{"format", "mbbench-floor/1"}, {"seconds", options.seconds}, {"rows", json::array()}};
  double copy = 0.0;
  Status written;
  // The file is whole after every row, so that a run that is cut short leaves what it measured.
  const auto keep = [&](const FloorRow& row) {
    if (row.section == "copy") copy = row.rate();
    print(row, copy);
    std::fflush(stdout);
    document["rows"].push_back(to_json(row));
    document["environment"] = environment(watch.nvml());
    if (!options.out.empty() && written) written = write_file(options.out, document.dump(1) + "\n", Flush::kLater);
  };
  FloorContext context{*pool, watch, launch, options.seconds, options.only, keep};
  std::vector<FloorCase> cases;
  for (const FloorCase& c : floor_cases())
    if (options.cases.empty() || options.cases.find("," + c.name + ",") != std::string::npos) cases.push_back(c);
  if (cases.empty()) return fail(ErrorCode::kNotFound, "no case is called" + options.cases);
  floor_copy(context);
  floor_attention_rows(context, cases);
  floor_kernels(context, cases.front());
  MB_TRY(floor_grouped_rows(context));
  MB_TRY(floor_gemm_rows(context, cases));
  return written;
}

}  // namespace
}  // namespace mbb::suites

int main(int argc, char** argv) {
  const auto options = mbb::suites::parse(argc, argv);
  const auto status = options ? mbb::suites::run(*options) : tl::unexpected(options.error());
  if (status) return 0;
  fmt::print(stderr, "{}\n", mbb::format(status.error()));
  return options ? 4 : 64;
}
