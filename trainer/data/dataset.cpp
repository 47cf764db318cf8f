// Windows of a token stream by global sample index.
#include "trainer/data/dataset.h"

#include <fmt/format.h>

#include "profiler/base/check.h"
#include "trainer/data/rng.h"

namespace mbb::trainer {

Result<Dataset> Dataset::open(TokenSourcePtr source, const DataOrder& order) {
  MB_CHECK(source != nullptr, "a dataset needs a token source");
  if (order.seq_length < 1)
    return fail(ErrorCode::kBadArgument, fmt::format("seq_length is {}, not positive", order.seq_length));
  const std::int64_t windows = (source->num_tokens() - 1) / order.seq_length;
  if (windows < 1)
    return fail(ErrorCode::kBadArgument,
                fmt::format("{}: {} tokens hold no window of seq_length {} and its next token", source->describe(),
                            source->num_tokens(), order.seq_length),
                "shorten seq_length or name more data");
  return Dataset(std::move(source), order, windows);
}

std::int64_t Dataset::window_of(std::int64_t global_sample_index) const {
  MB_CHECK(global_sample_index >= 0, "sample indices count from 0");
  const auto within = static_cast<std::uint64_t>(global_sample_index % windows_);
  if (!order_.shuffle) return static_cast<std::int64_t>(within);
  const auto epoch = static_cast<std::uint64_t>(global_sample_index / windows_);
  const Permutation permutation(RandomStream(order_.seed, "data.order", epoch), static_cast<std::uint64_t>(windows_));
  return static_cast<std::int64_t>(permutation(within));
}

Status Dataset::sample(std::int64_t global_sample_index, std::span<std::int32_t> out) const {
  MB_CHECK(static_cast<std::int64_t>(out.size()) == order_.seq_length + 1, "a sample is seq_length + 1 tokens");
  return source_->read(window_of(global_sample_index) * order_.seq_length, out);
}

}  // namespace mbb::trainer
