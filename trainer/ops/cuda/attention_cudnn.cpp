// cuDNN's fused attention through its header-only frontend; libcudnn is opened when the first attention needs it.
#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <string>
#include <unordered_map>

#include "trainer/ops/cuda/attention.h"
#include "trainer/ops/cuda/packs.h"
#include "trainer/ops/cuda/position_bias.h"
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

enum Uid : int64_t { kQ = 1, kK, kV, kO, kStats, kDo, kDq, kDk, kDv, kBias, kDbias, kLengths, kKeyLengths, kOffsets };

// Rows of different widths in a pack: each has its own table of where sequences begin (ragged_tables()), by this place.
// A gradient must have its operand's table: where the tables of q and dq, k and dk or v and dv differed, 9.14 gave
// wrong gradients on an H200, or an illegal instruction. Statistics and the output may have tables of their own.
enum Rows { kPackedRows, kOutRows, kStatsRows };

// The frontend knows how many tokens a pack has, both ways, from 1.28 on. Before, its workspace for the backward was
// too small for statistics whose heads stand apart.
constexpr bool kFrontendTakesPacks = CUDNN_FRONTEND_VERSION >= 12800;
constexpr size_t kPackedBackward = 90600;  // cuDNN itself: grouped heads, and workspaces by tokens

Status good(fe::error_t error, const char* doing) {
  if (error.is_good()) return {};
  return fail(ErrorCode::kUnavailable, fmt::format("cuDNN attention, {}: {}", doing, error.get_message()));
}

// A plan that cuDNN gave and does not run: no other backend's turn.
Status succeeded(cudnnStatus_t status, const char* doing) {
  if (status == CUDNN_STATUS_SUCCESS) return {};
  return fail(ErrorCode::kUnavailable,
              fmt::format("cuDNN attention, {}: {}", doing, fe::detail::get_error_string(status)));
}

Status ran(fe::error_t error, const char* doing) {
  if (error.is_good()) return {};
  return fail(ErrorCode::kRankFailed, fmt::format("cuDNN attention, {}: {}", doing, error.get_message()),
              "use attention_backend = flash");
}

// Heads of one width inside rows of [length, b, row].
struct Heads {
  int64_t count, width, row, length;
  Rows rows;
};
struct AllHeads {
  Heads q, k, v, out;
};
AllHeads heads_of(const AttentionShape& s) {
  const int64_t row = s.key_row(), keys = s.key_rows();
  return {{s.heads, s.head_dim, s.query_row(), s.seq, kPackedRows},
          {s.kv_heads, s.head_dim, row, keys, kPackedRows},
          {s.kv_heads, s.value_dim(), row, keys, kPackedRows},
          {s.heads, s.value_dim(), s.out_row(), s.seq, kOutRows}};
}

// What a graph knows of a pack: sequences' lengths and, by width of rows, where they begin.
struct Ragged {
  Tensor lengths, key_lengths;
  std::array<Tensor, kPackWidths> offsets;
};
Ragged ragged(Graph& graph, const AttentionShape& s) {
  Ragged r;
  if (s.packs == 0) return r;
  const auto table = [&](const char* tensor_name, int64_t uid, int64_t count, fe::DataType_t type) {
    return graph.tensor(fe::graph::Tensor_attributes()
                            .set_name(tensor_name)
                            .set_uid(uid)
                            .set_dim({count, 1, 1, 1})
                            .set_stride({1, 1, 1, 1})
                            .set_data_type(type));
  };
  r.lengths = table("lengths", kLengths, s.packs, fe::DataType_t::INT32);
  r.key_lengths = table("key lengths", kKeyLengths, s.packs, fe::DataType_t::INT32);
  for (int i = 0; i < kPackWidths; ++i)
    r.offsets[static_cast<size_t>(i)] = table("offsets", kOffsets + i, s.packs + 1, fe::DataType_t::INT64);
  return r;
}
const Tensor& offsets_of(const Ragged& r, Rows rows) {
  return r.offsets[static_cast<size_t>(rows)];
}

// A pack is shape.packs sequences of at most all its tokens: what is not there costs thread blocks that end at once.
int64_t sequences(const AttentionShape& s) {
  return s.packs > 0 ? s.packs : s.batch;
}

void set_layout(fe::graph::Tensor_attributes& tensor, const AttentionShape& s, const Heads& h, const Ragged& r) {
  const int64_t next = s.packs > 0 ? h.length * h.row : h.row;  // of a pack by the table
  tensor.set_dim({sequences(s), h.count, h.length, h.width}).set_stride({next, h.width, s.batch * h.row, 1});
  if (s.packs > 0) tensor.set_ragged_offset(offsets_of(r, h.rows));
}

