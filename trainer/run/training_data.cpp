// From knobs to token sources and windows.
#include "trainer/run/training_data.h"

#include <algorithm>

namespace mbb::trainer {

DataSpec data_spec(const Config& config) {
  return {config.data.kind, config.data.path, static_cast<uint64_t>(config.train.seed)};
}

Result<Dataset> open_dataset(const Layout& layout) {
  MB_ASSIGN(auto source, open_tokens(data_spec(layout.config), layout.model.vocab_size));
  // A window holds one token more than its length, and so does a sample.
  const DataOrder order{layout.sample_tokens() - 1, static_cast<uint64_t>(layout.config.train.seed)};
  return Dataset::open(std::move(source), order);
}

Result<SequenceDataset> open_sequences(const Layout& layout) {
  const Config& c = layout.config;
  MB_ASSIGN(auto source, open_tokens(data_spec(c), layout.model.vocab_size));
  SequenceCuts cuts;
  cuts.lengths = c.packing.sequences;
  cuts.longest = c.train.seq_length;
  cuts.too_long = c.packing.too_long;
  cuts.longest_encoder = layout.longest_encoder_part();
  cuts.mean = c.packing.mean_length > 0 ? c.packing.mean_length
                                        : std::max<int64_t>(1, (cuts.longest + cuts.longest_encoder) / 4);
  cuts.sigma = c.packing.length_sigma;
  cuts.seed = static_cast<uint64_t>(c.train.seed);
  return SequenceDataset::open(std::move(source), cuts, row_options(layout));
}

RowOptions row_options(const Layout& layout) {
  return {.size = layout.sequence,
          .packed = layout.packed(),
          .most_sequences = layout.sequences_of_row(),
          .seed = static_cast<uint64_t>(layout.config.train.seed),
          .unit = layout.sequence_unit(),
          .encoder_size = layout.encoder_sequence};
}

}  // namespace mbb::trainer
