// One launch a structure, one a reference; losses of every step and gradients of the first must be equal.
#include "suites/runner/twin_run.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "baselines/store/bundle.h"
#include "profiler/base/file.h"
#include "profiler/base/text.h"
#include "suites/matrix/settings.h"
#include "suites/runner/child.h"
#include "suites/runner/equality.h"
#include "suites/runner/gradients.h"
#include "suites/runner/launch_process.h"
#include "suites/runner/process.h"
#include "trainer/run/knobs.h"

namespace mbb::suites {
namespace {

constexpr const char* kAlone = "one rank";

std::string last_line(const std::filesystem::path& file) {
  const auto text = read_file(file, size_t{1} << 20);
  if (!text) return {};
  std::string_view tail = trim(*text);
  if (const size_t line = tail.find("error: "); line != std::string_view::npos) tail.remove_prefix(line + 7);
  return printable(tail.substr(0, tail.find('\n')), 300);
}

}  // namespace

Result<std::optional<baselines::Cell>> TwinRunner::train(const trainer::Config& config, const std::string& name,
                                                         int ranks) {
  const std::filesystem::path folder = folder_ / name;
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  MB_TRY(make_dirs(folder));
  MB_ASSIGN(ProcessOptions process, launch_process(config, folder, options_));
  // Its ranks are threads of one process, also where a launcher made this one a rank of several.
  process.environment.emplace_back("MBBENCH_RANKS", "1");
  process.on_line = on_line_;
  MB_ASSIGN(const ProcessEnd end, run_process(process));
  if (end.stopped) return std::optional<baselines::Cell>();
  baselines::Cell cell;
  cell.name = name;
  cell.model = config.model.name;
  cell.device = "cpu";
  cell.ranks = ranks;
  for (const KnobState& state : knob_states(config, {})) cell.knobs.push_back({state.knob->key, state.value});
  auto launch = baselines::read_launch(folder);
  if (launch && end.exit_status == 0 && end.signal == 0) {
    cell.launches.push_back(std::move(*launch));
    return std::optional(std::move(cell));
  }
  cell.status = baselines::CellStatus::kBroken;
  cell.reason = end.timed_out     ? "no progress within the time limit"
                : end.signal != 0 ? fmt::format("ended by signal {}", end.signal)
                                  : fmt::format("exit status {}", end.exit_status);
  if (const std::string said = last_line(folder / kLaunchLogFile); !said.empty()) cell.reason += ": " + said;
  return std::optional(std::move(cell));
}

Result<TwinEnd> TwinRunner::judge(baselines::Cell mapped, const baselines::Cell& alone) const {
  TwinEnd end;
  end.verdict = baselines::Verdict::kBroken;
  if (alone.status != baselines::CellStatus::kOk) {
    end.text = "one rank does not train it: " + alone.reason;
    return end;
  }
  const std::filesystem::path of_mapped = folder_ / mapped.name, of_alone = folder_ / alone.name;
  baselines::Cell reference = alone;
  reference.name = kAlone;
  judge_losses(mapped, {reference});
  if (mapped.status == baselines::CellStatus::kOk) {
    MB_ASSIGN(const Gradients mine, read_gradients(of_mapped));
    MB_ASSIGN(const Gradients exact, read_gradients(of_alone));
    judge_gradients(mapped, mine, exact, nullptr, kAlone);
  }
  for (const baselines::VerdictRow& row : mapped.verdicts)
    if (row.subject == "loss") end.difference = row.change;
  if (mapped.status != baselines::CellStatus::kOk) {
    end.text = mapped.reason;
    return end;
  }
  // Two verdicts, or something was not compared.
  if (mapped.verdicts.size() != 2)
    return fail(ErrorCode::kMismatch,
                fmt::format("twin {}: its losses or gradients were compared with nothing", mapped.name));
  end.verdict = baselines::Verdict::kSame;
  end.text = fmt::format("losses equal one rank's within {:.1e} at {} steps, gradients too", end.difference,
                         mapped.launches.front().steps.size());
  return end;
}

Result<std::optional<TwinEnd>> TwinRunner::run(const Twin& twin) {
  if (const auto known = memory_.ended.find(twin.mapped_hash); known != memory_.ended.end())
    return std::optional(known->second);
  auto alone = memory_.alone.find(twin.alone_hash);
  if (alone == memory_.alone.end()) {
    MB_ASSIGN(auto trained, train(twin.alone, twin.alone_hash, 1));
    if (!trained) return std::optional<TwinEnd>();
    alone = memory_.alone.emplace(twin.alone_hash, std::move(*trained)).first;
  }
  MB_ASSIGN(auto mapped, train(twin.mapped, twin.mapped_hash, twin.ranks));
  if (!mapped) return std::optional<TwinEnd>();
  MB_ASSIGN(const TwinEnd end, judge(std::move(*mapped), alone->second));
  memory_.ended.emplace(twin.mapped_hash, end);
  ++trained_;
  return std::optional(end);
}

}  // namespace mbb::suites
