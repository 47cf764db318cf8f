// A table of knobs: finds one by any of its spellings, sets values with their source, and lists what was set where.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <typeindex>
#include <vector>

#include "profiler/base/error.h"
#include "profiler/base/knob.h"

namespace mbb {

// Where a value came from; a later layer wins over an earlier one.
enum class Layer { kDefault, kShipped, kUser, kProject, kEnvironment, kSuite, kCommandLine };

// Stable name, as stored and printed: "default", "shipped", "user", "project", "environment", "suite", "command line".
const char* name(Layer layer);
Result<Layer> parse_layer(std::string_view text);

// `place` is the file, the environment variable, or the argument as typed; line and column count from 1, 0 = none.
struct Source {
  Layer layer = Layer::kDefault;
  std::string place;
  int line = 0;
  int column = 0;
};

// Start of an error line: "a.toml:3:5", "environment variable MBBENCH_TP", "argument 'tp=4'", "default".
std::string describe(const Source& source);

// Sources by knob key; a key that is missing holds its default.
using KnobSources = std::map<std::string, Source, std::less<>>;

// A configuration struct of any type, with its type, so that a table meets only the type its fields belong to. Both
// refer to the struct for the length of a call.
class ConstConfigRef {
 public:
  template <typename Config>
  ConstConfigRef(const Config& config) : pointer_(&config), type_(typeid(Config)) {}
  const void* pointer() const { return pointer_; }
  std::type_index type() const { return type_; }

 private:
  const void* pointer_;
  std::type_index type_;
};

class ConfigRef {
 public:
  template <typename Config>
  requires(!std::is_const_v<Config> && !std::is_same_v<Config, ConfigRef>) ConfigRef(Config& config)
      : pointer_(&config), type_(typeid(Config)) {}
  void* pointer() const { return pointer_; }
  std::type_index type() const { return type_; }

 private:
  void* pointer_;
  std::type_index type_;
};

// One value with its origin, as `mbbench config --origin` prints it and the store keeps it.
struct KnobState {
  const Knob* knob = nullptr;
  std::string value;  // text that reads back as the same value
  Source source;
};

class KnobTable {
 public:
  // `defaults` is a default-constructed configuration. A record that contradicts itself or another is a bug (MB_CHECK):
  // a spelling used twice, a default outside its range, a missing sentence.
  template <typename Config>
  KnobTable(std::vector<Knob> knobs, const Config& defaults) : knobs_(std::move(knobs)), config_(typeid(Config)) {
    index(&defaults);
  }
  KnobTable(const KnobTable&) = delete;
  KnobTable& operator=(const KnobTable&) = delete;

  const std::vector<Knob>& knobs() const { return knobs_; }
  std::vector<std::string> sections() const;  // in order of appearance; knobs without a section are not in one

  // The knob of that name: its key, the key without section where unique, or an alias; '-' and '_' are alike and so,
  // for the sake of environment variables, are '.' and '_' in a full key. Error kNotFound with the nearest name.
  Result<const Knob*> find(std::string_view name) const;
  bool has(std::string_view name) const { return lookup(name).knob != nullptr; }

  // Sets one value from text, or from a typed value as a file gives it. "table.entry" sets one entry of a table knob.
  // Errors begin with describe(source). On error neither configuration nor sources change.
  Status set_text(ConfigRef config, KnobSources& sources, std::string_view name, std::string_view text,
                  const Source& source) const;
  Status set(ConfigRef config, KnobSources& sources, std::string_view name, KnobData value, const Source& source) const;

  // The text of one value; `name` must be a knob.
  std::string text(ConstConfigRef config, std::string_view name) const;
  std::string default_text(const Knob& knob) const;
  std::vector<KnobState> states(ConstConfigRef config, const KnobSources& sources) const;
  // "key=value" of every knob, one a line: replays a stored run, hands a configuration to a child process.
  std::string to_lines(ConstConfigRef config) const;
  Status from_lines(ConfigRef config, KnobSources& sources, std::string_view lines, const Source& source) const;
  // Hash of the knobs that split a series.
  std::string identity_hash(ConstConfigRef config) const;

 private:
  struct Found {
    const Knob* knob = nullptr;
    std::string entry;                        // of a table knob
    std::vector<const Knob*> ambiguous = {};  // several sections have the name
  };

  void index(const void* defaults);
  void check_record(const Knob& knob, const void* defaults) const;
  void add_spelling(const std::string& spelling, const Knob& knob, bool must_be_new);
  Found lookup(std::string_view name) const;
  Result<Found> resolve(std::string_view name) const;
  void check_type(std::type_index type) const;
  Status store(ConfigRef config, KnobSources& sources, const Found& found, Result<KnobData> value,
               const Source& source) const;

  std::vector<Knob> knobs_;
  std::type_index config_;
  std::map<std::string, std::vector<const Knob*>, std::less<>> spellings_;
  std::map<std::string, std::string> defaults_;
};

}  // namespace mbb
