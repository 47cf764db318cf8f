// cuDNN's fused attention through its header-only frontend; libcudnn is opened when the first attention needs it.
#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <string>
#include <unordered_map>

#include "trainer/ops/cuda/attention.h"
#include "trainer/ops/cuda/status.h"

#ifdef MBB_HAVE_CUDNN

#include <cudnn_frontend.h>
#include <dlfcn.h>
#include <fmt/core.h>

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;
}

namespace mbb::trainer::cuda {
namespace {

namespace fe = cudnn_frontend;
using Graph = fe::graph::Graph;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

enum Uid : int64_t { kQ = 1, kK, kV, kO, kStats, kDo, kDq, kDk, kDv };

Status good(fe::error_t error, const char* doing) {
  if (error.is_good()) return {};
  return fail(ErrorCode::kUnavailable, fmt::format("cuDNN attention, {}: {}", doing, error.get_message()));
}

// Heads of one width inside rows of [s, b, row].
struct Heads {
  int64_t count, width, row;
};
struct AllHeads {
  Heads q, k, v, out;
};
AllHeads heads_of(const AttentionShape& s) {
  const int64_t row = s.packed_row();
  return {{s.heads, s.head_dim, row},
          {s.kv_heads, s.head_dim, row},
          {s.kv_heads, s.value_dim(), row},
          {s.heads, s.value_dim(), s.out_row()}};
}

Tensor head_view(Graph& graph, const char* tensor_name, Uid uid, const AttentionShape& s, const Heads& h) {
  return graph.tensor(fe::graph::Tensor_attributes()
                          .set_name(tensor_name)
                          .set_uid(uid)
                          .set_dim({s.batch, h.count, s.seq, h.width})
                          .set_stride({h.row, h.width, s.batch * h.row, 1}));
}

void set_output(const Tensor& tensor, Uid uid, const AttentionShape& s, const Heads& h) {
  tensor->set_output(true)
      .set_uid(uid)
      .set_dim({s.batch, h.count, s.seq, h.width})
      .set_stride({h.row, h.width, s.batch * h.row, 1});
}

struct Plan {
  std::shared_ptr<Graph> forward, backward;
  int64_t workspace = 0;
};

std::shared_ptr<Graph> new_graph() {
  auto graph = std::make_shared<Graph>();
  graph->set_io_data_type(fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  return graph;
}

Status finish(Graph& graph, cudnnHandle_t handle, const char* doing) {
  MB_TRY(good(graph.validate(), doing));
  MB_TRY(good(graph.build_operation_graph(handle), doing));
  MB_TRY(good(graph.create_execution_plans({fe::HeurMode_t::A}), doing));
  MB_TRY(good(graph.check_support(), doing));
  return good(graph.build_plans(fe::BuildPlanPolicy_t::HEURISTICS_CHOICE), doing);
}

Tensor stats_tensor(Graph& graph, const AttentionShape& s) {
  return graph.tensor(fe::graph::Tensor_attributes()
                          .set_name("stats")
                          .set_uid(kStats)
                          .set_data_type(fe::DataType_t::FLOAT)
                          .set_dim({s.batch, s.heads, s.seq, 1})
                          .set_stride({s.heads * s.seq, s.seq, 1, 1}));
}

// Which keys a query sees.
template <typename Options>
void mask(Options& options, const AttentionShape& s) {
  if (!s.causal) return;
  options.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT).set_diagonal_band_right_bound(0);
  if (s.window > 0) options.set_diagonal_band_left_bound(s.window);
}

Result<Plan> build(const AttentionShape& s, float scale, bool deterministic, cudnnHandle_t handle) {
  const AllHeads h = heads_of(s);
  Plan plan;
  plan.forward = new_graph();
  {
    Graph& g = *plan.forward;
    auto options = fe::graph::SDPA_attributes().set_name("forward").set_generate_stats(true).set_attn_scale(scale);
    mask(options, s);
    auto [out, stats] =
        g.sdpa(head_view(g, "q", kQ, s, h.q), head_view(g, "k", kK, s, h.k), head_view(g, "v", kV, s, h.v), options);
    set_output(out, kO, s, h.out);
    stats->set_output(true).set_uid(kStats).set_data_type(fe::DataType_t::FLOAT);
    stats->set_dim({s.batch, s.heads, s.seq, 1}).set_stride({s.heads * s.seq, s.seq, 1, 1});
    MB_TRY(finish(g, handle, "planning the forward"));
  }
  plan.backward = new_graph();
  {
    Graph& g = *plan.backward;
    auto options = fe::graph::SDPA_backward_attributes().set_name("backward").set_attn_scale(scale);
    options.set_deterministic_algorithm(deterministic);
    mask(options, s);
    auto [dq, dk, dv] = g.sdpa_backward(head_view(g, "q", kQ, s, h.q), head_view(g, "k", kK, s, h.k),
                                        head_view(g, "v", kV, s, h.v), head_view(g, "o", kO, s, h.out),
                                        head_view(g, "do", kDo, s, h.out), stats_tensor(g, s), options);
    set_output(dq, kDq, s, h.q);
    set_output(dk, kDk, s, h.k);
    set_output(dv, kDv, s, h.v);
    MB_TRY(finish(g, handle, "planning the backward"));
  }
  int64_t forward_bytes = 0, backward_bytes = 0;
  MB_TRY(good(plan.forward->get_workspace_size(forward_bytes), "sizing"));
  MB_TRY(good(plan.backward->get_workspace_size(backward_bytes), "sizing"));
  plan.workspace = std::max(forward_bytes, backward_bytes);
  return plan;
}

// Pointers to the first query, key and value head of a packed row.
struct Packed {
  void *q, *k, *v;
};
Packed split(const void* qkv, const AttentionShape& s) {
  auto* base = static_cast<char*>(const_cast<void*>(qkv));
  const int64_t head_bytes = s.head_dim * 2;
  return {base, base + s.heads * head_bytes, base + (s.heads + s.kv_heads) * head_bytes};
}

class Cudnn final : public CudnnAttention {
 public:
  explicit Cudnn(cudnnHandle_t handle) : handle_(handle) {}
  ~Cudnn() override {
    plans_.clear();
    fe::detail::destroy_handle(handle_);
  }

