// Activations on the CPU, each as its value and its derivatives.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/cpu/operand.h"

namespace mbb::trainer {
namespace {

struct Value {
  double y;
  double dy;  // by x
};

struct GatedValue {
  double y;
  double by_gate, by_up;
};

double sigmoid(double x) {
  return 1.0 / (1.0 + std::exp(-x));
}

Value gelu(double x) {
  const double phi = 0.5 * (1.0 + std::erf(x / std::numbers::sqrt2));
  const double density = std::exp(-0.5 * x * x) / std::sqrt(2.0 * std::numbers::pi);
  return {x * phi, phi + x * density};
}

Value gelu_tanh(double x) {
  const double c = std::sqrt(2.0 / std::numbers::pi);
  const double t = std::tanh(c * (x + 0.044715 * x * x * x));
  return {0.5 * x * (1.0 + t), 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * c * (1.0 + 3.0 * 0.044715 * x * x)};
}

Value plain(const ActivationAttrs& a, double x) {
  switch (a.function) {
    case Pointwise::kGelu: return gelu(x);
    case Pointwise::kGeluTanh: return gelu_tanh(x);
    case Pointwise::kRelu: return {std::max(x, 0.0), x > 0 ? 1.0 : 0.0};
    case Pointwise::kSquaredRelu: return {x > 0 ? x * x : 0.0, x > 0 ? 2.0 * x : 0.0};
    default: break;
  }
  MB_CHECK(false, std::string("gated activation called as plain: ") + name(a.function));
}

GatedValue gated(const ActivationAttrs& a, double gate, double up) {
  if (a.function == Pointwise::kGeglu) {
    const Value g = gelu_tanh(gate);
    return {g.y * up, g.dy * up, g.y};
  }
  const double limit = static_cast<double>(a.limit);
  const double alpha = static_cast<double>(a.alpha);
  const double g = std::min(gate, limit);
  const double u = std::clamp(up, -limit, limit);
  const double s = sigmoid(alpha * g);
  const double slope = s + g * alpha * s * (1.0 - s);
  return {g * s * (u + 1.0), gate < limit ? slope * (u + 1.0) : 0.0, std::abs(up) < limit ? g * s : 0.0};
}

}  // namespace

Status cpu_activation(const CpuCall& call) {
  const auto& a = call.attrs<ActivationAttrs>();
  const ReadF32 x(call.in[0]);
  WriteF32 y(call.out[0]);
  if (!is_gated(a.function)) {
    for (int64_t i = 0; i < call.out[0].elements(); ++i)
      y[i] = static_cast<float>(plain(a, static_cast<double>(x[i])).y);
    return {};
  }
  const int64_t f = call.out[0].tensor->shape.cols();
  for (int64_t r = 0; r < call.out[0].tensor->shape.rows(); ++r)
    for (int64_t i = 0; i < f; ++i)
      y[r * f + i] = static_cast<float>(
          gated(a, static_cast<double>(x[r * 2 * f + i]), static_cast<double>(x[r * 2 * f + f + i])).y);
  return {};
}

Status cpu_activation_grad(const CpuCall& call) {
  const auto& a = call.attrs<ActivationAttrs>();
  const ReadF32 dy(call.in[0]);
  const ReadF32 x(call.in[1]);
  WriteF32 dx(call.out[0]);
  if (!is_gated(a.function)) {
    for (int64_t i = 0; i < call.out[0].elements(); ++i)
      dx[i] = static_cast<float>(static_cast<double>(dy[i]) * plain(a, static_cast<double>(x[i])).dy);
    return {};
  }
  const int64_t f = call.in[0].tensor->shape.cols();
  for (int64_t r = 0; r < call.in[0].tensor->shape.rows(); ++r) {
    for (int64_t i = 0; i < f; ++i) {
      const double d = static_cast<double>(dy[r * f + i]);
      const GatedValue v = gated(a, static_cast<double>(x[r * 2 * f + i]), static_cast<double>(x[r * 2 * f + f + i]));
      dx[r * 2 * f + i] = static_cast<float>(d * v.by_gate);
      dx[r * 2 * f + f + i] = static_cast<float>(d * v.by_up);
    }
  }
  return {};
}

}  // namespace mbb::trainer
