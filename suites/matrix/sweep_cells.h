// [sweep.NAME]: the product of its axes, less what `where` leaves out and what cannot be laid out.
#pragma once

#include "suites/matrix/cell_maker.h"

namespace mbb::suites {

Status add_sweeps(CellMaker& maker);

}  // namespace mbb::suites
