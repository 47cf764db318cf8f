// Finds each cell's baseline and the nights since, judges, confirms.
#include "suites/runner/gate.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>

#include "analysis/gate/canary.h"
#include "analysis/gate/harness.h"
#include "analysis/gate/signed_values.h"
#include "baselines/store/bundle.h"
#include "baselines/store/store.h"
#include "profiler/base/clock.h"
#include "profiler/base/file.h"
#include "profiler/base/text.h"

namespace mbb::suites {
namespace {

using analysis::GateReport;
using analysis::GateRow;
using analysis::kRunRow;
using analysis::NightLaunches;
using analysis::SeriesEvidence;
using baselines::CellStatus;
using baselines::Pin;
using baselines::Verdict;

std::string host_of(const baselines::Run& run) {
  const std::string gpu = fact_of(run, "gpu.model");
  return gpu == "unknown" || gpu.empty() ? fact_of(run, "cpu.model") : gpu + ", driver " + fact_of(run, "gpu.driver");
}

std::string percent(double fraction) {
  return fmt::format("{:+.2f} %", 100.0 * fraction);
}

double centre_of(const std::vector<NightLaunches>& nights) {
  NightLaunches all;
  for (const NightLaunches& night : nights) all.insert(all.end(), night.begin(), night.end());
  return analysis::pseudo_median(all);
}

// What a gate said of a night's metric against a baseline.
std::optional<Verdict> verdict_then(const baselines::Cell& cell, const std::string& metric,
                                    const std::string& against) {
  std::optional<Verdict> said;
  for (const baselines::VerdictRow& row : cell.verdicts)
    if (row.subject == metric && row.against == against) said = row.verdict;
  return said;
}

// A row that the judge's statistics are needed for, and what they are held against.
struct Series {
  size_t row = 0;
  const baselines::Cell* cell = nullptr;
  Baseline baseline;
  analysis::Differences differences;
  SeriesEvidence evidence;
  NightLaunches fresh;  // that confirmed tonight, or did not
  const baselines::Cell* fresh_cell = nullptr;
  // Nights of the baseline's own product that were called incomparable, where none since was as the baseline: they say
  // what the machine is now, and nothing of another product.
  std::vector<NightLaunches> own = {};
  const baselines::Run* newest_own = nullptr;
  size_t before_own = 0;  // of the evidence's nights, how many are older than the newest of them
};

class Gate {
 public:
  Gate(const baselines::Run& run, const Suite& suite, const GateRequest& request, const RunOptions& options)
      : run_(run), suite_(suite), request_(request), options_(options) {}

  Result<GateReport> judge() {
    MB_ASSIGN(history_, read_gate_history(run_, request_.store_file));
    report_.suite = run_.suite;
    report_.run = run_.id;
    report_.build = profiler::product_text(run_.fingerprint, options_.facts, options_.roles);
    report_.host = host_of(run_);
    report_.epoch = run_.epoch;
    for (const auto& cell : run_.cells) add_rows(cell);
    std::vector<SeriesEvidence> evidence;
    for (const Series& s : series_) evidence.push_back(s.evidence);
    analysis::GateOptions judge_by;
    judge_by.confirm_launches = static_cast<size_t>(request_.confirm_launches);
    const auto verdicts = analysis::judge_suite(evidence, judge_by);
    for (size_t i = 0; i < series_.size(); ++i) report_.rows[series_[i].row].verdict = verdicts[i];
    MB_TRY(confirm_suspects());
    for (const Series& s : series_) {
      blame_machine(s);
      if (s.evidence.red || !s.baseline.bridge.empty())
        find_first_red(s.cell->identity_hash, *s.baseline.pin, report_.rows[s.row]);
      if (s.differences)
        report_.rows[s.row].verdict.text +=
            fmt::format("; % of {:.4g}, as values of 0 or below have no ratios", s.differences.unit);
    }
    tell_canaries();
    add_silent();
    add_unmeasured();
    warn_of_expiry();
    warn_of_bridges();
    warn_of_unknown_products();
    warn_of_other_facts();
    warn_of_idle_patterns();
    warn_of_skipped();
    warn_of_contention();
    for (std::string& shared : cells_of_one_series(run_)) report_.warnings.push_back(std::move(shared));
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
    if (cell.status == CellStatus::kBroken) add_row(cell, kRunRow, Verdict::kBroken, cell.reason);
    if (cell.status != CellStatus::kOk && cell.status != CellStatus::kUnstable) return;
    // Steps that are missing are why a cell found no steady state.
    if (std::string error = analysis::harness_error(cell, steps_due(cell)); !error.empty()) {
      add_row(cell, kRunRow, Verdict::kBroken, std::move(error));
      return;
    }
    if (cell.status == CellStatus::kUnstable) {
      GateRow& row = add_row(cell, kRunRow, Verdict::kUnstable, cell.reason);
      for (const Pin& pin : request_.pins)
        if (pin.identity_hash == cell.identity_hash && pin.ended_by.empty() && row.red_since.empty())
          find_first_red(cell.identity_hash, pin, row);
      return;
    }
    const std::vector<std::string> metrics = analysis::gated_metrics(cell);
    for (const std::string& metric : metrics) add_metric(cell, metric);
    for (const Pin& pin : request_.pins) {
      const bool here = pin.identity_hash == cell.identity_hash && pin.class_hash == run_.fingerprint.class_hash &&
                        (pin.epoch.empty() || pin.epoch == run_.epoch) && pin.ended_by.empty();
      if (here && std::find(metrics.begin(), metrics.end(), pin.metric) == metrics.end() &&
          row_of(cell.name, pin.metric) == nullptr)
        add_row(cell, pin.metric, Verdict::kBroken, fmt::format("baseline {} has it, tonight has none", pin.id));
    }
  }

