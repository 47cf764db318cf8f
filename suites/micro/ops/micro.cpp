// mbbench-micro: every op kind that one rank runs, alone, at model shapes, against the ceilings of the same card in the
// same run: for what moves bytes the bandwidth of a large copy, and the time of a copy of as many bytes (launch and
// ramp are a good part of 30 us); for what goes to host memory or comes from it the time of such a copy, which the link
// bounds; for what multiplies a large cuBLASLt product.
//
// An op is timed at its place in a real step, on what the ops before it wrote, so that routing plans, labels and scales
// are real ones, in the form and with the algorithm that `mbbench tune --brief` chooses there. Google Benchmark names,
// filters and stores (--benchmark_filter, --benchmark_out,
// --benchmark_list_tests); the stopwatch keeps the card busy for --seconds an op and samples clocks and power
// meanwhile.
#include <benchmark/benchmark.h>
#include <fmt/core.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>

#include "suites/micro/cuda/stopwatch.h"
#include "suites/micro/ops/memory_goal.h"
#include "suites/micro/ops/micro_cases.h"
#include "suites/micro/ops/op_rows.h"
#include "trainer/data/rng.h"
#include "trainer/execute/cuda/cuda_rank.h"
#include "trainer/execute/cuda/initial_values.h"
#include "trainer/ops/cuda/gemm.h"
#include "trainer/ops/cuda/status.h"

namespace mbb::suites {
namespace {

using trainer::cuda::CudaRank;
using trainer::cuda::Element;
using trainer::cuda::ok;

// Ops on less stay in L2 when they are repeated: their rate is no memory bandwidth.
constexpr double kSmallBytes = 64.0 * (1 << 20);
// Of a ceiling: until the clock has come down to what the power limit allows.
constexpr double kCeilingSeconds = 0.5;

struct Ceilings {
  double copy_gb_s = 0;  // read and written
  double l2_bytes = 0;
  double bf16_tflop_s = 0, fp8_tflop_s = 0, fp32_tflop_s = 0;
};

// Choices of all configurations, for as long as this is.
class TuningFile {
 public:
  TuningFile() : path_(std::filesystem::temp_directory_path() / fmt::format("mbbench-micro-{}.txt", getpid())) {}
  ~TuningFile() {
    std::error_code gone;
    std::filesystem::remove(path_, gone);
  }
  TuningFile(const TuningFile&) = delete;
  TuningFile& operator=(const TuningFile&) = delete;
  const char* path() const { return path_.c_str(); }

