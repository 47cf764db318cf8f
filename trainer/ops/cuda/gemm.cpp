// GEMM through cuBLASLt. Row-major D = A*B is asked for as column-major D^T = B^T*A^T, so the library's A is our B.
#include "trainer/ops/cuda/gemm.h"

#include <cublasLt.h>
#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "trainer/ops/cuda/status.h"

namespace mbb::trainer::cuda {
namespace {

static_assert(sizeof(GemmAlgorithm) == sizeof(cublasLtMatmulAlgo_t));

Status lt(cublasStatus_t status, const std::string& doing) {
  if (status == CUBLAS_STATUS_SUCCESS) return {};
  return fail(ErrorCode::kUnavailable, fmt::format("{}: {}", doing, cublasLtGetStatusString(status)));
}

cudaDataType_t type_of(Element element) {
  switch (element) {
    case Element::kF32: return CUDA_R_32F;
    case Element::kBf16: return CUDA_R_16BF;
    case Element::kE4m3: return CUDA_R_8F_E4M3;
    case Element::kE5m2: return CUDA_R_8F_E5M2;
  }
  return CUDA_R_32F;
}

bool is_fp8(Element element) {
  return element == Element::kE4m3 || element == Element::kE5m2;
}

// Everything cuBLASLt needs to know of a problem; owned here because its descriptors are C handles.
struct Descriptors {
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t left = nullptr, right = nullptr, out = nullptr;  // in the library's column-major order
  cublasLtMatmulAlgo_t algorithm{};
  bool chosen = false;

