// Records as the text of bundle files: JSON for what people read, CSV for long tables.
#include "baselines/store/record_text.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>

#include "baselines/store/record_fields.h"
#include "profiler/base/csv.h"

namespace mbb::baselines {
namespace {

using Json = nlohmann::json;

template <typename T>
struct IsVector : std::false_type {};
template <typename T>
struct IsVector<std::vector<T>> : std::true_type {};

class JsonWriter {
 public:
  template <typename T>
  void operator()(const char* key, const T& value) {
    object_[key] = to_json(value);
  }
  template <typename T>
  void need(const char* key, const T& value) {
    object_[key] = to_json(value);
  }
  Json take() { return std::move(object_); }

  template <typename T>
  static Json to_json(const T& value) {
    if constexpr (std::is_same_v<T, double>) {
      // JSON has no NaN or infinity; null and a word stand for them.
      if (std::isnan(value)) return nullptr;
      if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
      return value;
    } else if constexpr (std::is_enum_v<T>) {
      return name(value);
    } else if constexpr (IsVector<T>::value) {
      Json array = Json::array();
      for (const auto& element : value) array.push_back(to_json(element));
      return array;
    } else if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::string>) {
      return value;
    } else {
      JsonWriter inner;
      fields(inner, const_cast<T&>(value));  // the lists are shared with reading; writing changes nothing
      return inner.take();
    }
  }

 private:
  Json object_ = Json::object();
};

// Reads an object's members; keeps the first trouble, with the path to it.
class JsonReader {
 public:
  JsonReader(const Json& object, std::string where, std::string& trouble)
      : object_(object), where_(std::move(where)), trouble_(trouble) {
    if (!object_.is_object()) complain(where_.empty() ? "the text" : where_, "is not an object");
  }

  template <typename T>
  void operator()(const char* key, T& value) {
    read(key, value, false);
  }
  template <typename T>
  void need(const char* key, T& value) {
    read(key, value, true);
  }

 private:
  void complain(const std::string& path, std::string_view what) {
    if (trouble_.empty()) trouble_ = fmt::format("{} {}", path, what);
  }

  template <typename T>
  void read(const char* key, T& value, bool needed) {
    if (!object_.is_object() || !trouble_.empty()) return;
    const std::string path = where_.empty() ? key : fmt::format("{}.{}", where_, key);
    const auto found = object_.find(key);
    if (found != object_.end()) {
      from_json(*found, path, value);
    } else if (needed) {
      complain(path, "is missing");
    }
  }

  template <typename T>
  void from_json(const Json& json, const std::string& path, T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      if (!json.is_boolean()) return complain(path, "is neither true nor false");
      value = json.get<bool>();
    } else if constexpr (std::is_same_v<T, double>) {
      read_double(json, path, value);
    } else if constexpr (std::is_integral_v<T>) {
      read_integer(json, path, value);
    } else if constexpr (std::is_enum_v<T>) {
      read_enum(json, path, value);
    } else if constexpr (std::is_same_v<T, std::string>) {
      if (!json.is_string()) return complain(path, "is not text");
      value = json.get_ref<const std::string&>();
    } else if constexpr (IsVector<T>::value) {
      if (!json.is_array()) return complain(path, "is not a list");
      value.clear();
      value.reserve(json.size());
      for (std::size_t i = 0; i < json.size() && trouble_.empty(); ++i) {
        value.emplace_back();
        from_json(json[i], fmt::format("{}[{}]", path, i), value.back());
      }
    } else {
      JsonReader inner(json, path, trouble_);
      fields(inner, value);
    }
  }

  void read_double(const Json& json, const std::string& path, double& value) {
    if (json.is_null()) {
      value = kNotMeasured;
    } else if (json.is_number()) {
      value = json.get<double>();
    } else if (json == "inf" || json == "-inf") {
      value = json == "inf" ? std::numeric_limits<double>::infinity() : -std::numeric_limits<double>::infinity();
    } else {
      complain(path, "is not a number");
    }
  }

  template <typename T>
  void read_integer(const Json& json, const std::string& path, T& value) {
    if (!json.is_number_integer()) return complain(path, "is not an integer");
    const bool fits = json.is_number_unsigned() ? std::in_range<T>(json.get<std::uint64_t>())
                                                : std::in_range<T>(json.get<std::int64_t>());
    if (!fits) return complain(path, "is out of range");
    value = json.get<T>();
  }

  template <typename T>
  void read_enum(const Json& json, const std::string& path, T& value) {
    if (!json.is_string()) return complain(path, "is not text");
    const auto& text = json.get_ref<const std::string&>();
    Result<T> parsed = [&] {
      if constexpr (std::is_same_v<T, ResultClass>) return parse_result_class(text);
      if constexpr (std::is_same_v<T, CellStatus>) return parse_cell_status(text);
      if constexpr (std::is_same_v<T, Verdict>) return parse_verdict(text);
    }();
    if (!parsed) return complain(path, fmt::format(": {}", parsed.error().what));
    value = *parsed;
  }

