// mbbench-floor: measures what a training step cannot beat on this GPU: GEMMs by role, attention, memory-bound ops,
// copies.
#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <set>

#include "profiler/base/file.h"
#include "profiler/base/text.h"
#include "profiler/host/gpus.h"
#include "suites/micro/cuda/floor_bench.h"
#include "trainer/ops/cuda/status.h"

namespace mbb::suites {
namespace {

using nlohmann::json;

struct Options {
  std::string out;
  std::string only;
  std::vector<FloorCase> cases = floor_cases();
  std::set<std::string> known;  // products that other results hold
  bool list = false;
  double seconds = 0.5;
};

constexpr const char* kUsage =
    "mbbench-floor [--out FILE] [--seconds S] [--only TEXT] [--cases NAME,...] [--without FILE,...]\n"
    "              [--list]\n"
    "  Measures GEMMs (the best of the algorithms that cuBLASLt offers), attention, our memory-bound kernels, grouped\n"
    "  products and the copy bandwidth.\n"
    "  --seconds S    sustained time of each measurement, a quarter of it warm-up (default 0.5)\n"
    "  --only TEXT    only rows whose section, name or use contains TEXT, e.g. attention or \"fc1 fprop\"\n"
    "  --without FILE,...  leave out the products measured in these results: a run that was cut short goes on\n"
    "  --list         only print the products that would be measured, and their uses\n";

// The cases of comma-separated names, in the names' order.
Result<std::vector<FloorCase>> cases_called(const std::string& names) {
  std::vector<FloorCase> found;
  for (const std::string_view wanted : split(names, ',')) {
    const size_t before = found.size();
    std::string known;
    for (const FloorCase& c : floor_cases()) {
      if (c.name == wanted) found.push_back(c);
      known += (known.empty() ? "" : ", ") + c.name;
    }
    if (found.size() == before)
      return fail(ErrorCode::kBadArgument, fmt::format("--cases: no case is called '{}'", wanted), "cases: " + known);
  }
  return found;
}

// Names of the products that these results, comma-separated, hold a time of.
Result<std::set<std::string>> measured_in(const std::string& files) {
  std::set<std::string> names;
  for (const std::string_view file : split(files, ',')) {
    const std::string path(file);
    MB_ASSIGN(const std::string text, read_file(path));
    const json document = json::parse(text, nullptr, false);
    const json rows = document.is_object() ? document.value("rows", json()) : json();
    if (!rows.is_array())
      return fail(ErrorCode::kBadArgument, "--without " + path + ": not results of mbbench-floor",
                  "give a FILE that --out wrote");
    for (const json& row : rows)
      if (row.value("section", "") == "gemm" && row.contains("ms")) names.insert(row.value("name", ""));
  }
  return names;
}

Result<Options> parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--list") {
      options.list = true;
      --i;
      continue;
    }
    if (flag != "--out" && flag != "--only" && flag != "--cases" && flag != "--seconds" && flag != "--without")
      return fail(ErrorCode::kBadArgument, "unknown flag " + flag, kUsage);
    if (i + 1 >= argc) return fail(ErrorCode::kBadArgument, flag + " needs a value", kUsage);
    const std::string value = argv[i + 1];
    if (flag == "--out") {
      MB_TRY(check_writable(value));
      options.out = value;
    } else if (flag == "--only") {
      options.only = value;
    } else if (flag == "--cases") {
      MB_ASSIGN(options.cases, cases_called(value));
    } else if (flag == "--without") {
      MB_ASSIGN(options.known, measured_in(value));
    } else {
      const auto seconds = parse_double(value);
      if (!seconds || !(*seconds > 0.0 && *seconds <= 60.0))
        return fail(ErrorCode::kBadArgument, "--seconds " + value + ": a number above 0 and at most 60");
      options.seconds = *seconds;
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

Result<json> environment(const profiler::Nvml* nvml) {
  using trainer::cuda::ok;
  json env;
  cudaDeviceProp properties{};
  int driver = 0, runtime = 0;
  MB_TRY(ok(cudaGetDeviceProperties(&properties, 0), "reading device properties"));
  MB_TRY(ok(cudaDriverGetVersion(&driver), "reading the driver's CUDA version"));
  MB_TRY(ok(cudaRuntimeGetVersion(&runtime), "reading the runtime's version"));
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
  std::vector<FloorProduct> products = floor_products(options.cases, options.only);
  std::erase_if(products, [&](const FloorProduct& p) { return options.known.contains(trainer::cuda::key(p.problem)); });
  if (options.list) {
    for (const FloorProduct& p : products) fmt::print("{:<58} {}\n", trainer::cuda::key(p.problem), p.uses);
    fmt::print("{} products\n", products.size());
    return {};
  }
  cudaStream_t stream = nullptr;
  auto opened = trainer::cuda::ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "opening the device");
  if (!opened) {
    opened.error().hint = "mbbench-floor measures a GPU: it needs one, and a driver for CUDA 13";
    return opened;
  }
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
    auto now = environment(watch.nvml());
    if (now)
      document["environment"] = std::move(*now);
    else if (written)
      written = tl::unexpected(now.error());
    if (!options.out.empty() && written) written = write_file(options.out, document.dump(1) + "\n", Flush::kLater);
  };
  FloorContext context{*pool, watch, launch, options.seconds, options.only, keep};
  fmt::print("{} products of {} cases, about {:.0f} s, after copies, attention and kernels\n", products.size(),
             options.cases.size(), static_cast<double>(products.size()) * (1.4 * options.seconds + 0.3));
  floor_copy(context);
  floor_attention_rows(context, options.cases);
  if (options.cases.front().heads > 0) MB_TRY(floor_kernels(context, options.cases.front()));
  MB_TRY(floor_grouped_rows(context));
  MB_TRY(floor_gemm_rows(context, products));
  return written;
}

}  // namespace
}  // namespace mbb::suites

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (const std::string flag = argv[i]; flag != "--help" && flag != "-h") continue;
    fmt::print("{}", mbb::suites::kUsage);
    return 0;
  }
  const auto options = mbb::suites::parse(argc, argv);
  const auto status = options ? mbb::suites::run(*options) : tl::unexpected(options.error());
  if (status) return 0;
  fmt::print(stderr, "{}\n", mbb::format(status.error()));
  return options ? 4 : 64;
}
