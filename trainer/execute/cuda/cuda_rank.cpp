// Opens a rank: memory, operands, first values; and what a step takes from the host and gives back.
#include "trainer/execute/cuda/cuda_rank.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "profiler/base/clock.h"
#include "profiler/base/file.h"
#include "trainer/execute/cuda/f32_gradients.h"
#include "trainer/execute/cuda/initial_values.h"
#include "trainer/execute/cuda/op_mark.h"
#include "trainer/execute/first_state.h"
#include "trainer/ops/cuda/delay.h"
#include "trainer/ops/cuda/status.h"
#include "trainer/ops/own_records.h"
#include "trainer/program/walk.h"

namespace mbb::trainer::cuda {
namespace {

constexpr int64_t kStagingAlign = 256;
int64_t round_up(int64_t bytes) {
  return (bytes + kStagingAlign - 1) / kStagingAlign * kStagingAlign;
}

// What arrives with every micro-batch.
constexpr size_t kBatchPorts = 7;
std::array<TensorId, kBatchPorts> batch_ports(const Ports& ports) {
  return {ports.tokens, ports.labels,         ports.samples,  ports.encoder_tokens,
          ports.starts, ports.encoder_starts, ports.sequences};
}

// Where the time until the first step goes.
class Phases {
 public:
  void ended(const char* name) {
    const int64_t now = monotonic_ns();
    said_ += fmt::format("{} {} {:.1f} s", said_.empty() ? "opened:" : ",", name, seconds(now - last_ns_));
    last_ns_ = now;
  }
  std::string said() const { return said_; }

 private:
  static double seconds(int64_t ns) { return static_cast<double>(ns) * 1e-9; }

