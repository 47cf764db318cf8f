// The ring's exchange and the merging of what its steps give, on the CPU.
#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <vector>

#include "trainer/comm/communicator.h"
#include "trainer/ops/cpu/functions.h"
#include "trainer/ops/cpu/operand.h"

namespace mbb::trainer {

Status cpu_ring_shift(const CpuCall& call) {
  const auto& a = call.attrs<CommAttrs>();
  Communicator& comm = call.rank.communicator(a.group);
  const auto count = static_cast<size_t>(call.in[0].elements());
  const DType dtype = call.in[0].tensor->dtype;
  const int next = (comm.rank() + a.distance) % comm.size();
  const int before = (comm.rank() + comm.size() - a.distance % comm.size()) % comm.size();
  const std::array<P2p, 2> parts{
      P2p{P2p::Kind::kSend, next, PipeDirection::kForward, call.in[0].data, count, dtype},
      P2p{P2p::Kind::kRecv, before, PipeDirection::kForward, call.out[0].data, count, dtype}};
  return comm.exchange(parts);
}

// out = Σ exp(lse_i − lse) · out_i with lse = log(Σ exp(lse_i) [+ exp(sink)]).
Status cpu_merge_attention(const CpuCall& call) {
  const auto& a = call.attrs<PartAttrs>();
  struct Part {
    ReadF32 out, lse;
    int64_t first, rows;
  };
  std::vector<Part> parts;
  for (size_t i = 0; i < a.first_rows.size(); ++i)
    parts.push_back(
        {ReadF32(call.in[2 * i]), ReadF32(call.in[2 * i + 1]), a.first_rows[i], call.in[2 * i].tensor->shape[0]});
  std::optional<ReadF32> sinks;
  if (a.sinks) sinks.emplace(call.in.back());
  WriteF32 out(call.out[0]);
  WriteF32 lse(call.out[1]);
  const int64_t batch = call.in[1].tensor->shape[0];
  const int64_t heads = call.in[1].tensor->shape[1];
  const int64_t dv = call.in[0].tensor->shape[2] / heads;
  std::vector<double> weights(parts.size());
  for (int64_t row = 0; row < a.rows; ++row) {
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t head = 0; head < heads; ++head) {
        double top = sinks ? static_cast<double>((*sinks)[a.first_head + head]) : -INFINITY;
        const auto covers = [&](const Part& p) { return row >= p.first && row < p.first + p.rows; };
        const auto lse_of = [&](const Part& p) {
          return static_cast<double>(p.lse[(b * heads + head) * p.rows + row - p.first]);
        };
        for (const Part& p : parts)
          if (covers(p)) top = std::max(top, lse_of(p));
        double sum = sinks ? std::exp(static_cast<double>((*sinks)[a.first_head + head]) - top) : 0.0;
        for (size_t i = 0; i < parts.size(); ++i) {
          weights[i] = covers(parts[i]) ? std::exp(lse_of(parts[i]) - top) : 0.0;
          sum += weights[i];
        }
        for (int64_t c = 0; c < dv; ++c) {
          double value = 0;
          for (size_t i = 0; i < parts.size(); ++i) {
            if (!covers(parts[i])) continue;
            const int64_t at = (((row - parts[i].first) * batch + b) * heads + head) * dv + c;
            value += weights[i] / sum * static_cast<double>(parts[i].out[at]);
          }
          out[((row * batch + b) * heads + head) * dv + c] = static_cast<float>(value);
        }
        lse[(b * heads + head) * a.rows + row] = static_cast<float>(top + std::log(sum));
      }
    }
  }
  return {};
}

Status cpu_add_parts(const CpuCall& call) {
  const auto& a = call.attrs<PartAttrs>();
  const int64_t width = call.out[0].elements() / a.rows;
  std::vector<double> sum(static_cast<size_t>(call.out[0].elements()), 0.0);
  for (size_t i = 0; i < call.in.size(); ++i) {
    const ReadF32 part(call.in[i]);
    for (int64_t at = 0; at < call.in[i].elements(); ++at)
      sum[static_cast<size_t>(a.first_rows[i] * width + at)] += static_cast<double>(part[at]);
  }
  WriteF32 out(call.out[0]);
  for (size_t i = 0; i < sum.size(); ++i) out[static_cast<int64_t>(i)] = static_cast<float>(sum[i]);
  return {};
}

}  // namespace mbb::trainer