 private:
  std::filesystem::path path_;
};

// Memory that is given back when it goes.
struct PinnedMemory {
  void* data = nullptr;
  ~PinnedMemory() { cudaFreeHost(data); }
};
struct DeviceMemory {
  std::byte* data = nullptr;
  ~DeviceMemory() { cudaFree(data); }
  Status take(int64_t bytes) {
    return ok(cudaMalloc(reinterpret_cast<void**>(&data), static_cast<size_t>(bytes)), "taking memory for a ceiling");
  }
};

// ms of a copy that reads `bytes` and writes as many.
Result<double> copy_ms(Stopwatch& watch, cudaStream_t stream, int64_t bytes, double seconds) {
  DeviceMemory memory;
  MB_TRY(memory.take(2 * bytes));
  const auto copy = [&] {
    return ok(
        cudaMemcpyAsync(memory.data + bytes, memory.data, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, stream),
        "copying");
  };
  MB_ASSIGN(const Timing timing, watch.sustained(copy, seconds));
  return timing.ms;
}

// ms of a copy of `bytes` between device memory and pinned host memory.
Result<double> link_ms(Stopwatch& watch, cudaStream_t stream, Link link, int64_t bytes, double seconds) {
  DeviceMemory device;
  PinnedMemory host;
  MB_TRY(device.take(bytes));
  MB_TRY(ok(cudaMallocHost(&host.data, static_cast<size_t>(bytes)), "taking host memory for a ceiling"));
  const bool out = link == Link::kToHost;
  void* const to = out ? host.data : device.data;
  const void* const from = out ? device.data : host.data;
  const auto copy = [&] {
    return ok(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream),
              "copying over the link");
  };
  MB_ASSIGN(const Timing timing, watch.sustained(copy, seconds));
  return timing.ms;
}

Result<double> product_ceiling(Stopwatch& watch, cudaStream_t stream, Element element, double seconds) {
  constexpr int64_t n = 8192;
  DeviceMemory memory;
  const bool narrow = element == Element::kE4m3;
  MB_TRY(memory.take(3 * n * n * 4 + trainer::cuda::kGemmWorkspace + 256));
  MB_TRY(trainer::cuda::fill_normal(narrow ? Element::kBf16 : element, memory.data, 0, n * n, 7, 1.0f, stream));
  MB_TRY(trainer::cuda::fill_normal(narrow ? Element::kBf16 : element, memory.data + n * n * 4, 0, n * n, 8, 1.0f,
                                    stream));
  auto* const scale = reinterpret_cast<float*>(memory.data + 3 * n * n * 4 + trainer::cuda::kGemmWorkspace);
  const float one = 1.0f;
  MB_TRY(ok(cudaMemcpyAsync(scale, &one, 4, cudaMemcpyHostToDevice, stream), "writing a scale"));
  MB_ASSIGN(const auto gemm, trainer::cuda::Gemm::make());
  trainer::cuda::GemmProblem p;
  p.m = p.n = p.k = n;
  p.b_transposed = true;
  p.a = p.b = element;
  p.d = element == Element::kF32 ? Element::kF32 : Element::kBf16;
  p.fast_accumulation = narrow;
  trainer::cuda::GemmBuffers b;
  b.a = memory.data, b.b = memory.data + n * n * 4, b.d = memory.data + 2 * n * n * 4;
  b.workspace = memory.data + 3 * n * n * 4;
  b.a_scale = b.b_scale = scale;
  MB_ASSIGN(const Timing timing, watch.sustained([&] { return gemm->run(p, b, stream); }, seconds));
  return 2.0 * n * n * n / timing.ms * 1e-9;
}

Result<Ceilings> measure_ceilings(double seconds) {
  cudaStream_t stream = nullptr;
  MB_TRY(ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "opening the device"));
  Ceilings c;
  Stopwatch watch(stream);
  int l2 = 0;
  MB_TRY(ok(cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, 0), "reading the size of L2"));
  c.l2_bytes = l2;
  constexpr int64_t bytes = int64_t{2} << 30;
  MB_ASSIGN(const double ms, copy_ms(watch, stream, bytes, seconds));
  c.copy_gb_s = 2.0 * bytes / ms * 1e-6;
  MB_ASSIGN(c.bf16_tflop_s, product_ceiling(watch, stream, Element::kBf16, seconds));
  MB_ASSIGN(c.fp8_tflop_s, product_ceiling(watch, stream, Element::kE4m3, seconds));
  MB_ASSIGN(c.fp32_tflop_s, product_ceiling(watch, stream, Element::kF32, seconds));
  cudaStreamDestroy(stream);
  return c;
}

// One configuration on the device, its step run op by op as benchmarks ask.
class Stage {
 public:
  Stage(BuiltCase built, const TuningFile& tuning) : built_(std::move(built)), tuning_(tuning) {}
  const BuiltCase& built() const { return built_; }

  // Runs what comes before the position, once.
  Status advance(size_t position) {
    if (rank_ == nullptr) MB_TRY(open());
    for (; next_ < position; ++next_) {
      MB_TRY(rank_->run_at(next_));
      MB_TRY(ok(cudaDeviceSynchronize(), "running a step op by op"));
    }
    return {};
  }
  Result<Timing> time(size_t position, double seconds) {
    MB_TRY(rank_->run_at(position));
    MB_TRY(ok(cudaDeviceSynchronize(), "running a step op by op"));
    next_ = position + 1;
    Stopwatch watch(rank_->stream_at(position));
    return watch.sustained([&] { return rank_->run_at(position); }, seconds);
  }
  void close() { rank_.reset(); }
  const std::vector<std::string>& notes() const { return rank_->notes(); }