Tensor head_view(Graph& graph, const char* tensor_name, Uid uid, const AttentionShape& s, const Heads& h,
                 const Ragged& r) {
  fe::graph::Tensor_attributes tensor;
  tensor.set_name(tensor_name).set_uid(uid);
  set_layout(tensor, s, h, r);
  return graph.tensor(tensor);
}

void set_output(const Tensor& tensor, Uid uid, const AttentionShape& s, const Heads& h, const Ragged& r) {
  tensor->set_output(true).set_uid(uid);
  set_layout(*tensor, s, h, r);
}

// [b, heads, s]; of a pack [heads, tokens].
void set_stats(fe::graph::Tensor_attributes& tensor, const AttentionShape& s, const Ragged& r) {
  tensor.set_uid(kStats).set_data_type(fe::DataType_t::FLOAT).set_dim({sequences(s), s.heads, s.seq, 1});
  tensor.set_stride({s.heads * s.seq, s.seq, 1, 1});
  if (s.packs > 0) tensor.set_ragged_offset(offsets_of(r, kStatsRows));
}

// A bias, or its gradient, of each head.
Tensor bias_view(Graph& graph, const char* tensor_name, Uid uid, const AttentionShape& s) {
  const int64_t row = position_bias_row(s.key_rows());
  return graph.tensor(fe::graph::Tensor_attributes()
                          .set_name(tensor_name)
                          .set_uid(uid)
                          .set_dim({1, s.heads, s.seq, s.key_rows()})
                          .set_stride({s.heads * s.seq * row, s.seq * row, row, 1}));
}