  GateRow* row_of(const std::string& cell, const std::string& metric) {
    const auto found = std::find_if(report_.rows.begin(), report_.rows.end(),
                                    [&](const GateRow& row) { return row.cell == cell && row.metric == metric; });
    return found == report_.rows.end() ? nullptr : &*found;
  }

  void add_metric(const baselines::Cell& cell, const std::string& metric) {
    const Pin* other = baselines::find_any_pin(request_.pins, cell.identity_hash, metric);
    Baseline baseline = find_baseline({run_, cell, metric}, request_.pins, history_, options_.roles,
                                      request_.now_unix_ns, other ? changed_since(*other) : std::vector<std::string>{});
    const NightLaunches tonight = analysis::launch_values(cell, metric, baseline.pin ? baseline.pin->steps : 0);
    if (tonight.empty()) {
      add_row(cell, metric, Verdict::kBroken, "no launch gave a number");
      return;
    }
    if (baseline.nights.empty()) {
      GateRow& row = add_row(cell, metric, baseline.verdict, baseline.reason);
      if (baseline.pin == nullptr) return judge_lost(cell, row);
      row.against = baseline.pin->id;
      if (baselines::has_expired(*baseline.pin, request_.now_unix_ns)) add_expired(*baseline.pin, row.verdict);
      find_first_red(cell.identity_hash, *baseline.pin, row);
      return;
    }
    add_row(cell, metric, Verdict::kInconclusive, "").against = baseline.pin->id;
    Series s{report_.rows.size() - 1, &cell, std::move(baseline), {}, {}, {}};
    const std::vector<Earlier> earlier = earlier_of(s, metric);
    std::vector<NightLaunches> others{tonight};
    for (const Earlier& e : earlier) others.push_back(e.launches);
    s.differences = analysis::differences_of(metric, s.baseline.nights, others);
    for (const NightLaunches& night : s.baseline.nights) s.evidence.baseline.push_back(s.differences.of(night));
    add_nights(s, metric, earlier);
    s.evidence.nights.push_back(s.differences.of(tonight));
    s.evidence.products.push_back(product_of(run_, cell));
    series_.push_back(std::move(s));
  }

  int64_t steps_due(const baselines::Cell& cell) const {
    return baselines::steps_due(request_.pins, cell.identity_hash, run_.fingerprint.class_hash);
  }

  // A night or a confirmation since the baseline that is evidence.
  struct Earlier {
    const baselines::Run* run = nullptr;
    const baselines::Cell* cell = nullptr;
    NightLaunches launches;
  };

  std::vector<Earlier> earlier_of(const Series& s, const std::string& metric) const {
    std::vector<Earlier> earlier;
    for (const auto* runs : {&history_.nights, &history_.confirmations})
      for (const baselines::Run& run : *runs) {
        if (s.baseline.bridge.empty() && run.created_unix_ns <= s.baseline.pin->accepted_unix_ns) continue;
        if (const auto* cell = evidence_cell(run, s.cell->identity_hash, s.baseline.pin->steps))
          earlier.push_back({&run, cell, analysis::launch_values(*cell, metric, s.baseline.pin->steps)});
      }
    std::stable_sort(earlier.begin(), earlier.end(), [](const Earlier& a, const Earlier& b) {
      return a.run->created_unix_ns < b.run->created_unix_ns;
    });
    return earlier;
  }

  // A product in a configuration.
  std::string product_of(const baselines::Run& run, const baselines::Cell& cell) const {
    return profiler::product_hash(run.fingerprint, options_.roles) + " " + baselines::configuration_hash(cell);
  }

  // Whether a night was held against what tonight is: in a new epoch none was until its last bridge had run.
  bool was_judged(const Series& s, const baselines::Run& run) const {
    return std::none_of(history_.bridges.begin(), history_.bridges.end(), [&](const baselines::Run& bridge) {
      const auto& ids = s.baseline.bridge;
      return std::find(ids.begin(), ids.end(), bridge.id) != ids.end() && bridge.created_unix_ns > run.created_unix_ns;
    });
  }