  Result<int64_t> workspace(const AttentionShape& shape, float scale, bool deterministic) override {
    MB_ASSIGN(const auto plan, plan_of(shape, scale, deterministic));
    return plan->workspace;
  }

  Status forward(const AttentionForward& a, void* workspace, cudaStream_t stream) override {
    MB_ASSIGN(const auto plan, plan_of(a.shape, a.scale, last_deterministic_));
    const Packed in = split(a.qkv, a.shape);
    std::unordered_map<int64_t, void*> pack{{kQ, in.q}, {kK, in.k}, {kV, in.v}, {kO, a.out}, {kStats, a.lse}};
    MB_TRY(on(stream));
    return good(plan->forward->execute(handle_, pack, workspace), "forward");
  }

  Status backward(const AttentionBackward& a, bool deterministic, cudaStream_t stream) override {
    MB_ASSIGN(const auto plan, plan_of(a.shape, a.scale, deterministic));
    const Packed in = split(a.qkv, a.shape), grad = split(a.dqkv, a.shape);
    std::unordered_map<int64_t, void*> pack{{kQ, in.q},
                                            {kK, in.k},
                                            {kV, in.v},
                                            {kO, const_cast<void*>(a.out)},
                                            {kDo, const_cast<void*>(a.dout)},
                                            {kDq, grad.q},
                                            {kDk, grad.k},
                                            {kDv, grad.v},
                                            {kStats, const_cast<float*>(a.lse)}};
    MB_TRY(on(stream));
    return good(plan->backward->execute(handle_, pack, a.workspace), "backward");
  }

  size_t version() const override { return fe::detail::get_backend_version(); }

 private:
  using Key = std::array<int64_t, 10>;

  Status on(cudaStream_t stream) {
    if (fe::detail::set_stream(handle_, stream) == CUDNN_STATUS_SUCCESS) return {};
    return fail(ErrorCode::kUnavailable, "cuDNN attention: setting the stream failed");
  }

  Result<const Plan*> plan_of(const AttentionShape& s, float scale, bool deterministic) {
    int32_t scale_bits = 0;
    std::memcpy(&scale_bits, &scale, sizeof(scale));
    const Key key{s.batch,       s.seq,    s.heads,  s.kv_heads, s.head_dim,
                  s.value_dim(), s.causal, s.window, scale_bits, deterministic};
    auto at = plans_.find(key);
    if (at == plans_.end()) {
      MB_ASSIGN(auto plan, build(s, scale, deterministic, handle_));
      at = plans_.emplace(key, std::move(plan)).first;
    }
    last_deterministic_ = deterministic;
    return &at->second;
  }

  cudnnHandle_t handle_;
  bool last_deterministic_ = false;  // the forward is the same either way; it reuses whichever plan exists
  std::map<Key, Plan> plans_;
};

}  // namespace

Result<std::unique_ptr<CudnnAttention>> CudnnAttention::make() {
  if (fe::cudnn_dlhandle == nullptr) fe::cudnn_dlhandle = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_GLOBAL);
  if (fe::cudnn_dlhandle == nullptr)
    return fail(ErrorCode::kUnavailable, fmt::format("cuDNN attention: libcudnn.so.9 did not open: {}", dlerror()),
                "install cuDNN 9 or use attention_backend = flash");
  cudnnHandle_t handle = nullptr;
  if (fe::detail::create_handle(&handle) != CUDNN_STATUS_SUCCESS)
    return fail(ErrorCode::kUnavailable, "cuDNN attention: no cuDNN handle on this device");
  return std::unique_ptr<CudnnAttention>(std::make_unique<Cudnn>(handle));
}

}  // namespace mbb::trainer::cuda

#else

namespace mbb::trainer::cuda {

Result<std::unique_ptr<CudnnAttention>> CudnnAttention::make() {
  return fail(ErrorCode::kUnavailable, "cuDNN attention: this build has no cudnn_frontend.h",
              "pip install nvidia-cudnn-frontend, set MBB_CUDNN_FRONTEND_INCLUDE and build again, or use flash");
}

}  // namespace mbb::trainer::cuda

#endif
