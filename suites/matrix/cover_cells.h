// [cover.NAME]: few combinations of named values in which every two of two axes meet, random ones beyond, and the
// references they are judged by.
#pragma once

#include "suites/matrix/cell_maker.h"

namespace mbb::suites {

// `filter` may have another seed or total for every cover; `yields` is not held to it then.
Status add_covers(CellMaker& maker, const SuiteFilter& filter);

}  // namespace mbb::suites
