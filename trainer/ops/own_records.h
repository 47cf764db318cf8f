// A program made by another copy of the op table: libmbbench_cuda.so carries its own, and is handed programs whose ops
// point at the records of the program that opened it.
#pragma once

#include "trainer/program/program.h"

namespace mbb::trainer {

// The same program, its ops' kinds being this copy's records, so that `op.kind == &kAdamW` means here what it means
// where the program was built. Records are found by name; a kind without one keeps its record.
Program with_own_records(Program program);

}  // namespace mbb::trainer
