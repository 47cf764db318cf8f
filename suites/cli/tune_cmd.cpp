// mbbench tune: chooses the GEMM algorithms of a configuration under sustained load and keeps them in a file.
#include <fmt/core.h>

#include "suites/cli/command.h"
#include "suites/cli/print.h"
#include "suites/cli/settings_of.h"
#include "trainer/execute/executor.h"
#include "trainer/run/layout.h"
#include "trainer/run/train.h"

namespace mbb::suites {
namespace {

Result<int> tune(const Parsed& parsed) {
  MB_ASSIGN(Settings settings, settings_of(parsed));
  trainer::HostConfig& host = settings.config.host;
  if (host.device != trainer::Device::kCuda)
    return fail(ErrorCode::kBadArgument, "tuning times a GPU's GEMMs, and host.device is cpu", "add host.device=cuda");
  if (host.gemm_tuning_file.empty()) host.gemm_tuning_file = "gemm-tuning.txt";
  MB_ASSIGN(const trainer::Layout layout, trainer::resolve(settings.config));
  MB_ASSIGN(const trainer::StepPrograms programs, trainer::build_programs(layout));
  MB_TRY(trainer::tune_gemms(host, programs.programs[0], programs.plans[0], layout.mesh,
                             static_cast<uint64_t>(settings.config.train.seed), parsed.flag("--brief")));
  fmt::print("{}: written. A run reads it with host.gemm_tuning_file={}\n", host.gemm_tuning_file,
             host.gemm_tuning_file);
  return 0;
}

}  // namespace

Command tune_command() {
  return {"tune",
          "choose the GEMM algorithms of a configuration under sustained load, into host.gemm_tuning_file",
          {},
          {{"--brief", nullptr, "about 0.1 s a GEMM instead of 2: so that all launches of a suite run the same ones"}},
          true,
          tune};
}

}  // namespace mbb::suites
