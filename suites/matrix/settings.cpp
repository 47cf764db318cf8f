// Reads the layers of settings: see settings.h.
#include "suites/matrix/settings.h"

#include <fmt/format.h>

#include <filesystem>

#include "profiler/base/env.h"
#include "profiler/base/file.h"
#include "profiler/base/knob_render.h"
#include "profiler/base/text.h"
#include "suites/matrix/knob_file.h"
#include "trainer/run/knobs.h"

namespace mbb::suites {
namespace {

constexpr std::string_view kFileName = "mbbench.toml";
constexpr std::string_view kEnvPrefix = "MBBENCH_";

std::string existing(const std::filesystem::path& path) {
  return file_exists(path.string()) ? path.string() : "";
}

std::string nearest_above(const std::string& folder) {
  std::error_code error;
  std::filesystem::path at = std::filesystem::absolute(folder, error);
  if (error) return "";
  for (at = at.lexically_normal();; at = at.parent_path()) {
    if (const std::string file = existing(at / kFileName); !file.empty()) return file;
    if (at == at.parent_path()) return "";
  }
}

std::string installed_file() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return "";
  return existing(program.parent_path().parent_path() / "share" / "mbbench" / kFileName);
}

Status read_file_layer(Settings& settings, const std::string& path, Layer layer) {
  if (path.empty()) return {};
  MB_ASSIGN(const TomlFile file, read_toml(path));
  MB_ASSIGN(const std::vector<FileValue> values, knobs_of(file, file.root));
  for (const FileValue& value : values) MB_TRY(set_from_file(settings, file, value, layer, true));
  return {};
}

// Text from the environment or the command line; relative paths there count from the working directory, as typed.
Status set_text(Settings& settings, const std::string& name, const std::string& text, const Source& source) {
  const auto found = find_setting(name);
  if (!found) {
    Error error = found.error();
    error.code = ErrorCode::kBadArgument;  // typed, or in the environment: as a bad value is
    return tl::unexpected<Error>(std::move(error).during(describe(source)));
  }
  std::string value = text;
  if (found->knob->path && value.starts_with("~/") && !settings.home.empty()) value = settings.home + value.substr(1);
  if (found->is_product)
    return product_settings().set_text(settings.product, settings.product_sources, name, value, source);
  return trainer::knobs().set_text(settings.config, settings.sources, name, value, source);
}

// An empty variable of a job's script would make all products one.
Status check_facts(const Settings& settings) {
  for (const auto& [key, value] : settings.product.gate.facts) {
    if (!trim(value).empty()) continue;
    const Source& source = settings.product_sources.at("gate.facts");
    return fail(source.line > 0 ? ErrorCode::kBadFile : ErrorCode::kBadArgument,
                fmt::format("{}: the fact gate.facts.{} is empty", describe(source), printable(key)),
                "give its value, or leave it out");
  }
  return {};
}

// Nor is a folder without a name one.
Status check_runs_dir(const Settings& settings) {
  if (!trim(settings.product.runs_dir).empty()) return {};
  const Source& source = settings.product_sources.at("runs_dir");
  return fail(source.line > 0 ? ErrorCode::kBadFile : ErrorCode::kBadArgument,
              fmt::format("{}: runs_dir is empty", describe(source)),
              "name the folder of runs and store, or leave it out: ./mbbench-runs");
}

bool is_switch(std::string_view name) {
  const auto found = find_setting(name);
  if (!found) return false;
  return found->knob->field.type == KnobType::kBool || found->knob->field.type == KnobType::kAutoBool;
}

bool is_flag(const std::string& argument) {
  return argument.size() > 2 && argument.starts_with("--");
}

// `--name ...` at arguments[i]; moves i past a value of its own.
Result<Argument> parse_flag(const std::vector<std::string>& arguments, size_t& i) {
  const std::string& typed = arguments[i];
  const std::string body = typed.substr(2);
  if (const size_t equals = body.find('='); equals != std::string::npos)
    return Argument{body.substr(0, equals), body.substr(equals + 1), typed};
  const bool next_is_value = i + 1 < arguments.size() && !is_flag(arguments[i + 1]);
  if (is_switch(body)) {
    const bool next_is_switch = next_is_value && (parse_bool(arguments[i + 1]) || to_lower(arguments[i + 1]) == "auto");
    if (!next_is_switch) return Argument{body, "true", typed};
  } else if (body.starts_with("no-") && is_switch(body.substr(3))) {
    return Argument{body.substr(3), "false", typed};
  }
  // The name is looked up first: an unknown flag is the better message than a missing value.
  if (const auto found = find_setting(body); !found) {
    Error error = found.error();
    error.code = ErrorCode::kBadArgument;
    return tl::unexpected<Error>(std::move(error).during(fmt::format("argument '{}'", printable(typed))));
  }
  if (!next_is_value)
    return fail(ErrorCode::kBadArgument, fmt::format("argument '{}' has no value", printable(typed)),
                fmt::format("write {} VALUE", printable(typed)));
  ++i;
  return Argument{body, arguments[i], typed + " " + arguments[i]};
}

void append_origins(std::string& out, const KnobTable& table, ConstConfigRef config, const KnobSources& sources) {
  for (const KnobState& state : table.states(config, sources)) {
    if (!out.empty()) out += ",\n";
    out += fmt::format("  {{\"key\": {}, \"value\": {}, \"layer\": {}, \"place\": {}, \"line\": {}, \"column\": {}}}",
                       json_quote(state.knob->key), json_quote(state.value), json_quote(name(state.source.layer)),
                       json_quote(state.source.place), state.source.line, state.source.column);
  }
}

}  // namespace