  // The baseline's product, in its configuration.
  bool is_own(const Pin& pin, const baselines::Run& run, const baselines::Cell& cell) const {
    return is_product_of(pin, run.fingerprint, options_.roles) &&
           (pin.configuration.empty() || pin.configuration == baselines::configuration_hash(cell));
  }

  // A night whose canaries are slower than tonight's is of a machine that is gone.
  static void add_own(Series& s, const Earlier& then, const NightLaunches& launches) {
    const double slower = analysis::machine_slowdown(*s.cell, *then.cell).by;
    if (analysis::explains(slower, slower)) return;
    if (then.run->command != kConfirmCommand) {
      s.newest_own = then.run;
      s.before_own = s.evidence.nights.size();
      s.own.emplace_back();
    }
    if (s.own.empty()) return;
    s.own.back().insert(s.own.back().end(), launches.begin(), launches.end());
  }

  // A confirmation that excluded a material change ended what came before it; of a cell that was red already, the
  // verdict did. A night whose change was called the machine's says nothing of another product.
  void add_nights(Series& s, const std::string& metric, const std::vector<Earlier>& earlier) const {
    SeriesEvidence& evidence = s.evidence;
    const bool own_tonight = is_own(*s.baseline.pin, run_, *s.cell);
    bool gone = false, excused = false, own = false;  // the last two: of the night that a confirmation would be of
    const auto forget_own = [&] { s.own.clear(), s.newest_own = nullptr, s.before_own = 0; };
    const auto begin_anew = [&] {
      evidence.nights.clear(), evidence.confirmations.clear(), evidence.products.clear(), evidence.red.reset();
      gone = false;
      s.before_own = 0;
    };
    for (const Earlier& then : earlier) {
      NightLaunches launches = s.differences.of(then.launches);
      const bool confirmation = then.run->command == kConfirmCommand;
      const auto verdict = verdict_then(*then.cell, metric, s.baseline.pin->id);
      if (!confirmation) {
        own = is_own(*s.baseline.pin, *then.run, *then.cell);
        excused = verdict == Verdict::kIncomparable && was_judged(s, *then.run) && !(own && own_tonight) &&
                  product_of(*then.run, *then.cell) != product_of(run_, *s.cell);
      }
      if (excused) {
        if (own) add_own(s, then, launches);
        continue;
      }
      const bool settled = gone || (confirmation && !evidence.red && analysis::settles(evidence, launches));
      if (settled) begin_anew();
      if (confirmation && !evidence.nights.empty()) {
        evidence.confirmations.resize(evidence.nights.size());
        evidence.confirmations.back() = std::move(launches);
      }
      if (confirmation || launches.empty()) continue;
      if (verdict == Verdict::kSame || verdict == Verdict::kFaster) forget_own();
      if (verdict == Verdict::kSlower && !evidence.red) evidence.red = evidence.nights.size();
      gone = evidence.red && (verdict == Verdict::kSame || verdict == Verdict::kFaster);
      evidence.nights.push_back(std::move(launches));
      evidence.products.push_back(product_of(*then.run, *then.cell));
    }
    if (gone) begin_anew();
  }

  // Where a red series was called slower first, as far back as the store goes: in whatever environment, as a new one
  // mends nothing.
  void find_first_red(const std::string& identity, const Pin& pin, GateRow& row) const {
    if (!file_exists(request_.store_file)) return;
    const auto store = baselines::Store::open(request_.store_file, {.read_only = true});
    if (!store) return;
    const auto points = store->history(identity, pin.metric);
    if (!points) return;
    const baselines::HistoryPoint* first = nullptr;
    for (const auto& point : *points) {
      const bool here = point.command == kGateCommand && point.suite == run_.suite && point.against == pin.id;
      if (!here || point.created_unix_ns >= run_.created_unix_ns) continue;
      if (point.verdict == name(Verdict::kSlower) && first == nullptr) first = &point;
      if (point.verdict == name(Verdict::kSame) || point.verdict == name(Verdict::kFaster)) first = nullptr;
    }
    if (first == nullptr) return;
    row.red_since = first->run;
    const auto run = store->load_run(first->run);
    const std::string product =
        run ? profiler::product_text(run->fingerprint, options_.facts, options_.roles) : first->build;
    const Verdict verdict = row.verdict.verdict;
    const char* red = verdict == Verdict::kSlower                                ? "red since"
                      : verdict == Verdict::kSame || verdict == Verdict::kFaster ? "it had been red since"
                                                                                 : "not known to have ended: red since";
    row.verdict.text += fmt::format("; {} {} (run {}, product {})", red, iso_time(first->created_unix_ns).substr(0, 10),
                                    first->run, product);
  }

