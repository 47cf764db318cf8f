// Goes through every field of a run twice: to learn the names that are in it, and to write it without them.
#include "suites/export/redact_bundle.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>

#include "analysis/metrics/metrics.h"
#include "baselines/store/checksums.h"
#include "baselines/store/record_fields.h"
#include "profiler/base/env.h"
#include "profiler/base/file.h"
#include "profiler/base/text.h"
#include "profiler/capture/telemetry.h"
#include "profiler/host/fact_roles.h"
#include "profiler/trace/trace_file.h"
#include "suites/export/redaction.h"
#include "suites/foreign/training_log.h"
#include "suites/matrix/shipped_specs.h"
#include "suites/runner/child.h"
#include "suites/runner/command_cell.h"
#include "trainer/models/hardware.h"
#include "trainer/models/model.h"
#include "trainer/run/knobs.h"

namespace mbb::suites {
namespace {

namespace fs = std::filesystem;
using baselines::Cell;
using baselines::Launch;
using baselines::Run;

constexpr std::array<std::string_view, 6> kRecordFiles = {"launch.json", "steps.csv",   "ops.csv",
                                                          "memory.json", "config.json", "checksums"};

std::set<std::string> known_words(std::set<std::string> words) {
  for (const ShippedSpec& spec : shipped_specs()) {
    add_words(words, spec.name);
    add_words(words, spec.bytes);
  }
  for (const Knob& knob : trainer::knobs().knobs()) {
    add_words(words, knob.key);
    for (const std::string& alias : knob.aliases) add_words(words, alias);
    for (const KnobChoice& choice : knob.choices) add_words(words, choice.name);
  }
  for (const trainer::ModelShape& model : trainer::all_models()) add_words(words, model.name);
  for (const trainer::Hardware& card : trainer::all_hardware())
    add_words(words, std::string(card.key) + " " + std::string(card.device_name));
  for (const analysis::MetricInfo& metric : analysis::metrics()) add_words(words, metric.id);
  for (const LogFormat& format : log_formats()) add_words(words, format.name);
  add_words(words,
            "ok skipped broken unstable run cell launch rank step stage device stream thread class claim machine "
            "learning routing loss host compute copy other send recv fwd bwd true false none auto toml json mbbench "
            "utf posix en us");
  return words;
}

const ShippedSpec* shipped(const std::string& suite) {
  for (const ShippedSpec& spec : shipped_specs())
    if (spec.name == suite) return &spec;
  return nullptr;
}

// Numbers below the header that this program writes.
bool holds_numbers_alone(std::string_view text, std::string_view header) {
  if (!text.starts_with(header)) return false;
  text.remove_prefix(header.size());
  return text.find_first_not_of("0123456789.,-+e\n") == std::string_view::npos;
}

// Every text of a record, those of fields that are added later too.
class AllTexts {
 public:
  explicit AllTexts(Redaction& words) : words_(words) {}
  template <typename T>
  void operator()(const char* /*key*/, T& value) {
    visit(value);
  }
  template <typename T>
  void need(const char* /*key*/, T& value) {
    visit(value);
  }

 private:
  void visit(std::string& value) { value = words_.text(value); }
  template <typename T>
  void visit(std::vector<T>& values) {
    for (T& value : values) visit(value);
  }
  template <typename T>
  void visit(T& value) {
    if constexpr (std::is_class_v<T>) baselines::fields(*this, value);
  }

  Redaction& words_;
};

class Redactor {
 public:
  Redactor(const baselines::BundleReader& from, std::set<std::string> own_words)
      : from_(from), words_(known_words(std::move(own_words))) {
    char host[256] = {};
    if (::gethostname(host, sizeof host - 1) == 0) {
      words_.learn("host", host);
      words_.learn("host", std::string_view(host).substr(0, std::string_view(host).find('.')));
    }
    words_.learn("user", env_text("USER").value_or(""));
    words_.learn("job", env_text("SLURM_JOB_ID").value_or(""));
    words_.learn("user", fs::path(env_text("HOME").value_or("")).filename().string());
  }

