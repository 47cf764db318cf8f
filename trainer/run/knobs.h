// Every knob of the trainer, joined from the records of its sections (knobs_<section>.cpp). A new knob is a field of
// config.h, a record beside its neighbours, and the code that reads it; KNOBS.md is written from here.
#pragma once

#include <vector>

#include "profiler/base/knob_table.h"
#include "trainer/run/config.h"

namespace mbb::trainer {

std::vector<Knob> model_knobs();
std::vector<Knob> data_knobs();
std::vector<Knob> train_knobs();
std::vector<Knob> optimizer_knobs();
std::vector<Knob> precision_knobs();
std::vector<Knob> parallel_knobs();
std::vector<Knob> tp_overlap_knobs();
std::vector<Knob> expert_knobs();
std::vector<Knob> memory_knobs();
std::vector<Knob> data_parallel_knobs();
std::vector<Knob> pipeline_knobs();
std::vector<Knob> overlap_knobs();
std::vector<Knob> fusion_knobs();
std::vector<Knob> packing_knobs();
std::vector<Knob> host_knobs();
std::vector<Knob> profiling_knobs();
std::vector<Knob> debug_knobs();

// The table over Config, built on first use.
const KnobTable& knobs();

}  // namespace mbb::trainer
