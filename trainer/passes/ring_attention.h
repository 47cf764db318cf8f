// Attention over the keys of all context-parallel ranks as the steps it takes.
#pragma once

#include "trainer/program/program.h"

namespace mbb::trainer {

// Replaces each ring attention of `forward` (and of `backward`, where it is recomputed) and its gradient by steps.
// Forward: in step j a rank attends to the keys of the rank j before it, only the chunks that its causal mask (and
// window) shows, while stream kCp moves keys and values on; the parts are merged by log-sum-exp. Backward: the keys and
// values travel again, each rank adds to gradients that travel behind them and that end at their owner. Steps that see
// nothing are left out. Where the keys of all were gathered before, the steps read their parts of that tensor and write
// those of its gradient, and nothing travels. Paths grow by ".shiftJ", ".stepJ", ".merge". With `copy_engines` nothing
// that travels takes SMs where the ring shares a host.
void expand_ring_attention(Program& program, int forward, int backward, bool copy_engines);

}  // namespace mbb::trainer
