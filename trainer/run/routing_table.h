// Which experts every token went to, by router, sample and place in the sample: the same whatever ranks hold the
// tokens, so that one run's choices can be another's (parallel.moe_router_replay).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "profiler/base/error.h"
#include "trainer/run/layout.h"

namespace mbb::trainer {

class RoutingTable {
 public:
  // Samples of `sequence` tokens, which go to `top_k` experts each.
  RoutingTable(int64_t sequence, int64_t top_k) : sequence_(sequence), top_k_(top_k) {}

  int64_t sequence() const { return sequence_; }
  int64_t top_k() const { return top_k_; }
  bool empty() const { return samples_.empty(); }

  // The token at `place` of the sample with this global index; `experts` are top_k. A set token stays what it was set
  // to last.
  void set(std::string_view router, int64_t sample, int64_t place, std::span<const int32_t> experts);
  // kMismatch where the token was never set.
  Status get(std::string_view router, int64_t sample, int64_t place, std::span<int32_t> experts) const;
  // kMismatch where a set token's choices are not top_k different ones of so many experts.
  Status check_experts(int64_t experts) const;
  // Takes what `other`, of the same sizes, has set.
  void add(const RoutingTable& other);

  std::string bytes() const;
  static Result<RoutingTable> of_bytes(std::string_view bytes);  // kBadFile
  Status write(const std::filesystem::path& file) const;
  static Result<RoutingTable> read(const std::filesystem::path& file);

 private:
  using Choices = std::vector<int32_t>;  // [sequence, top_k]; -1: not set
  Choices& choices(std::string_view router, int64_t sample);

  int64_t sequence_, top_k_;
  std::map<std::string, std::map<int64_t, Choices>, std::less<>> samples_;  // by router and sample
};

// Refuses what a run that replays choices could not do with these: there are none (null), they are of other sizes, or
// of experts that the model has not.
Status check_replay(const Layout& layout, const RoutingTable* replay);

}  // namespace mbb::trainer
