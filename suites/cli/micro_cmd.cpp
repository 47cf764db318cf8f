// mbbench micro: becomes mbbench-micro, which times every op alone on a GPU.
#include "suites/cli/command.h"
#include "suites/cli/sibling.h"

namespace mbb::suites {
namespace {

Result<int> micro(const Parsed& parsed) {
  return become("mbbench-micro", parsed.knobs, "install libbenchmark-dev and CUDA 13.0 or newer, and build again");
}

}  // namespace

Command micro_command() {
  return {"micro",
          "time every op alone on this GPU against its ceilings (--seconds S, --settings \"key=value ...\", "
          "--benchmark_filter=TEXT, --benchmark_out=FILE follow)",
          {},
          {},
          true,
          micro};
}

}  // namespace mbb::suites
