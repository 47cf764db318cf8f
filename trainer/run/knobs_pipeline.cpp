// Knobs of [parallel] that cut the model into pipeline stages and meshes.
#include "trainer/run/knob_needs.h"
#include "trainer/run/knobs.h"

namespace mbb::trainer {

std::vector<Knob> pipeline_knobs() {
  return {
      {.key = "parallel.pipeline_model_parallel_size",
       .aliases = {"pp"},
       .field = field(&Config::parallel, &ParallelConfig::pipeline_model_parallel_size),
       .range = within(1, 1 << 16),
       .unit = "stages",
       .doc = "Stages the layers are cut into, run as 1F1B."},
      {.key = "parallel.virtual_pipeline_model_parallel_size",
       .aliases = {"vpp"},
       .field = field(&Config::parallel, &ParallelConfig::virtual_pipeline_model_parallel_size),
       .range = within(1, 1 << 16),
       .unit = "chunks",
       .doc =
           "Model chunks a stage holds; above 1 the schedule is interleaved and the bubble that many times smaller."},
      {.key = "parallel.microbatch_group_size_per_virtual_pipeline_stage",
       .aliases = {"microbatch_group_size"},
       .field = field(&Config::parallel, &ParallelConfig::microbatch_group_size_per_virtual_pipeline_stage),
       .range = within(0, 1 << 20),
       .unit = "micro-batches",
       .doc =
           "Micro-batches that pass one chunk before the next chunk has its turn; 0 = pipeline_model_parallel_size."},
      {.key = "parallel.account_for_embedding_in_pipeline_split",
       .field = field(&Config::parallel, &ParallelConfig::account_for_embedding_in_pipeline_split),
       .doc = "The embedding counts as a layer where layers are dealt out: the first chunk gets one layer less.",
       .needs = {needs::kPp}},
      {.key = "parallel.account_for_loss_in_pipeline_split",
       .field = field(&Config::parallel, &ParallelConfig::account_for_loss_in_pipeline_split),
       .doc = "LM head and loss count as a layer where layers are dealt out: the last chunk gets one layer less.",
       .needs = {needs::kPp}},
      {.key = "parallel.pipeline_layout",
       .aliases = {"pipeline_model_parallel_layout"},
       .field = field(&Config::parallel, &ParallelConfig::pipeline_layout),
       .doc =
           "What each chunk holds, written in the order of the model: E embedding, t layer, m multi-token prediction "
           "layer, L loss, | next chunk, *n repeats what is before it, parentheses group, commas and blanks say "
           "nothing. Chunk i lies on stage i mod pipeline_model_parallel_size. Empty: equal slots."},
      {.key = "parallel.encoder_pipeline_model_parallel_size",
       .field = field(&Config::parallel, &ParallelConfig::encoder_pipeline_model_parallel_size),
       .range = within(0, 1),
       .unit = "stages",
       .doc = "1 = the encoder of an encoder-decoder model has GPUs of its own, before the decoder's: GPUs = data x "
              "(encoder tensor + tensor x pipeline parallel). 0 = it shares the first stage's."},
      {.key = "parallel.encoder_tensor_model_parallel_size",
       .field = field(&Config::parallel, &ParallelConfig::encoder_tensor_model_parallel_size),
       .range = within(0, 1 << 16),
       .unit = "GPUs",
       .doc = "GPUs that share each of the encoder's layers; divides tensor_model_parallel_size. 0 = as many as that."},
  };
}

}  // namespace mbb::trainer
