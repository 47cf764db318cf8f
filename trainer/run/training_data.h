// The samples a configuration trains on: where its tokens come from and the windows they are cut into.
#pragma once

#include "trainer/data/dataset.h"
#include "trainer/data/packing.h"
#include "trainer/run/layout.h"

namespace mbb::trainer {

// What the [data] knobs name; synthetic tokens follow train.seed.
DataSpec data_spec(const Config& config);

// Windows of Layout::sample_tokens(), shuffled by train.seed. Errors name file and offset.
Result<Dataset> open_dataset(const Layout& layout);

// Of the rows of a layout that has_sequences(). Under context parallelism every sequence of a pack divides over the
// ranks.
RowOptions row_options(const Layout& layout);
// Those rows.
Result<SequenceDataset> open_sequences(const Layout& layout);

}  // namespace mbb::trainer
