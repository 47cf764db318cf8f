// What most commands begin with: the settings of this process and the runs they point to.
#pragma once

#include "baselines/store/store.h"
#include "suites/cli/command.h"
#include "suites/matrix/settings.h"
#include "suites/matrix/suite.h"
#include "suites/runner/runner.h"
#include "trainer/run/layout.h"

namespace mbb::suites {

// All layers, with the knobs of the command line on top.
Result<Settings> settings_of(const Parsed& parsed);

// What the settings lay out. An error says where the knobs it names were set, where that was not the command line.
Result<trainer::Layout> layout_of(const Settings& settings);

// Whether a configuration can be laid out at all, for open_suite.
Status resolves(const trainer::Config& config);

// The suite that a command names, with its --only and --skip.
Result<Suite> suite_of(const Parsed& parsed, const Settings& settings, const std::string& name_or_file);
Result<Suite> suite_of(const Settings& settings, const std::string& name_or_file, const SuiteFilter& filter);

// The card that --hardware names, `usual` without it; a name that no card has is a bad command line.
Result<std::string> card_of(const Parsed& parsed, const std::string& usual);

// To answer questions: a store of an older schema is brought up to date where it may be written, and a folder that may
// not be written is read all the same.
Result<baselines::Store> open_to_read(const std::filesystem::path& file);

// --tag, empty without it. Refuses what "@" means already: latest, and numbers, which count back from the newest run.
Result<std::string> tag_of(const Parsed& parsed);

// Knobs of the step's size that were left at the quickstart's values although a model was named.
std::vector<std::string> unsaid_sizes(const Settings& settings);

// --rows: lines of a table, from 1 on; `usual` without it.
Result<size_t> rows_of(const Parsed& parsed, size_t usual);

// A run by any name a user may give (@latest, @2, @tag, id, prefix, bundle folder).
Result<baselines::Run> find_run(const Settings& settings, const std::string& spec);

// The folder of that run's bundle.
Result<std::filesystem::path> find_bundle(const Settings& settings, const std::string& spec);

// Set by SIGINT and SIGTERM while a run is going on.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  const std::atomic<bool>* flag() const;
  bool interrupted() const;  // SIGINT, not SIGTERM
};

}  // namespace mbb::suites