  // Nights without what `is_heard` asks of a run, tonight's included, back to the last one with it.
  int silent_nights(const std::string& cell, const std::function<bool(const baselines::Run&)>& is_heard) const {
    std::set<int64_t> nights{night_of(run_)};
    for (auto run = history_.nights.rbegin(); run != history_.nights.rend() && !is_heard(*run); ++run)
      if (!is_left_out(*run, cell)) nights.insert(night_of(*run));
    return static_cast<int>(nights.size());
  }

  void judge_silence(const char* what, int silent, analysis::SeriesVerdict& verdict) const {
    verdict.verdict = silent >= request_.max_silent_nights ? Verdict::kBroken : Verdict::kInconclusive;
    verdict.text += fmt::format("{} for {} night{}; {} fail the gate (gate.max_silent_nights)", what, silent,
                                silent == 1 ? "" : "s", request_.max_silent_nights);
  }

  // Nights since a baseline ended have no verdict, however many numbers they gave.
  void add_expired(const Pin& pin, analysis::SeriesVerdict& verdict) const {
    verdict.text += "; ";
    judge_silence("no verdict",
                  silent_nights(pin.cell,
                                [&](const baselines::Run& run) {
                                  return run.created_unix_ns < pin.expires_unix_ns &&
                                         evidence_cell(run, pin.identity_hash) != nullptr;
                                }),
                  verdict);
  }

  // Baselines are appended and ended, never taken away: one that a night was held against and that is not there is
  // lost, or the file is another.
  void judge_lost(const baselines::Cell& cell, GateRow& row) const {
    const auto said = [&](const baselines::Run& night) { return said_of(night, cell.identity_hash, row.metric); };
    const auto is_heard = [&](const baselines::Run& night) {
      return said(night) && said(night)->verdict != Verdict::kInconclusive && said(night)->verdict != Verdict::kBroken;
    };
    const auto& nights = history_.nights;
    const auto newest = std::find_if(nights.rbegin(), nights.rend(), said);
    if (newest == nights.rend() || said(*newest)->against.empty()) return;
    const std::string& lost = said(*newest)->against;
    if (std::any_of(request_.pins.begin(), request_.pins.end(), [&](const Pin& pin) { return pin.id == lost; })) return;
    const auto heard = std::find_if(newest, nights.rend(), is_heard);
    row.against = lost;
    row.verdict.text = fmt::format(
        "the baselines file lacks {}, which run {} was held against: name the one that has it (baselines_file), or "
        "accept a new one (`mbbench baseline accept`); ",
        lost, (heard == nights.rend() ? newest : heard)->id);
    judge_silence("no verdict", silent_nights(cell.name, is_heard), row.verdict);
  }

  // What changed in the environment since a pin's run, as far as the store still has it.
  std::vector<std::string> changed_since(const Pin& pin) {
    if (pin.class_hash == run_.fingerprint.class_hash && (pin.epoch.empty() || pin.epoch == run_.epoch)) return {};
    const std::vector<std::string> unknown{"another environment, or other settings of it"};
    if (pin.runs.empty() || !file_exists(request_.store_file)) return unknown;
    const auto [entry, is_new] = changed_.try_emplace(pin.runs.front(), unknown);
    if (!is_new) return entry->second;
    const auto store = baselines::Store::open(request_.store_file, {.read_only = true});
    if (!store) return unknown;
    const auto then = store->fingerprint(pin.runs.front());
    if (!then || then->facts.empty()) return unknown;
    auto changed = profiler::changed_environment(*then, run_.fingerprint, options_.roles);
    if (changed.empty() && pin.class_hash == run_.fingerprint.class_hash)
      changed.push_back("the facts are equal, and others count as the environment now: gate.environment = " +
                        join(options_.roles.environment, ","));
    if (!changed.empty()) entry->second = std::move(changed);
    return entry->second;
  }

  // Of the runs that the series is held against the first, as far as the store has it.
  std::optional<baselines::Cell> cell_then(const Series& s) const {
    const std::string& identity = s.cell->identity_hash;
    if (!s.baseline.bridge.empty()) {
      for (const auto& run : history_.bridges)
        if (run.id == s.baseline.bridge.front())
          if (const auto* then = evidence_cell(run, identity)) return *then;
      return {};
    }
    if (s.baseline.pin->runs.empty() || !file_exists(request_.store_file)) return {};
    const auto store = baselines::Store::open(request_.store_file, {.read_only = true});
    if (!store) return {};
    const auto run = store->load_run(s.baseline.pin->runs.front());
    const auto* then = run ? evidence_cell(*run, identity) : nullptr;
    return then == nullptr ? std::nullopt : std::optional(*then);
  }

  // A baseline beside another process is slower than its product: who is faster than that need not be.
  bool excuse_baseline(const Series& s, analysis::SeriesVerdict& verdict) const {
    const auto then = cell_then(s);
    const analysis::Contention shared = then ? analysis::contention(*then) : analysis::Contention{};
    if (shared.by == 0) return false;
    const analysis::Slowdown slowdown = analysis::machine_slowdown(*s.cell, *then);
    if (!slowdown.shared || !analysis::explains(slowdown.by, 1.0 / (1.0 + verdict.change) - 1.0)) return false;
    verdict.verdict = Verdict::kIncomparable;
    verdict.text += fmt::format("; of the baseline, {}: accept one that ran alone", analysis::text(shared));
    return true;
  }