struct Plan {
  std::shared_ptr<Graph> graph;
  int64_t workspace = 0;  // cuDNN's own
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

// Which keys a query sees.
template <typename Options>
void mask(Options& options, const AttentionShape& s) {
  if (!s.causal) return;
  const bool from_the_end = s.apart() && s.keys != s.seq;
  options.set_diagonal_alignment(from_the_end ? fe::DiagonalAlignment_t::BOTTOM_RIGHT
                                              : fe::DiagonalAlignment_t::TOP_LEFT);
  options.set_diagonal_band_right_bound(0);
  if (s.window > 0) options.set_diagonal_band_left_bound(s.window);
}

// That sequences end, and how many tokens all have: without that the backward's workspace holds each at its longest.
template <typename Options>
void see_packs(Options& options, const AttentionShape& s, const Ragged& r) {
  if (s.packs == 0) return;
  options.set_padding_mask(true).set_seq_len_q(r.lengths).set_seq_len_kv(r.key_lengths);
  if constexpr (kFrontendTakesPacks) options.set_max_total_seq_len_q(s.seq).set_max_total_seq_len_kv(s.seq);
}

// Why cuDNN does not compute a pack.
Status takes_pack(const AttentionShape& s, bool deterministic, bool backward) {
  const auto refuse = [](std::string why) {
    return fail(ErrorCode::kUnavailable, "cuDNN attention: " + std::move(why));
  };
  if (s.packs == 0) return {};
  if (s.batch != 1) return fail(ErrorCode::kBadArgument, "cuDNN attention: more than one pack a micro-batch");
  if (!kFrontendTakesPacks)
    return refuse(fmt::format("packs need cudnn-frontend 1.28, this build has {}.{}", CUDNN_FRONTEND_MAJOR_VERSION,
                              CUDNN_FRONTEND_MINOR_VERSION));
  // On an H200 log-sum-exps of heads behind the first were left unwritten.
  if (s.seq == 1) return refuse("packs of one token, of which it leaves log-sum-exps unwritten");
  if (!backward) return {};
  const size_t version = fe::detail::get_backend_version();
  if (version < kPackedBackward)
    return refuse(
        fmt::format("its backward of packs needs cuDNN 9.6, here is {}.{}", version / 10000, version / 100 % 100));
  if (deterministic)
    return refuse("its backward of packs that repeats bit by bit keeps all scores of all sequences at their longest");
  if (s.head_dim % 16 != 0 || s.value_dim() % 16 != 0)
    return refuse(
        fmt::format("its backward of packs with heads of {} and {}, which sixteens do not divide, keeps all "
                    "sequences at their longest",
                    s.head_dim, s.value_dim()));
  return {};
}

Result<Plan> planned(std::shared_ptr<Graph> graph, cudnnHandle_t handle, const char* doing) {
  Plan plan{std::move(graph)};
  MB_TRY(finish(*plan.graph, handle, doing));
  MB_TRY(good(plan.graph->get_workspace_size(plan.workspace), doing));
  return plan;
}

Result<Plan> build_forward(const AttentionShape& s, float scale, cudnnHandle_t handle) {
  const AllHeads h = heads_of(s);
  auto graph = new_graph();
  auto options = fe::graph::SDPA_attributes().set_name("forward").set_generate_stats(true).set_attn_scale(scale);
  const Ragged r = ragged(*graph, s);
  mask(options, s);
  see_packs(options, s, r);
  if (s.bias) options.set_bias(bias_view(*graph, "bias", kBias, s));
  auto [out, stats] = graph->sdpa(head_view(*graph, "q", kQ, s, h.q, r), head_view(*graph, "k", kK, s, h.k, r),
                                  head_view(*graph, "v", kV, s, h.v, r), options);
  set_output(out, kO, s, h.out, r);
  stats->set_output(true);
  set_stats(*stats, s, r);
  return planned(std::move(graph), handle, "planning the forward");
}

Result<Plan> build_backward(const AttentionShape& s, float scale, bool deterministic, cudnnHandle_t handle) {
  const AllHeads h = heads_of(s);
  auto graph = new_graph();
  auto options = fe::graph::SDPA_backward_attributes().set_name("backward").set_attn_scale(scale);
  options.set_deterministic_algorithm(deterministic);
  const Ragged r = ragged(*graph, s);
  mask(options, s);
  see_packs(options, s, r);
  if (s.bias) options.set_bias(bias_view(*graph, "bias", kBias, s)).set_dbias(bias_view(*graph, "dbias", kDbias, s));
  fe::graph::Tensor_attributes saved;
  saved.set_name("stats");
  set_stats(saved, s, r);
  auto [dq, dk, dv] =
      graph->sdpa_backward(head_view(*graph, "q", kQ, s, h.q, r), head_view(*graph, "k", kK, s, h.k, r),
                           head_view(*graph, "v", kV, s, h.v, r), head_view(*graph, "o", kO, s, h.out, r),
                           head_view(*graph, "do", kDo, s, h.out, r), graph->tensor(saved), options);
  set_output(dq, kDq, s, h.q, r);
  set_output(dk, kDk, s, h.k, r);
  set_output(dv, kDv, s, h.v, r);
  return planned(std::move(graph), handle, "planning the backward");
}

// Pointers to the first query, key and value head of a packed row, or of the rows that stand apart.
struct Packed {
  void *q, *k, *v;
};
Packed split(const void* qkv, const void* kv, const AttentionShape& s) {
  auto* base = static_cast<char*>(const_cast<void*>(qkv));
  const int64_t head_bytes = s.head_dim * 2;
  char* const keys = s.apart() ? static_cast<char*>(const_cast<void*>(kv)) : base + s.heads * head_bytes;
  return {base, keys, keys + s.kv_heads * head_bytes};
}

// In front of cuDNN's own workspace: a pack's tables, or the backward's log-sum-exp where a head has more of them than
// there are queries, a copy without the others.
int64_t front_bytes(const AttentionShape& s, bool backward) {
  const int64_t copy = backward && s.apart() ? s.batch * s.heads * s.seq * 4 : 0;
  return ((s.packs > 0 ? ragged_bytes(s.packs) : copy) + 255) / 256 * 256;
}

// Log-sum-exps of the queries alone, in front of the workspace where they are a part of more.
Result<const float*> own_stats(const AttentionBackward& a, cudaStream_t stream) {
  const AttentionShape& s = a.shape;
  if (a.lse_rows == 0 || a.lse_rows == s.seq) return a.lse;
  const auto row = static_cast<size_t>(s.seq) * 4, of_all = static_cast<size_t>(a.lse_rows) * 4;
  MB_TRY(ok(cudaMemcpy2DAsync(a.workspace, row, a.lse, of_all, row, static_cast<size_t>(s.batch * s.heads),
                              cudaMemcpyDeviceToDevice, stream),
            "a part of the log-sum-exps"));
  return static_cast<const float*>(a.workspace);
}

using Pointers = std::unordered_map<int64_t, void*>;

// Makes a pack's tables and names them.
Status add_tables(const AttentionShape& s, const AttentionPacks& packs, void* workspace, cudaStream_t stream,
                  Pointers* pointers) {
  if (s.packs == 0) return {};
  int64_t widths[kPackWidths]{};
  widths[kPackedRows] = s.packed_row(), widths[kOutRows] = s.out_row(), widths[kStatsRows] = 1;
  MB_TRY(ragged_tables(packs.starts, s.packs, s.seq, widths, workspace, {stream, {}, 0}));
  (*pointers)[kLengths] = (*pointers)[kKeyLengths] = ragged_lengths(workspace);
  for (int i = 0; i < kPackWidths; ++i) (*pointers)[kOffsets + i] = ragged_offsets(workspace, s.packs, i);
  return {};
}

class Cudnn final : public CudnnAttention {
 public:
  explicit Cudnn(cudnnHandle_t handle) : handle_(handle) {}
  ~Cudnn() override {
    plans_.clear();
    fe::detail::destroy_handle(handle_);
  }