  int64_t last_ns_ = monotonic_ns();
  std::string said_;
};

const BucketAttrs* bucket_of(const Op& op) {
  if (const auto* bucket = std::get_if<BucketAttrs>(&op.attrs)) return bucket;
  if (const auto* adam = std::get_if<AdamAttrs>(&op.attrs)) return &adam->bucket;
  return nullptr;
}

// Streams beside compute get a GEMM workspace each when an op first runs there.
int64_t workspaces_to_come(const Program& program) {
  std::array<bool, kStreams> used{};
  walk(program, [&](int, const Call&, int, const Op& op) { used[static_cast<size_t>(op.stream)] = true; });
  used[static_cast<size_t>(Stream::kCompute)] = false;
  return kGemmWorkspace * std::count(used.begin(), used.end(), true);
}

}  // namespace

CudaRank::CudaRank(const profiler::CudaRankRequest& request)
    : program_(with_own_records(*static_cast<const Program*>(request.program))),
      plan_(*static_cast<const MemoryPlan*>(request.plan)),
      mesh_(*static_cast<const Mesh*>(request.mesh)),
      request_(request),
      coordinates_(mesh_.coordinates(request.rank)),
      world_(static_cast<World*>(request.world)) {
  if (request_.share_device) request_.graphs = false;  // its ranks meet on the host
}

Result<std::unique_ptr<CudaRank>> CudaRank::create(const profiler::CudaRankRequest& request) {
  std::unique_ptr<CudaRank> rank(new CudaRank(request));
  Phases phases;
  rank->stands("the opening of its GPU");
  MB_ASSIGN(rank->device_, Device::open(request.device));
  phases.ended("device");
  rank->device_->set_deterministic(request.deterministic);
  if (rank->world_ != nullptr && rank->mesh_.world_size() > 1) {
    rank->stands("the opening of its communicators");
    MB_ASSIGN(rank->groups_, RankGroups::open(rank->program_, rank->mesh_, *rank->world_, *rank->device_, request));
    phases.ended("communicators");
  }
  rank->stands("its memory");
  MB_TRY(rank->allocate());
  if (rank->groups_ != nullptr && rank->plan_.options.registered)
    MB_TRY(rank->groups_->register_arena(*rank->arena_, rank->plan_));
  MB_TRY(rank->bind_all());
  MB_TRY(rank->plan_parts());
  phases.ended("memory");
  if (request.tune) {
    rank->stands("the choice of algorithms");
    MB_TRY(rank->tune());
    phases.ended("choosing algorithms");
  }
  rank->stands("its first values");
  MB_TRY(rank->initial_values());
  phases.ended("first values");
  rank->device_->note(phases.said());
  return rank;
}

CudaRank::~CudaRank() {
  if (device_ != nullptr) (void)cudaStreamSynchronize(device_->stream_of(Stream::kCompute));
  drop_graphs();
  if (groups_ != nullptr) groups_->forget_arena();
  const auto destroy = [](cudaEvent_t event) {
    if (event != nullptr) cudaEventDestroy(event);
  };
  for (const Part& part : parts_) std::for_each(part.ended.begin(), part.ended.end(), destroy);
  std::for_each(forks_.begin(), forks_.end(), destroy);
  for (cudaEvent_t event : {start_, optimizer_, end_}) destroy(event);
  cudaFreeHost(staging_);
  cudaFreeHost(host_arena_);
}

Status CudaRank::bind_all() {
  walk_.clear();
  return walk(program_, [&](int index, const Call& call, int, const Op& op) -> Status {
    Bound bound;
    bound.op = &op;
    bound.function = find_op_function(op.kind->cuda);
    if (bound.function == nullptr)
      return fail(ErrorCode::kUnavailable, fmt::format("op {}: {} has no CUDA function", op.path, op.kind->name),
                  "use host.device = cpu, or a configuration without this op");
    const auto bind = [&](std::vector<Operand>& to, const std::vector<TensorId>& ids) {
      for (const TensorId id : ids) to.push_back({data(id, slot(program_.tensor(id), call)), &program_.tensor(id)});
    };
    bind(bound.in, op.in);
    bind(bound.out, op.out);
    if (const BucketAttrs* bucket = bucket_of(op); bucket != nullptr && bucket->sharded)
      bound.shard_index = mesh_.group_index(bucket->shard_group, request_.rank);
    bound.call = index;
    bound.micro_batch = call.micro_batch;
    bound.optimizer = program_.segment(call).kind == SegmentKind::kOptimizer;
    bound.id = static_cast<uint32_t>(walk_.size() + 1);
    bound.range = profiler::nvtx::text(op.path);
    bound.segment = profiler::nvtx::text(program_.segment(call).name);
    walk_.push_back(std::move(bound));
    return {};
  });
}

Status CudaRank::allocate() {
  size_t free_bytes = 0, total_bytes = 0;
  MB_TRY(ok(cudaMemGetInfo(&free_bytes, &total_bytes), "reading free device memory"));
  MB_TRY(check_fits(program_, plan_, static_cast<int64_t>(free_bytes) - workspaces_to_come(program_)));
  int devices = 0;
  if (request_.share_device) MB_TRY(ok(cudaGetDeviceCount(&devices), "counting CUDA devices"));
  MB_ASSIGN(arena_, Arena::open(plan_, request_.device, devices));
  device_->count("pages of the arena beyond the plan", arena_->slack_bytes());
  if (!arena_->note().empty()) device_->refuse("memory.expandable_segments", arena_->note());
  if (plan_.host_bytes > 0)
    MB_TRY(ok(cudaMallocHost(reinterpret_cast<void**>(&host_arena_), static_cast<size_t>(plan_.host_bytes)),
              "allocating the pinned host arena"));
  staging_bytes_ = round_up(static_cast<int64_t>(sizeof(float)) * StepRecord::kFields);
  for (const TensorId id : batch_ports(program_.ports))
    if (id != kNoTensor) staging_bytes_ += program_.micro_batches * round_up(program_.tensor(id).bytes());
  for (const RoutingPort& port : program_.ports.routing)
    staging_bytes_ += program_.micro_batches * round_up(program_.tensor(port.experts).bytes());
  staging_bytes_ += 2 * kStagingAlign;
  MB_TRY(ok(cudaMallocHost(reinterpret_cast<void**>(&staging_), static_cast<size_t>(staging_bytes_)),
            "allocating pinned staging"));
  for (cudaEvent_t* event : {&start_, &optimizer_, &end_}) MB_TRY(ok(cudaEventCreate(event), "creating an event"));
  return {};
}

// Before the first values: the arena holds random numbers, so that algorithms are timed on what they will meet, at its
// real addresses; whatever they write is made again afterwards. Ranks time a part of the problems each, and have each
// other's choices: the first step comes sooner, and all of them compute alike.
Status CudaRank::tune() {
  const cudaStream_t stream = device_->stream();
  const std::string file = request_.tuning_file == nullptr ? "" : request_.tuning_file;
  if (!file.empty() && (!request_.write_tuning || file_exists(file))) MB_TRY(device_->load_tuning(file));
  const TuneEffort effort = !request_.write_tuning  ? TuneEffort::quick()
                            : request_.brief_tuning ? TuneEffort::brief()
                                                    : TuneEffort::thorough();
  for (const Arena::Block& block : arena_->blocks())
    MB_TRY(fill_normal(Element::kBf16, block.data, 0, block.bytes / 2, request_.seed, 1.0f, stream));
  const auto largest = std::max_element(arena_->blocks().begin(), arena_->blocks().end(),
                                        [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
  if (request_.write_tuning) device_->rotate_over({largest->data, static_cast<size_t>(largest->bytes)});
  if (groups_ != nullptr) {
    device_->share_tuning(request_.rank, mesh_.world_size());
    MB_TRY(choose_algorithms(effort));
    MB_ASSIGN(const std::vector<std::string> texts, groups_->texts_of_all(device_->tuning().text()));
    device_->agree_on_tuning(texts);
  }
  MB_TRY(choose_algorithms(effort));
  if (!request_.write_tuning) return {};
  return write_file(file, device_->tuning().text());
}

Status CudaRank::choose_algorithms(const TuneEffort& effort) {
  for (size_t i = 0; i < walk_.size(); ++i) {
    const Bound& bound = walk_[i];
    const bool backward = bound.function == f32_gradients<attention_grad_op>;
    const bool attention = bound.function == attention_op || backward;
    const bool gated = bound.function == gemm_swiglu_op || bound.function == gemm_swiglu_grad_op;
    // Where a rank alone is asked to tune: codes are compared on the host.
    const OpFunction quantization =
        request_.write_tuning && groups_ == nullptr ? tune_of_quantization(bound.function) : nullptr;
    if (!attention && !gated && quantization == nullptr && bound.function != gemm_op &&
        bound.function != gemm_scaled_op && bound.function != gemm_blocks_op && bound.function != gemm_rows_op &&
        bound.function != gemm_scaled_rows_op)
      continue;
    MB_TRY(device_->use(attention ? bound.op->stream : Stream::kCompute));
    const OpCall call{
        *bound.op, bound.in, bound.out, coordinates_, bound.shard_index, *device_, sm_target(part_of(i), i)};
    Status status = quantization != nullptr                 ? quantization(call)
                    : bound.function == attention_op        ? tune_attention_op(call)
                    : backward                              ? tune_attention_grad_op(call)
                    : bound.function == gemm_swiglu_op      ? tune_gemm_swiglu_op(call, effort, groups_ == nullptr)
                    : bound.function == gemm_swiglu_grad_op ? tune_gemm_swiglu_grad_op(call, effort, groups_ == nullptr)
                    : bound.function == gemm_op             ? tune_gemm_op(call, effort)
                    : bound.function == gemm_rows_op        ? tune_gemm_rows_op(call, effort)
                    : bound.function == gemm_scaled_rows_op ? tune_gemm_scaled_rows_op(call, effort)
                    : bound.function == gemm_blocks_op      ? tune_gemm_blocks_op(call, effort)
                                                            : tune_gemm_scaled_op(call, effort);
    if (!status)
      return tl::unexpected<Error>(std::move(status.error()).during(fmt::format("tuning op {}", bound.op->path)));
  }
  return device_->use(Stream::kCompute);
}

Status CudaRank::initial_values() {
  const cudaStream_t stream = device_->stream();
  for (const Arena::Block& block : arena_->blocks())
    MB_TRY(ok(cudaMemsetAsync(block.data, 0xff, static_cast<size_t>(block.bytes), stream), "poisoning the arena"));
  for (size_t i = 0; i < program_.tensors.size(); ++i) {
    const Tensor& t = program_.tensors[i];
    const bool used = t.view_of == kNoTensor && !plan_.offsets[i].empty();
    const bool slot = t.scope == Scope::kStep && t.category == Category::kComm;  // its padding is never written
    if (used && (t.scope == Scope::kPersistent || t.category == Category::kMainGrad || slot))
      MB_TRY(ok(cudaMemsetAsync(data(static_cast<TensorId>(i), 0), 0, static_cast<size_t>(t.bytes()), stream),
                "clearing state"));
  }
  DeviceStores stores(stream);
  MB_TRY(make_first_state({program_, mesh_, request_.rank, request_.seed, [this](TensorId id) { return data(id, 0); }},
                          stores));
  return ok(cudaStreamSynchronize(stream), "making the first weights");
}

Status CudaRank::upload(const StepInput& input) {
  const Ports& ports = program_.ports;
  const cudaStream_t stream = device_->stream();
  const OpMark mark(op_id(0));
  std::byte* at = staging_;
  std::memcpy(at, input.record.data(), sizeof(input.record));
  MB_TRY(ok(cudaMemcpyAsync(data(ports.step_record, 0), at, sizeof(input.record), cudaMemcpyHostToDevice, stream),
            "uploading the step record"));
  at += round_up(sizeof(input.record));
  const std::array<TensorId, kBatchPorts> ids = batch_ports(program_.ports);
  for (int m = 0; m < program_.micro_batches; ++m) {
    std::array<std::span<int32_t>, kBatchPorts> spans;
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] == kNoTensor) continue;
      const Tensor& t = program_.tensor(ids[i]);
      spans[i] = {reinterpret_cast<int32_t*>(at), static_cast<size_t>(t.shape.elements())};
      at += round_up(t.bytes());
    }
    if (!spans[0].empty() || !spans[1].empty()) MB_TRY(input.batch(m, spans[0], spans[1]));
    if (!spans[2].empty() || !spans[3].empty()) MB_TRY(input.extra(m, spans[2], spans[3]));
    if (!spans[4].empty()) MB_TRY(input.starts(m, spans[4]));
    if (!spans[5].empty()) MB_TRY(input.encoder_starts(m, spans[5]));
    if (!spans[6].empty()) MB_TRY(input.sequences(m, spans[6]));
    const auto send = [&](TensorId id, std::span<const int32_t> values) {
      return ok(cudaMemcpyAsync(data(id, m % program_.tensor(id).ring), values.data(), values.size_bytes(),
                                cudaMemcpyHostToDevice, stream),
                "uploading a micro-batch");
    };
    for (size_t i = 0; i < ids.size(); ++i)
      if (ids[i] != kNoTensor) MB_TRY(send(ids[i], spans[i]));
    if (!input.routing) continue;
    for (const RoutingPort& port : program_.ports.routing) {
      const Tensor& t = program_.tensor(port.experts);
      const std::span experts{reinterpret_cast<int32_t*>(at), static_cast<size_t>(t.shape.elements())};
      at += round_up(t.bytes());
      MB_TRY(input.routing(m, port, experts));
      MB_TRY(send(port.experts, experts));
    }
  }
  return {};
}

