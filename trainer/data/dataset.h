// Training samples by global index: fixed windows of a token stream in a counter-based order.
//
// The stream holds n = (tokens − 1) / seq_length windows; window w is the tokens [w · seq_length, (w + 1) ·
// seq_length], one more than seq_length: inputs are the first seq_length of them, labels the last. Sample g belongs to
// epoch g / n and takes window permutation(epoch)(g mod n), the permutation keyed by (seed, "data.order", epoch);
// without shuffle it takes window g mod n. A sample depends on nothing else: not on ranks, micro-batches or what was
// read before.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "profiler/base/error.h"
#include "trainer/data/token_source.h"

namespace mbb::trainer {

struct DataOrder {
  std::int64_t seq_length = 0;
  std::uint64_t seed = 1234;
  bool shuffle = true;
};

class Dataset {
 public:
  // An error if the stream has no whole window.
  static Result<Dataset> open(TokenSourcePtr source, const DataOrder& order);

  const TokenSource& source() const { return *source_; }
  std::int64_t seq_length() const { return order_.seq_length; }
  std::int64_t windows() const { return windows_; }

  // The window sample `global_sample_index` (>= 0) takes.
  std::int64_t window_of(std::int64_t global_sample_index) const;
  // Fills `out`, seq_length + 1 tokens. Safe from many threads.
  Status sample(std::int64_t global_sample_index, std::span<std::int32_t> out) const;

 private:
  Dataset(TokenSourcePtr source, const DataOrder& order, std::int64_t windows)
      : source_(std::move(source)), order_(order), windows_(windows) {}

  TokenSourcePtr source_;
  DataOrder order_;
  std::int64_t windows_;
};

}  // namespace mbb::trainer
