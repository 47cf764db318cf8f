// From the engine's projection to the runner's.
#include "suites/cli/suite_projector.h"

namespace mbb::suites {

Projector projector() {
  return {};
}

}  // namespace mbb::suites