 private:
  Status open() {
    profiler::CudaRankRequest request{};
    request.seed = 1234;
    request.tune = request.write_tuning = request.brief_tuning = true;
    request.tuning_file = tuning_.path();
    request.program = &built_.programs.programs[0];
    request.plan = &built_.programs.plans[0];
    request.mesh = &built_.layout.mesh;
    MB_ASSIGN(rank_, CudaRank::create(request));
    trainer::StepInput input;
    input.record = {1e-6f, 0.5f, 0.5f, 3.0f};
    const auto vocab = static_cast<uint64_t>(built_.layout.model.vocab_size);
    const auto fill = [vocab](std::span<int32_t> to, const char* stream) {
      const trainer::RandomStream random(7, stream, 0);
      for (size_t i = 0; i < to.size(); ++i) to[i] = static_cast<int32_t>(random.below(vocab, 0, i));
    };
    input.batch = [fill](int, std::span<int32_t> tokens, std::span<int32_t> labels) -> Status {
      fill(tokens, "micro.tokens");
      fill(labels, "micro.labels");
      return {};
    };
    input.extra = [fill](int, std::span<int32_t> samples, std::span<int32_t> encoder) -> Status {
      for (size_t i = 0; i < samples.size(); ++i) samples[i] = static_cast<int32_t>(i);
      fill(encoder, "micro.encoder");
      return {};
    };
    // Packs: sequences of equal chance of every length up to the longest, the last ones empty.
    const int64_t longest = built_.layout.config.train.seq_length, row = built_.layout.sequence;
    input.starts = [longest, row](int, std::span<int32_t> starts) -> Status {
      const trainer::RandomStream random(7, "micro.starts", 0);
      int64_t at = 0;
      for (size_t i = 0; i < starts.size(); ++i) {
        starts[i] = static_cast<int32_t>(at);
        const auto length = 1 + static_cast<int64_t>(random.below(static_cast<uint64_t>(longest), 0, i));
        at = at + length <= row ? at + length : row;
      }
      return {};
    };
    return rank_->begin(input);
  }

  BuiltCase built_;
  const TuningFile& tuning_;
  std::unique_ptr<CudaRank> rank_;
  size_t next_ = 0;
};

struct Micro {
  TuningFile tuning;
  std::vector<std::unique_ptr<Stage>> stages;
  Stage* open = nullptr;
  Ceilings ceilings;
  std::map<std::pair<Link, int64_t>, double> copies;  // ms by bytes read; 0: no room
  std::vector<MovingOp> moving;
  double seconds = 0.1;
  int failures = 0;

  // One configuration holds the device's memory at a time.
  void choose(Stage& stage) {
    if (open != nullptr && open != &stage) open->close();
    open = &stage;
  }
  // ms of a copy of as many bytes, in one place as the op's calls are.
  double copy_of(Link link, double bytes) {
    const int64_t read = static_cast<int64_t>(link == Link::kNone ? bytes / 2 : bytes) / 16 * 16;
    const auto [found, is_new] = copies.try_emplace({link, read}, 0.0);
    cudaStream_t stream = nullptr;
    if (!is_new || cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) return found->second;
    Stopwatch watch(stream);
    const auto ms =
        link == Link::kNone ? copy_ms(watch, stream, read, seconds) : link_ms(watch, stream, link, read, seconds);
    if (ms) found->second = *ms;
    cudaGetLastError();  // no room: not the next op's error
    cudaStreamDestroy(stream);
    return found->second;
  }
};

bool has_type(const OpRow& row, const char* type) {
  return row.name.find(std::string(":") + type + "/") != std::string::npos;
}

// What the op's rate is held against; 0: nothing that was measured here.
double ceiling_of(const OpRow& row, const Ceilings& c) {
  if (row.link != Link::kNone) return 0.0;
  if (row.flops == 0) return c.copy_gb_s;
  if (has_type(row, "e4m3") || has_type(row, "e5m2")) return c.fp8_tflop_s;
  if (has_type(row, "e2m1")) return c.bf16_tflop_s;
  return has_type(row, "bf16") ? c.bf16_tflop_s : c.fp32_tflop_s;
}

