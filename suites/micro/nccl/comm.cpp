// mbbench-comm: collectives of this host's GPUs, a process each, through the communicators that training uses.
//
// Conventions of nccl-tests: the size is the whole buffer (all_gather's output, reduce_scatter's input, all parts of an
// all_to_all), bus bandwidth is what a member puts on the wire at the bandwidth bound over the time of the slowest
// rank. Times are means over calls back to back on one stream, of which a row has the median of five, and as `spread`
// how far the five lie apart in shares of it. Each row of 256 MiB is followed by a product beside it: rows `gemm_*` are
// the product's time, and its ratio to the product alone on all SMs right before, each the median of three with the
// ratios' spread; in those of `gemm_leaving_sms` it is told to leave as many SMs as a collective has thread blocks.
// With --registered the buffers are windows of the communicators (memory.nccl_ub), and rows end in `_registered`;
// NCCL_CTA_POLICY=2 in the environment then lets copy engines gather. Rows that end in `_copy_engines` are the
// trainer's own rings and reduce-scatters.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <optional>
#include <random>
#include <vector>

#include "profiler/base/file.h"
#include "profiler/base/text.h"
#include "profiler/host/gpus.h"
#include "trainer/comm/mpi/run_mpi_rank.h"
#include "trainer/comm/nccl/nccl_api.h"
#include "trainer/comm/nccl/nccl_groups.h"
#include "trainer/ops/cuda/gemm.h"
#include "trainer/ops/cuda/status.h"

namespace mbb::suites {
namespace {

using namespace mbb::trainer;  // NOLINT: a program of one file
using cuda::ok;

constexpr size_t kElement = 2;  // bf16
constexpr size_t kBeside = size_t{256} << 20U;
constexpr size_t kLeastCopied = size_t{1} << 20U, kMostCopied = size_t{1} << 30U;  // by copy engines

enum class What { kAllReduce, kAllGather, kReduceScatter, kAllToAll, kSendRecv };
constexpr std::array kAll{What::kAllReduce, What::kAllGather, What::kReduceScatter, What::kAllToAll, What::kSendRecv};

CommOp op_of(What what) {
  constexpr std::array ops{CommOp::kAllReduce, CommOp::kAllGather, CommOp::kReduceScatter, CommOp::kAllToAll,
                           CommOp::kSend};
  return ops[static_cast<size_t>(what)];
}
const char* name_of(What what) {
  return what == What::kSendRecv ? "send_recv" : name(op_of(what));
}

// How a group communicates.
struct Way {
  std::unique_ptr<Communicator> group;
  int ctas = 0;  // 0: NCCL's choice
  bool copies = false;
};

// Of values that were taken one after the other.
struct Middle {
  double value = 0.0, spread = 0.0;  // the median; the largest less the smallest, over it
};
Middle middle_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const double median = values[values.size() / 2];
  return {median, (values.back() - values.front()) / median};
}

constexpr const char* kUsage =
    "mbbench-comm [--gpus N]   (two or more; default all of this machine's)\n"
    "             [--mib N]   (the largest size; default 4096)\n"
    "             [--registered]   (windows on the buffers)\n"
    "             [--out FILE.csv]\n";

struct Options {
  int gpus = 0;  // 0: all
  size_t most = size_t{4} << 30U;
  std::string out;
  bool registered = false;
};

// A bf16 product of 8192 x 8192 x 4096.
class Product {
 public:
  static Result<std::unique_ptr<Product>> make() {
    auto product = std::make_unique<Product>();
    MB_ASSIGN(product->gemm_, cuda::Gemm::make());
    MB_TRY(ok(cudaDeviceGetAttribute(&product->sms_, cudaDevAttrMultiProcessorCount, device()), "counting SMs"));
    cuda::GemmBuffers& buffers = product->buffers_;
    // Real values: of equal ones a card multiplies faster than its power allows.
    std::minstd_rand draw(1);
    std::vector<uint16_t> values(static_cast<size_t>(std::max(kM, kN) * kK));
    for (uint16_t& value : values)  // bf16 of either sign, 2^-7 to 2
      value = static_cast<uint16_t>((draw() & 0x83ffU) + 0x3c00U);
    MB_ASSIGN(buffers.a, product->allocate(kM * kK * 2, values.data()));
    MB_ASSIGN(buffers.b, product->allocate(kN * kK * 2, values.data()));
    MB_ASSIGN(buffers.d, product->allocate(kM * kN * 2, nullptr));
    MB_ASSIGN(buffers.workspace, product->allocate(cuda::kGemmWorkspace, nullptr));
    return product;
  }
  ~Product() {
    for (void* memory : memory_) cudaFree(memory);
  }
  Status run(int sms_left, cudaStream_t stream) {
    cuda::GemmProblem p;
    p.m = kM, p.n = kN, p.k = kK;
    p.b_transposed = true;
    p.sm_target = sms_left > 0 ? sms_ - sms_left : 0;
    return gemm_->run(p, buffers_, stream);
  }

