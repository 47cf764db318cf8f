// Checks all nights first, then makes a pin of each cell and metric.
#include "suites/runner/accept.h"

#include <fmt/core.h>

#include <algorithm>

#include "analysis/gate/canary.h"
#include "analysis/gate/gate_report.h"
#include "analysis/gate/harness.h"
#include "analysis/metrics/metrics.h"
#include "profiler/base/text.h"
#include "suites/matrix/suite.h"
#include "suites/runner/gate_evidence.h"

namespace mbb::suites {
namespace {

using baselines::Pin;

Status check_nights(const AcceptRequest& request) {
  const baselines::Run& first = request.run;
  std::vector<std::string> given{first.id};
  for (const baselines::Run& night : request.more) {
    if (std::find(given.begin(), given.end(), night.id) != given.end())
      return fail(ErrorCode::kBadArgument, fmt::format("run {} is given twice: its launches count once", night.id),
                  "--with takes further runs: `mbbench list runs`");
    given.push_back(night.id);
    if (night.fingerprint.class_hash != first.fingerprint.class_hash || night.epoch != first.epoch)
      return fail(
          ErrorCode::kMismatch,
          fmt::format("runs {} and {} are of different environments: {}", first.id, night.id,
                      join(profiler::changed_environment(first.fingerprint, night.fingerprint, request.roles), "; ")));
    if (profiler::product_hash(night.fingerprint, request.roles) !=
        profiler::product_hash(first.fingerprint, request.roles))
      return fail(ErrorCode::kMismatch, fmt::format("runs {} and {} are of different products", first.id, night.id));
  }
  return {};
}

// A cell's nights: of the run and of every further run where its launches are evidence.
struct Nights {
  std::vector<const baselines::Run*> runs;
  std::vector<const baselines::Cell*> cells;
};

Status check_launches(const Nights& nights) {
  struct Place {
    const baselines::Run* run;
    const baselines::Launch* launch;
  };
  std::vector<Place> seen;
  for (size_t i = 0; i < nights.cells.size(); ++i)
    for (const baselines::Launch& launch : nights.cells[i]->launches) {
      for (const Place& place : seen)
        if (analysis::is_same_launch(*place.launch, launch))
          return fail(
              ErrorCode::kBadArgument,
              fmt::format("cell {}: launch {} of run {} is launch {} of run {}: it counts once", nights.cells[i]->name,
                          launch.index, nights.runs[i]->id, place.launch->index, place.run->id),
              "a log that was imported again is no further launch");
      seen.push_back({nights.runs[i], &launch});
    }
  return {};
}

Nights nights_of(const AcceptRequest& request, const baselines::Cell& cell, Acceptance& out) {
  Nights nights{{&request.run}, {&cell}};
  for (const baselines::Run& night : request.more) {
    const auto then = std::find_if(night.cells.begin(), night.cells.end(),
                                   [&](const auto& c) { return c.identity_hash == cell.identity_hash; });
    const std::string why =
        then == night.cells.end() ? "it is not there" : analysis::no_evidence(*then, analysis::steps_of(cell));
    if (!why.empty()) {
      out.left_out.push_back(fmt::format("run {}, cell {}: {}", night.id, cell.name, why));
      continue;
    }
    nights.runs.push_back(&night);
    nights.cells.push_back(&*then);
  }
  return nights;
}

Pin pin_of(const AcceptRequest& request, const Nights& nights, const std::string& metric, size_t number) {
  const baselines::Cell& cell = *nights.cells.front();
  const auto nonce = static_cast<uint64_t>(request.now_unix_ns) + static_cast<uint64_t>(number) * 7919U;
  Pin pin;
  pin.id = "b" + baselines::new_run_id(request.now_unix_ns, nonce).substr(1);
  pin.identity_hash = cell.identity_hash;
  pin.class_hash = request.run.fingerprint.class_hash;
  pin.metric = metric;
  pin.unit = analysis::find_metric(metric)->unit;
  pin.cell = cell.name;
  pin.model = cell.model;
  pin.suite = request.run.suite;
  for (size_t i = 0; i < nights.cells.size(); ++i) {
    pin.nights.push_back(analysis::launch_values(*nights.cells[i], metric));
    pin.runs.push_back(nights.runs[i]->id);
    pin.steps = std::max(pin.steps, analysis::steps_of(*nights.cells[i]));
    pin.accepted_unix_ns =
        std::max(pin.accepted_unix_ns, nights.runs[i]->created_unix_ns);  // later ones are held to it
  }
  pin.build = profiler::product_text(request.run.fingerprint, request.facts, request.roles);
  pin.epoch = request.run.epoch;
  pin.product = profiler::product_hash(request.run.fingerprint, request.roles);
  pin.configuration = baselines::configuration_hash(cell);
  pin.author = request.author;
  pin.reason = request.reason;
  pin.expires_unix_ns = request.expires_unix_ns;
  return pin;
}

}  // namespace

Result<Acceptance> accept_runs(const AcceptRequest& request) {
  MB_TRY(profiler::check_product(request.run.fingerprint, request.roles));
  MB_TRY(check_nights(request));
  Acceptance out;
  for (const baselines::Cell& cell : request.run.cells) {
    if (cell.status != baselines::CellStatus::kOk) continue;
    const auto matches = [&](const std::string& pattern) { return cell_matches(pattern, cell.name); };
    if (!request.only.empty() && std::none_of(request.only.begin(), request.only.end(), matches)) continue;
    if (const std::string error = analysis::harness_error(cell); !error.empty())
      return fail(ErrorCode::kMismatch, fmt::format("cell {} is no evidence: {}", cell.name, error),
                  "nothing was accepted; --only takes the other cells");
    const Nights nights = nights_of(request, cell, out);
    MB_TRY(check_launches(nights));
    for (size_t i = 0; i < nights.cells.size(); ++i)
      if (const auto shared = analysis::contention(*nights.cells[i]); shared.by > 0)
        out.contended.push_back(
            fmt::format("run {}, cell {}: {}", nights.runs[i]->id, cell.name, analysis::text(shared)));
    size_t launches = 0, most = 0;
    for (const baselines::Cell* night : nights.cells) {
      launches += night->launches.size();
      most = std::max(most, night->launches.size());
    }
    out.fewest_nights = out.fewest_nights == 0 ? nights.cells.size() : std::min(out.fewest_nights, nights.cells.size());
    out.one_launch_nights = out.one_launch_nights || most == 1;
    if (launches < analysis::kFewestBaselineLaunches)
      out.too_few.push_back(fmt::format("cell {} has {} launch{}", cell.name, launches, launches == 1 ? "" : "es"));
    for (const std::string& metric : analysis::gated_metrics(cell))
      out.pins.push_back(pin_of(request, nights, metric, out.pins.size()));
  }
  if (out.pins.empty() && !request.only.empty())
    return fail(ErrorCode::kNotFound,
                fmt::format("run {} has no ok cell that --only {} names", request.run.id, join(request.only, ", ")),
                "`mbbench show` lists its cells");
  if (out.pins.empty())
    return fail(ErrorCode::kNotFound, fmt::format("run {} has no ok cell to accept", request.run.id),
                "`mbbench show` says why");
  return out;
}

}  // namespace mbb::suites
