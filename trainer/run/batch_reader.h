// What a rank reads of a step's samples: its own positions of its micro-batches, by global sample index.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "profiler/base/error.h"
#include "trainer/data/packing.h"
#include "trainer/program/packed_rows.h"
#include "trainer/run/layout.h"
#include "trainer/run/train.h"

namespace mbb::trainer {

// One step's, of one rank. Micro-batch m of data-parallel rank d takes samples [(m·dp + d)·b, ... + b) of the step's
// global batch. `sequences` is null where samples are unbroken text, and `data` is not asked where it is not.
struct BatchReader {
  const Layout& layout;
  const SampleSource& data;
  const SequenceDataset* sequences;
  int64_t step;
  int dp_rank;
  Positions positions, encoder_positions;  // of this context-parallel rank

  // The global index of the i-th sample of a micro-batch.
  int64_t index(int micro_batch, size_t i) const;

  // [s, b] of this rank's positions; an empty span is left out. A sample is the encoder's tokens (if there is one),
  // then the decoder's, then one label more.
  Status tokens_and_labels(int micro_batch, std::span<int32_t> tokens, std::span<int32_t> labels) const;
  // The samples' indices [b], and the encoder's tokens [s, b].
  Status samples_and_encoder(int micro_batch, std::span<int32_t> samples, std::span<int32_t> encoder_tokens) const;
  // Where the sequences of a packed row begin.
  Status starts(int micro_batch, std::span<int32_t> first) const;
  Status encoder_starts(int micro_batch, std::span<int32_t> first) const;

  // Of every token of rows [s, b] which of the micro-batch's sequences it is of, -1 where it is padding.
  Status sequences_of(int micro_batch, std::span<int32_t> of) const;

  // Visits every token of rows [s, b] that a router of this context-parallel rank sends to experts, of tensor-parallel
  // rank `tp` alone where they are cut: its sample, its place there, its experts.
  using VisitToken = std::function<Status(int64_t sample, int64_t place, std::span<int32_t> experts)>;
  Status each_token(const RoutingPort& router, int micro_batch, int tp, std::span<int32_t> experts, int64_t top_k,
                    const VisitToken& visit) const;

 private:
  Status rows(int micro_batch, std::span<int32_t> tokens, std::span<int32_t> labels) const;
  std::vector<int32_t> room_for_starts() const;
};

}  // namespace mbb::trainer
