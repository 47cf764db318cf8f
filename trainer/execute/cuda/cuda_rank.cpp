// Binds operands and orders streams once, enqueues in walk order, captures after the first step.
#include "trainer/execute/cuda/cuda_rank.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "profiler/base/file.h"
#include "profiler/capture/cupti/cupti_capture.h"
#include "trainer/data/rng.h"
#include "trainer/execute/cuda/initial_values.h"
#include "trainer/ops/cuda/status.h"
#include "trainer/program/walk.h"
#include "trainer/run/initial_state.h"

namespace mbb::trainer::cuda {
namespace {

constexpr int64_t kStagingAlign = 256;
int64_t round_up(int64_t bytes) {
  return (bytes + kStagingAlign - 1) / kStagingAlign * kStagingAlign;
}

// What arrives with every micro-batch.
constexpr size_t kBatchPorts = 6;
std::array<TensorId, kBatchPorts> batch_ports(const Ports& ports) {
  return {ports.tokens, ports.labels, ports.samples, ports.encoder_tokens, ports.starts, ports.encoder_starts};
}

const BucketAttrs* bucket_of(const Op& op) {
  if (const auto* bucket = std::get_if<BucketAttrs>(&op.attrs)) return bucket;
  if (const auto* adam = std::get_if<AdamAttrs>(&op.attrs)) return &adam->bucket;
  return nullptr;
}

// What a thread launches while this lives belongs to one op, in a capture.
class OpMark {
 public:
  explicit OpMark(uint32_t id) { profiler::cupti::mark(id); }
  OpMark(const OpMark&) = delete;
  OpMark& operator=(const OpMark&) = delete;
  ~OpMark() { profiler::cupti::unmark(); }
};

}  // namespace

CudaRank::CudaRank(const profiler::CudaRankRequest& request)
    : program_(*static_cast<const Program*>(request.program)),
      plan_(*static_cast<const MemoryPlan*>(request.plan)),
      mesh_(*static_cast<const Mesh*>(request.mesh)),
      request_(request),
      coordinates_(mesh_.coordinates(request.rank)) {}

Result<std::unique_ptr<CudaRank>> CudaRank::create(const profiler::CudaRankRequest& request) {
  std::unique_ptr<CudaRank> rank(new CudaRank(request));
  MB_ASSIGN(rank->device_, Device::open(request.device));
  MB_TRY(rank->allocate());
  MB_TRY(rank->bind_all());
  MB_TRY(rank->plan_parts());
  if (request.tune) MB_TRY(rank->tune());
  MB_TRY(rank->initial_values());
  return rank;
}

CudaRank::~CudaRank() {
  if (device_ != nullptr) cudaStreamSynchronize(device_->stream_of(Stream::kCompute));
  drop_graphs();
  const auto destroy = [](cudaEvent_t event) {
    if (event != nullptr) cudaEventDestroy(event);
  };
  for (const Part& part : parts_) std::for_each(part.ended.begin(), part.ended.end(), destroy);
  std::for_each(forks_.begin(), forks_.end(), destroy);
  for (cudaEvent_t event : {start_, optimizer_, end_}) destroy(event);
  cudaFreeHost(staging_);
  cudaFreeHost(host_arena_);
  cudaFree(arena_);
}

void CudaRank::drop_graphs() {
  for (Part& part : parts_)
    if (part.graph != nullptr) cudaGraphExecDestroy(std::exchange(part.graph, nullptr));
}

Status CudaRank::recapture() {
  if (parts_[0].graph == nullptr) return {};
  drop_graphs();
  return capture();
}

Status CudaRank::bind_all() {
  walk_.clear();
  return walk(program_, [&](int, const Call& call, int, const Op& op) -> Status {
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
    bound.micro_batch = call.micro_batch;
    bound.optimizer = program_.segment(call).kind == SegmentKind::kOptimizer;
    bound.id = static_cast<uint32_t>(walk_.size() + 1);
    bound.range = profiler::nvtx::text(op.path);
    bound.segment = profiler::nvtx::text(program_.segment(call).name);
    walk_.push_back(std::move(bound));
    return {};
  });
}

Status CudaRank::plan_parts() {
  const auto optimizer = std::find_if(walk_.begin(), walk_.end(), [](const Bound& b) { return b.optimizer; });
  const auto middle = static_cast<size_t>(optimizer - walk_.begin());
  parts_[0].begin = 0, parts_[0].end = parts_[1].begin = middle, parts_[1].end = walk_.size();
  for (Part& part : parts_) {
    std::vector<LaneOp> ops;
    for (size_t i = part.begin; i < part.end; ++i) {
      LaneOp op{walk_[i].op->stream, {}};
      const auto add = [&](const std::vector<Operand>& operands, bool write) {
        for (const Operand& o : operands) {
          const auto begin = static_cast<int64_t>(reinterpret_cast<intptr_t>(o.data));  // device or pinned host
          op.accesses.push_back({begin, begin + o.tensor->bytes(), write});
        }
      };
      add(walk_[i].in, false);
      add(walk_[i].out, true);
      ops.push_back(std::move(op));
    }
    part.lanes = plan_lanes(ops);
    part.ended.assign(ops.size(), nullptr);
    for (size_t i = 0; i < ops.size(); ++i)
      if (part.lanes.signals[i])
        MB_TRY(ok(cudaEventCreateWithFlags(&part.ended[i], cudaEventDisableTiming), "creating an event"));
  }
  for (cudaEvent_t& event : forks_)
    MB_TRY(ok(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "creating an event"));
  return {};
}

Status CudaRank::allocate() {
  size_t free_bytes = 0, total_bytes = 0;
  MB_TRY(ok(cudaMemGetInfo(&free_bytes, &total_bytes), "reading free device memory"));
  MB_TRY(check_fits(program_, plan_, static_cast<int64_t>(free_bytes)));
  const auto bytes = static_cast<size_t>(std::max<int64_t>(plan_.arena_bytes, MemoryPlan::kAlign));
  MB_TRY(ok(cudaMalloc(reinterpret_cast<void**>(&arena_), bytes), "allocating the arena"));
  for (const Tensor& t : program_.tensors)
    if (t.space == Space::kHost && t.scope == Scope::kPersistent)
      return fail(ErrorCode::kUnavailable, "weights in host memory do not run on CUDA",
                  "set memory.cpu_offloading_weights = false, or host.device = cpu");
  if (plan_.host_bytes > 0)
    MB_TRY(ok(cudaMallocHost(reinterpret_cast<void**>(&host_arena_), static_cast<size_t>(plan_.host_bytes)),
              "allocating the pinned host arena"));
  staging_bytes_ = round_up(static_cast<int64_t>(sizeof(float)) * StepRecord::kFields);
  for (const TensorId id : batch_ports(program_.ports))
    if (id != kNoTensor) staging_bytes_ += program_.micro_batches * round_up(program_.tensor(id).bytes());
  staging_bytes_ += 2 * kStagingAlign;
  MB_TRY(ok(cudaMallocHost(reinterpret_cast<void**>(&staging_), static_cast<size_t>(staging_bytes_)),
            "allocating pinned staging"));
  for (cudaEvent_t* event : {&start_, &optimizer_, &end_}) MB_TRY(ok(cudaEventCreate(event), "creating an event"));
  return {};
}

// Before the first values: the arena holds random numbers, so that algorithms are timed on what they will meet, at its
// real addresses; whatever they write is made again afterwards.
Status CudaRank::tune() {
  const cudaStream_t stream = device_->stream();
  const std::string file = request_.tuning_file == nullptr ? "" : request_.tuning_file;
  if (!file.empty() && (!request_.write_tuning || file_exists(file))) MB_TRY(device_->load_tuning(file));
  const TuneEffort effort = request_.write_tuning ? TuneEffort::thorough() : TuneEffort::quick();
  MB_TRY(fill_normal(Element::kBf16, arena_, 0, plan_.arena_bytes / 2, request_.seed, 1.0f, stream));
  for (size_t i = 0; i < walk_.size(); ++i) {
    const Bound& bound = walk_[i];
    if (bound.function != gemm_op && bound.function != gemm_scaled_op) continue;
    const OpCall call{*bound.op,
                      bound.in,
                      bound.out,
                      coordinates_,
                      bound.shard_index,
                      *device_,
                      sm_target(parts_[i < parts_[1].begin ? 0 : 1], i)};
    Status status = bound.function == gemm_op ? tune_gemm_op(call, effort) : tune_gemm_scaled_op(call, effort);
    if (!status)
      return tl::unexpected<Error>(std::move(status.error()).during(fmt::format("tuning op {}", bound.op->path)));
  }
  if (!request_.write_tuning) return {};
  return write_file(file, device_->tuning().text());
}

Status CudaRank::initial_values() {
  const cudaStream_t stream = device_->stream();
  MB_TRY(ok(cudaMemsetAsync(arena_, 0xff, static_cast<size_t>(plan_.arena_bytes), stream), "poisoning the arena"));
  for (size_t i = 0; i < program_.tensors.size(); ++i) {
    const Tensor& t = program_.tensors[i];
    const bool used = t.view_of == kNoTensor && !plan_.offsets[i].empty();
    const bool slot = t.scope == Scope::kStep && t.category == Category::kComm;  // its padding is never written
    if (used && (t.scope == Scope::kPersistent || t.category == Category::kMainGrad || slot))
      MB_TRY(ok(cudaMemsetAsync(data(static_cast<TensorId>(i), 0), 0, static_cast<size_t>(t.bytes()), stream),
                "clearing state"));
  }
  if (made_on_host()) return host_values();
  for (size_t i = 0; i < program_.tensors.size(); ++i) {
    const Tensor& t = program_.tensors[i];
    // Frozen weights and state of the optimizer lie in no bucket.
    if (t.main_grad == kNoTensor && (t.view_of != kNoTensor || t.init.kind == Init::Kind::kNone)) continue;
    if (t.init.kind == Init::Kind::kZeros || t.init.kind == Init::Kind::kNone) continue;
    MB_ASSIGN(const Element element, element_of(t));
    std::byte* const to = data(static_cast<TensorId>(i), 0);
    if (t.init.kind == Init::Kind::kOnes) MB_TRY(fill(element, 1.0f, to, t.shape.elements(), device_->launch()));
    if (t.init.kind != Init::Kind::kNormal) continue;
    const RandomStream random(request_.seed, t.path, 0);
    if (t.cuts.empty()) {
      MB_TRY(fill_normal(element, to, 0, t.shape.elements(), random.key(), static_cast<float>(t.init.stddev), stream));
      continue;
    }
    // A cut tensor's indices are scattered: made on the host.
    std::vector<float> values(static_cast<size_t>(t.shape.elements()));
    for (size_t e = 0; e < values.size(); ++e)
      values[e] = static_cast<float>(t.init.stddev) *
                  random.normal(0, static_cast<uint64_t>(unsharded_index(t, coordinates_, static_cast<int64_t>(e))));
    MB_ASSIGN(void* const whole, device_->scratch(static_cast<int64_t>(values.size()) * 4));
    MB_TRY(ok(cudaMemcpyAsync(whole, values.data(), values.size() * 4, cudaMemcpyHostToDevice, stream),
              "uploading weights"));
    MB_TRY(cast(Element::kF32, whole, element, to, t.shape.elements(), device_->launch()));
    MB_TRY(ok(cudaStreamSynchronize(stream), "uploading weights"));
  }
  for (const Bound& bound : walk_) MB_TRY(initial_master(bound));
  return ok(cudaStreamSynchronize(stream), "making the first weights");
}

// Weights in FP8 with their scales, masters kept as remainders, and weights that live in slots start as the oracle
// makes them; the rest has a kernel.
bool CudaRank::made_on_host() const {
  for (const Bound& bound : walk_) {
    const auto* adam = std::get_if<AdamAttrs>(&bound.op->attrs);
    if (adam == nullptr) continue;
    const DType weights = bound.in[1].tensor->dtype;
    if (adam->master == mbb::trainer::MasterForm::kRemainder || (weights != DType::kF32 && weights != DType::kBf16))
      return true;
  }
  return std::any_of(program_.tensors.begin(), program_.tensors.end(), [&](const Tensor& t) {
    return t.main_grad != kNoTensor && t.view_of != kNoTensor && program_.tensor(t.view_of).scope != Scope::kPersistent;
  });
}

Status CudaRank::host_values() {
  Status status;
  initial_state(program_, mesh_, request_.rank, request_.seed, [&](TensorId id, std::span<const float> values) {
    const Tensor& t = program_.tensor(id);
    std::vector<std::byte> bytes(static_cast<size_t>(t.bytes()));
    store_values(t, bytes.data(), values);
    const cudaStream_t stream = device_->stream();
    if (status)
      status = ok(cudaMemcpyAsync(data(id, 0), bytes.data(), bytes.size(), cudaMemcpyHostToDevice, stream),
                  "uploading first values");
    if (status) status = ok(cudaStreamSynchronize(stream), "uploading first values");
  });
  return status;
}

// Master weights start as the weights before rounding: the shard's part of every tensor is made again in fp32.
Status CudaRank::initial_master(const Bound& bound) {
  const auto* adam = std::get_if<AdamAttrs>(&bound.op->attrs);
  if (adam == nullptr || adam->master != mbb::trainer::MasterForm::kState) return {};
  const int64_t count = bound.in[6].elements(), begin = adam->bucket.sharded ? count * bound.shard_index : 0;
  MB_ASSIGN(const Element element, element_of(*bound.in[1].tensor));
  MB_TRY(cast(element, bound.in[1].as<std::byte>() + begin * bytes_of(element), Element::kF32, bound.in[6].data, count,
              device_->launch()));
  for (const Tensor& t : program_.tensors) {
    if (t.main_grad == kNoTensor || t.view_of != bound.op->in[1] || t.init.kind != Init::Kind::kNormal) continue;
    if (!t.cuts.empty()) continue;  // keeps the rounded values: its indices are made on the host in the weight's type
    const int64_t offset = t.view_offset_bytes / bytes_of(element);
    const int64_t from = std::max(offset, begin), to = std::min(offset + t.shape.elements(), begin + count);
    if (from >= to) continue;
    MB_TRY(fill_normal(Element::kF32, bound.in[6].as<float>() + (from - begin), from - offset, to - from,
                       RandomStream(request_.seed, t.path, 0).key(), static_cast<float>(t.init.stddev),
                       device_->stream()));
  }
  return {};
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
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] == kNoTensor) continue;
      MB_TRY(ok(cudaMemcpyAsync(data(ids[i], m % program_.tensor(ids[i]).ring), spans[i].data(), spans[i].size_bytes(),
                                cudaMemcpyHostToDevice, stream),
                "uploading a micro-batch"));
    }
  }
  return {};
}