 private:
  static constexpr int64_t kM = 8192, kN = 8192, kK = 4096;
  static int device() {
    int current = 0;
    return cudaGetDevice(&current) == cudaSuccess ? current : 0;
  }
  Result<void*> allocate(int64_t bytes, const void* values) {
    void* memory = nullptr;
    MB_TRY(ok(cudaMalloc(&memory, static_cast<size_t>(bytes)), "allocating a product"));
    memory_.push_back(memory);
    if (values != nullptr)
      MB_TRY(ok(cudaMemcpy(memory, values, static_cast<size_t>(bytes), cudaMemcpyDefault), "filling a product"));
    return memory;
  }

  std::unique_ptr<cuda::Gemm> gemm_;
  cuda::GemmBuffers buffers_;
  std::vector<void*> memory_;
  int sms_ = 0;
};

class Bench {
 public:
  Bench(World& world, const Options& options) : world_(world), options_(options) {}
  ~Bench() {
    if (groups_ != nullptr) groups_->forget_memory();
    for (void* buffer : {send_, recv_})
      if (api_ == nullptr)
        cudaFree(buffer);
      else if (buffer != nullptr)
        api_->free(buffer);
    for (cudaEvent_t event : {start_, stop_, last_}) cudaEventDestroy(event);
    ways_.clear();
    groups_.reset();
    for (cudaStream_t stream : {stream_, compute_}) cudaStreamDestroy(stream);
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  Status run() {
    MB_TRY(open());
    say("op,bytes,max_ctas,us,bus_GB/s,spread\n");
    for (const What what : kAll)
      for (size_t bytes = 8; bytes <= options_.most; bytes *= 2) MB_TRY(row(ways_.front(), what, bytes));
    for (const Way& way : ways_) {
      if (way.ctas == 0) continue;
      if (product_ != nullptr) MB_TRY(product_row("gemm_leaving_sms", way, std::nullopt, way.ctas, 0));
      for (const What what : kAll) MB_TRY(row(way, what, std::min(kBeside, options_.most)));
    }
    if (copies_.group != nullptr)
      for (const What what : {What::kSendRecv, What::kReduceScatter})
        for (size_t bytes = kLeastCopied; bytes <= most_copied(); bytes *= 2) MB_TRY(row(copies_, what, bytes));
    return write();
  }

 private:
  Status write() const {
    return world_.rank() == 0 && !options_.out.empty() ? write_file(options_.out, table_) : Status{};
  }

  Status allocate_buffer(void** to) {
    if (!options_.registered) return ok(cudaMalloc(to, options_.most), "allocating a buffer");
    MB_ASSIGN(api_, cuda::nccl_api());
    return api_->good(api_->allocate(to, options_.most), "allocating a buffer");
  }

  Status open() {
    const auto place = place_if_any();
    MB_TRY(ok(cudaSetDevice(place ? place->local_rank : 0), "choosing the CUDA device"));
    int least = 0, greatest = 0;  // as in training: what communicates goes before products
    MB_TRY(ok(cudaDeviceGetStreamPriorityRange(&least, &greatest), "reading stream priorities"));
    MB_TRY(ok(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest), "creating a stream"));
    MB_TRY(ok(cudaStreamCreateWithPriority(&compute_, cudaStreamNonBlocking, least), "creating a stream"));
    for (cudaEvent_t* event : {&start_, &stop_, &last_}) MB_TRY(ok(cudaEventCreate(event), "creating an event"));
    for (void** buffer : {&send_, &recv_}) MB_TRY(allocate_buffer(buffer));
    MB_TRY(ok(cudaMemset(send_, 0, options_.most), "clearing a buffer"));
    ParallelSizes sizes;
    sizes.dp = world_.size();
    MB_ASSIGN(mesh_, Mesh::make(sizes));
    MB_ASSIGN(host_, world_.group(GroupKind::kWorld, mesh_));
    MB_ASSIGN(groups_, cuda::NcclGroups::open(world_, [this] { return stream_; }));
    for (const int ctas : {0, 2, 4, 8, 16, 32}) {
      MB_ASSIGN(auto group, groups_->group(GroupKind::kDpCp, mesh_, {.max_ctas = ctas}));
      ways_.push_back({std::move(group), ctas});
    }
    if (options_.most >= kBeside) {
      MB_ASSIGN(product_, Product::make());
    }
    return options_.registered ? register_buffers() : open_copies();
  }