  Result<int64_t> workspace(const AttentionShape& shape, float scale, bool deterministic, bool backward) override {
    MB_ASSIGN(const auto plan, plan_of(shape, scale, deterministic, backward));
    return front_bytes(shape, backward) + plan->workspace;
  }

  Status forward(const AttentionForward& a, void* workspace, cudaStream_t stream) override {
    MB_ASSIGN(const auto plan, plan_of(a.shape, a.scale, false, false));
    const Packed in = split(a.qkv, a.kv, a.shape);
    Pointers pointers{{kQ, in.q}, {kK, in.k}, {kV, in.v}, {kO, a.out}, {kStats, a.lse}};
    if (a.shape.bias) pointers[kBias] = const_cast<void*>(a.bias);
    MB_TRY(add_tables(a.shape, a.packs, workspace, stream, &pointers));
    MB_TRY(on(stream));
    auto* const own = static_cast<char*>(workspace) + front_bytes(a.shape, false);
    return ran(plan->graph->execute(handle_, pointers, own), "forward");
  }

  Status backward(const AttentionBackward& a, bool deterministic, cudaStream_t stream) override {
    MB_ASSIGN(const auto plan, plan_of(a.shape, a.scale, deterministic, true));
    const Packed in = split(a.qkv, a.kv, a.shape), grad = split(a.dqkv, a.dkv, a.shape);
    MB_ASSIGN(const float* const lse, own_stats(a, stream));
    Pointers pointers{
        {kQ, in.q},    {kK, in.k},    {kV, in.v},    {kO, const_cast<void*>(a.out)},   {kDo, const_cast<void*>(a.dout)},
        {kDq, grad.q}, {kDk, grad.k}, {kDv, grad.v}, {kStats, const_cast<float*>(lse)}};
    if (a.shape.bias) pointers[kBias] = const_cast<void*>(a.bias), pointers[kDbias] = a.dbias;
    MB_TRY(add_tables(a.shape, a.packs, a.workspace, stream, &pointers));
    MB_TRY(on(stream));
    auto* const own = static_cast<char*>(a.workspace) + front_bytes(a.shape, true);
    return ran(plan->graph->execute(handle_, pointers, own), "backward");
  }

  size_t version() const override { return fe::detail::get_backend_version(); }

 private:
  using Key = std::array<int64_t, 13>;

  Status on(cudaStream_t stream) { return succeeded(fe::detail::set_stream(handle_, stream), "setting the stream"); }

  // The forward is the same whether it must repeat bit by bit or not.
  Result<const Plan*> plan_of(const AttentionShape& s, float scale, bool deterministic, bool backward) {
    MB_TRY(takes_pack(s, deterministic, backward));
    int32_t scale_bits = 0;
    std::memcpy(&scale_bits, &scale, sizeof(scale));
    const Key key{s.batch,
                  s.seq,
                  s.heads,
                  s.kv_heads,
                  s.head_dim,
                  s.value_dim(),
                  s.causal,
                  s.window,
                  s.packs,
                  s.keys,
                  s.bias,
                  scale_bits,
                  backward ? 1 + (deterministic ? 1 : 0) : 0};
    auto at = plans_.find(key);
    if (at == plans_.end()) {
      MB_ASSIGN(auto plan,
                backward ? build_backward(s, scale, deterministic, handle_) : build_forward(s, scale, handle_));
      at = plans_.emplace(key, std::move(plan)).first;
    }
    return &at->second;
  }

  cudnnHandle_t handle_;
  std::map<Key, Plan> plans_;
};

}  // namespace

Result<std::unique_ptr<CudnnAttention>> CudnnAttention::make() {
  if (fe::cudnn_dlhandle == nullptr) fe::cudnn_dlhandle = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_GLOBAL);
  if (fe::cudnn_dlhandle == nullptr)
    return fail(ErrorCode::kUnavailable, fmt::format("cuDNN attention: libcudnn.so.9 did not open: {}", dlerror()),
                "install cuDNN 9 or use attention_backend = flash");
  cudnnHandle_t handle = nullptr;
  MB_TRY(succeeded(fe::detail::create_handle(&handle), "opening a handle on this device"));
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
