// Tensor-parallel collectives under the matrix products beside them, by GEMM site.
//
// Sites are <layer part>_<product>: qkv, fc1 (an all-gather before, in backward a reduce-scatter after dgrad and an
// all-gather for wgrad), proj, fc2 (a reduce-scatter after, in backward an all-gather before dgrad); fprop, dgrad,
// wgrad. Methods:
//   bulk           the collective stays whole and runs beside a product that does not need it: qkv and fc1 dgrad (the
//                  all-gather for wgrad) and wgrad (the reduce-scatter of dgrad)
//   pipeline       num_splits collectives of a part of every rank's rows, each beside the product of another part
//   ring_exchange  rank by rank: the product of the rows that are here runs while the next rank's arrive, or the
//   product
//                  of one rank's rows while the last one's travel
// Sums are kept: a split reduction adds the same terms.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "profiler/base/error.h"
#include "profiler/base/knob.h"
#include "trainer/program/program.h"

namespace mbb::trainer {

enum class TpOverlapMethod { kNone, kBulk, kPipeline, kRingExchange };
const char* name(TpOverlapMethod method);

struct TpOverlapSite {
  const char* name = "";  // "qkv_fprop"
  TpOverlapMethod method = TpOverlapMethod::kNone;
  int num_sm = 0;
  int cga_size = 0;
  int num_splits = 0;
  bool fp8_buf = false;        // a reduce-scatter's parts travel in FP8
  bool set_sm_margin = false;  // the product leaves num_sm SMs
  bool use_ce = false;         // a ring's messages go by copy engines and take no SMs
};

// Positions of a sequence that a rank holds under sequence parallelism.
struct RowsOfARank {
  int64_t decoder = 0;
  int64_t encoder = 0;  // 0: there is none
};

// What precision.recipe makes of the products.
struct TpOverlapRecipe {
  std::string name;  // "fp8_current"
  bool quantizes = false;
  bool splits = true;  // products of some rows: not where each block has a scale
};

// All ten sites: defaults, changed by entries "<site>.<field>" of tp_comm_overlap_cfg; "<layer part>.<field>" stands
// for those of its sites that can take it and do not say it themselves. A site's parts are as many in the encoder as in
// the decoder; left out, num_splits is the largest of 4, 3 and 2 that divides the rows of both. Of quantized products
// the bulk sites alone overlap by default. Errors name the entry and the rule: a site, field or method that is not
// there, cga_size above 4 or num_sm, rows that splits do not divide.
Result<std::vector<TpOverlapSite>> tp_overlap_sites(const KnobMap& cfg, int tp, RowsOfARank rows,
                                                    const TpOverlapRecipe& recipe);

// Changes every micro-batched segment. Paths grow by ".splitJ", ".ringJ".
void overlap_tensor_parallel(Program& program, int tp, const std::vector<TpOverlapSite>& sites);

}  // namespace mbb::trainer
