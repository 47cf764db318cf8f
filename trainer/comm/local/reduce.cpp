// One scalar loop per element type and operation.
#include "trainer/comm/local/reduce.h"

#include <cmath>
#include <type_traits>

#include "profiler/base/check.h"

namespace mbb::trainer {
namespace {

template <typename T>
struct SumOf {
  using Accumulator =
      typename std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>, std::type_identity<double>>::type;
  static Accumulator first(T value) { return static_cast<Accumulator>(value); }
  static void add(Accumulator& sum, T value) { sum = static_cast<Accumulator>(sum + static_cast<Accumulator>(value)); }
  static T result(Accumulator sum) { return static_cast<T>(sum); }
};

template <>
struct SumOf<Bf16> {
  using Accumulator = double;
  static double first(Bf16 value) { return static_cast<double>(to_float(value)); }
  static void add(double& sum, Bf16 value) { sum += static_cast<double>(to_float(value)); }
  static Bf16 result(double sum) { return to_bf16(sum); }
};

template <typename T>
T readable(T value) {
  return value;
}
float readable(Bf16 value) {
  return to_float(value);
}

template <typename T>
struct MaxOf {
  using Accumulator = T;
  static T first(T value) { return value; }
  static void add(T& greatest, T value) {
    if constexpr (!std::is_integral_v<T>) {
      if (std::isnan(readable(greatest))) return;
      if (std::isnan(readable(value))) greatest = value;
    }
    if (readable(value) > readable(greatest)) greatest = value;
  }
  static T result(T greatest) { return greatest; }
};

template <typename T, template <typename> class Op>
void loop(std::span<const void* const> inputs, std::span<void* const> outputs, size_t begin, size_t end) {
  for (size_t i = begin; i < end; ++i) {
    typename Op<T>::Accumulator accumulator = Op<T>::first(static_cast<const T*>(inputs[0])[i]);
    for (size_t member = 1; member < inputs.size(); ++member)
      Op<T>::add(accumulator, static_cast<const T*>(inputs[member])[i]);
    const T value = Op<T>::result(accumulator);
    for (void* output : outputs) static_cast<T*>(output)[i] = value;
  }
}

template <template <typename> class Op>
void dispatch(DType dtype, std::span<const void* const> inputs, std::span<void* const> outputs, size_t begin,
              size_t end) {
  switch (dtype) {
    case DType::kF32: return loop<float, Op>(inputs, outputs, begin, end);
    case DType::kF64: return loop<double, Op>(inputs, outputs, begin, end);
    case DType::kBf16: return loop<Bf16, Op>(inputs, outputs, begin, end);
    case DType::kI32: return loop<int32_t, Op>(inputs, outputs, begin, end);
    case DType::kI64: return loop<int64_t, Op>(inputs, outputs, begin, end);
    case DType::kU8: return loop<uint8_t, Op>(inputs, outputs, begin, end);
    default: MB_CHECK(false, std::string("no reduction of ") + name(dtype));
  }
}

}  // namespace

void reduce_elements(DType dtype, ReduceOp op, std::span<const void* const> inputs, std::span<void* const> outputs,
                     size_t begin, size_t end) {
  MB_CHECK(!inputs.empty(), "a reduction over no members");
  if (op == ReduceOp::kSum) return dispatch<SumOf>(dtype, inputs, outputs, begin, end);
  dispatch<MaxOf>(dtype, inputs, outputs, begin, end);
}

}  // namespace mbb::trainer
