// Knobs of [overlap] that hide tensor-parallel collectives and leave SMs to communication.
#include "trainer/run/knobs.h"

namespace mbb::trainer {

std::vector<Knob> tp_overlap_knobs() {
  return {
      {.key = "overlap.tp_comm_overlap",
       .field = field(&Config::tp_overlap, &TpOverlapConfig::tp_comm_overlap),
       .doc = "Splits tensor-parallel collectives and the matrix products beside them so that they overlap; needs "
              "sequence_parallel. Of products that precision.recipe quantizes the bulk sites alone overlap unless "
              "tp_comm_overlap_cfg says more; those of fp8_current and fp8_delayed can be split, and codes are "
              "gathered."},
      {.key = "overlap.tp_comm_overlap_cfg",
       .field = field(&Config::tp_overlap, &TpOverlapConfig::tp_comm_overlap_cfg),
       .doc = "By site (qkv, proj, fc1, fc2, each _fprop, _dgrad or _wgrad; without, all of theirs that can take it): "
              "method = bulk, pipeline, ring_exchange or "
              "none; num_sm (130 at most, with host.side_sms), cga_size, num_splits, fp8_buf (parts of a ring's "
              "reduce-scatter travel in FP8), set_sm_margin, use_ce (a "
              "ring's messages by copy engines: the default unless SMs are given). As in "
              "tp_comm_overlap_cfg.proj_fprop.num_splits = 2."},
      {.key = "overlap.fwd_layernorm_sm_margin",
       .field = field(&Config::tp_overlap, &TpOverlapConfig::fwd_layernorm_sm_margin),
       .range = within(0, 1024),
       .unit = "SMs",
       .doc = "SMs that forward norm kernels leave to communication.",
       .projected = false},
      {.key = "overlap.bwd_layernorm_sm_margin",
       .field = field(&Config::tp_overlap, &TpOverlapConfig::bwd_layernorm_sm_margin),
       .range = within(0, 1024),
       .unit = "SMs",
       .doc = "SMs that backward norm kernels leave to communication.",
       .projected = false},
  };
}

}  // namespace mbb::trainer
