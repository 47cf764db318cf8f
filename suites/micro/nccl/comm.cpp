// mbbench-comm: collectives of this host's GPUs, a process each, through the communicators that training uses.
//
// Conventions of nccl-tests: the size is the whole buffer (all_gather's output, reduce_scatter's input, all parts of an
// all_to_all), bus bandwidth is what a member puts on the wire at the bandwidth bound over the time of the slowest
// rank. Times are means over calls back to back on one stream. With --registered the buffers are windows of the
// communicator (memory.nccl_ub), and rows end in `_registered`; NCCL_CTA_POLICY=2 in the environment then lets copy
// engines gather. Rows `gemm_*` are of a product: its time beside collectives, and the ratio to its time alone on all
// SMs; `gemm_leaving_sms` is one that is told to leave as many SMs as a collective has thread blocks.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

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

constexpr const char* kUsage =
    "mbbench-comm [--gpus N]   (default all of this machine's)\n"
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
    for (cudaEvent_t event : {start_, stop_, fork_}) cudaEventDestroy(event);
    groups_.reset();
    for (cudaStream_t stream : {stream_, compute_}) cudaStreamDestroy(stream);
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  Status run() {
    MB_TRY(open());
    say("op,bytes,max_ctas,us,bus_GB/s\n");
    for (const What what : kAll)
      for (size_t bytes = 8; bytes <= options_.most; bytes *= 2) MB_TRY(row(*group_, what, bytes, 0));
    if (options_.registered) return write();  // groups that are opened from here on have no windows
    for (const int ctas : {2, 4, 8, 16, 32}) {
      MB_ASSIGN(const auto limited, groups_->group(GroupKind::kDpCp, mesh_, {.max_ctas = ctas}));
      for (const What what : {What::kAllReduce, What::kAllGather, What::kReduceScatter})
        MB_TRY(row(*limited, what, std::min(kBeside, options_.most), ctas));
      MB_TRY(beside(*limited, ctas));
    }
    MB_TRY(beside(*group_, 0));
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
    for (cudaStream_t* stream : {&stream_, &compute_})
      MB_TRY(ok(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking), "creating a stream"));
    for (cudaEvent_t* event : {&start_, &stop_, &fork_}) MB_TRY(ok(cudaEventCreate(event), "creating an event"));
    for (void** buffer : {&send_, &recv_}) MB_TRY(allocate_buffer(buffer));
    MB_TRY(ok(cudaMemset(send_, 0, options_.most), "clearing a buffer"));
    ParallelSizes sizes;
    sizes.dp = world_.size();
    MB_ASSIGN(mesh_, Mesh::make(sizes));
    MB_ASSIGN(host_, world_.group(GroupKind::kWorld, mesh_));
    MB_ASSIGN(groups_, cuda::NcclGroups::open(world_, [this] { return stream_; }));
    MB_ASSIGN(group_, groups_->group(GroupKind::kDp, mesh_, {}));
    if (!options_.registered) return {};
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

  Status call(Communicator& group, What what, size_t count) {
    switch (what) {
      case What::kAllReduce: return group.all_reduce(send_, recv_, count, DType::kBf16);
      case What::kAllGather: return group.all_gather(send_, recv_, count, DType::kBf16);
      case What::kReduceScatter: return group.reduce_scatter(send_, recv_, count, DType::kBf16);
      case What::kAllToAll: return group.all_to_all(send_, recv_, count, DType::kBf16);
      case What::kSendRecv: break;
    }
    const int n = group.size(), next = (group.rank() + 1) % n, before = (group.rank() + n - 1) % n;
    const std::array<P2p, 2> parts{P2p{P2p::Kind::kSend, next, PipeDirection::kForward, send_, count, DType::kBf16},
                                   P2p{P2p::Kind::kRecv, before, PipeDirection::kForward, recv_, count, DType::kBf16}};
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

  Status row(Communicator& group, What what, size_t bytes, int ctas) {
    const size_t count = count_of(what, bytes);
    if (count == 0) return {};
    for (int i = 0; i < 3; ++i) MB_TRY(call(group, what, count));
    MB_ASSIGN(const double ms,
              timed(stream_, bytes <= (size_t{16} << 20U) ? 50 : 10, [&] { return call(group, what, count); }));
    const auto wire = static_cast<double>(wire_bytes(op_of(what), group.size(), DType::kBf16, count));
    say(fmt::format("{}{},{},{},{:.2f},{:.1f}\n", name_of(what), options_.registered ? "_registered" : "", bytes, ctas,
                    ms * 1e3, wire / ms * 1e-6));
    return {};
  }

  // A product alone, and while gathers of weights or reduce-scatters of gradients run beside it.
  Status beside(Communicator& group, int ctas) {
    if (options_.most < kBeside) return {};
    if (product_ == nullptr) {
      MB_ASSIGN(product_, Product::make());
      MB_ASSIGN(alone_ms_, time_product(0));
    }
    // How many blocks NCCL chooses by itself nobody tells.
    for (const int left : ctas > 0 ? std::vector<int>{0, ctas} : std::vector<int>{0}) {
      const std::string name = left > 0 ? "gemm_leaving_sms" : "gemm";
      if (left > 0) {
        MB_ASSIGN(const double ms, time_product(left));
        say_product(name, 0, ctas, ms);
      }
      for (const What what : {What::kReduceScatter, What::kAllGather}) {
        MB_ASSIGN(const double ms, time_product(left, &group, what));
        say_product(fmt::format("{}_beside_{}", name, name_of(what)), kBeside, ctas, ms);
      }
    }
    return {};
  }

  void say_product(const std::string& name, size_t bytes, int ctas, double ms) {
    say(fmt::format("{},{},{},{:.2f},{:.3f}\n", name, bytes, ctas, ms * 1e3, ms / alone_ms_));
  }

  // Milliseconds a product that leaves SMs free, beside collectives of a group where there is one.
  Result<double> time_product(int sms_left, Communicator* group = nullptr, What what = What::kReduceScatter) {
    constexpr int kProducts = 40;
    MB_TRY(product_->run(sms_left, compute_));
    int enqueued = 0;
    MB_ASSIGN(const double ms, timed(compute_, kProducts, [&]() -> Status {
                // Enough of them to outlast the products.
                for (; enqueued < 3 * kProducts / 2 && group != nullptr; ++enqueued)
                  MB_TRY(call(*group, what, count_of(what, kBeside)));
                return product_->run(sms_left, compute_);
              }));
    MB_TRY(ok(cudaStreamSynchronize(stream_), "communicating beside a product"));
    return ms;
  }

  World& world_;
  const Options& options_;
  Mesh mesh_;
  cudaStream_t stream_ = nullptr, compute_ = nullptr;
  cudaEvent_t start_ = nullptr, stop_ = nullptr, fork_ = nullptr;
  void *send_ = nullptr, *recv_ = nullptr;
  const cuda::NcclApi* api_ = nullptr;  // of registered buffers
  std::unique_ptr<cuda::NcclGroups> groups_;
  std::unique_ptr<Communicator> group_, host_;
  std::unique_ptr<Product> product_;
  double alone_ms_ = 0.0;
  std::string table_;
};