Status CudaRank::finish(StepOutput* output) {
  const cudaStream_t stream = device_->stream();
  const OpMark mark(op_id(1));
  std::byte* const back = staging_ + staging_bytes_ - 2 * kStagingAlign;
  MB_TRY(ok(cudaMemcpyAsync(back, data(program_.ports.loss_sum, 0), 16, cudaMemcpyDeviceToHost, stream),
            "reading the loss"));
  MB_TRY(
      ok(cudaMemcpyAsync(back + kStagingAlign, data(program_.ports.grad_scale, 0), 12, cudaMemcpyDeviceToHost, stream),
         "reading the gradient norm"));
  const Ports& ports = program_.ports;
  std::vector<TensorId> beside = ports.mtp_losses;  // losses beside the main one, two doubles each
  if (ports.router_losses != kNoTensor) beside.push_back(ports.router_losses);
  MB_CHECK(16 * (1 + static_cast<int64_t>(beside.size())) <= kStagingAlign, "more losses than the staging holds");
  for (size_t i = 0; i < beside.size(); ++i)
    MB_TRY(ok(cudaMemcpyAsync(back + 16 * (i + 1), data(beside[i], 0), 16, cudaMemcpyDeviceToHost, stream),
              "reading the losses beside the main one"));
  std::byte* const alarm = back + kStagingAlign + kStagingAlign / 2;
  if (device_->raised() != nullptr)
    MB_TRY(ok(cudaMemcpyAsync(alarm, device_->raised(), 2 * sizeof(int32_t), cudaMemcpyDeviceToHost, stream),
              "reading an op's alarm"));
  Status ran = groups_ == nullptr ? ok(cudaStreamSynchronize(stream), "running ops") : groups_->wait(stream);
  if (!ran && groups_ == nullptr) {
    // Work is asynchronous: this is where the device says what went wrong in any op since the last step.
    ran.error().hint = "host.enable_cuda_graph = false with CUDA_LAUNCH_BLOCKING=1 in the environment names the op";
  }
  MB_TRY(ran);
  if (device_->raised() != nullptr) MB_TRY(check_alarm(reinterpret_cast<const int32_t*>(alarm)));
  const auto* loss = reinterpret_cast<const double*>(back);
  const auto* scale = reinterpret_cast<const float*>(back + kStagingAlign);
  output->loss_sum = loss[0];
  output->tokens = loss[1];
  output->grad_norm = static_cast<double>(scale[1]);
  output->found_inf = scale[2] != 0.0f;
  for (size_t i = 0; i < beside.size(); ++i) {
    const double* const two = loss + 2 * (i + 1);
    if (beside[i] == ports.router_losses)
      output->balance_loss_sum = two[0], output->z_loss_sum = two[1];
    else
      output->mtp_loss_sum += two[0], output->mtp_tokens += two[1];
  }
  return {};
}

