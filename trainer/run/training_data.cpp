// From knobs to token sources and windows.
#include "trainer/run/training_data.h"

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

}  // namespace mbb::trainer