  Descriptors() = default;
  Descriptors(const Descriptors&) = delete;
  Descriptors& operator=(const Descriptors&) = delete;
  ~Descriptors() {
    if (out != nullptr) cublasLtMatrixLayoutDestroy(out);
    if (right != nullptr) cublasLtMatrixLayoutDestroy(right);
    if (left != nullptr) cublasLtMatrixLayoutDestroy(left);
    if (operation != nullptr) cublasLtMatmulDescDestroy(operation);
  }
};

cublasLtMatmulMatrixScale_t scale_mode(BlockScaling blocks) {
  switch (blocks) {
    case BlockScaling::kRows: return CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    case BlockScaling::kSquare: return CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
    case BlockScaling::kNone: break;
  }
  return CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
}

template <typename T>
Status set(cublasLtMatmulDesc_t descriptor, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  return lt(cublasLtMatmulDescSetAttribute(descriptor, attribute, &value, sizeof(value)), "describing a GEMM");
}

// Row-major [rows, cols] is column-major [cols, rows] with the same leading dimension.
Status layout(cublasLtMatrixLayout_t* to, Element element, int64_t rows, int64_t cols) {
  return lt(
      cublasLtMatrixLayoutCreate(to, type_of(element), static_cast<uint64_t>(cols), static_cast<uint64_t>(rows), cols),
      "describing a matrix");
}

Status describe(const GemmProblem& p, Descriptors& to) {
  MB_TRY(lt(cublasLtMatmulDescCreate(&to.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "describing a GEMM"));
  const cublasOperation_t left = p.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t right = p.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  MB_TRY(set(to.operation, CUBLASLT_MATMUL_DESC_TRANSA, left));
  MB_TRY(set(to.operation, CUBLASLT_MATMUL_DESC_TRANSB, right));
  if (is_fp8(p.a)) {
    const int8_t fast = p.fast_accumulation ? 1 : 0;
    MB_TRY(set(to.operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, fast));
    MB_TRY(set(to.operation, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, scale_mode(p.b_blocks)));
    MB_TRY(set(to.operation, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, scale_mode(p.a_blocks)));
    // The heuristic looks at whether scales are present, not at where they are.
    const void* placeholder = &to;
    MB_TRY(set(to.operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, placeholder));
    MB_TRY(set(to.operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, placeholder));
  }
  if (p.device_factors) MB_TRY(set(to.operation, CUBLASLT_MATMUL_DESC_POINTER_MODE, CUBLASLT_POINTER_MODE_DEVICE));
  if (p.sm_target > 0) {
    const int32_t sms = p.sm_target;
    MB_TRY(set(to.operation, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, sms));
  }
  MB_TRY(layout(&to.left, p.b, p.b_transposed ? p.n : p.k, p.b_transposed ? p.k : p.n));
  MB_TRY(layout(&to.right, p.a, p.a_transposed ? p.k : p.m, p.a_transposed ? p.m : p.k));
  return layout(&to.out, p.d, p.m, p.n);
}

class LtGemm final : public Gemm {
 public:
  explicit LtGemm(cublasLtHandle_t handle) : handle_(handle) {}
  ~LtGemm() override {
    plans_.clear();
    cublasLtDestroy(handle_);
  }

  Result<std::vector<GemmCandidate>> candidates(const GemmProblem& problem, int limit) override {
    MB_ASSIGN(const auto plan, plan_of(problem));
    MB_ASSIGN(auto found, ask(problem, *plan, limit));
    enumerate(problem, *plan, static_cast<size_t>(limit), found);
    return found;
  }

  Status choose(const GemmProblem& problem, const GemmAlgorithm& algorithm) override {
    MB_ASSIGN(const auto plan, plan_of(problem));
    std::memcpy(&plan->algorithm, algorithm.data(), sizeof(plan->algorithm));
    plan->chosen = true;
    return {};
  }

  Status run(const GemmProblem& problem, const GemmBuffers& buffers, cudaStream_t stream) override {
    MB_ASSIGN(const auto plan, plan_of(problem));
    if (!plan->chosen) {
      MB_ASSIGN(const auto best, ask(problem, *plan, 1));
      MB_TRY(choose(problem, best.front().algorithm));
    }
    if (is_fp8(problem.a)) {
      MB_TRY(set(plan->operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, buffers.b_scale));
      MB_TRY(set(plan->operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, buffers.a_scale));
    }
    const float alpha = 1.0f, beta = problem.accumulate || problem.add_c ? 1.0f : 0.0f;
    const float* const factor = problem.device_factors ? buffers.factors : &alpha;
    const float* const of_c = problem.device_factors ? buffers.factors + 1 : &beta;
    const void* c = problem.add_c ? buffers.c : buffers.d;
    return lt(cublasLtMatmul(handle_, plan->operation, factor, buffers.b, plan->left, buffers.a, plan->right, of_c, c,
                             plan->out, buffers.d, plan->out, &plan->algorithm, buffers.workspace,
                             static_cast<size_t>(kGemmWorkspace), stream),
              "GEMM " + key(problem));
  }

 private:
  using Key = std::array<int64_t, 16>;
  static Key key_of(const GemmProblem& p) {
    return {p.m,
            p.n,
            p.k,
            p.a_transposed,
            p.b_transposed,
            static_cast<int64_t>(p.a),
            static_cast<int64_t>(p.b),
            static_cast<int64_t>(p.d),
            p.accumulate,
            p.add_c,
            p.fast_accumulation,
            static_cast<int64_t>(p.a_blocks),
            static_cast<int64_t>(p.b_blocks),
            p.device_factors,
            p.sm_target,
            p.alignment};
  }

  Result<Descriptors*> plan_of(const GemmProblem& problem) {
    auto& slot = plans_[key_of(problem)];
    if (slot == nullptr) {
      auto made = std::make_unique<Descriptors>();
      MB_TRY(describe(problem, *made));
      slot = std::move(made);
    }
    return slot.get();
  }

  Result<std::vector<GemmCandidate>> ask(const GemmProblem& problem, const Descriptors& plan, int limit) {
    cublasLtMatmulPreference_t preference = nullptr;
    MB_TRY(lt(cublasLtMatmulPreferenceCreate(&preference), "asking for GEMM algorithms"));
    auto status = CUBLAS_STATUS_SUCCESS;
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value));
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(kGemmWorkspace));
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      prefer(attribute, static_cast<uint32_t>(problem.alignment));
    std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<size_t>(limit));
    int count = 0;
    if (status == CUBLAS_STATUS_SUCCESS)
      status = cublasLtMatmulAlgoGetHeuristic(handle_, plan.operation, plan.left, plan.right, plan.out, plan.out,
                                              preference, limit, found.data(), &count);
    cublasLtMatmulPreferenceDestroy(preference);
    MB_TRY(lt(status, "asking for algorithms of GEMM " + key(problem)));
    std::vector<GemmCandidate> out;
    for (int i = 0; i < count; ++i) {
      const auto& result = found[static_cast<size_t>(i)];
      if (result.state != CUBLAS_STATUS_SUCCESS) continue;
      GemmCandidate candidate;
      std::memcpy(candidate.algorithm.data(), &result.algo, sizeof(result.algo));
      candidate.workspace_bytes = static_cast<int64_t>(result.workspaceSize);
      candidate.waves = result.wavesCount;
      out.push_back(candidate);
    }
    if (out.empty())
      return fail(ErrorCode::kUnavailable, "cuBLASLt has no algorithm on this device for GEMM " + key(problem));
    return out;
  }

  // Appends every configuration the library's check admits that is not there yet, up to `limit` in all.
  void enumerate(const GemmProblem& p, const Descriptors& plan, size_t limit, std::vector<GemmCandidate>& found) {
    std::set<GemmAlgorithm> known;
    for (const GemmCandidate& c : found) known.insert(c.algorithm);
    // In the library's order of operands.
    const cudaDataType_t left = type_of(p.b), right = type_of(p.a), out = type_of(p.d);
    std::array<int, 64> ids{};
    int count = 0;
    if (found.size() >= limit ||
        cublasLtMatmulAlgoGetIds(handle_, CUBLAS_COMPUTE_32F, CUDA_R_32F, left, right, out, out,
                                 static_cast<int>(ids.size()), ids.data(), &count) != CUBLAS_STATUS_SUCCESS)
      return;
    for (int i = 0; i < count; ++i) {
      cublasLtMatmulAlgo_t base{};
      if (cublasLtMatmulAlgoInit(handle_, CUBLAS_COMPUTE_32F, CUDA_R_32F, left, right, out, out,
                                 ids[static_cast<size_t>(i)], &base) != CUBLAS_STATUS_SUCCESS)
        continue;
      const std::vector<uint32_t> tiles = list_of(base, CUBLASLT_ALGO_CAP_TILE_IDS, CUBLASLT_MATMUL_TILE_UNDEFINED);
      const std::vector<uint32_t> stages =
          list_of(base, CUBLASLT_ALGO_CAP_STAGES_IDS, CUBLASLT_MATMUL_STAGES_UNDEFINED);
      const int32_t options = number_of(base, CUBLASLT_ALGO_CAP_CUSTOM_OPTION_MAX);
      const int32_t swizzles = number_of(base, CUBLASLT_ALGO_CAP_CTA_SWIZZLING_SUPPORT);
      for (const uint32_t tile : tiles)
        for (const uint32_t stage : stages)
          for (int32_t option = 0; option <= std::min(options, kMostOptions); ++option)
            for (const uint16_t cluster : kClusters)
              for (uint32_t swizzle = 0; swizzle <= (swizzles > 0 ? 1u : 0u); ++swizzle) {
                cublasLtMatmulAlgo_t algorithm = base;
                const auto with = [&](cublasLtMatmulAlgoConfigAttributes_t attribute, const auto& value) {
                  return cublasLtMatmulAlgoConfigSetAttribute(&algorithm, attribute, &value, sizeof(value)) ==
                         CUBLAS_STATUS_SUCCESS;
                };
                if (!with(CUBLASLT_ALGO_CONFIG_TILE_ID, tile) || !with(CUBLASLT_ALGO_CONFIG_STAGES_ID, stage) ||
                    !with(CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, option) ||
                    !with(CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, cluster) ||
                    !with(CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, swizzle))
                  continue;
                cublasLtMatmulHeuristicResult_t result{};
                if (cublasLtMatmulAlgoCheck(handle_, plan.operation, plan.left, plan.right, plan.out, plan.out,
                                            &algorithm, &result) != CUBLAS_STATUS_SUCCESS ||
                    result.workspaceSize > static_cast<size_t>(kGemmWorkspace))
                  continue;
                GemmCandidate candidate;
                std::memcpy(candidate.algorithm.data(), &algorithm, sizeof(algorithm));
                candidate.workspace_bytes = static_cast<int64_t>(result.workspaceSize);
                candidate.waves = result.wavesCount;
                if (known.insert(candidate.algorithm).second) found.push_back(candidate);
                if (found.size() >= limit) return;
              }
    }
  }

  static constexpr int32_t kMostOptions = 8;
  static constexpr std::array<uint16_t, 4> kClusters = {CUBLASLT_CLUSTER_SHAPE_AUTO, CUBLASLT_CLUSTER_SHAPE_1x1x1,
                                                        CUBLASLT_CLUSTER_SHAPE_2x1x1, CUBLASLT_CLUSTER_SHAPE_1x2x1};

  // A capability that is a number; 0 where the library does not tell.
  static int32_t number_of(const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoCapAttributes_t what) {
    int32_t value = 0;
    size_t written = 0;
    const auto status = cublasLtMatmulAlgoCapGetAttribute(&algorithm, what, &value, sizeof(value), &written);
    return status == CUBLAS_STATUS_SUCCESS ? value : 0;
  }

  // Values of a capability that is a list; `none` where the algorithm has no choice.
  static std::vector<uint32_t> list_of(const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoCapAttributes_t what,
                                       uint32_t none) {
    size_t bytes = 0;
    if (cublasLtMatmulAlgoCapGetAttribute(&algorithm, what, nullptr, 0, &bytes) != CUBLAS_STATUS_SUCCESS || bytes == 0)
      return {none};
    std::vector<uint32_t> values(bytes / sizeof(uint32_t));
    if (cublasLtMatmulAlgoCapGetAttribute(&algorithm, what, values.data(), bytes, &bytes) != CUBLAS_STATUS_SUCCESS)
      return {none};
    return values;
  }

  cublasLtHandle_t handle_;
  std::map<Key, std::unique_ptr<Descriptors>> plans_;
};

}  // namespace

Result<std::unique_ptr<Gemm>> Gemm::make() {
  cublasLtHandle_t handle = nullptr;
  MB_TRY(lt(cublasLtCreate(&handle), "opening cuBLASLt"));
  return std::unique_ptr<Gemm>(std::make_unique<LtGemm>(handle));
}

uint64_t cublaslt_version() {
  return cublasLtGetVersion();
}

}  // namespace mbb::trainer::cuda