// SMs a GEMM may take while confined kernels of another stream run beside it; 0: all.
int CudaRank::sm_target(const Part& part, size_t position) const {
  if (request_.side_sms == 0 || !part.lanes.beside[position - part.begin]) return 0;
  return (device_->sms() - request_.side_sms) / 2 * 2;  // clusters of two
}

Status CudaRank::run_op(const Part& part, size_t position) {
  const Bound& bound = walk_[position];
  MB_TRY(device_->use(bound.op->stream, bound.op->stream == Stream::kCompute ? 0 : request_.side_sms));
  const OpCall call{
      *bound.op, bound.in, bound.out, coordinates_, bound.shard_index, *device_, sm_target(part, position)};
  const profiler::nvtx::Range range(bound.range, bound.micro_batch);
  const OpMark mark(bound.id);
  Status status = bound.function(call);
  if (!status)
    return tl::unexpected<Error>(
        std::move(status.error()).during(fmt::format("op {}, micro-batch {}", bound.op->path, bound.micro_batch)));
  return status;
}

// Op by op; NVTX ranges for every call of a segment and every op.
Status CudaRank::run_part(const Part& part) {
  std::array<bool, kStreams> used{};
  for (size_t i = part.begin; i < part.end; ++i) used[static_cast<size_t>(walk_[i].op->stream)] = true;
  const auto compute = static_cast<size_t>(Stream::kCompute);
  used[compute] = false;
  const cudaStream_t stream = device_->stream_of(Stream::kCompute);
  const bool forks = std::find(used.begin(), used.end(), true) != used.end();
  if (forks) MB_TRY(ok(cudaEventRecord(forks_[compute], stream), "parting streams"));
  for (size_t s = 0; s < used.size(); ++s) {
    if (!used[s]) continue;
    MB_TRY(device_->use(static_cast<Stream>(s)));
    MB_TRY(ok(cudaStreamWaitEvent(device_->stream(), forks_[compute]), "parting streams"));
  }
  std::optional<profiler::nvtx::Range> call_range;
  profiler::nvtx::Text segment = nullptr;
  int micro_batch = -1;
  for (size_t i = part.begin; i < part.end; ++i) {
    const size_t at = i - part.begin;
    if (walk_[i].segment != segment || walk_[i].micro_batch != micro_batch) {
      segment = walk_[i].segment, micro_batch = walk_[i].micro_batch;
      call_range.reset();
      call_range.emplace(segment, micro_batch);
    }
    MB_TRY(device_->use(walk_[i].op->stream));
    for (const int earlier : part.lanes.waits[at])
      MB_TRY(ok(cudaStreamWaitEvent(device_->stream(), part.ended[static_cast<size_t>(earlier)]), "ordering streams"));
    MB_TRY(run_op(part, i));
    if (part.ended[at] != nullptr) MB_TRY(ok(cudaEventRecord(part.ended[at], device_->stream()), "ordering streams"));
  }
  for (size_t s = 0; s < used.size(); ++s) {
    if (!used[s]) continue;
    MB_TRY(ok(cudaEventRecord(forks_[s], device_->stream_of(static_cast<Stream>(s))), "joining streams"));
    MB_TRY(ok(cudaStreamWaitEvent(stream, forks_[s]), "joining streams"));
  }
  return device_->use(Stream::kCompute);
}

