// The walk in parts: streams ordered within each, op by op or captured once and replayed.
#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <utility>

#include "profiler/capture/cupti/cupti_capture.h"
#include "trainer/execute/cuda/cuda_rank.h"
#include "trainer/execute/cuda/find_not_finite.h"
#include "trainer/execute/cuda/op_mark.h"
#include "trainer/execute/graph_memory.h"
#include "trainer/execute/graph_pieces.h"
#include "trainer/execute/kept_by_optimizer.h"
#include "trainer/ops/cuda/status.h"
#include "trainer/ops/message_peers.h"

namespace mbb::trainer::cuda {

Status CudaRank::plan_parts() {
  std::vector<GraphStep> steps;
  for (const Bound& bound : walk_) steps.push_back({bound.op->path, bound.call, bound.optimizer});
  std::vector<GraphScope> scopes;
  if (request_.graphs) {
    MB_ASSIGN(scopes, parse_graph_scopes(request_.graph_scope == nullptr ? "full_iteration" : request_.graph_scope));
  }
  const auto optimizer = std::find_if(walk_.begin(), walk_.end(), [](const Bound& b) { return b.optimizer; });
  optimizer_begin_ = static_cast<size_t>(optimizer - walk_.begin());
  for (const GraphPiece& piece : graph_pieces(steps, scopes)) {
    Part part;
    part.begin = piece.begin, part.end = piece.end, part.captured = piece.captured;
    parts_.push_back(std::move(part));
    MB_TRY(plan_lanes_of(parts_.back()));
  }
  for (cudaEvent_t& event : forks_)
    MB_TRY(ok(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "creating an event"));
  plan_batches();
  return {};
}

// Batched messages next to each other progress together.
void CudaRank::plan_batches() {
  const auto batched = [&](size_t i) {
    const auto* comm = std::get_if<CommAttrs>(&walk_[i].op->attrs);
    return comm != nullptr && comm->form == MessageForm::kBatched && (sends(*walk_[i].op) || receives(*walk_[i].op));
  };
  for (const Part& part : parts_) {
    for (size_t i = part.begin; i < part.end;) {
      size_t end = i + 1;
      if (batched(i))
        while (end < part.end && batched(end)) ++end;
      walk_[i].batch = end - i;
      i = end;
    }
  }
}

Status CudaRank::run_batch(size_t first) {
  const size_t count = walk_[first].batch;
  if (count > 1) MB_TRY(groups_->begin_batch());
  for (size_t i = first; i < first + count; ++i) MB_TRY(run_op(part_of(i), i));
  return count > 1 ? groups_->end_batch() : Status{};
}

Status CudaRank::plan_lanes_of(Part& part) {
  std::vector<LaneOp> ops;
  for (size_t i = part.begin; i < part.end; ++i) {
    LaneOp op{walk_[i].op->stream, {}};
    const auto add = [&](const std::vector<Operand>& operands, bool write) {
      for (const Operand& o : operands) {
        if (o.data == nullptr) continue;
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
  return {};
}

const CudaRank::Part& CudaRank::part_of(size_t position) const {
  const auto behind = std::upper_bound(parts_.begin(), parts_.end(), position,
                                       [](size_t at, const Part& part) { return at < part.begin; });
  return *std::prev(behind);
}

// SMs a GEMM may take while confined kernels of another stream run beside it; 0: all.
int CudaRank::sm_target(const Part& part, size_t position) const {
  if (request_.side_sms == 0 || !part.lanes.beside[position - part.begin]) return 0;
  return (device_->sms() - request_.side_sms) / 2 * 2;  // clusters of two
}

Status CudaRank::run_op(const Part& part, size_t position) {
  const Bound& bound = walk_[position];
  MB_TRY(device_->use(bound.op->stream, bound.op->stream == Stream::kCompute ? 0 : request_.side_sms));
  const OpCall call{*bound.op,
                    bound.in,
                    bound.out,
                    coordinates_,
                    bound.shard_index,
                    *device_,
                    sm_target(part, position),
                    groups_ == nullptr ? nullptr : &groups_->context(),
                    bound.id};
  if (world_ != nullptr) world_->at(bound.op->path, position);
  const profiler::nvtx::Range range(bound.range, bound.micro_batch);
  const OpMark mark(bound.id);
  Status status = bound.function(call);
  if (status) status = launched(bound.op->kind->name.data());  // what no call of the op has told
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
    // One op, or messages that begin and end together: what they wait for is asked of all first.
    const size_t end = at + walk_[i].batch;
    for (size_t j = at; j < end; ++j) {
      MB_TRY(device_->use(walk_[part.begin + j].op->stream));
      for (const int earlier : part.lanes.waits[j])
        MB_TRY(
            ok(cudaStreamWaitEvent(device_->stream(), part.ended[static_cast<size_t>(earlier)]), "ordering streams"));
    }
    MB_TRY(run_batch(i));
    for (size_t j = at; j < end; ++j) {
      if (part.ended[j] == nullptr) continue;
      MB_TRY(device_->use(walk_[part.begin + j].op->stream));
      MB_TRY(ok(cudaEventRecord(part.ended[j], device_->stream()), "ordering streams"));
    }
    i = part.begin + end - 1;
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
  bool timed = false;
  for (const Part& part : parts_) {
    if (part.begin == optimizer_begin_) {
      MB_TRY(ok(cudaEventRecord(optimizer_, stream), "timing the step"));
      timed = true;
    }
    if (part.graph != nullptr)
      MB_TRY(ok(cudaGraphLaunch(part.graph, stream), "launching a captured part of the step"));
    else
      MB_TRY(run_part(part));
  }
  return timed ? Status{} : ok(cudaEventRecord(optimizer_, stream), "timing the step");
}

// Parts with the same ops on the same operands are one graph, except while a capture looks on: its records carry the op
// ids of the part that was captured.
Status CudaRank::capture() {
  size_t before = 0, after = 0, total = 0;
  MB_TRY(ok(cudaMemGetInfo(&before, &total), "reading free device memory"));
  std::map<std::vector<uintptr_t>, cudaGraphExec_t> known;
  for (Part& part : parts_) {
    if (!part.captured) continue;
    cudaGraphExec_t& shared = known[identity_of(part)];
    if (shared == nullptr || profiler::cupti::attached()) {
      MB_ASSIGN(shared, graph_of(part));
    }
    part.graph = shared;
  }
  MB_TRY(ok(cudaMemGetInfo(&after, &total), "reading free device memory"));
  device_->count(kCapturedGraphs, before > after ? static_cast<int64_t>(before - after) : 0);
  return {};
}

Result<cudaGraphExec_t> CudaRank::graph_of(const Part& part) {
  const cudaStream_t stream = device_->stream();
  MB_TRY(ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "starting a capture"));
  const Status status = run_part(part);
  cudaGraph_t graph = nullptr;
  const Status ended = ok(cudaStreamEndCapture(stream, &graph), "ending a capture");
  cudaGraphExec_t made = nullptr;
  const Status instantiated =
      status && ended ? ok(cudaGraphInstantiate(&made, graph, 0), "instantiating a graph") : Status{};
  // Also of a capture that failed: NCCL's communicators wait for every graph that holds a call of theirs.
  if (graph != nullptr) cudaGraphDestroy(graph);
  MB_TRY(status);
  MB_TRY(ended);
  MB_TRY(instantiated);
  graphs_.push_back(made);
  // What it takes of the device it takes here, where it is counted, and not at its first launch.
  MB_TRY(ok(cudaGraphUpload(made, stream), "putting a graph on the device"));
  return made;
}

std::vector<uintptr_t> CudaRank::identity_of(const Part& part) const {
  std::vector<uintptr_t> identity;
  for (size_t i = part.begin; i < part.end; ++i) {
    identity.push_back(reinterpret_cast<uintptr_t>(walk_[i].op));
    for (const auto* operands : {&walk_[i].in, &walk_[i].out})
      for (const Operand& operand : *operands) identity.push_back(reinterpret_cast<uintptr_t>(operand.data));
  }
  return identity;
}

void CudaRank::drop_graphs() {
  for (Part& part : parts_) part.graph = nullptr;
  for (cudaGraphExec_t graph : graphs_) cudaGraphExecDestroy(graph);
  graphs_.clear();
}

Status CudaRank::recapture() {
  if (graphs_.empty()) return {};
  drop_graphs();
  return capture();
}

// Every op behind the one before, each on its own stream: what an op grew or keeps there serves later steps too.
// `after` is called with the op's position when it has been enqueued, its stream in use.
Status CudaRank::one_by_one(const std::function<Status(size_t)>& after) {
  const cudaStream_t stream = device_->stream();
  const cudaEvent_t last = forks_[static_cast<size_t>(Stream::kCompute)];
  MB_TRY(ok(cudaEventRecord(last, stream), "ordering ops"));
  for (size_t i = 0; i < walk_.size();) {
    MB_TRY(device_->use(walk_[i].op->stream));
    MB_TRY(ok(cudaStreamWaitEvent(device_->stream(), last), "ordering ops"));
    MB_TRY(run_batch(i));
    for (const size_t end = i + walk_[i].batch; i < end; ++i) MB_TRY(after(i));
    MB_TRY(ok(cudaEventRecord(last, device_->stream()), "ordering ops"));
  }
  MB_TRY(device_->use(Stream::kCompute));
  return ok(cudaStreamWaitEvent(stream, last), "ordering ops");
}

Status CudaRank::run_at(size_t position) {
  MB_TRY(device_->use(walk_[position].op->stream));
  return run_op(part_of(position), position);
}

Status CudaRank::timed_step(const StepInput& input, StepOutput* output, int64_t* op_ns) {
  return ended(run_timed_step(input, output, op_ns));
}

Status CudaRank::run_timed_step(const StepInput& input, StepOutput* output, int64_t* op_ns) {
  MB_TRY(upload(input));
  std::vector<cudaEvent_t> events(walk_.size() + 1, nullptr);
  Status status;
  for (cudaEvent_t& event : events)
    if (status) status = ok(cudaEventCreate(&event), "creating an event");
  if (status) status = ok(cudaEventRecord(events.front(), device_->stream()), "timing an op");
  if (status)
    status =
        one_by_one([&](size_t i) { return ok(cudaEventRecord(events[i + 1], device_->stream()), "timing an op"); });
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

Result<std::optional<NotFinite>> CudaRank::find_not_finite(const StepInput& input) {
  std::optional<NotFinite> found;
  MB_TRY(upload(input));
  for (size_t i = 0; i < walk_.size() && !found; ++i) {
    const Op& op = *walk_[i].op;
    for (const TensorId id : kept_by_optimizer(program_, op)) {
      MB_ASSIGN(const bool finite, all_finite({data(id, 0), &program_.tensor(id)}, *device_));
      if (!finite && !found) found = NotFinite{op.path, program_.tensor(id).path, 0, op.kind->communicates, true};
    }
  }
  MB_TRY(one_by_one([&](size_t i) -> Status {
    for (const Operand& operand : walk_[i].out) {
      if (found) break;
      if (operand.data == nullptr) continue;
      MB_ASSIGN(const bool finite, all_finite(operand, *device_));
      const Op& op = *walk_[i].op;
      if (!finite) found = NotFinite{op.path, operand.tensor->path, walk_[i].micro_batch, op.kind->communicates};
    }
    return {};
  }));
  StepOutput unused;
  MB_TRY(finish(&unused));
  return found;
}

}  // namespace mbb::trainer::cuda
