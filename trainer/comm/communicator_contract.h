// The contract every communicator keeps, as checks that any backend's tests run: each collective and message, each
// dtype, against its scalar definition on random data that every rank can recompute.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "trainer/comm/communicator.h"

namespace mbb::trainer::contract {

using Bytes = std::vector<std::byte>;

// What member `member` contributes: random bytes for movement.
inline Bytes random_bytes(uint64_t seed, int member, size_t bytes) {
  std::mt19937_64 random(seed * 1000003 + static_cast<uint64_t>(member));
  Bytes data(bytes);
  for (std::byte& byte : data) byte = static_cast<std::byte>(random() & 0xff);
  return data;
}

// What floats are reduced: of mixed sign over 2^-20..2^20 so that order and rounding show, or small whole numbers,
// whose sums are exact in whatever order a backend takes them.
enum class Floats : uint8_t { kWide, kWhole };

// Values for reduction; integers are of full range.
template <typename T>
std::vector<T> random_values(uint64_t seed, int member, size_t count, Floats floats) {
  std::mt19937_64 random(seed * 1000003 + static_cast<uint64_t>(member));
  std::vector<T> values(count);
  for (T& value : values) {
    if constexpr (std::is_integral_v<T>) {
      value = static_cast<T>(random());
    } else {
      const double mantissa = static_cast<double>(static_cast<int64_t>(random())) * 0x1p-63;
      const int exponent = static_cast<int>(random() % 41) - 20;
      const double x = floats == Floats::kWide ? std::ldexp(mantissa, exponent) : std::round(8.0 * mantissa);
      if constexpr (std::is_same_v<T, Bf16>) {
        value = to_bf16(x);
      } else {
        value = static_cast<T>(x);
      }
    }
  }
  return values;
}

template <typename T>
T reduced(ReduceOp op, const std::vector<std::vector<T>>& inputs, size_t element) {
  if constexpr (std::is_integral_v<T>) {
    uint64_t sum = 0;
    T greatest = std::numeric_limits<T>::lowest();
    for (const auto& input : inputs) {
      sum += static_cast<uint64_t>(input[element]);
      if (input[element] > greatest) greatest = input[element];
    }
    return op == ReduceOp::kSum ? static_cast<T>(sum) : greatest;
  } else {
    const auto wide = [](T value) {
      if constexpr (std::is_same_v<T, Bf16>) {
        return static_cast<double>(to_float(value));
      } else {
        return static_cast<double>(value);
      }
    };
    double sum = wide(inputs[0][element]);
    double greatest = sum;
    for (size_t m = 1; m < inputs.size(); ++m) {
      sum = sum + wide(inputs[m][element]);
      if (wide(inputs[m][element]) > greatest) greatest = wide(inputs[m][element]);
    }
    const double result = op == ReduceOp::kSum ? sum : greatest;
    if constexpr (std::is_same_v<T, Bf16>) {
      return to_bf16(result);
    } else {
      return static_cast<T>(result);
    }
  }
}

inline Status expect_equal(const Bytes& actual, const Bytes& expected, const std::string& what) {
  if (actual == expected) return {};
  size_t at = 0;
  while (at < actual.size() && at < expected.size() && actual[at] == expected[at]) ++at;
  return fail(ErrorCode::kNumerics, fmt::format("{} differs from its definition at byte {}", what, at));
}

template <typename T>
Bytes bytes_of_values(const std::vector<T>& values) {
  Bytes bytes(values.size() * sizeof(T));
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

template <typename T>
Status check_reductions(Communicator& comm, DType dtype, size_t count, uint64_t seed, Floats floats) {
  const auto n = static_cast<size_t>(comm.size());
  const auto rank = static_cast<size_t>(comm.rank());
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
    const std::string what = fmt::format("{} {} of {} {} over {}", "reduction", name(op), count, name(dtype), n);
    std::vector<std::vector<T>> inputs;
    for (size_t m = 0; m < n; ++m) inputs.push_back(random_values<T>(seed, static_cast<int>(m), n * count, floats));
    std::vector<T> full;
    for (size_t i = 0; i < n * count; ++i) full.push_back(reduced(op, inputs, i));
    const auto first = full.begin() + static_cast<std::ptrdiff_t>(rank * count);
    const std::vector<T> part(first, first + static_cast<std::ptrdiff_t>(count));

    const std::vector<T>& own = inputs[rank];
    std::vector<T> out(n * count);
    MB_TRY(comm.all_reduce(own.data(), out.data(), n * count, dtype, op));
    MB_TRY(expect_equal(bytes_of_values(out), bytes_of_values(full), "all_reduce: " + what));
    std::vector<T> in_place = own;
    MB_TRY(comm.all_reduce(in_place.data(), in_place.data(), n * count, dtype, op));
    MB_TRY(expect_equal(bytes_of_values(in_place), bytes_of_values(full), "all_reduce in place: " + what));

    std::vector<T> shard(count);
    MB_TRY(comm.reduce_scatter(own.data(), shard.data(), count, dtype, op));
    MB_TRY(expect_equal(bytes_of_values(shard), bytes_of_values(part), "reduce_scatter: " + what));
    in_place = own;
    T* own_part = in_place.data() + rank * count;
    MB_TRY(comm.reduce_scatter(in_place.data(), own_part, count, dtype, op));
    shard.assign(own_part, own_part + count);
    MB_TRY(expect_equal(bytes_of_values(shard), bytes_of_values(part), "reduce_scatter in place: " + what));
  }
  return {};
}

inline Status check_reductions(Communicator& comm, DType dtype, size_t count, uint64_t seed,
                               Floats floats = Floats::kWide) {
  switch (dtype) {
    case DType::kF32: return check_reductions<float>(comm, dtype, count, seed, floats);
    case DType::kF64: return check_reductions<double>(comm, dtype, count, seed, floats);
    case DType::kBf16: return check_reductions<Bf16>(comm, dtype, count, seed, floats);
    case DType::kI32: return check_reductions<int32_t>(comm, dtype, count, seed, floats);
    case DType::kI64: return check_reductions<int64_t>(comm, dtype, count, seed, floats);
    case DType::kU8: return check_reductions<uint8_t>(comm, dtype, count, seed, floats);
    default: break;
  }
  // Refused on every member alike, and the group stays usable.
  Bytes buffer(bytes_of(dtype, count + 2));
  const Status refused = comm.all_reduce(buffer.data(), buffer.data(), count, dtype);
  if (refused.has_value() || refused.error().code != ErrorCode::kBadArgument)
    return fail(ErrorCode::kNumerics, fmt::format("a reduction of {} was not refused", name(dtype)));
  return {};
}

// Counts of an all_to_all_v from member `from` to member `to`; some are zero.
inline size_t varying_count(int from, int to, size_t count) {
  const auto mixed = static_cast<size_t>(from * 7 + to * 3) % 4;
  return mixed * count / 2 * 2;
}

inline Status check_movement(Communicator& comm, DType dtype, size_t count, uint64_t seed) {
  const int n = comm.size();
  const size_t part = bytes_of(dtype, count);
  const auto size = static_cast<size_t>(n);
  const auto rank = static_cast<size_t>(comm.rank());
  const std::string what = fmt::format("{} {} over {}", count, name(dtype), n);
  std::vector<Bytes> inputs;
  for (int m = 0; m < n; ++m) inputs.push_back(random_bytes(seed, m, size * part));
  const auto append = [](Bytes& to, const Bytes& from, size_t offset, size_t bytes) {
    const auto begin = from.begin() + static_cast<std::ptrdiff_t>(offset);
    to.insert(to.end(), begin, begin + static_cast<std::ptrdiff_t>(bytes));
  };

  Bytes gathered, exchanged;
  for (size_t m = 0; m < size; ++m) append(gathered, inputs[m], 0, part);
  for (size_t m = 0; m < size; ++m) append(exchanged, inputs[m], rank * part, part);
  Bytes out(size * part);
  MB_TRY(comm.all_gather(inputs[rank].data(), out.data(), count, dtype));
  MB_TRY(expect_equal(out, gathered, "all_gather: " + what));
  out.assign(out.size(), std::byte{0});
  if (part > 0) std::memcpy(out.data() + rank * part, inputs[rank].data(), part);
  MB_TRY(comm.all_gather(out.data() + rank * part, out.data(), count, dtype));
  MB_TRY(expect_equal(out, gathered, "all_gather in place: " + what));
  out.assign(out.size(), std::byte{0});
  MB_TRY(comm.all_to_all(inputs[rank].data(), out.data(), count, dtype));
  MB_TRY(expect_equal(out, exchanged, "all_to_all: " + what));

  for (int root = 0; root < n; ++root) {
    const Bytes& source = inputs[static_cast<size_t>(root)];
    out.assign(out.size(), std::byte{0});
    const void* send = comm.rank() == root ? source.data() : nullptr;
    MB_TRY(comm.broadcast(send, out.data(), size * count, dtype, root));
    MB_TRY(expect_equal(out, source, "broadcast: " + what));
    out = inputs[rank];
    MB_TRY(comm.broadcast(out.data(), out.data(), size * count, dtype, root));
    MB_TRY(expect_equal(out, source, "broadcast in place: " + what));
  }
  return {};
}

inline Status check_varying(Communicator& comm, DType dtype, size_t count, uint64_t seed) {
  const int n = comm.size();
  std::vector<size_t> sends, receives;
  Bytes expected;
  for (int m = 0; m < n; ++m) {
    sends.push_back(varying_count(comm.rank(), m, count));
    receives.push_back(varying_count(m, comm.rank(), count));
    size_t before = 0;
    for (int k = 0; k < comm.rank(); ++k) before += varying_count(m, k, count);
    const Bytes source = random_bytes(seed, m, bytes_of(dtype, before + receives.back()));
    expected.insert(expected.end(), source.begin() + static_cast<std::ptrdiff_t>(bytes_of(dtype, before)),
                    source.end());
  }
  size_t total = 0;
  for (const size_t sent : sends) total += sent;
  const Bytes own = random_bytes(seed, comm.rank(), bytes_of(dtype, total));
  Bytes out(expected.size());
  MB_TRY(comm.all_to_all_v(own.data(), sends, out.data(), receives, dtype));
  return expect_equal(out, expected, fmt::format("all_to_all_v: {} over {}", name(dtype), n));
}

// A ring in both directions at once (with itself when alone), then a chain of plain messages.
inline Status check_messages(Communicator& comm, DType dtype, size_t count, uint64_t seed) {
  const int n = comm.size();
  const int next = (comm.rank() + 1) % n;
  const int before = (comm.rank() + n - 1) % n;
  const size_t bytes = bytes_of(dtype, count);
  Bytes forward = random_bytes(seed, comm.rank(), bytes);
  Bytes backward = random_bytes(seed + 1, comm.rank(), bytes);
  Bytes from_before(bytes), from_next(bytes);
  using Kind = P2p::Kind;
  const std::vector<P2p> parts = {
      {Kind::kSend, next, PipeDirection::kForward, forward.data(), count, dtype},
      {Kind::kRecv, before, PipeDirection::kForward, from_before.data(), count, dtype},
      {Kind::kSend, before, PipeDirection::kBackward, backward.data(), count, dtype},
      {Kind::kRecv, next, PipeDirection::kBackward, from_next.data(), count, dtype},
  };
  MB_TRY(comm.exchange(parts));
  MB_TRY(expect_equal(from_before, random_bytes(seed, before, bytes), "exchange forward"));
  MB_TRY(expect_equal(from_next, random_bytes(seed + 1, next, bytes), "exchange backward"));

  // Two messages a hop: their order on the channel is the order of the sends.
  for (uint64_t message = 2; message < 4; ++message) {
    Bytes chained = random_bytes(seed + message, 0, bytes);
    if (comm.rank() > 0) {
      Bytes got(bytes);
      MB_TRY(comm.recv(got.data(), count, dtype, comm.rank() - 1, PipeDirection::kForward));
      MB_TRY(expect_equal(got, chained, "chain of messages"));
      chained = got;
    }
    if (comm.rank() + 1 < n) MB_TRY(comm.send(chained.data(), count, dtype, comm.rank() + 1, PipeDirection::kForward));
  }
  return {};
}

// Everything on one communicator. All members call it with the same seed; an error names what differed.
inline Status check_contract(Communicator& comm, uint64_t seed, Floats floats = Floats::kWide) {
  for (const DType dtype : kAllDTypes) {
    for (const size_t count : {size_t{0}, size_t{1}, size_t{2}, size_t{7}, size_t{64}, size_t{514}}) {
      if (dtype == DType::kE2M1 && count % 2 != 0) continue;
      MB_TRY(check_reductions(comm, dtype, count, ++seed, floats));
      MB_TRY(check_movement(comm, dtype, count, ++seed));
      MB_TRY(check_varying(comm, dtype, count, ++seed));
      MB_TRY(check_messages(comm, dtype, count, ++seed));
      MB_TRY(comm.barrier());
    }
  }
  return {};
}

}  // namespace mbb::trainer::contract