Status CudaRank::enqueue() {
  const cudaStream_t stream = device_->stream();
  for (const Part& part : parts_) {
    if (&part == &parts_[1]) MB_TRY(ok(cudaEventRecord(optimizer_, stream), "timing the step"));
    if (part.graph != nullptr)
      MB_TRY(ok(cudaGraphLaunch(part.graph, stream), "launching a captured step"));
    else
      MB_TRY(run_part(part));
  }
  return {};
}

Status CudaRank::capture() {
  const cudaStream_t stream = device_->stream();
  for (Part& part : parts_) {
    if (part.begin == part.end) continue;
    MB_TRY(ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "starting a capture"));
    const Status status = run_part(part);
    cudaGraph_t graph = nullptr;
    const Status ended = ok(cudaStreamEndCapture(stream, &graph), "ending a capture");
    MB_TRY(status);
    MB_TRY(ended);
    const Status made = ok(cudaGraphInstantiate(&part.graph, graph, 0), "instantiating a graph");
    cudaGraphDestroy(graph);
    MB_TRY(made);
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
  MB_TRY(ok(cudaStreamSynchronize(stream), "running a step"));
  const auto* loss = reinterpret_cast<const double*>(back);
  const auto* scale = reinterpret_cast<const float*>(back + kStagingAlign);
  output->loss_sum = loss[0];
  output->tokens = loss[1];
  output->grad_norm = static_cast<double>(scale[1]);
  output->found_inf = scale[2] != 0.0f;
  return {};
}

