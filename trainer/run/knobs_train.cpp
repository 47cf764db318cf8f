// Knobs of [train]: batch, length, number of steps, seed.
#include "trainer/run/knob_needs.h"
#include "trainer/run/knobs.h"

namespace mbb::trainer {

std::vector<Knob> train_knobs() {
  return {
      {.key = "train.micro_batch_size",
       .aliases = {"mbs"},
       .field = field(&Config::train, &TrainConfig::micro_batch_size),
       .range = within(1, 1 << 20),
       .unit = "sequences",
       .doc = "Sequences one data-parallel replica computes at a time."},
      {.key = "train.global_batch_size",
       .aliases = {"gbs"},
       .field = field(&Config::train, &TrainConfig::global_batch_size),
       .range = within(1, 1 << 24),
       .unit = "sequences",
       .doc =
           "Sequences of one optimizer step over all replicas; a multiple of micro-batch size x data-parallel size."},
      {.key = "train.seq_length",
       .aliases = {"seq"},
       .field = field(&Config::train, &TrainConfig::seq_length),
       .range = within(1, 1 << 24),
       .unit = "tokens",
       .doc = "Length of a sequence."},
      {.key = "train.encoder_seq_length",
       .field = field(&Config::train, &TrainConfig::encoder_seq_length),
       .range = within(0, 1 << 24),
       .unit = "tokens",
       .doc = "Length of the encoder's sequence in encoder-decoder models; 0 = seq_length.",
       .needs = {needs::kEncoder}},
      {.key = "train.train_iters",
       .aliases = {"iters"},
       .field = field(&Config::train, &TrainConfig::train_iters),
       .range = within(1, 100'000'000),
       .unit = "steps",
       .doc = "Optimizer steps to run."},
      {.key = "train.seed",
       .field = field(&Config::train, &TrainConfig::seed),
       .range = at_least(0),
       .doc = "Seed of initialisation, data order and every other random number of a run."},
      {.key = "train.hidden_dropout",
       .field = field(&Config::train, &TrainConfig::hidden_dropout),
       .range = at_least_and_below(0, 1),
       .doc = "Probability with which an element of the embedding and of what is added to the residual is dropped.",
       .history = "Megatron-Core: 0.1."},
      {.key = "train.attention_dropout",
       .field = field(&Config::train, &TrainConfig::attention_dropout),
       .range = at_least_and_below(0, 1),
       .doc = "Probability with which a softmax weight of attention is dropped.",
       .history = "Megatron-Core: 0.1.",
       .projected = false},
  };
}

}  // namespace mbb::trainer
