// Knobs of [packing]: how the data is cut into sequences, and several of them into one row.
#include "trainer/run/knobs.h"

namespace mbb::trainer {

std::vector<Knob> packing_knobs() {
  return {
      {.key = "packing.sequences",
       .field = field(&Config::packing, &PackingConfig::sequences),
       .choices = {choice("stream", SequenceLengths::kStream, "windows of train.seq_length from end to end"),
                   choice("documents", SequenceLengths::kDocuments, "the documents of the data"),
                   choice("uniform", SequenceLengths::kUniform, "lengths from 1 to twice the mean, all as likely"),
                   choice("lognormal", SequenceLengths::kLognormal, "lengths with a long tail")},
       .doc = "Where sequences end; drawn lengths follow train.seed."},
      {.key = "packing.packed_sequence_size",
       .field = field(&Config::packing, &PackingConfig::packed_sequence_size),
       .range = within(0, 1 << 24),
       .unit = "tokens",
       .doc = "Row into which sequences are packed first-fit decreasing, with attention inside each sequence only; 0 = "
              "one sequence a row, padded to train.seq_length."},
      {.key = "packing.max_sequences",
       .field = field(&Config::packing, &PackingConfig::max_sequences),
       .range = within(1, 1 << 20),
       .unit = "sequences",
       .doc = "Sequences a pack holds at most: the fixed capacity of its list of starts."},
      {.key = "packing.mean_length",
       .field = field(&Config::packing, &PackingConfig::mean_length),
       .range = within(0, 1 << 24),
       .unit = "tokens",
       .doc = "Mean of drawn lengths, before long ones are cut; 0 = a quarter of train.seq_length."},
      {.key = "packing.length_sigma",
       .field = field(&Config::packing, &PackingConfig::length_sigma),
       .range = within(0, 4),
       .doc = "Standard deviation of the logarithm of lognormal lengths."},
      {.key = "packing.too_long",
       .field = field(&Config::packing, &PackingConfig::too_long),
       .choices = {choice("truncate", LongSequences::kTruncate, "its first train.seq_length tokens stay"),
                   choice("drop", LongSequences::kDrop, "it is left out"),
                   choice("refuse", LongSequences::kRefuse, "an error names it")},
       .doc = "What becomes of a sequence longer than train.seq_length; what was cut or dropped is counted."},
  };
}

}  // namespace mbb::trainer