  size_t most_copied() const { return std::min(kMostCopied, options_.most); }

  // Their inboxes take no windows.
  Status open_copies() {
    const auto members = static_cast<size_t>(world_.size());
    MB_ASSIGN(auto group,
              groups_->group(GroupKind::kDpCp, mesh_, {.copied = most_copied(), .scattered = most_copied() / members}));
    if (groups_->notes().empty()) copies_ = {std::move(group), 0, true};
    for (const std::string& note : groups_->notes())
      if (world_.rank() == 0) fmt::print(stderr, "{}\n", note);
    return {};
  }

  Status register_buffers() {
    const std::array<cuda::NcclMemory, 2> buffers{cuda::NcclMemory{send_, options_.most}, {recv_, options_.most}};
    MB_ASSIGN(const cuda::NcclRegistered done, groups_->register_memory(buffers, [](auto) { return true; }));
    if (done.windows < done.communicators)
      return fail(ErrorCode::kUnavailable, "NCCL opened no windows on the buffers",
                  "GPUs that reach each other's memory are needed, and NCCL_CUMEM_ENABLE and NCCL_WIN_ENABLE not 0");
    return {};
  }

  void say(const std::string& line) {
    if (world_.rank() != 0) return;
    fmt::print("{}", line);
    std::fflush(stdout);
    table_ += line;
  }

  // Elements a member, by nccl-tests' conventions.
  size_t count_of(What what, size_t bytes) const {
    const bool whole = what == What::kAllReduce || what == What::kSendRecv;
    return bytes / kElement / (whole ? 1 : static_cast<size_t>(world_.size()));
  }

  Status call(const Way& way, What what, size_t count) {
    Communicator& group = *way.group;
    switch (what) {
      case What::kAllReduce: return group.all_reduce(send_, recv_, count, DType::kBf16);
      case What::kAllGather: return group.all_gather(send_, recv_, count, DType::kBf16);
      case What::kReduceScatter: return group.reduce_scatter(send_, recv_, count, DType::kBf16);
      case What::kAllToAll: return group.all_to_all(send_, recv_, count, DType::kBf16);
      case What::kSendRecv: break;
    }
    const int n = group.size(), next = (group.rank() + 1) % n, before = (group.rank() + n - 1) % n;
    const auto part = [&](P2p::Kind kind, int peer, void* buffer) {
      return P2p{kind, peer, PipeDirection::kForward, buffer, count, DType::kBf16, way.copies};
    };
    const std::array<P2p, 2> parts{part(P2p::Kind::kSend, next, send_), part(P2p::Kind::kRecv, before, recv_)};
    return group.exchange(parts);
  }

  // Milliseconds a call, of the slowest rank.
  Result<double> timed(cudaStream_t stream, int calls, const std::function<Status()>& one) {
    MB_TRY(host_->barrier());
    MB_TRY(ok(cudaEventRecord(start_, stream), "timing"));
    for (int i = 0; i < calls; ++i) MB_TRY(one());
    MB_TRY(ok(cudaEventRecord(stop_, stream), "timing"));
    MB_TRY(ok(cudaEventSynchronize(stop_), "timing"));
    float ms = 0.0F;
    MB_TRY(ok(cudaEventElapsedTime(&ms, start_, stop_), "timing"));
    const double mine = static_cast<double>(ms) / calls;
    double slowest = 0.0;
    MB_TRY(host_->all_reduce(&mine, &slowest, 1, DType::kF64, ReduceOp::kMax));
    return slowest;
  }