  const Json& object_;
  std::string where_;
  std::string& trouble_;
};

// Bytes that are not UTF-8 (a foreign log line in a reason) become U+FFFD rather than an exception.
std::string dump(const Json& json, int indent) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

// Depth of nesting, read ahead of parsing: nlohmann copies and prints by recursion, so a hostile text could end the
// stack.
int nesting_depth(std::string_view text) {
  int depth = 0;
  int deepest = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

constexpr int kDeepestJson = 64;

Result<Json> parse_json(std::string_view text) {
  if (nesting_depth(text) > kDeepestJson) {
    return fail(ErrorCode::kBadFile, fmt::format("it nests deeper than {} levels", kDeepestJson));
  }
  Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded()) {
    return fail(ErrorCode::kBadFile, "it is not JSON: cut off or edited", "restore it from a copy");
  }
  return json;
}

Status status_of(std::string trouble) {
  if (trouble.empty()) return {};
  return fail(ErrorCode::kBadFile, std::move(trouble));
}

std::string checksum_of(const std::string& text) {
  return fmt::format("{:016x}", XXH3_64bits(text.data(), text.size()));
}

constexpr const char* kRunFormat = "mbbench-run";

// A stored double: shortest text that reads back equal; empty for NaN.
void append_double(std::string& out, double value) {
  if (!std::isnan(value)) fmt::format_to(std::back_inserter(out), "{}", value);
}

}  // namespace

std::string run_text(const Run& run, int version) {
  Json body = JsonWriter::to_json(run);
  Json file;
  file["checksum"] = checksum_of(dump(body, -1));
  file["format"] = kRunFormat;
  file["version"] = version;
  file["run"] = std::move(body);
  return dump(file, 1) + "\n";
}

Result<Run> parse_run(std::string_view text, int known_version) {
  MB_ASSIGN(const Json file, parse_json(text));
  if (!file.is_object() || file.value("format", Json()) != kRunFormat) {
    return fail(ErrorCode::kBadFile, "it is no run of mbbench: \"format\" is not \"mbbench-run\"");
  }
  const Json version = file.value("version", Json());
  if (!version.is_number_integer()) return fail(ErrorCode::kBadFile, "it names no format version");
  if (version > known_version) {
    return fail(ErrorCode::kMismatch,
                fmt::format("bundle version {}, written by a newer mbbench; this one reads up to {}", dump(version, -1),
                            known_version),
                "read it with that mbbench or a newer one");
  }
  const auto body = file.find("run");
  if (body == file.end()) return fail(ErrorCode::kBadFile, "run is missing");
  if (file.value("checksum", Json()) != checksum_of(dump(*body, -1))) {
    return fail(ErrorCode::kBadFile, "its checksum does not fit its content: it was edited or damaged",
                "restore it from a copy");
  }
  Run run;
  std::string trouble;
  JsonReader reader(*body, "run", trouble);
  fields(reader, run);
  MB_TRY(status_of(std::move(trouble)));
  return run;
}

std::string cell_config_text(const Cell& cell) {
  JsonWriter writer;
  config_fields(writer, const_cast<Cell&>(cell));
  return dump(writer.take(), 1) + "\n";
}

std::string cell_result_text(const Cell& cell) {
  JsonWriter writer;
  result_fields(writer, const_cast<Cell&>(cell));
  return dump(writer.take(), 1) + "\n";
}

Result<Cell> parse_cell(std::string_view config, std::string_view result) {
  Cell cell;
  std::string trouble;
  MB_ASSIGN(const Json config_json,
            parse_json(config).map_error([](Error e) { return std::move(e).during("config.json"); }));
  JsonReader config_reader(config_json, "", trouble);
  config_fields(config_reader, cell);
  if (!trouble.empty()) return fail(ErrorCode::kBadFile, "config.json: " + trouble);
  MB_ASSIGN(const Json result_json,
            parse_json(result).map_error([](Error e) { return std::move(e).during("result.json"); }));
  JsonReader result_reader(result_json, "", trouble);
  result_fields(result_reader, cell);
  if (!trouble.empty()) return fail(ErrorCode::kBadFile, "result.json: " + trouble);
  return cell;
}

std::string launch_text(const Launch& launch) {
  return dump(JsonWriter::to_json(launch), 1) + "\n";
}

Result<Launch> parse_launch(std::string_view text) {
  MB_ASSIGN(const Json json, parse_json(text));
  Launch launch;
  std::string trouble;
  JsonReader reader(json, "", trouble);
  fields(reader, launch);
  MB_TRY(status_of(std::move(trouble)));
  return launch;
}

std::string memory_text(const std::vector<MemoryMap>& maps) {
  Json file = Json::object();
  file["maps"] = JsonWriter::to_json(maps);
  return dump(file, 1) + "\n";
}

