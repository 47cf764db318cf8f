// GEMM through cuBLASLt. Row-major D = A*B is asked for as column-major D^T = B^T*A^T, so the library's A is our B.
#include "trainer/ops/cuda/gemm.h"

#include <cublasLt.h>
#include <fmt/core.h>

#include <cstring>
#include <map>

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
    // The heuristic looks at whether scales are present, not at where they are.
    const void* placeholder = &to;
    MB_TRY(set(to.operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, placeholder));
    MB_TRY(set(to.operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, placeholder));
  }
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
    return ask(problem, *plan, limit);
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
    const void* c = problem.add_c ? buffers.c : buffers.d;
    return lt(cublasLtMatmul(handle_, plan->operation, &alpha, buffers.b, plan->left, buffers.a, plan->right, &beta, c,
                             plan->out, buffers.d, plan->out, &plan->algorithm, buffers.workspace,
                             static_cast<size_t>(kGemmWorkspace), stream),
              "GEMM " + key(problem));
  }

 private:
  using Key = std::array<int64_t, 13>;
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
    const uint64_t workspace = kGemmWorkspace;
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                         sizeof(workspace));
    const auto alignment = static_cast<uint32_t>(problem.alignment);
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      cublasLtMatmulPreferenceSetAttribute(preference, attribute, &alignment, sizeof(alignment));
    std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<size_t>(limit));
    int count = 0;
    const auto status = cublasLtMatmulAlgoGetHeuristic(handle_, plan.operation, plan.left, plan.right, plan.out,
                                                       plan.out, preference, limit, found.data(), &count);
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
