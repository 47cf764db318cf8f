// Lengths to everyone, bytes to rank 0.
#include "trainer/run/rank_reports.h"

namespace mbb::trainer {

Result<std::vector<std::string>> gather_at_first(Communicator& everyone, std::string_view mine) {
  const auto ranks = static_cast<size_t>(everyone.size());
  const bool first = everyone.rank() == 0;
  const auto own = static_cast<int64_t>(mine.size());
  std::vector<int64_t> lengths(ranks);
  MB_TRY(everyone.all_gather(&own, lengths.data(), 1, DType::kI64));
  std::vector<size_t> sent(ranks, 0), received(ranks, 0);
  sent[0] = mine.size();
  size_t total = 0;
  if (first)
    for (size_t r = 0; r < ranks; ++r) total += received[r] = static_cast<size_t>(lengths[r]);
  std::string all(total, '\0');
  MB_TRY(everyone.all_to_all_v(mine.data(), sent, all.data(), received, DType::kU8));
  std::vector<std::string> parts;
  if (!first) return parts;
  size_t at = 0;
  for (const size_t length : received) {
    parts.push_back(all.substr(at, length));
    at += length;
  }
  return parts;
}

Status from_first(Communicator& everyone, int32_t& value) {
  return everyone.broadcast(&value, &value, 1, DType::kI32, 0);
}

}  // namespace mbb::trainer