bool splits_series(const KnobState& state) {
  return state.knob->identity && state.value != trainer::knobs().default_text(*state.knob);
}

std::string changed_lines(const trainer::Config& config) {
  std::string lines;
  for (const KnobState& state : knob_states(config, {}))
    if (state.value != trainer::knobs().default_text(*state.knob))
      lines += fmt::format("{}={}\n", state.knob->key, state.value);
  return lines;
}

Result<FoundSetting> find_setting(std::string_view name) {
  auto knob = trainer::knobs().find(name);
  if (knob) return FoundSetting{*knob, false};
  const auto product = product_settings().find(name);
  if (product) return FoundSetting{*product, true};
  // Either table may know a near name; the trainer's goes first, being the larger.
  const bool trainer_has_hint = knob.error().hint.starts_with("did you mean");
  return tl::unexpected<Error>(trainer_has_hint ? knob.error() : product.error());
}

Result<std::vector<Argument>> parse_arguments(const std::vector<std::string>& arguments) {
  std::vector<Argument> parsed;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (is_flag(argument)) {
      MB_ASSIGN(Argument flag, parse_flag(arguments, i));
      parsed.push_back(std::move(flag));
      continue;
    }
    const size_t equals = argument.find('=');
    if (equals == std::string::npos || equals == 0)
      return fail(ErrorCode::kBadArgument, fmt::format("argument '{}' sets nothing", printable(argument)),
                  "settings are written name=value or --name value");
    parsed.push_back({argument.substr(0, equals), argument.substr(equals + 1), argument});
  }
  return parsed;
}

SettingsPlaces find_places(const std::string& folder) {
  SettingsPlaces places;
  places.home = env_text("HOME").value_or("");
  places.shipped_file = installed_file();
  const auto xdg = env_text("XDG_CONFIG_HOME");
  const std::string config_home = xdg ? *xdg : places.home.empty() ? "" : places.home + "/.config";
  if (!config_home.empty()) places.user_file = existing(std::filesystem::path(config_home) / "mbbench" / kFileName);
  places.project_file = nearest_above(folder);
  places.environment = env_settings();
  return places;
}

Result<Settings> read_settings(const SettingsPlaces& places, std::vector<Argument> command_line) {
  Settings settings;
  settings.home = places.home;
  MB_TRY(read_file_layer(settings, places.shipped_file, Layer::kShipped));
  MB_TRY(read_file_layer(settings, places.user_file, Layer::kUser));
  MB_TRY(read_file_layer(settings, places.project_file, Layer::kProject));
  for (const auto& [variable, value] : places.environment) {
    const std::string name = to_lower(std::string_view(variable).substr(kEnvPrefix.size()));
    MB_TRY(set_text(settings, name, value, {Layer::kEnvironment, variable, 0, 0}));
  }
  settings.command_line = std::move(command_line);
  MB_TRY(apply_command_line(settings));
  MB_TRY(check_facts(settings));
  MB_TRY(check_runs_dir(settings));
  return settings;
}

Status apply_command_line(Settings& settings) {
  for (const Argument& argument : settings.command_line)
    MB_TRY(set_text(settings, argument.name, argument.value, {Layer::kCommandLine, argument.typed, 0, 0}));
  return {};
}

profiler::FactRoles roles_of(const Settings& settings) {
  profiler::FactRoles roles = fact_roles(settings.product.gate);
  bool file = false, typed = false;
  for (const char* key : {"gate.product", "gate.environment", "gate.facts"})
    if (const auto source = settings.product_sources.find(key); source != settings.product_sources.end())
      (source->second.line > 0 ? file : typed) = true;
  if (file && !typed) roles.fault = ErrorCode::kBadFile;
  return roles;
}

std::string render_origins_text(const Settings& settings) {
  return render_origins_text(product_settings(), settings.product, settings.product_sources) + "\n" +
         render_origins_text(trainer::knobs(), settings.config, settings.sources);
}

std::string render_origins_json(const Settings& settings) {
  std::string out;
  append_origins(out, product_settings(), settings.product, settings.product_sources);
  append_origins(out, trainer::knobs(), settings.config, settings.sources);
  return fmt::format("[\n{}\n]\n", out);
}

std::vector<KnobState> knob_states(const trainer::Config& config, const KnobSources& sources) {
  return trainer::knobs().states(config, sources);
}

}  // namespace mbb::suites