  std::string name_of_row(const Way& way, What what) const {
    return fmt::format("{}{}", name_of(what), way.copies ? "_copy_engines" : options_.registered ? "_registered" : "");
  }

  Status row(const Way& way, What what, size_t bytes) {
    const size_t count = count_of(what, bytes);
    if (count == 0) return {};
    for (int i = 0; i < 3; ++i) MB_TRY(call(way, what, count));
    const int calls = bytes <= (size_t{16} << 20U) ? 50 : 10;
    std::vector<double> times(5);
    for (double& time : times) {
      MB_ASSIGN(time, timed(stream_, calls, [&] { return call(way, what, count); }));
    }
    const auto [ms, spread] = middle_of(times);
    const auto wire = static_cast<double>(wire_bytes(op_of(what), world_.size(), DType::kBf16, count));
    say(fmt::format("{},{},{},{:.2f},{:.1f},{:.3f}\n", name_of_row(way, what), bytes, way.ctas, ms * 1e3,
                    wire / ms * 1e-6, spread));
    if (bytes != kBeside) return {};
    MB_TRY(product_row("gemm", way, what, 0, ms));
    // How many blocks NCCL chooses by itself nobody tells.
    return way.ctas == 0 ? Status{} : product_row("gemm_leaving_sms", way, what, way.ctas, ms);
  }

  // A product that leaves so many SMs, beside calls that take `call_ms` each where there are any.
  Status product_row(std::string name, const Way& way, std::optional<What> what, int sms_left, double call_ms) {
    const size_t count = what ? count_of(*what, kBeside) : 0;
    if (what) name += "_beside_" + name_of_row(way, *what);
    std::vector<double> times(3), ratios(3);
    for (size_t i = 0; i < times.size(); ++i) {
      MB_ASSIGN(const double alone_ms, time_product(0));
      const int calls = what ? 1 + static_cast<int>(2 * kProducts * alone_ms / call_ms) : 0;
      MB_ASSIGN(times[i], time_product(sms_left, calls, [&] { return call(way, *what, count); }));
      ratios[i] = times[i] / alone_ms;
    }
    const auto [ratio, spread] = middle_of(ratios);
    say(fmt::format("{},{},{},{:.2f},{:.3f},{:.3f}\n", name, what ? kBeside : 0, way.ctas, middle_of(times).value * 1e3,
                    ratio, spread));
    return {};
  }

  // Milliseconds a product, beside so many calls, or more: until they outlast the products on every rank.
  Result<double> time_product(int sms_left, int calls = 0, const std::function<Status()>& beside = {}) {
    for (int tries = 1;; ++tries, calls *= 2) {
      MB_TRY(product_->run(sms_left, compute_));
      MB_TRY(ok(cudaStreamSynchronize(compute_), "warming up a product"));
      for (int i = 0; i < calls; ++i) MB_TRY(beside());
      MB_TRY(ok(cudaEventRecord(last_, stream_), "timing"));
      MB_ASSIGN(const double ms, timed(compute_, kProducts, [&] { return product_->run(sms_left, compute_); }));
      MB_TRY(ok(cudaEventSynchronize(last_), "communicating beside a product"));
      float longer_ms = 0.0F;
      MB_TRY(ok(cudaEventElapsedTime(&longer_ms, stop_, last_), "timing"));
      const double ended_before = longer_ms < 0.0F ? 1.0 : 0.0;
      double on_any = 0.0;
      MB_TRY(host_->all_reduce(&ended_before, &on_any, 1, DType::kF64, ReduceOp::kMax));
      if (calls == 0 || on_any == 0.0) return ms;
      if (tries == 3) return fail(ErrorCode::kUnavailable, "collectives ended before the products beside them");
    }
  }

  static constexpr int kProducts = 40;

