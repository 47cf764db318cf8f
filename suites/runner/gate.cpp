// Finds each cell's baseline and the nights since, judges, confirms.
#include "suites/runner/gate.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "baselines/store/store.h"
#include "profiler/base/file.h"
#include "profiler/base/text.h"

namespace mbb::suites {
namespace {

using analysis::GateReport;
using analysis::GateRow;
using analysis::NightLaunches;
using analysis::SeriesEvidence;
using baselines::CellStatus;
using baselines::Pin;
using baselines::Verdict;

constexpr size_t kHistoryNights = 30;

std::string fact(const baselines::Run& run, const char* key) {
  for (const auto& f : run.fingerprint.facts)
    if (f.key == key) return f.value;
  return "unknown";
}

std::string host_of(const baselines::Run& run) {
  const std::string gpu = fact(run, "gpu.model");
  return gpu == "unknown" || gpu.empty() ? fact(run, "cpu.model") : gpu + ", driver " + fact(run, "gpu.driver");
}

// Earlier nights of this machine, oldest first.
Result<std::vector<baselines::Run>> earlier_nights(const baselines::Run& tonight, const std::string& store_path) {
  std::vector<baselines::Run> nights;
  if (!file_exists(store_path)) return nights;
  MB_ASSIGN(const auto store, baselines::Store::open(store_path, {.read_only = true}));
  MB_ASSIGN(const auto summaries, store.list_runs());
  for (const auto& s : summaries) {
    if (s.command != kGateCommand || s.suite != tonight.suite || s.id == tonight.id || s.ended_unix_ns == 0) continue;
    if (s.created_unix_ns >= tonight.created_unix_ns || s.class_hash != tonight.fingerprint.class_hash) continue;
    MB_ASSIGN(auto run, store.load_run(s.id));
    nights.push_back(std::move(run));
    if (nights.size() == kHistoryNights) break;
  }
  std::reverse(nights.begin(), nights.end());
  return nights;
}

const baselines::Cell* ok_cell(const baselines::Run& run, const std::string& identity) {
  for (const auto& cell : run.cells)
    if (cell.identity_hash == identity && cell.status == CellStatus::kOk) return &cell;
  return nullptr;
}

// A row that the judge's statistics are needed for, and what they are held against.
struct Series {
  size_t row = 0;
  const baselines::Cell* cell = nullptr;
  const Pin* pin = nullptr;
  SeriesEvidence evidence;
};

class Gate {
 public:
  Gate(const baselines::Run& run, const Suite& suite, const GateRequest& request, const RunOptions& options)
      : run_(run), suite_(suite), request_(request), options_(options) {}

  Result<GateReport> judge() {
    MB_ASSIGN(nights_, earlier_nights(run_, request_.store_file));
    report_.suite = run_.suite;
    report_.run = run_.id;
    report_.build = fact(run_, "build.commit");
    report_.host = host_of(run_);
    for (const auto& cell : run_.cells) add_rows(cell);
    std::vector<SeriesEvidence> evidence;
    for (const Series& s : series_) evidence.push_back(s.evidence);
    const auto verdicts = analysis::judge_suite(evidence);
    for (size_t i = 0; i < series_.size(); ++i) report_.rows[series_[i].row].verdict = verdicts[i];
    MB_TRY(confirm_suspects());
    add_silent();
    warn_of_expiry();
    return std::move(report_);
  }

 private:
  GateRow& add_row(const baselines::Cell& cell, const std::string& metric, Verdict verdict, std::string text) {
    GateRow row{cell.name, metric, class_label(cell), "", {}};
    row.verdict.verdict = verdict;
    row.verdict.text = std::move(text);
    report_.rows.push_back(std::move(row));
    return report_.rows.back();
  }

  void add_rows(const baselines::Cell& cell) {
    if (cell.status == CellStatus::kBroken) add_row(cell, "run", Verdict::kBroken, cell.reason);
    if (cell.status == CellStatus::kUnstable) add_row(cell, "run", Verdict::kUnstable, cell.reason);
    if (cell.status != CellStatus::kOk) return;
    for (const std::string& metric : analysis::gated_metrics(cell)) add_metric(cell, metric);
  }

  void add_metric(const baselines::Cell& cell, const std::string& metric) {
    const NightLaunches tonight = analysis::launch_values(cell, metric);
    if (tonight.empty()) {
      add_row(cell, metric, Verdict::kBroken, "no launch gave a number");
      return;
    }
    const std::string& machine = run_.fingerprint.class_hash;
    const Pin* pin = baselines::find_pin(request_.pins, cell.identity_hash, machine, metric, request_.now_unix_ns);
    if (pin == nullptr) {
      const auto elsewhere = std::find_if(request_.pins.begin(), request_.pins.end(), [&](const Pin& p) {
        return p.identity_hash == cell.identity_hash && p.metric == metric && p.class_hash != machine &&
               p.ended_by.empty();
      });
      if (elsewhere == request_.pins.end())
        add_row(cell, metric, Verdict::kNew, "no baseline: `mbbench baseline accept` makes one of this run");
      else
        add_row(
            cell, metric, Verdict::kIncomparable,
            fmt::format("the environment is another than baseline {}'s: run the old product in it (`mbbench ab`), then "
                        "accept a baseline here",
                        elsewhere->id));
      return;
    }
    add_row(cell, metric, Verdict::kInconclusive, "").against = pin->id;
    Series s{report_.rows.size() - 1, &cell, pin, {pin->nights, {}}};
    for (const auto& night : nights_) {
      if (night.created_unix_ns <= pin->accepted_unix_ns) continue;
      if (const auto* then = ok_cell(night, cell.identity_hash))
        s.evidence.nights.push_back(analysis::launch_values(*then, metric));
    }
    s.evidence.nights.push_back(tonight);
    series_.push_back(std::move(s));
  }

