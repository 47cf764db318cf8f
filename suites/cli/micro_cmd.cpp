// mbbench micro: becomes mbbench-micro, which times every op alone on a GPU, or mbbench-comm, which times collectives.
#include "suites/cli/command.h"
#include "suites/cli/sibling.h"

namespace mbb::suites {
namespace {

Result<int> micro(const Parsed& parsed) {
  if (!parsed.knobs.empty() && parsed.knobs.front() == "comm")
    return become("mbbench-comm", {parsed.knobs.begin() + 1, parsed.knobs.end()},
                  "build with CUDA 13.0 or newer and NCCL's header");
  return become("mbbench-micro", parsed.knobs, "install libbenchmark-dev and CUDA 13.0 or newer, and build again");
}

}  // namespace

Command micro_command() {
  return {.name = "micro",
          .summary =
              "time every op alone on this GPU against its ceilings (--seconds S, --settings \"key=value ...\", "
              "--benchmark_filter=TEXT, --benchmark_out=FILE follow); 'micro comm' times collectives between its "
              "GPUs, and a product beside them (--gpus N, --mib LARGEST, --registered, --out FILE.csv follow)",
          .positionals = {},
          .options = {},
          .run = micro,
          .passes_on = true};
}

}  // namespace mbb::suites
