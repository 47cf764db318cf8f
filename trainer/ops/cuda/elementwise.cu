// Launches of the element-wise kernels.
#include <algorithm>
#include <cmath>

#include "trainer/ops/cuda/elementwise_kernel.cuh"
#include "trainer/ops/cuda/kernels.h"
#include "trainer/ops/cuda/status.h"

namespace mbb::trainer::cuda {
namespace {

// Calls with a null pointer of the element's storage type.
template <typename Call>
void by_element(Element element, Call&& call) {
  if (element == Element::kF32)
    call(static_cast<float*>(nullptr));
  else
    call(static_cast<bf16*>(nullptr));
}

template <typename T>
using Storage = std::remove_pointer_t<T>;

unsigned grid_of(const KernelPlan& plan) {
  return static_cast<unsigned>(plan.grid_x);
}
unsigned block_of(const KernelPlan& plan) {
  return static_cast<unsigned>(plan.block);
}

Status vector_columns(const char* kernel, int64_t cols) {
  if (cols % 8 == 0) return {};
  return fail(ErrorCode::kBadArgument, std::string(kernel) + ": " + std::to_string(cols) +
                                           " columns; the innermost dimension must be a multiple of 8");
}

}  // namespace

Status add(Element element, const void* a, const void* b, void* y, int64_t count, const Launch& launch) {
  const auto plan = plan_elementwise("add", count, 3 * bytes_of(element), launch.sms);
  by_element(element, [&](auto* type) {
    using T = Storage<decltype(type)>;
    add_kernel<T><<<grid_of(plan), block_of(plan), 0, launch.stream>>>(
        static_cast<const T*>(a), static_cast<const T*>(b), static_cast<T*>(y), count);
  });
  return launched("add");
}

Status scale_by(Element element, const void* x, const float* scale, void* y, int64_t count, const Launch& launch) {
  const auto plan = plan_elementwise("scale_by", count, 2 * bytes_of(element), launch.sms);
  by_element(element, [&](auto* type) {
    using T = Storage<decltype(type)>;
    scaled_copy_kernel<T, T><<<grid_of(plan), block_of(plan), 0, launch.stream>>>(static_cast<const T*>(x), scale,
                                                                                  static_cast<T*>(y), count);
  });
  return launched("scale_by");
}

Status fill(Element element, float value, void* y, int64_t count, const Launch& launch) {
  const auto plan = plan_elementwise("fill", count, bytes_of(element), launch.sms);
  by_element(element, [&](auto* type) {
    using T = Storage<decltype(type)>;
    fill_kernel<T><<<grid_of(plan), block_of(plan), 0, launch.stream>>>(static_cast<T*>(y), value, count);
  });
  return launched("fill");
}

Status cast(Element from, const void* x, Element to, void* y, int64_t count, const Launch& launch) {
  const auto plan = plan_elementwise("cast", count, bytes_of(from) + bytes_of(to), launch.sms);
  by_element(from, [&](auto* from_type) {
    by_element(to, [&](auto* to_type) {
      using From = Storage<decltype(from_type)>;
      using To = Storage<decltype(to_type)>;
      scaled_copy_kernel<From, To><<<grid_of(plan), block_of(plan), 0, launch.stream>>>(
          static_cast<const From*>(x), nullptr, static_cast<To*>(y), count);
    });
  });
  return launched("cast");
}

Status swiglu_forward(Element element, RowShape shape, const void* gate_up, void* y, const Launch& launch) {
  MB_TRY(vector_columns("swiglu_forward", shape.cols));
  const auto plan = plan_elementwise("swiglu_forward", shape.rows * shape.cols, 3 * bytes_of(element), launch.sms);
  by_element(element, [&](auto* type) {
    using T = Storage<decltype(type)>;
    swiglu_forward_kernel<T><<<grid_of(plan), block_of(plan), 0, launch.stream>>>(
        static_cast<const T*>(gate_up), static_cast<T*>(y), shape.rows, shape.cols);
  });
  return launched("swiglu_forward");
}

Status swiglu_backward(Element element, RowShape shape, const void* gate_up, const void* dy, void* dgate_up,
                       const Launch& launch) {
  MB_TRY(vector_columns("swiglu_backward", shape.cols));
  const auto plan = plan_elementwise("swiglu_backward", shape.rows * shape.cols, 5 * bytes_of(element), launch.sms);
  by_element(element, [&](auto* type) {
    using T = Storage<decltype(type)>;
    swiglu_backward_kernel<T><<<grid_of(plan), block_of(plan), 0, launch.stream>>>(
        static_cast<const T*>(gate_up), static_cast<const T*>(dy), static_cast<T*>(dgate_up), shape.rows, shape.cols);
  });
  return launched("swiglu_backward");
}

bool rope_takes(const Rope& a) {
  const bool vectors = a.turned % 16 == 0 && a.offset % 8 == 0 && a.head_dim % 8 == 0 && a.width % 8 == 0 &&
                       a.tokens * a.width < int64_t{1} << 32;
  const bool aligned = (reinterpret_cast<uintptr_t>(a.from) | reinterpret_cast<uintptr_t>(a.to)) % 16 == 0;
  return vectors && aligned && (a.from == a.to || a.turned == a.head_dim);
}

Status rope(const Rope& a, const Launch& launch) {
  if (!rope_takes(a))
    return fail(ErrorCode::kBadArgument, "rope: " + std::to_string(a.turned) + " elements from " +
                                             std::to_string(a.offset) + " of heads of " + std::to_string(a.head_dim) +
                                             " are no vectors of 8 pairs");
  by_element(a.element, [&](auto* type) {
    using T = Storage<decltype(type)>;
    RopeParams<T> p;
    p.from = static_cast<const T*>(a.from), p.to = static_cast<T*>(a.to), p.table = a.table, p.own = a.own;
    p.tokens = static_cast<uint32_t>(a.tokens), p.batch = static_cast<uint32_t>(a.batch);
    p.width = static_cast<int>(a.width), p.head_dim = a.head_dim, p.offset = a.offset, p.half = a.turned / 2;
    p.first_head = a.first_head, p.heads = a.heads;
    p.direction = a.backward ? -1.0f : 1.0f;
    // Of parts of heads, in place, a line a head or half of it is all there is: many small warps reach the device's
    // memory best.
    constexpr int kMost = RopeParams<T>::kInFlight;
    const bool whole = a.turned == a.head_dim;
    const int vectors = p.half / (a.interleaved ? 4 : 8), together = 32 / std::min(vectors, 32);
    const int a_turn = together * (!whole ? 1 : a.interleaved ? 2 * kMost : kMost);
    const int rest = p.width / 8 - p.heads * p.head_dim / 8, a_copy = 32 * kMost;
    p.turns = (p.heads + a_turn - 1) / a_turn;
    p.parts = p.turns + (a.from == a.to ? 0 : (rest + a_copy - 1) / a_copy);
    const int64_t warps = a.tokens * p.parts;
    const auto start = [&]<int kInFlight, bool kInterleaved>() {
      constexpr int kThreads = kRopeThreads<kInFlight, kInterleaved>, kWarps = kThreads / 32;
      rope_kernel<T, kInFlight, kInterleaved>
          <<<static_cast<unsigned>((warps + kWarps - 1) / kWarps), kThreads, 0, launch.stream>>>(p);
    };
    if (a.interleaved)
      whole ? start.template operator()<2 * kMost, true>() : start.template operator()<1, true>();
    else
      whole ? start.template operator()<kMost, false>() : start.template operator()<1, false>();
  });
  return launched("rope");
}

Status rope_table(float* table, int64_t seq, int head_dim, double base, const Launch& launch) {
  const int64_t count = seq * (head_dim / 2);
  rope_table_kernel<<<static_cast<unsigned>((count + 255) / 256), 256, 0, launch.stream>>>(table, seq, head_dim / 2,
                                                                                           std::log(base));
  return launched("rope_table");
}

Status embedding_forward(const Embedding& args, const void* table, void* y, const Launch& launch) {
  MB_TRY(vector_columns("embedding_forward", args.cols));
  const auto plan =
      plan_elementwise("embedding_forward", args.tokens * args.cols, 2 * bytes_of(args.element), launch.sms);
  by_element(args.element, [&](auto* type) {
    using T = Storage<decltype(type)>;
    embedding_forward_kernel<T><<<grid_of(plan), block_of(plan), 0, launch.stream>>>(
        static_cast<const T*>(table), args.ids, static_cast<T*>(y), args.tokens, args.cols, args.vocab, args.first);
  });
  return launched("embedding_forward");
}

}  // namespace mbb::trainer::cuda
