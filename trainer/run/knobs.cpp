// The one list of the trainer's sections of knobs.
#include "trainer/run/knobs.h"

#include <iterator>

namespace mbb::trainer {
namespace {

using SectionKnobs = std::vector<Knob> (*)();

constexpr SectionKnobs kSections[] = {
    model_knobs,    data_knobs,    train_knobs,         optimizer_knobs, precision_knobs,  parallel_knobs,
    pipeline_knobs, expert_knobs,  data_parallel_knobs, overlap_knobs,   tp_overlap_knobs, memory_knobs,
    fusion_knobs,   packing_knobs, host_knobs,          profiling_knobs, debug_knobs,
};

std::vector<Knob> all_knobs() {
  std::vector<Knob> all;
  for (const SectionKnobs section : kSections) {
    std::vector<Knob> some = section();
    all.insert(all.end(), std::make_move_iterator(some.begin()), std::make_move_iterator(some.end()));
  }
  return all;
}

}  // namespace

const KnobTable& knobs() {
  static const KnobTable table(all_knobs(), Config{});
  return table;
}

}  // namespace mbb::trainer