Status CudaRank::check_alarm(const int32_t* alarm) const {
  if (alarm[0] <= 0 || static_cast<size_t>(alarm[0]) > walk_.size()) return {};
  const Bound& bound = walk_[static_cast<size_t>(alarm[0] - 1)];
  const auto& a = std::get<DispatchAttrs>(bound.op->attrs);
  const double balanced = static_cast<double>(bound.in[0].elements()) / static_cast<double>(a.peers);
  return fail(ErrorCode::kOutOfMemory,
              fmt::format("op {}, micro-batch {}: the experts of a peer get {} rows of this micro-batch and its slot "
                          "has {}: parallel.moe_dropless_bound must be at least {:.3f}",
                          bound.op->path, bound.micro_batch, alarm[1], a.rows / a.peers,
                          static_cast<double>(alarm[1]) / balanced),
              "0 makes room for the worst case");
}

void CudaRank::stands(std::string_view where) const {
  if (world_ != nullptr) world_->at(where, static_cast<uint64_t>(steps_));
}

Status CudaRank::step(const StepInput& input, StepOutput* output) {
  Status status = ended(run_step(input, output));
  if (status) return status;
  return tl::unexpected<Error>(
      std::move(status.error()).during(fmt::format("step {} on GPU {}", steps_, request_.device)));
}

