// Reads the samples of a micro-batch, as unbroken text or as rows of packed sequences.
#include "trainer/run/batch_reader.h"

namespace mbb::trainer {

int64_t BatchReader::index(int micro_batch, size_t i) const {
  return step * layout.global_batch + (int64_t{micro_batch} * layout.dp + dp_rank) * layout.micro_batch +
         static_cast<int64_t>(i);
}

Status BatchReader::tokens_and_labels(int micro_batch, std::span<int32_t> tokens, std::span<int32_t> labels) const {
  if (sequences != nullptr) return rows(micro_batch, tokens, labels);
  std::vector<int32_t> sample(static_cast<size_t>(layout.sample_tokens()));
  const auto b = static_cast<size_t>(layout.micro_batch);
  const auto first = static_cast<size_t>(layout.encoder_sequence);
  for (size_t i = 0; i < b; ++i) {
    MB_TRY(data(index(micro_batch, i), sample));
    for (size_t s = 0; s < static_cast<size_t>(layout.local_sequence()); ++s) {
      const size_t at = first + static_cast<size_t>(positions.at(static_cast<int64_t>(s)));
      if (!tokens.empty()) tokens[s * b + i] = sample[at];
      if (!labels.empty()) labels[s * b + i] = sample[at + 1];
    }
  }
  return {};
}

Status BatchReader::rows(int micro_batch, std::span<int32_t> tokens, std::span<int32_t> labels) const {
  const auto b = static_cast<size_t>(layout.micro_batch);
  const auto length = static_cast<size_t>(layout.sequence);
  std::vector<int32_t> row_tokens(tokens.empty() ? 0 : length), row_labels(labels.empty() ? 0 : length);
  std::vector<int32_t> first = room_for_starts();
  for (size_t i = 0; i < b; ++i) {
    MB_TRY(sequences->row(index(micro_batch, i), row_tokens, row_labels, first));
    std::vector<PackedRow> mine;
    if (layout.reads_starts()) mine = packed_rows(positions, first, layout.local_sequence());
    for (size_t s = 0; s < static_cast<size_t>(layout.local_sequence()); ++s) {
      const auto at = static_cast<size_t>(mine.empty() ? positions.at(static_cast<int64_t>(s)) : mine[s].at);
      if (!tokens.empty()) tokens[s * b + i] = row_tokens[at];
      if (!labels.empty()) labels[s * b + i] = row_labels[at];
    }
  }
  return {};
}

Status BatchReader::sequences_of(int micro_batch, std::span<int32_t> of) const {
  MB_TRY(rows(micro_batch, {}, of));  // padding has no label
  std::vector<PackedRow> mine;
  if (layout.packed()) {
    std::vector<int32_t> first = room_for_starts();
    MB_TRY(starts(micro_batch, first));
    mine = packed_rows(positions, first, layout.local_sequence());
  }
  const auto b = static_cast<size_t>(layout.micro_batch);
  for (size_t i = 0; i < of.size(); ++i)
    if (of[i] >= 0) of[i] = static_cast<int32_t>(mine.empty() ? static_cast<int64_t>(i % b) : mine[i].sequence);
  return {};
}

Status BatchReader::each_token(const RoutingPort& router, int micro_batch, int tp, std::span<int32_t> experts,
                               int64_t top_k, const VisitToken& visit) const {
  const int64_t b = layout.micro_batch, tokens = static_cast<int64_t>(experts.size()) / top_k;
  const int64_t before = router.sequence_sharded ? tp * tokens : 0;
  std::vector<PackedRow> mine;
  if (sequences != nullptr && layout.reads_starts()) {
    std::vector<int32_t> first = room_for_starts();
    MB_TRY(starts(micro_batch, first));
    mine = packed_rows(positions, first, layout.local_sequence());
  }
  std::vector<int32_t> sequence;
  if (sequences != nullptr) {
    sequence.resize(static_cast<size_t>(layout.local_sequence() * b));
    MB_TRY(sequences_of(micro_batch, sequence));
  }
  for (int64_t t = 0; t < tokens; ++t) {
    if (!sequence.empty() && sequence[static_cast<size_t>(before + t)] < 0) continue;
    const int64_t row = (before + t) / b;
    const int64_t place = mine.empty() ? positions.at(row) : mine[static_cast<size_t>(row)].at;
    MB_TRY(visit(index(micro_batch, static_cast<size_t>((before + t) % b)), place,
                 experts.subspan(static_cast<size_t>(t * top_k), static_cast<size_t>(top_k))));
  }
  return {};
}

std::vector<int32_t> BatchReader::room_for_starts() const {
  return std::vector<int32_t>(layout.reads_starts() ? static_cast<size_t>(layout.sequences_of_row()) + 1 : 0);
}

Status BatchReader::starts(int micro_batch, std::span<int32_t> first) const {
  return sequences->row(index(micro_batch, 0), {}, {}, first);
}

Status BatchReader::encoder_starts(int micro_batch, std::span<int32_t> first) const {
  return sequences->encoder_row(index(micro_batch, 0), {}, first);
}

Status BatchReader::samples_and_encoder(int micro_batch, std::span<int32_t> samples,
                                        std::span<int32_t> encoder_tokens) const {
  std::vector<int32_t> sample(static_cast<size_t>(layout.sample_tokens()));
  const auto b = static_cast<size_t>(layout.micro_batch);
  for (size_t i = 0; i < b; ++i) {
    if (!samples.empty()) samples[i] = static_cast<int32_t>(index(micro_batch, i));
    if (encoder_tokens.empty()) continue;
    std::vector<PackedRow> mine;
    if (sequences != nullptr) {
      std::vector<int32_t> first = room_for_starts();
      const auto row = std::span(sample).first(static_cast<size_t>(layout.encoder_sequence));
      MB_TRY(sequences->encoder_row(index(micro_batch, i), row, first));
      mine = packed_rows(encoder_positions, first, layout.local_encoder_sequence());
    } else {
      MB_TRY(data(index(micro_batch, i), sample));
    }
    for (int64_t s = 0; s < layout.local_encoder_sequence(); ++s) {
      const int64_t at = mine.empty() ? encoder_positions.at(s) : mine[static_cast<size_t>(s)].at;
      encoder_tokens[static_cast<size_t>(s) * b + i] = sample[static_cast<size_t>(at)];
    }
  }
  return {};
}

}  // namespace mbb::trainer