  // Of the machine, since the runs that the series is held against, as far as the store has them.
  analysis::Slowdown slowdown_since(const Series& s) const {
    // A stranger beside the launches that confirmed tonight excuses as one beside tonight's own does.
    const auto since = [&](const baselines::Cell& then) {
      const analysis::Slowdown slowdown = analysis::machine_slowdown(then, *s.cell);
      if (s.fresh_cell == nullptr) return slowdown;
      analysis::Slowdown fresh = analysis::machine_slowdown(then, *s.fresh_cell);
      return fresh.shared && fresh.by > slowdown.by ? fresh : slowdown;
    };
    const auto then = cell_then(s);
    if (then) return since(*then);
    baselines::Cell unknown;
    unknown.result_class = s.cell->result_class;
    return since(unknown);
  }

  // The same build in the same configuration cannot have become slower or faster: no product verdict is given.
  void blame_machine(const Series& s) {
    analysis::SeriesVerdict& verdict = report_.rows[s.row].verdict;
    const bool is_own_tonight = is_own(*s.baseline.pin, run_, *s.cell);
    if (verdict.verdict == Verdict::kSame && !is_own_tonight) return judge_by_own_nights(s, verdict);
    if (verdict.verdict != Verdict::kSlower && verdict.verdict != Verdict::kFaster) return;
    const bool has_canaries = report_.rows[s.row].metric == analysis::metric_of_canaries(*s.cell);
    if (verdict.verdict == Verdict::kFaster && has_canaries && excuse_baseline(s, verdict)) return;
    if (verdict.verdict == Verdict::kSlower && has_canaries)
      if (const auto slowdown = slowdown_since(s); analysis::explains(slowdown.by, verdict.change)) {
        verdict.verdict = Verdict::kIncomparable;
        verdict.suspected = false;
        verdict.text +=
            fmt::format("; the canaries, fixed work, are {} on {} too: {}, not the product", percent(slowdown.by),
                        slowdown.of, slowdown.shared ? "another process uses it" : "the machine changed");
        return;
      }
    if (!is_own_tonight) return judge_by_own_nights(s, verdict);
    if (!knows_product(*s.cell) || !profiler::check_product(run_.fingerprint, options_.roles)) return;
    judge_own_nights(s, verdict);
  }

  // Tonight's product since the newest night of the baseline's own, against these.
  struct Added {
    analysis::SeriesVerdict verdict;
    std::string text;
  };
  static Added since_own(const Series& s) {
    const auto& products = s.evidence.products;
    auto first = products.end();
    while (first != products.begin() + static_cast<std::ptrdiff_t>(s.before_own) && first[-1] == products.back())
      --first;
    const SeriesEvidence since{s.own, {s.evidence.nights.end() - (products.end() - first), s.evidence.nights.end()}};
    analysis::SeriesVerdict added = analysis::judge_suite(std::span(&since, 1))[0];
    if (added.suspected && !s.fresh.empty()) added = analysis::confirm(since, added, s.fresh);
    std::string text = fmt::format("as it had for the baseline's own product on {} (run {}), against which this is {}",
                                   iso_time(s.newest_own->created_unix_ns).substr(0, 10), s.newest_own->id, added.text);
    return {std::move(added), std::move(text)};
  }

  // Another product than the baseline's is blamed for what it adds to a change that the baseline's own product showed
  // too.
  static void judge_by_own_nights(const Series& s, analysis::SeriesVerdict& verdict) {
    if (s.own.empty()) return;
    const auto [added, text] = since_own(s);
    const bool is_same = verdict.verdict == Verdict::kSame;
    if (is_same && added.verdict != Verdict::kSlower) return;
    if (added.verdict == verdict.verdict) {
      verdict.text += "; the machine changed too, " + text;
      return;
    }
    const char* product = is_same                                   ? ""
                          : added.verdict == Verdict::kInconclusive ? " and whether the product did is not settled,"
                                                                    : " not the product,";
    verdict.verdict = Verdict::kIncomparable;
    verdict.suspected = false;
    verdict.text +=
        fmt::format("; the machine changed,{} {}; another gate of the baseline's product tells whether it still is so",
                    product, text);
  }