// What waits on the device for ranks that will not come, or that will not be served, ends. Each half waits for the
// other: a graph that runs goes only when its kernels have seen the abort, and the abort returns only when no graph
// holds a call of NCCL any more.
Status CudaRank::ended(Status status) {
  if (status || groups_ == nullptr) return status;
  groups_->abort([this] { drop_graphs(); });
  return status;
}

Status CudaRank::run_step(const StepInput& input, StepOutput* output) {
  const cudaStream_t stream = device_->stream();
  const profiler::nvtx::Range range(profiler::nvtx::text("step"), steps_);
  if (request_.graphs && steps_ > 0 && graphs_.empty()) {
    stands("the capture of graphs");
    MB_TRY(capture());
  }
  stands("the batches of a step");
  MB_TRY(upload(input));
  MB_TRY(ok(cudaEventRecord(start_, stream), "timing the step"));
  stands("the launches of a step");
  MB_TRY(enqueue());
  MB_TRY(ok(cudaEventRecord(end_, stream), "timing the step"));
  stands("the wait for the GPU to end a step");
  MB_TRY(finish(output));
  float forward_backward = 0.0f, whole = 0.0f;
  MB_TRY(ok(cudaEventElapsedTime(&whole, start_, end_), "timing the step"));
  MB_TRY(ok(cudaEventElapsedTime(&forward_backward, start_, optimizer_), "timing the step"));
  times_ = {forward_backward, whole};
  stands("the end of a step");
  ++steps_;
  return {};
}

Status CudaRank::plant_trap() {
  return trap(device_->launch());
}

Status CudaRank::read(TensorId tensor, int slot_index, void* to, int64_t bytes) {
  MB_TRY(ok(cudaMemcpyAsync(to, data(tensor, slot_index), static_cast<size_t>(bytes), cudaMemcpyDeviceToHost,
                            device_->stream()),
            "reading a tensor"));
  return ok(cudaStreamSynchronize(device_->stream()), "reading a tensor");
}

profiler::CudaMemoryFacts CudaRank::memory() const {
  size_t free_bytes = 0, total_bytes = 0;
  // A device that tells nothing any more uses nothing beside what is named.
  if (cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess) free_bytes = total_bytes = 0;
  const int64_t extra = device_->extra_bytes() + (groups_ != nullptr ? groups_->inbox_bytes() : 0);
  return {plan_.arena_bytes, extra, static_cast<int64_t>(total_bytes - free_bytes)};
}

}  // namespace mbb::trainer::cuda
