// Knobs of [overlap]: which communication runs under compute.
#include "trainer/run/knob_needs.h"
#include "trainer/run/knobs.h"

namespace mbb::trainer {

std::vector<Knob> overlap_knobs() {
  return {
      {.key = "overlap.cuda_device_max_connections",
       .field = field(&Config::overlap, &OverlapConfig::cuda_device_max_connections),
       .range = within(0, 32),
       .doc = "CUDA_DEVICE_MAX_CONNECTIONS of a launch's process: with 1, kernels of all streams start in the order of "
              "their launches; 0 = as found.",
       .needs = {needs::kGpu},
       .projected = false},
      {.key = "overlap.overlap_p2p_comm",
       .field = field(&Config::overlap, &OverlapConfig::overlap_p2p_comm),
       .doc = "Pipeline messages on streams of their own, one a direction and end, under the compute of other "
              "micro-batches. Off: a stage computes nothing while it sends. auto = on when the pipeline is "
              "interleaved.",
       .needs = {needs::kMessages}},
      {.key = "overlap.batch_p2p_comm",
       .field = field(&Config::overlap, &OverlapConfig::batch_p2p_comm),
       .doc =
           "Without overlap: a stage's send and the receive after it are one exchange. auto = on when the pipeline is "
           "neither overlapped nor interleaved.",
       .needs = {needs::kMessages}},
      {.key = "overlap.overlap_moe_expert_parallel_comm",
       .field = field(&Config::overlap, &OverlapConfig::overlap_moe_expert_parallel_comm),
       .doc =
           "A forward runs between the exchanges of another micro-batch's backward, so that tokens travel to experts "
           "under compute. Needs twice the micro-batches in flight where the pipeline is not interleaved."},
      {.key = "overlap.delay_wgrad_compute",
       .field = field(&Config::overlap, &OverlapConfig::delay_wgrad_compute),
       .doc = "Weight gradients wait until the next exchange of tokens is on its way, or until the previous stage has "
              "its gradient."},
  };
}

}  // namespace mbb::trainer