  // Of the baseline's product its own nights since another's say whether the machine changed, and tonight alone whether
  // it did tonight.
  static void judge_own_nights(const Series& s, analysis::SeriesVerdict& verdict) {
    const auto& products = s.evidence.products;
    const auto other = std::find_if(products.rbegin(), products.rend(),
                                    [&](const auto& product) { return product != products.back(); });
    const auto count = other - products.rbegin();
    const std::string before = "; with nights before: " + verdict.text;
    const auto last = [&](std::ptrdiff_t nights) {
      return SeriesEvidence{s.evidence.baseline, {s.evidence.nights.end() - nights, s.evidence.nights.end()}};
    };
    for (const auto nights : {count, std::ptrdiff_t{1}}) {
      SeriesEvidence own = last(nights);
      own.nights.back().insert(own.nights.back().end(), s.fresh.begin(), s.fresh.end());
      const analysis::SeriesVerdict alone = analysis::judge_suite(std::span(&own, 1))[0];
      if (alone.verdict != Verdict::kSame) continue;
      verdict = alone;
      verdict.text += before;
      return;
    }
    std::string why = "the machine changed, not the product";
    if (static_cast<size_t>(count) < verdict.nights) {
      const SeriesEvidence own = last(count);
      verdict = analysis::judge_suite(std::span(&own, 1))[0];
      if (verdict.suspected && !s.fresh.empty()) verdict = analysis::confirm(own, verdict, s.fresh);
      if (verdict.verdict == Verdict::kInconclusive) why = "its own nights do not settle whether the machine changed";
      verdict.text += before;
    }
    verdict.verdict = Verdict::kIncomparable;
    verdict.suspected = false;
    verdict.text += "; same build and configuration as the baseline: " + why;
  }

  // Of a trainer of the user's own, this program's build says nothing.
  bool knows_product(const baselines::Cell& cell) const {
    return !(is_command(cell) || run_.command == "import") ||
           !profiler::declared_product(run_.fingerprint, options_.facts, options_.roles).empty();
  }

  void warn_of_unknown_products() {
    const bool any = std::any_of(run_.cells.begin(), run_.cells.end(), [&](const auto& cell) {
      return cell.status == CellStatus::kOk && !knows_product(cell);
    });
    if (any)
      report_.warnings.emplace_back(
          "a trainer of your own ran, and gate.facts does not say which product that is (an image, a commit): "
          "a change of it cannot be told from the machine's");
  }

  // Where tonight or a baseline's run lacks a fact that the other declares, no product equals the other.
  void warn_of_other_facts() {
    if (!file_exists(request_.store_file)) return;
    const auto store = baselines::Store::open(request_.store_file, {.read_only = true});
    if (!store) return;
    std::set<std::string> told;
    for (const Pin& pin : request_.pins) {
      const bool is_held = std::any_of(report_.rows.begin(), report_.rows.end(),
                                       [&](const GateRow& row) { return row.against == pin.id; });
      if (!is_held || pin.runs.empty() || !told.insert(pin.runs.front()).second) continue;
      const auto then = store->fingerprint(pin.runs.front());
      if (!then || then->facts.empty()) continue;
      const auto warn = [&](const std::vector<std::string>& keys, const std::string& what) {
        if (!keys.empty())
          report_.warnings.push_back(
              fmt::format("gate.facts: {}: {}: whether the product or the environment is the "
                          "same cannot be told",
                          join(keys, ", "), what));
      };
      warn(profiler::declared_only_here(run_.fingerprint, *then),
           fmt::format("declared tonight, not for baseline {} (run {}); accept a run that has it", pin.id,
                       pin.runs.front()));
      warn(profiler::declared_only_here(*then, run_.fingerprint),
           fmt::format("declared for baseline {} (run {}), not tonight; declare it again", pin.id, pin.runs.front()));
    }
  }

  // Nothing guards a cell that does not run.
  void warn_of_skipped() {
    std::map<std::string, std::vector<std::string>> by_reason;
    for (const auto& cell : run_.cells)
      if (cell.status == CellStatus::kSkipped) by_reason[cell.reason].push_back(cell.name);
    for (const auto& [reason, cells] : by_reason)
      report_.warnings.push_back(fmt::format("skipped: {}: {}", join(cells, ", "), reason));
  }

  // What the settings say of facts and no fact of the run answers to. The defaults name facts that not every machine
  // has.
  void warn_of_idle_patterns() {
    const profiler::FactRoles usual = fact_roles({});
    std::vector<std::string> keys;
    for (const auto& fact : run_.fingerprint.facts) keys.push_back(fact.key);
    const auto warn = [&](const char* setting, const std::vector<std::string>& patterns,
                          const std::vector<std::string>& defaults) {
      for (const std::string& pattern : profiler::idle_patterns(run_.fingerprint, patterns)) {
        if (std::find(defaults.begin(), defaults.end(), pattern) != defaults.end()) continue;
        const bool declared = std::any_of(options_.facts.begin(), options_.facts.end(),
                                          [&](const auto& fact) { return fact.key == pattern; });
        report_.warnings.push_back(fmt::format("{}: '{}' matches no fact of run {}; its facts are {}",
                                               declared ? "gate.facts" : setting, pattern, run_.id, join(keys, ", ")));
      }
    };
    warn("gate.product", options_.roles.product, usual.product);
    warn("gate.environment", options_.roles.environment, usual.environment);
  }