Result<Options> parse(int argc, char** argv) {
  constexpr int64_t kMostMib = 16'384;
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
    const auto number = parse_int(value);
    if (!number || *number < 1 || *number > kMostMib)
      return fail(ErrorCode::kBadArgument, fmt::format("{} {}: a whole number from 1 to {}", flag, value, kMostMib));
    if (flag == "--gpus")
      options.gpus = static_cast<int>(*number);
    else
      options.most = static_cast<size_t>(*number) << 20U;
  }
  return options;
}

// This process becomes rank 0 of as many as there are GPUs; the copies made here, before CUDA is touched, the others.
Status become_ranks(const Options& options, const std::filesystem::path& folder) {
  const int found = static_cast<int>(profiler::list_gpus().gpus.size());
  const int gpus = options.gpus > 0 ? options.gpus : found;
  if (gpus < 2 || gpus > found)
    return fail(ErrorCode::kUnavailable,
                fmt::format("{} of this machine's {} GPUs: two or more communicate", gpus, found),
                "two GPUs are needed, and --gpus asks for no more than there are");
  MB_TRY(make_dirs(folder));
  setenv("MBBENCH_RANKS", std::to_string(gpus).c_str(), 1);
  setenv("MBBENCH_MEET_AT", fmt::format("file:{}/meet", folder.string()).c_str(), 1);
  setenv("NCCL_NVLS_ENABLE", "0", 1);
  int rank = 0;
  const pid_t parent = getpid();
  for (int other = 1; other < gpus && rank == 0; ++other)
    if (fork() == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(127);
      rank = other;
    }
  setenv("MBBENCH_RANK", std::to_string(rank).c_str(), 1);
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
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / fmt::format("mbbench-comm-{}", getpid());
  if (!place_if_any())
    if (const Status started = become_ranks(*options, folder); !started) return refused(started.error());
  const int rank = place_if_any()->rank;
  const Status ran = run_mpi_rank([&](World& world) { return Bench(world, *options).run(); });
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