  Result<RedactedBundle> write(const fs::path& to) {
    MB_ASSIGN(const auto names, baselines::whole_cells(from_));
    MB_ASSIGN(auto place, baselines::NewBundle::beside(to, from_.folder()));
    const auto* spec = shipped(from_.run().suite);
    shipped_ = spec != nullptr && spec->bytes == from_.run().spec;
    for (const std::string& name : names) MB_TRY(learn_from(name));
    for (const std::string& name : names) name_cell(name);
    learning_ = false;
    words_.forget_used();
    const Run run = redacted(from_.run());
    MB_ASSIGN(auto writer, baselines::BundleWriter::create(place.part(), run));
    for (const std::string& name : names) MB_TRY(write_cell(name, writer));
    const fs::path made = writer.folder();
    { const baselines::BundleWriter done = std::move(writer); }
    std::error_code ignored;
    fs::remove(made / ".lock", ignored);
    RedactedBundle out;
    MB_ASSIGN(out.size, place.keep(made));
    out.replaced = words_.summary();
    for (const auto& [what, count] : left_out_) out.left_out.push_back(fmt::format("{} ({})", what, count));
    return out;
  }

 private:
  void leave_out(const std::string& what, size_t count = 1) {
    if (!learning_ && count > 0) left_out_[what] += count;
  }

  // A cell of a suite that travels with the program is called as it is there.
  void name_cell(const std::string& name) {
    std::string redacted = shipped_ ? name : words_.name(name);
    if (!baselines::check_cell_name(redacted)) redacted = fmt::format("cell-{}", cell_names_.size() + 1);
    words_.learn_name(name, redacted);
    cell_names_[name] = redacted;
  }
  std::string cell_name(const std::string& name) {
    const auto found = cell_names_.find(name);
    return found == cell_names_.end() ? words_.name(name) : found->second;
  }

  void text(std::string& value) { value = words_.text(value); }

  Run redacted(Run run) {
    if (!shipped_ && !run.spec.empty()) leave_out("the suite's file");
    if (!shipped_) run.spec.clear();
    if (shipped(run.suite) == nullptr) run.suite = words_.value(run.suite);
    run.tag = words_.name(run.tag);
    for (std::string& planned : run.planned_cells) planned = cell_name(planned);
    redact_captured(run);
    redact_facts(run);
    AllTexts all(words_);
    baselines::fields(all, run);
    return run;
  }

  // What was hashed goes: a hash tells who guesses a name whether it is that.
  void redact_captured(Run& run) {
    const auto is_hashed = [](const profiler::CapturedValue& one) { return one.hashed; };
    leave_out("variables of the environment", std::erase_if(run.environment, is_hashed));
    for (profiler::CapturedValue& variable : run.environment) variable.value = words_.value(variable.value);
    for (profiler::CapturedValue& argument : run.argv) {
      if (argument.hashed) leave_out("words of the command line");
      argument.name = words_.name(argument.name);
      argument.value = argument.hashed ? "" : words_.value(argument.value);
    }
  }

  void redact_facts(Run& run) {
    bool in_class = false;
    for (profiler::HostFact& fact : run.fingerprint.facts) {
      const profiler::HostFact before = fact;
      fact.value = profiler::is_declared(fact.key) ? words_.value(fact.value) : words_.text(fact.value);
      if (profiler::is_declared(fact.key)) fact.key = words_.name(fact.key);
      in_class |= fact.in_class && (fact.key != before.key || fact.value != before.value);
    }
    if (!in_class) return;
    run.fingerprint = profiler::make_fingerprint(std::move(run.fingerprint.facts));
    run.epoch.clear();
  }