  // The same build cannot have become slower: then it is the machine, and no product verdict is given.
  bool is_machine(Series& s, analysis::SeriesVerdict& verdict) {
    if (s.pin->build.empty() || s.pin->build == "unknown" || s.pin->build != report_.build) return false;
    verdict.verdict = Verdict::kIncomparable;
    verdict.suspected = false;
    verdict.text += "; same build as the baseline: the machine changed, not the product";
    return true;
  }

  Status confirm_suspects() {
    Suite again = suite_;
    again.cells.clear();
    std::vector<size_t> suspects;
    for (size_t i = 0; i < series_.size(); ++i) {
      auto& verdict = report_.rows[series_[i].row].verdict;
      if (!verdict.suspected || is_machine(series_[i], verdict)) continue;
      suspects.push_back(i);
      const auto planned = std::find_if(suite_.cells.begin(), suite_.cells.end(),
                                        [&](const Cell& c) { return c.name == series_[i].cell->name; });
      const bool queued = std::any_of(again.cells.begin(), again.cells.end(),
                                      [&](const Cell& c) { return c.name == series_[i].cell->name; });
      if (planned != suite_.cells.end() && !queued) again.cells.push_back(*planned);
    }
    if (suspects.empty()) return {};
    RunOutcome outcome;
    if (!again.cells.empty()) {
      RunOptions options = options_;
      options.command = kConfirmCommand;
      options.launches = request_.confirm_launches;
      MB_ASSIGN(outcome, start_run(again, options));
      if (outcome.stopped) return fail(ErrorCode::kCancelled, "stopped while suspected cells were run again");
    }
    for (const size_t i : suspects) {
      Series& s = series_[i];
      auto& row = report_.rows[s.row];
      const auto* fresh = ok_cell(outcome.run, s.cell->identity_hash);
      row.verdict = analysis::confirm(s.evidence, row.verdict,
                                      fresh ? analysis::launch_values(*fresh, row.metric) : NightLaunches{});
    }
    return {};
  }

  // Cells that have a baseline here and gave no number tonight.
  void add_silent() {
    std::vector<std::string> seen;
    for (const Pin& pin : request_.pins) {
      if (!pin.ended_by.empty() || pin.class_hash != run_.fingerprint.class_hash) continue;
      if (std::find(seen.begin(), seen.end(), pin.identity_hash) != seen.end()) continue;
      seen.push_back(pin.identity_hash);
      if (ok_cell(run_, pin.identity_hash) != nullptr || !belongs_here(pin)) continue;
      int silent = 1;
      for (auto night = nights_.rbegin(); night != nights_.rend() && !ok_cell(*night, pin.identity_hash); ++night)
        ++silent;
      const bool fails = silent >= request_.max_silent_nights;
      GateRow row{pin.cell, "run", "", pin.id, {}};
      row.verdict.verdict = fails ? Verdict::kBroken : Verdict::kInconclusive;
      row.verdict.text = fmt::format("no number for {} night{}; {} fail the gate (max_silent_nights)", silent,
                                     silent == 1 ? "" : "s", request_.max_silent_nights);
      report_.rows.push_back(std::move(row));
    }
  }

  // Of this suite: its cell is planned here, or it was seen here on an earlier night.
  bool belongs_here(const Pin& pin) const {
    const auto& planned = run_.planned_cells;
    return std::find(planned.begin(), planned.end(), pin.cell) != planned.end() ||
           std::any_of(nights_.begin(), nights_.end(), [&](const auto& n) { return ok_cell(n, pin.identity_hash); });
  }

  void warn_of_expiry() {
    for (const Series& s : series_) {
      const Pin& pin = *s.pin;
      if (pin.expires_unix_ns == 0 || pin.expires_unix_ns - request_.now_unix_ns > baselines::kExpiryWarningNs)
        continue;
      const int64_t days = (pin.expires_unix_ns - request_.now_unix_ns) / (int64_t{24} * 3600 * 1'000'000'000);
      report_.warnings.push_back(fmt::format("baseline {} of {} {} ends in {} day{}: accept a new one", pin.id,
                                             pin.cell, pin.metric, days, days == 1 ? "" : "s"));
    }
  }

  const baselines::Run& run_;
  const Suite& suite_;
  const GateRequest& request_;
  const RunOptions& options_;
  std::vector<baselines::Run> nights_;
  std::vector<Series> series_;
  GateReport report_;
};

}  // namespace

Result<GateReport> gate_run(const baselines::Run& run, const Suite& suite, const GateRequest& request,
                            const RunOptions& options) {
  return Gate(run, suite, request, options).judge();
}

}  // namespace mbb::suites
