// The op rows of a launch, completed by what only its program knows.
#pragma once

#include <string>

#include "baselines/store/records.h"
#include "trainer/program/row_lengths.h"
#include "trainer/run/layout.h"
#include "trainer/run/step_programs.h"

namespace mbb::suites {

// "stage0": the name of a rank's class in op rows and memory maps.
std::string rank_class_name(const trainer::Layout& layout, int rank);

// What a trace does not know of an op: kind, role, how often a step runs it (it may be several kernels), FLOPs and
// bytes of one execution, attention's by `lengths` where rows hold sequences of many. Rows that the program has no op
// for stay as they are.
void complete_op_rows(baselines::Launch& launch, const trainer::Layout& layout, const trainer::StepPrograms& programs,
                      const trainer::RowLengths* lengths = nullptr);

}  // namespace mbb::suites
