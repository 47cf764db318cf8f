// Knobs of [data]: what is read; its kind says how it becomes tokens.
#include "trainer/run/knobs.h"

namespace mbb::trainer {

std::vector<Knob> data_knobs() {
  return {
      {.key = "data.kind",
       .field = field(&Config::data, &DataConfig::kind),
       .choices = {choice("auto", DataKind::kAuto, "by the path: none = text, *.jsonl, *.bin and *.idx, else bytes"),
                   choice("text", DataKind::kText, "text, a token a byte: of the file, or without one what is shipped"),
                   choice("bytes", DataKind::kBytes, "any file, a token a byte"),
                   choice("jsonl", DataKind::kJsonl, "a list of tokens a line"),
                   choice("megatron", DataKind::kMegatron, "Megatron's .bin and .idx"),
                   choice("synthetic", DataKind::kSynthetic, "independent uniform tokens by train.seed")},
       .doc = "What data.path holds."},
      {.key = "data.path",
       .field = field(&Config::data, &DataConfig::path),
       .doc = "File to train on; empty = the text shipped with the project. Its hash is stored with the cell and "
              "splits its series; for it the file is read once a run.",
       .path = true},
  };
}

}  // namespace mbb::trainer