  std::string knob_value(const baselines::KnobValue& knob) {
    if (knob.key == kCommandKnob) return words_.whole("command", knob.value);
    if (const auto found = cell_names_.find(knob.value); found != cell_names_.end()) return found->second;
    const auto record = trainer::knobs().find(knob.key);
    if (!record) return words_.value(knob.value);
    if (knob.value == trainer::knobs().default_text(**record)) return knob.value;
    if (knob.key == "model.name") return model_name(knob.value);
    if ((*record)->path) return words_.whole("path", knob.value);
    const KnobType type = (*record)->field.type;
    return type == KnobType::kString || type == KnobType::kTable ? words_.value(knob.value) : knob.value;
  }

  std::string model_name(const std::string& name) {
    if (trainer::find_model(name) || name == "not said") return name;
    const std::string redacted = words_.value(name);
    words_.learn_name(name, redacted);
    return redacted;
  }

  // Behind its first clause a reason may quote what somebody else's program printed.
  void redact_reason(std::string& reason, bool quotes) {
    const size_t clause = reason.find(": ");
    if (quotes && clause != std::string::npos) {
      reason = reason.substr(0, clause) + ": [what it printed is left out]";
      leave_out("quotations of logs");
    }
    text(reason);
  }

  void redact_launch(Launch& launch, bool foreign) {
    redact_reason(launch.reason, foreign || launch.exit_status != 0 || launch.signal != 0);
    for (baselines::OpRow& op : launch.ops)
      for (std::string* one : {&op.path, &op.kind, &op.role, &op.phase, &op.stream, &op.rank_class}) text(*one);
    for (size_t i = 0; i < launch.trace_files.size(); ++i)
      launch.trace_files[i] = i == 0 ? "trace.mbt" : fmt::format("trace-{}.mbt", i);
    AllTexts all(words_);
    baselines::fields(all, launch);
    for (baselines::MemoryMap& map : launch.memory) fields(all, map);
  }

  void redact_json(nlohmann::ordered_json& json) {
    if (json.is_string()) json = words_.text(json.get_ref<const std::string&>());
    if (json.is_structured())
      for (auto& inner : json) redact_json(inner);
  }

  Status redact_program(std::string& program) {
    if (program.empty()) return {};
    auto json = nlohmann::ordered_json::parse(program, nullptr, false);
    if (json.is_discarded()) return fail(ErrorCode::kBadFile, "program.json is not JSON", "restore it from a copy");
    const auto before = json;
    redact_json(json);
    if (json != before) program = json.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
    return {};
  }

  Status redact(Cell& cell) {
    const std::string identity = baselines::identity_hash(cell);
    const bool foreign = std::any_of(cell.knobs.begin(), cell.knobs.end(), [](const baselines::KnobValue& knob) {
      return knob.key == kCommandKnob || knob.key.starts_with("import.");
    });
    cell.model = model_name(cell.model);
    cell.proxy_of = cell.proxy_of.empty() ? "" : model_name(cell.proxy_of);
    for (baselines::KnobValue& knob : cell.knobs) {
      knob.value = knob_value(knob);
      knob.file = words_.value(knob.file);
    }
    if (!shipped_ && !cell.published.empty()) leave_out("quoted publications");
    if (!shipped_) cell.published.clear();
    const bool failed = std::any_of(cell.launches.begin(), cell.launches.end(),
                                    [](const Launch& one) { return one.exit_status != 0 || one.signal != 0; });
    redact_reason(cell.reason, foreign || failed);
    for (baselines::VerdictRow& row : cell.verdicts) row.subject = words_.name(row.subject);
    cell.name = cell_name(cell.name);
    AllTexts all(words_);
    baselines::config_fields(all, cell);
    baselines::result_fields(all, cell);
    MB_TRY(redact_program(cell.program_json));
    for (Launch& launch : cell.launches) redact_launch(launch, foreign);
    if (identity != baselines::identity_hash(cell)) cell.identity_hash = baselines::identity_hash(cell);
    return {};
  }