Result<std::vector<MemoryMap>> parse_memory(std::string_view text) {
  MB_ASSIGN(const Json json, parse_json(text));
  std::vector<MemoryMap> maps;
  std::string trouble;
  JsonReader reader(json, "", trouble);
  reader.need("maps", maps);
  MB_TRY(status_of(std::move(trouble)));
  return maps;
}

std::string steps_text(const std::vector<Step>& steps) {
  std::string out =
      "index,wall_ns,cpu_ns,modelled_ns,loss,grad_norm,learning_rate,tokens,sequence_squares,flags,balance_loss,z_loss,"
      "mtp_loss,reference_ns\n";
  for (const Step& step : steps) {
    fmt::format_to(std::back_inserter(out), "{},{},{},{},", step.index, step.wall_ns, step.cpu_ns, step.modelled_ns);
    append_double(out, step.loss);
    out += ',';
    append_double(out, step.grad_norm);
    out += ',';
    append_double(out, step.learning_rate);
    fmt::format_to(std::back_inserter(out), ",{},{},{}", step.tokens, step.sequence_squares, step.flags);
    for (const double loss : {step.balance_loss, step.z_loss, step.mtp_loss}) {
      out += ',';
      append_double(out, loss);
    }
    fmt::format_to(std::back_inserter(out), ",{}\n", step.reference_ns);
  }
  return out;
}

Result<std::vector<Step>> parse_steps(std::string_view text) {
  MB_ASSIGN(const CsvTable table, CsvTable::parse(text));
  if (table.column("index") < 0 || table.column("wall_ns") < 0) {
    return fail(ErrorCode::kBadFile, "line 1: it lacks the columns index and wall_ns");
  }
  std::vector<Step> steps(table.rows());
  const auto read = [&](const char* column, auto Step::*member) -> Status {
    const int at = table.column(column);
    for (std::size_t row = 0; row < table.rows(); ++row) MB_TRY(table.read(row, at, steps[row].*member));
    return {};
  };
  MB_TRY(read("index", &Step::index));
  MB_TRY(read("wall_ns", &Step::wall_ns));
  MB_TRY(read("cpu_ns", &Step::cpu_ns));
  MB_TRY(read("modelled_ns", &Step::modelled_ns));
  MB_TRY(read("loss", &Step::loss));
  MB_TRY(read("grad_norm", &Step::grad_norm));
  MB_TRY(read("learning_rate", &Step::learning_rate));
  MB_TRY(read("tokens", &Step::tokens));
  MB_TRY(read("sequence_squares", &Step::sequence_squares));
  MB_TRY(read("flags", &Step::flags));
  MB_TRY(read("balance_loss", &Step::balance_loss));
  MB_TRY(read("z_loss", &Step::z_loss));
  MB_TRY(read("mtp_loss", &Step::mtp_loss));
  MB_TRY(read("reference_ns", &Step::reference_ns));
  return steps;
}

std::string ops_text(const std::vector<OpRow>& ops) {
  std::string out = "path,kind,role,phase,stream,rank_class,calls,total_ns,flops,bytes\n";
  for (const OpRow& op : ops) {
    for (const std::string* text : {&op.path, &op.kind, &op.role, &op.phase, &op.stream, &op.rank_class}) {
      append_csv_field(out, *text);
      out += ',';
    }
    fmt::format_to(std::back_inserter(out), "{},{},", op.calls, op.total_ns);
    append_double(out, op.flops);
    fmt::format_to(std::back_inserter(out), ",{}\n", op.bytes);
  }
  return out;
}

Result<std::vector<OpRow>> parse_ops(std::string_view text) {
  MB_ASSIGN(const CsvTable table, CsvTable::parse(text));
  if (table.column("path") < 0 || table.column("total_ns") < 0) {
    return fail(ErrorCode::kBadFile, "line 1: it lacks the columns path and total_ns");
  }
  std::vector<OpRow> ops(table.rows());
  const std::array<std::pair<const char*, std::string OpRow::*>, 6> texts = {{{"path", &OpRow::path},
                                                                              {"kind", &OpRow::kind},
                                                                              {"role", &OpRow::role},
                                                                              {"phase", &OpRow::phase},
                                                                              {"stream", &OpRow::stream},
                                                                              {"rank_class", &OpRow::rank_class}}};
  for (const auto& [column, member] : texts) {
    const int at = table.column(column);
    for (std::size_t row = 0; row < table.rows(); ++row) ops[row].*member = table.text(row, at);
  }
  const auto read = [&](const char* column, auto OpRow::*member) -> Status {
    const int at = table.column(column);
    for (std::size_t row = 0; row < table.rows(); ++row) MB_TRY(table.read(row, at, ops[row].*member));
    return {};
  };
  MB_TRY(read("calls", &OpRow::calls));
  MB_TRY(read("total_ns", &OpRow::total_ns));
  MB_TRY(read("flops", &OpRow::flops));
  MB_TRY(read("bytes", &OpRow::bytes));
  return ops;
}

}  // namespace mbb::baselines
