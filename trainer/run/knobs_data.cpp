// Knobs of [data]: what is read and how it becomes tokens.
#include "trainer/run/knobs.h"

namespace mbb::trainer {

std::vector<Knob> data_knobs() {
  return {
      {.key = "data.path",
       .field = field(&Config::data, &DataConfig::path),
       .doc = "Text file to train on; empty = the text shipped with the project. Its hash is stored with the run.",
       .path = true},
      {.key = "data.tokenizer",
       .field = field(&Config::data, &DataConfig::tokenizer),
       .choices = {choice("bytes", Tokenizer::kBytes, "one token a byte, vocabulary 256")},
       .doc = "How text becomes tokens."},
  };
}

}  // namespace mbb::trainer