  // Names come where they will: what a trace alone shows is taken out of the configuration as well.
  Status learn_from(const std::string& name) {
    (void)redacted(from_.run());
    MB_ASSIGN(Cell cell, from_.read_cell(name));
    for (const Launch& launch : cell.launches)
      for (const std::string& file : launch.trace_files) {
        MB_ASSIGN(const auto reader, profiler::TraceReader::open(from_.launch_file(name, launch.index, file)));
        for (const std::string& text : reader.without_spans().strings) (void)words_.text(text);
      }
    return redact(cell);
  }

  Status write_trace(const fs::path& from, const fs::path& to) {
    MB_ASSIGN(profiler::Trace trace, profiler::read_trace(from));
    profiler::StringTable strings;
    std::map<profiler::StringId, profiler::StringId> renumbered;
    const auto renumber = [&](profiler::StringId& id) {
      const auto [entry, added] = renumbered.try_emplace(id, 0);
      if (added) entry->second = strings.intern(words_.text(trace.text(id)));
      id = entry->second;
    };
    for (profiler::Track& track : trace.tracks) track.name = strings.intern(words_.name(trace.text(track.name)));
    for (profiler::Span& span : trace.spans) {
      renumber(span.name);
      renumber(span.op);
    }
    trace.strings = strings.strings();
    return profiler::write_trace(to, trace);
  }

  // Of what else lies in a launch's folder, that which holds numbers alone.
  Status write_others(const Cell& cell, const fs::path& cell_to) {
    std::set<std::string> done;
    for (const Launch& launch : cell.launches)
      for (const std::string& file : launch.trace_files)
        done.insert((fs::path("launches") / std::to_string(launch.index) / file).string());
    MB_ASSIGN(const auto listed, baselines::listed_files(from_.folder() / "cells" / cell.name));
    for (const std::string& file : listed) {
      const std::string name = fs::path(file).filename().string();
      const bool of_launch = file.starts_with("launches/");
      const bool record = std::find(kRecordFiles.begin(), kRecordFiles.end(), name) != kRecordFiles.end();
      if (!of_launch || record || done.contains(file)) continue;
      const std::string header = name == kTelemetryFile  ? profiler::telemetry_csv({})
                                 : name == kStepEndsFile ? "index,end_ns\n"
                                                         : "";
      if (header.empty()) {
        leave_out(name);
        continue;
      }
      MB_ASSIGN(const std::string bytes, read_file(from_.folder() / "cells" / cell.name / file));
      if (holds_numbers_alone(bytes, header))
        MB_TRY(write_file(cell_to / file, bytes, Flush::kLater));
      else
        leave_out(name);
    }
    return {};
  }

  Status write_cell(const std::string& name, baselines::BundleWriter& writer) {
    MB_ASSIGN(const Cell cell, from_.read_cell(name));
    Cell out = cell;
    MB_TRY(redact(out));
    MB_TRY(writer.begin_cell(out));
    for (size_t i = 0; i < cell.launches.size(); ++i) {
      MB_ASSIGN(const fs::path folder, writer.launch_folder(out.name, cell.launches[i].index));
      for (size_t k = 0; k < cell.launches[i].trace_files.size(); ++k)
        MB_TRY(write_trace(from_.launch_file(name, cell.launches[i].index, cell.launches[i].trace_files[k]),
                           folder / out.launches[i].trace_files[k]));
    }
    MB_TRY(write_others(cell, writer.folder() / "cells" / out.name));
    return writer.finish_cell(out);
  }

  const baselines::BundleReader& from_;
  Redaction words_;
  bool learning_ = true;
  bool shipped_ = false;  // the suite is one of the program's own, unchanged
  std::map<std::string, std::string> cell_names_;
  std::map<std::string, size_t> left_out_;
};

}  // namespace

Result<RedactedBundle> redact_bundle(const baselines::BundleReader& from, const fs::path& to,
                                     std::set<std::string> own_words) {
  return Redactor(from, std::move(own_words)).write(to);
}

}  // namespace mbb::suites