  Status confirm_suspects() {
    Suite again = suite_;
    again.cells.clear();
    std::vector<size_t> suspects;
    for (size_t i = 0; i < series_.size(); ++i) {
      const auto& verdict = report_.rows[series_[i].row].verdict;
      if (!verdict.suspected) continue;
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
    confirmation_ = std::move(outcome.run);
    for (const size_t i : suspects) confirm_one(series_[i], confirmation_);
    return {};
  }

  // Fresh launches decide where they are evidence. Where they crashed or lost a step, the night broke.
  void confirm_one(Series& s, const baselines::Run& fresh_run) {
    GateRow& row = report_.rows[s.row];
    const auto fresh = std::find_if(fresh_run.cells.begin(), fresh_run.cells.end(),
                                    [&](const auto& cell) { return cell.name == s.cell->name; });
    if (fresh == fresh_run.cells.end()) {
      row.verdict = analysis::confirm(s.evidence, row.verdict, {});
      return;
    }
    std::string error = analysis::no_evidence(*fresh, s.baseline.pin->steps);
    if (error.empty() && fresh->identity_hash != s.cell->identity_hash)
      error = fmt::format("they are of another series, {}", class_label(*fresh));
    const NightLaunches launches =
        error.empty() ? analysis::launch_values(*fresh, row.metric, s.baseline.pin->steps) : NightLaunches{};
    if (error.empty() && launches.empty()) error = "they gave no number";
    if (error.empty()) {
      s.fresh = s.differences.of(launches);
      s.fresh_cell = &*fresh;
      row.verdict = analysis::confirm(s.evidence, row.verdict, s.fresh);
      return;
    }
    row.verdict.verdict = Verdict::kBroken;
    row.verdict.text += fmt::format("; suspected, and the launches to confirm it are no evidence: {}", error);
  }

  // The largest slowdown that the canaries of any cell show.
  void tell_canaries() {
    analysis::Slowdown most;
    bool known = false;
    for (const Series& s : series_) {
      if (std::isnan(analysis::canary_times(*s.cell).arithmetic_ns)) continue;
      known = true;
      if (auto slowdown = slowdown_since(s); slowdown.by > most.by) most = std::move(slowdown);
    }
    if (!known) return;
    report_.canaries = analysis::explains(most.by, most.by)
                           ? fmt::format("canaries {} on {}: {}", percent(most.by), most.of, analysis::cause(most))
                           : fmt::format("canaries steady ({})", percent(most.by));
  }

  // Cells that have a baseline here and gave no number tonight: one row each, with the cause where one is known.
  void add_silent() {
    std::vector<std::string> seen;
    for (const Pin& pin : request_.pins) {
      if (!pin.ended_by.empty() || pin.class_hash != run_.fingerprint.class_hash) continue;
      // In a new epoch a cell's launches are amber until a bridge is there; one that was skipped has not even those.
      if (!pin.epoch.empty() && pin.epoch != run_.epoch && !was_skipped(pin.identity_hash)) continue;
      if (has_rows(pin.identity_hash) || !belongs_here(pin) || is_left_out(run_, pin.cell)) continue;
      if (std::find(seen.begin(), seen.end(), pin.identity_hash) != seen.end()) continue;
      seen.push_back(pin.identity_hash);
      const auto is_heard = [&](const baselines::Run& run) {
        return evidence_cell(run, pin.identity_hash, pin.steps) != nullptr;
      };
      const int silent = silent_nights(pin.cell, is_heard);
      GateRow* row = row_of(pin.cell, kRunRow);
      if (row == nullptr) row = &report_.rows.emplace_back(GateRow{pin.cell, kRunRow, "", "", {}});
      row->against = pin.id;
      if (row->verdict.verdict == Verdict::kBroken) continue;
      const Verdict before = row->verdict.verdict;  // unstable, or nothing yet
      row->verdict.text += row->verdict.text.empty() ? "" : "; ";
      judge_silence("no number", silent, row->verdict);
      if (before == Verdict::kUnstable && row->verdict.verdict != Verdict::kBroken) row->verdict.verdict = before;
    }
  }

  // A night in which nothing ran and nothing broke is an error of its own, with the cells' reasons.
  void add_unmeasured() {
    const bool broke = std::any_of(report_.rows.begin(), report_.rows.end(),
                                   [](const GateRow& row) { return row.verdict.verdict == Verdict::kBroken; });
    if (broke || analysis::was_measured(report_)) return;
    std::vector<std::string> reasons;
    for (const auto& cell : run_.cells)
      if (cell.status == CellStatus::kSkipped) reasons.push_back(fmt::format("{}: {}", cell.name, cell.reason));
    if (run_.cells.size() < run_.planned_cells.size())
      reasons.push_back(fmt::format("{} of {} cells ran", run_.cells.size(), run_.planned_cells.size()));
    GateRow row{"*", kRunRow, "", "", {}};
    row.verdict.verdict = Verdict::kBroken;
    row.verdict.text = "nothing was measured" + (reasons.empty() ? "" : "; " + join(reasons, "; "));
    report_.rows.push_back(std::move(row));
  }

  bool was_skipped(const std::string& identity) const {
    return std::any_of(run_.cells.begin(), run_.cells.end(), [&](const auto& cell) {
      return cell.identity_hash == identity && cell.status == CellStatus::kSkipped;
    });
  }

  // An ok cell has rows already, of its numbers or of why they are none.
  bool has_rows(const std::string& identity) const {
    return std::any_of(run_.cells.begin(), run_.cells.end(), [&](const auto& cell) {
      return cell.identity_hash == identity && cell.status == CellStatus::kOk;
    });
  }

  // Of this suite: its cell is planned here, or it was seen here on an earlier night. Another suite's cell of that name
  // is not missing here.
  bool belongs_here(const Pin& pin) const {
    const auto& planned = run_.planned_cells;
    const bool is_planned = std::find(planned.begin(), planned.end(), pin.cell) != planned.end();
    const bool is_ours = baselines::may_be_of(pin, run_.suite) ||
                         std::any_of(run_.cells.begin(), run_.cells.end(),
                                     [&](const auto& cell) { return cell.identity_hash == pin.identity_hash; });
    return (is_planned && is_ours) || std::any_of(history_.nights.begin(), history_.nights.end(), [&](const auto& n) {
             return evidence_cell(n, pin.identity_hash) != nullptr;
           });
  }

  void warn_of_expiry() {
    constexpr int64_t kDayNs = int64_t{24} * 3600 * 1'000'000'000;
    for (const Series& s : series_) {
      const Pin& pin = *s.baseline.pin;
      if (pin.expires_unix_ns == 0 || pin.expires_unix_ns - request_.now_unix_ns > baselines::kExpiryWarningNs)
        continue;
      const int64_t days = (pin.expires_unix_ns - request_.now_unix_ns) / kDayNs;
      report_.warnings.push_back(fmt::format("baseline {} of {} {} ends in {} day{}: accept a new one", pin.id,
                                             pin.cell, pin.metric, days, days == 1 ? "" : "s"));
    }
  }

  // Of any cell, whether it is held against something or not.
  void warn_of_contention() {
    for (const baselines::Run* run : {&run_, static_cast<const baselines::Run*>(&confirmation_)})
      for (const baselines::Cell& cell : run->cells)
        if (const auto shared = analysis::contention(cell); shared.by > 0)
          report_.warnings.push_back(
              fmt::format("{}{}: {}", cell.name, run == &run_ ? "" : ", run again to confirm", analysis::text(shared)));
  }

  // What the environment itself changed: the old product here against the old product there.
  void warn_of_bridges() {
    for (const Series& s : series_) {
      if (s.baseline.bridge.empty()) continue;
      const Pin& pin = *s.baseline.pin;
      report_.warnings.push_back(fmt::format(
          "{} {}: a new epoch ({}); held against the old product's bridge launches (run {}). The environment alone "
          "made {}",
          pin.cell, pin.metric, join(changed_since(pin), "; "), join(s.baseline.bridge, ", "),
          percent((centre_of(s.baseline.nights) - centre_of(pin.nights)) / std::abs(centre_of(pin.nights)))));
    }
  }

  const baselines::Run& run_;
  const Suite& suite_;
  const GateRequest& request_;
  const RunOptions& options_;
  GateHistory history_;
  std::map<std::string, std::vector<std::string>> changed_;  // by run
  std::vector<Series> series_;
  baselines::Run confirmation_;  // of suspected cells
  GateReport report_;
};

}  // namespace

Result<GateReport> gate_run(const baselines::Run& run, const Suite& suite, const GateRequest& request,
                            const RunOptions& options) {
  return Gate(run, suite, request, options).judge();
}

Status keep_verdicts(const GateReport& report, int exit_status, const std::filesystem::path& runs_dir,
                     RunOutcome& outcome) {
  MB_ASSIGN(auto writer, baselines::BundleWriter::reopen(outcome.bundle));
  MB_ASSIGN(auto store, baselines::Store::open(store_file(runs_dir)));
  for (baselines::Cell& cell : outcome.run.cells) {
    for (const GateRow& row : report.rows) {
      if (row.cell != cell.name || row.metric == kRunRow) continue;
      const analysis::SeriesVerdict& v = row.verdict;
      cell.verdicts.push_back({row.metric, v.verdict, row.against, v.change, v.low, v.high, v.text});
    }
    MB_TRY(writer.finish_cell(cell));
    MB_TRY(store.put_cell(cell));
  }
  outcome.run.exit_status = exit_status;
  MB_TRY(writer.write_run(outcome.run));
  return store.put_run(outcome.run, outcome.bundle);
}

}  // namespace mbb::suites