void measure(benchmark::State& state, Micro& micro, Stage& stage, const OpRow& row, const std::string& said) {
  micro.choose(stage);
  Status ready = stage.advance(row.position);
  auto timing = ready ? stage.time(row.position, micro.seconds) : tl::unexpected<Error>(ready.error());
  if (!timing) {
    ++micro.failures;
    state.SkipWithError(format(timing.error()).c_str());
    for (auto _ : state) continue;
    return;
  }
  for (auto _ : state) state.SetIterationTime(timing->ms * 1e-3);
  const bool moves = row.flops == 0;
  const double again = row.again > micro.ceilings.l2_bytes ? row.again : 0.0, bytes = row.bytes + again;
  const double rate = moves ? bytes / timing->ms * 1e-6 : row.flops / timing->ms * 1e-9;
  const double ceiling = ceiling_of(row, micro.ceilings);
  const auto add = [&](const char* name, double value) { state.counters[name] = value; };
  add(moves ? "GB/s" : "TFLOP/s", rate);
  if (ceiling > 0 && (!moves || row.bytes >= kSmallBytes)) add("share", rate / ceiling);
  const double copy = moves && row.bytes >= kSmallBytes ? micro.copy_of(row.link, bytes) : 0.0;
  if (copy > 0) add("share_at_size", copy / timing->ms);
  if (moves && row.link == Link::kNone) micro.moving.push_back({said, row.largest, copy / timing->ms});
  add("MiB", bytes / (1 << 20));
  add("largest_MiB", row.largest / (1 << 20));
  add("again_MiB", again / (1 << 20));
  add("fastest_us", timing->ms_min * 1e3);
  add("slowest_us", timing->ms_max * 1e3);
  add("calls", timing->calls);
  add("sm_mhz", timing->sm_mhz);
  add("power_w", timing->power_w);
}

// A line an op; shares only where the operands cannot stay in L2: of the ceiling (none for what goes over the link to
// the host, which device memory does not bound), and of a copy of as many bytes the same way. MiB and what follows from
// it count the second read of inputs larger than L2 whose tensorwise scale is found
// first (`again`), though L2 may hold the part of them that was read last. At the end, which ops miss the goal of
// memory-bound kernels.
class Table : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override {
    fmt::print("{:<96} {:>10} {:>15} {:>9} {:>8} {:>7} {:>8} {:>7} {:>6} {:>7} {:>6}\n", "op", "us", "fastest..", "MiB",
               "largest", "again", "GB/s", "TFLOP/s", "share", "at size", "MHz/W");
    return true;
  }
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) {
      if (run.error_occurred) {
        fmt::print("{:<96} {}\n", run.benchmark_name(), run.error_message);
        continue;
      }
      const auto get = [&](const char* name) {
        const auto found = run.counters.find(name);
        return found == run.counters.end() ? std::optional<double>() : std::optional<double>(found->second.value);
      };
      const auto text = [&](const char* name, double factor, int digits) {
        const auto value = get(name);
        return value ? fmt::format("{:.{}f}", *value * factor, digits) : std::string("-");
      };
      fmt::print("{:<96} {:>10.1f} {:>15} {:>9} {:>8} {:>7} {:>8} {:>7} {:>6} {:>7} {:>6}\n",
                 run.benchmark_name().substr(0, 96),
                 run.GetAdjustedRealTime() / benchmark::GetTimeUnitMultiplier(run.time_unit) * 1e6,
                 text("fastest_us", 1, 1) + ".." + text("slowest_us", 1, 1), text("MiB", 1, 1),
                 text("largest_MiB", 1, 1), text("again_MiB", 1, 0), text("GB/s", 1, 0), text("TFLOP/s", 1, 0),
                 text("share", 100, 0), text("share_at_size", 100, 0),
                 text("sm_mhz", 1, 0) + "/" + text("power_w", 1, 0));
    }
    std::fflush(stdout);
  }
};

constexpr const char* kUsage =
    "mbbench micro [--seconds S] [--settings \"key=value ...\"] [--benchmark_filter=TEXT] [--benchmark_out=FILE ...]\n"
    "  --seconds S       device time of each op, a quarter of it warm-up (default 0.1); of a ceiling at least 0.5\n"
    "  --settings TEXT   ops of this configuration instead of the list's\n";

struct Options {
  double seconds = 0.1;
  std::string settings;
  bool list = false;  // names alone: needs no device
};