Status CudaRank::step(const StepInput& input, StepOutput* output) {
  const cudaStream_t stream = device_->stream();
  const profiler::nvtx::Range range(profiler::nvtx::text("step"), steps_);
  if (request_.graphs && steps_ > 0 && parts_[0].graph == nullptr) MB_TRY(capture());
  MB_TRY(upload(input));
  MB_TRY(ok(cudaEventRecord(start_, stream), "timing the step"));
  MB_TRY(enqueue());
  MB_TRY(ok(cudaEventRecord(end_, stream), "timing the step"));
  MB_TRY(finish(output));
  float forward_backward = 0.0f, whole = 0.0f;
  MB_TRY(ok(cudaEventElapsedTime(&whole, start_, end_), "timing the step"));
  MB_TRY(ok(cudaEventElapsedTime(&forward_backward, start_, optimizer_), "timing the step"));
  times_ = {forward_backward, whole};
  ++steps_;
  return {};
}

Status CudaRank::timed_step(const StepInput& input, StepOutput* output, int64_t* op_ns) {
  const cudaStream_t stream = device_->stream();
  MB_TRY(upload(input));
  std::vector<cudaEvent_t> events(walk_.size() + 1, nullptr);
  Status status;
  for (cudaEvent_t& event : events)
    if (status) status = ok(cudaEventCreate(&event), "creating an event");
  // One after another, each on its own stream: what an op grew or keeps there serves later steps too.
  if (status) status = ok(cudaEventRecord(events.front(), stream), "timing an op");
  for (size_t i = 0; status && i < walk_.size(); ++i) {
    status = device_->use(walk_[i].op->stream);
    if (status) status = ok(cudaStreamWaitEvent(device_->stream(), events[i]), "timing an op");
    if (status) status = run_op(parts_[i < parts_[1].begin ? 0 : 1], i);
    if (status) status = ok(cudaEventRecord(events[i + 1], device_->stream()), "timing an op");
  }
  if (status) status = device_->use(Stream::kCompute);
  if (status) status = ok(cudaStreamWaitEvent(stream, events.back()), "timing an op");
  if (status) status = finish(output);
  for (size_t i = 0; status && i < walk_.size(); ++i) {
    float ms = 0.0f;
    status = ok(cudaEventElapsedTime(&ms, events[i], events[i + 1]), "timing an op");
    op_ns[i] = static_cast<int64_t>(static_cast<double>(ms) * 1e6);
  }
  for (cudaEvent_t event : events)
    if (event != nullptr) cudaEventDestroy(event);
  return status;
}

Status CudaRank::read(TensorId tensor, int slot_index, void* to, int64_t bytes) {
  MB_TRY(ok(cudaMemcpyAsync(to, data(tensor, slot_index), static_cast<size_t>(bytes), cudaMemcpyDeviceToHost,
                            device_->stream()),
            "reading a tensor"));
  return ok(cudaStreamSynchronize(device_->stream()), "reading a tensor");
}

profiler::CudaMemoryFacts CudaRank::memory() const {
  size_t free_bytes = 0, total_bytes = 0;
  cudaMemGetInfo(&free_bytes, &total_bytes);
  return {plan_.arena_bytes, device_->extra_bytes(), static_cast<int64_t>(total_bytes - free_bytes)};
}

}  // namespace mbb::trainer::cuda