  World& world_;
  const Options& options_;
  Mesh mesh_;
  cudaStream_t stream_ = nullptr, compute_ = nullptr;
  cudaEvent_t start_ = nullptr, stop_ = nullptr, last_ = nullptr;
  void *send_ = nullptr, *recv_ = nullptr;
  const cuda::NcclApi* api_ = nullptr;  // of registered buffers
  std::unique_ptr<cuda::NcclGroups> groups_;
  std::unique_ptr<Communicator> host_;
  std::vector<Way> ways_;  // the first as NCCL chooses
  Way copies_;
  std::unique_ptr<Product> product_;
  std::string table_;
};

Result<Options> parse(int argc, char** argv) {
  constexpr int64_t kMostMib = 16'384, kMostGpus = 1024;
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--registered") {
      options.registered = true;
      continue;
    }
    if (flag != "--out" && flag != "--gpus" && flag != "--mib")
      return fail(ErrorCode::kBadArgument, "unknown flag " + flag, kUsage);
    if (++i == argc) return fail(ErrorCode::kBadArgument, flag + " needs a value", kUsage);
    const std::string value = argv[i];
    if (flag == "--out") {
      MB_TRY(check_writable(value));
      options.out = value;
      continue;
    }
    const bool gpus = flag == "--gpus";
    const int64_t least = gpus ? 2 : 1, most = gpus ? kMostGpus : kMostMib;
    const auto number = parse_int(value);
    if (!number || *number < least || *number > most)
      return fail(ErrorCode::kBadArgument,
                  fmt::format("{} {}: a whole number from {} to {}", flag, value, least, most));
    if (gpus)
      options.gpus = static_cast<int>(*number);
    else
      options.most = static_cast<size_t>(*number) << 20U;
  }
  return options;
}

// This process becomes rank 0 of as many as there are GPUs; the copies made here, before CUDA is touched, the others,
// whose processes it is given.
Status become_ranks(const Options& options, const std::filesystem::path& folder, std::vector<pid_t>& others) {
  const int found = static_cast<int>(profiler::list_gpus().gpus.size());
  const int gpus = options.gpus > 0 ? options.gpus : found;
  if (gpus < 2 || gpus > found)
    return fail(ErrorCode::kUnavailable,
                fmt::format("{} of this machine's {} GPUs: two or more communicate", gpus, found),
                "two GPUs are needed, and --gpus asks for no more than there are");
  MB_TRY(make_dirs(folder));
  setenv("MBBENCH_RANKS", std::to_string(gpus).c_str(), 1);
  setenv("MBBENCH_MEET_AT", fmt::format("file:{}/meet", folder.string()).c_str(), 1);
  int rank = 0;
  const pid_t parent = getpid();
  for (int other = 1; other < gpus && rank == 0; ++other) {
    others.push_back(fork());
    if (others.back() != 0) continue;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);
    rank = other;
    others.clear();
  }
  setenv("MBBENCH_RANK", std::to_string(rank).c_str(), 1);
  return {};
}

// Asked until all ranks have met.
Status check_alive(const std::vector<pid_t>& others) {
  for (size_t i = 0; i < others.size(); ++i)
    if (others[i] < 0 || waitpid(others[i], nullptr, WNOHANG) == others[i])
      return fail(ErrorCode::kRankFailed, fmt::format("rank {} ended before it met the others", i + 1));
  return {};
}

int run(int argc, char** argv) {
  for (int i = 1; i < argc; ++i)
    if (std::string_view(argv[i]) == "--help" || std::string_view(argv[i]) == "-h") {
      fmt::print("{}", kUsage);
      return 0;
    }
  const auto refused = [](const Error& error) {
    fmt::print(stderr, "{}\n", format(error));
    return error.code == ErrorCode::kBadArgument ? 64 : 4;
  };
  const auto options = parse(argc, argv);
  if (!options) return refused(options.error());
  setenv("NCCL_NVLS_ENABLE", "0", 1);
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / fmt::format("mbbench-comm-{}", getpid());
  std::vector<pid_t> others;
  if (!place_if_any())
    if (const Status started = become_ranks(*options, folder, others); !started) return refused(started.error());
  const int rank = place_if_any()->rank;
  ControlOptions control;
  control.meanwhile = [&] { return check_alive(others); };
  control.on_stuck = [&](const Error& error) {  // the device waits for a rank that is gone
    refused(error);
    _exit(4);
  };
  const Status ran = run_mpi_rank([&](World& world) { return Bench(world, *options).run(); }, control);
  if (rank != 0) _exit(ran ? 0 : 4);
  while (wait(nullptr) > 0) {
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  return ran ? 0 : refused(ran.error());
}

}  // namespace
}  // namespace mbb::suites

int main(int argc, char** argv) {
  return mbb::suites::run(argc, argv);
}