Result<Options> parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; i += 2) {
    const std::string flag = argv[i];
    if (i + 1 >= argc) return fail(ErrorCode::kBadArgument, flag + " needs a value, or is unknown", kUsage);
    if (flag == "--settings") {
      o.settings = argv[i + 1];
    } else if (flag == "--seconds") {
      char* end = nullptr;
      o.seconds = std::strtod(argv[i + 1], &end);
      if (*end != '\0' || !(o.seconds > 0.0 && o.seconds <= 60.0))
        return fail(ErrorCode::kBadArgument, std::string("--seconds ") + argv[i + 1] + ": above 0, at most 60");
    } else {
      return fail(ErrorCode::kBadArgument, "unknown flag " + flag, kUsage);
    }
  }
  return o;
}

std::vector<MicroCase> cases_of(const Options& options) {
  if (options.settings.empty()) return micro_cases();
  MicroCase one{"settings", {}};
  std::string word;
  for (const char c : options.settings + " ") {
    if (c != ' ') {
      word += c;
    } else if (!word.empty()) {
      one.settings.push_back(std::exchange(word, ""));
    }
  }
  return {one};
}

// The card and the ceilings, for the eye and for --benchmark_out.
Status describe_run(const Ceilings& c) {
  cudaDeviceProp card{};
  int driver = 0;
  MB_TRY(ok(cudaGetDeviceProperties(&card, 0), "reading device properties"));
  MB_TRY(ok(cudaDriverGetVersion(&driver), "reading the driver's CUDA version"));
  fmt::print(
      "{}; ceilings of this run: copy {:.0f} GB/s, products of 8192 x 8192 x 8192 in bf16 {:.0f}, fp8 {:.0f}, "
      "fp32 {:.0f} TFLOP/s\n",
      card.name, c.copy_gb_s, c.bf16_tflop_s, c.fp8_tflop_s, c.fp32_tflop_s);
  const auto add = [](const char* key, const std::string& value) { benchmark::AddCustomContext(key, value); };
  add("gpu", card.name);
  add("cuda_driver_api", std::to_string(driver));
  add("cublaslt", std::to_string(trainer::cuda::cublaslt_version()));
  add("copy_gb_s", fmt::format("{:.1f}", c.copy_gb_s));
  add("bf16_tflop_s", fmt::format("{:.1f}", c.bf16_tflop_s));
  add("fp8_tflop_s", fmt::format("{:.1f}", c.fp8_tflop_s));
  add("fp32_tflop_s", fmt::format("{:.1f}", c.fp32_tflop_s));
  return {};
}

Result<int> run(const Options& options) {
  Micro micro;
  micro.seconds = options.seconds;
  for (const MicroCase& c : cases_of(options)) {
    auto built = build_case(c.settings);
    if (!built) return tl::unexpected<Error>(std::move(built.error()).during(c.name));
    micro.stages.push_back(std::make_unique<Stage>(std::move(*built), micro.tuning));
    Stage& stage = *micro.stages.back();
    for (const OpRow& row : stage.built().rows) {
      const std::string name = c.name + "/" + row.name;
      benchmark::RegisterBenchmark(
          name.c_str(),
          [&micro, &stage, &row, name](benchmark::State& state) { measure(state, micro, stage, row, name); })
          ->Iterations(1)
          ->UseManualTime();
    }
  }
  if (!options.list) {
    MB_ASSIGN(micro.ceilings, measure_ceilings(std::max(options.seconds, kCeilingSeconds)));
    MB_TRY(describe_run(micro.ceilings));
  }
  Table table;
  benchmark::RunSpecifiedBenchmarks(&table);
  fmt::print("{}", memory_goal_text(std::move(micro.moving)));
  if (micro.failures > 0) fmt::print(stderr, "{} ops did not run\n", micro.failures);
  return micro.failures > 0 ? 4 : 0;
}

}  // namespace
}  // namespace mbb::suites

int main(int argc, char** argv) {
  bool list = false;
  for (int i = 1; i < argc; ++i) list |= std::strncmp(argv[i], "--benchmark_list_tests", 22) == 0;
  benchmark::Initialize(&argc, argv);
  auto options = mbb::suites::parse(argc, argv);
  if (options) options->list = list;
  const mbb::Result<int> ended = options ? mbb::suites::run(*options) : tl::unexpected(options.error());
  if (ended) return *ended;
  fmt::print(stderr, "{}\n", mbb::format(ended.error()));
  return ended.error().code == mbb::ErrorCode::kBadArgument ? 64 : 4;
}
