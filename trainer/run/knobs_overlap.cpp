// Knobs of [overlap]: which communication runs under compute.
#include "trainer/run/knobs.h"

namespace mbb::trainer {

std::vector<Knob> overlap_knobs() {
  return {
      {.key = "overlap.overlap_p2p_comm",
       .field = field(&Config::overlap, &OverlapConfig::overlap_p2p_comm),
       .doc = "Pipeline messages on streams of their own, one a direction and end, under the compute of other "
              "micro-batches. Off: a stage computes nothing while it sends. auto = on when the pipeline is "
              "interleaved."},
      {.key = "overlap.batch_p2p_comm",
       .field = field(&Config::overlap, &OverlapConfig::batch_p2p_comm),
       .doc =
           "Without overlap: a stage's send and the receive after it are one exchange. auto = on when the pipeline is "
           "neither overlapped nor interleaved."},
  };
}

}  // namespace mbb::trainer
