// Plain JSONL: one object a step, for whoever writes a log of his own. Keys carry their unit.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "profiler/base/text.h"
#include "suites/foreign/log_text.h"

namespace mbb::suites {
namespace {

using Json = nlohmann::json;

// Where a key's number goes, times `scale`.
struct Key {
  const char* name;
  double LoggedStep::*to;
  double scale = 1;
};

constexpr Key kKeys[] = {
    {"step_time_s", &LoggedStep::seconds},
    {"step_time_ms", &LoggedStep::seconds, 1e-3},
    {"step_time_ns", &LoggedStep::seconds, 1e-9},
    {"step_time", &LoggedStep::seconds},
    {"iteration_time", &LoggedStep::seconds},
    {"elapsed_time_per_iteration_ms", &LoggedStep::seconds, 1e-3},
    {"duration_s", &LoggedStep::seconds},
    {"duration_ms", &LoggedStep::seconds, 1e-3},
    {"balance_loss", &LoggedStep::balance_loss},
    {"load_balancing_loss", &LoggedStep::balance_loss},
    {"z_loss", &LoggedStep::z_loss},
    {"mtp_loss", &LoggedStep::mtp_loss},
    {"grad_norm", &LoggedStep::grad_norm},
    {"learning_rate", &LoggedStep::learning_rate},
    {"lr", &LoggedStep::learning_rate},
    {"tflops_per_gpu", &LoggedStep::tflops_per_gpu},
    {"tflops", &LoggedStep::tflops_per_gpu},
    {"tokens_per_second", &LoggedStep::tokens_per_second},
    {"tokens_per_second_per_gpu", &LoggedStep::tokens_per_second_per_gpu},
    {"time_s", &LoggedStep::clock_s},
    {"timestamp", &LoggedStep::clock_s},
};

constexpr std::string_view kLosses[] = {"loss", "train_loss", "lm_loss"};

// Words that Python writes for numbers that JSON has none for.
constexpr std::string_view kWords[] = {"NaN", "-Infinity", "Infinity"};

// `text` with those words as strings, outside of strings.
std::string with_words_quoted(std::string_view text) {
  std::string out;
  bool inside = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto word = std::find_if(std::begin(kWords), std::end(kWords),
                                   [&](std::string_view one) { return text.substr(i).starts_with(one); });
    if (!inside && word != std::end(kWords)) {
      out.append("\"").append(*word).append("\"");
      i += word->size() - 1;
      continue;
    }
    if (inside && text[i] == '\\' && i + 1 < text.size())
      out += text[i++];
    else if (text[i] == '"')
      inside = !inside;
    out += text[i];
  }
  return out;
}

// A number, or one of those words; nothing for what is neither.
std::optional<double> number_of(const Json& value) {
  if (value.is_number()) return value.get<double>();
  if (!value.is_string()) return std::nullopt;
  const auto& word = value.get_ref<const std::string&>();
  if (std::find(std::begin(kWords), std::end(kWords), word) == std::end(kWords)) return std::nullopt;
  return word == "NaN" ? std::nan("") : word[0] == '-' ? -HUGE_VAL : HUGE_VAL;
}

// Bytes of a memory key by its ending; 0 for a key that is none.
double memory_unit(std::string_view key) {
  if (key.find("memory") == std::string_view::npos) return 0;
  return key.ends_with("_bytes") ? 1
         : key.ends_with("_mib") ? 0x1p20
         : key.ends_with("_gib") ? 0x1p30
         : key.ends_with("_mb")  ? 1e6
         : key.ends_with("_gb")  ? 1e9
                                 : 0;
}

class Jsonl : public LogReader {
 public:
  bool line(std::string_view text) override {
    ++log_.lines;
    const size_t begin = text.find('{');
    if (begin == std::string_view::npos || text.find("{\"log\":") != std::string_view::npos) return false;
    const Json object = Json::parse(with_words_quoted(text.substr(begin)), nullptr, false);
    if (object.is_discarded() || !object.is_object()) {
      if (trim(text).starts_with('{')) ++log_.unreadable["a line of JSON"];
      return false;
    }
    LoggedStep step;
    bool has_index = false;
    for (const auto& [key, value] : object.items()) take(key, value, step, has_index);
    if (!has_index) step.index = next_;
    const bool timed = step.seconds > 0 || step.tokens_per_second > 0 || step.tokens_per_second_per_gpu > 0;
    if (!timed && has_index && has_time(object)) ++log_.timeless_lines;
    if (!timed) return false;
    next_ = step.index + 1;
    return steps_.add(step);
  }

  const TrainingLog& so_far() const override { return log_; }

  TrainingLog finish() override {
    log_.format = "jsonl";
    return std::move(log_);
  }

 private:
  static bool has_time(const Json& object) {
    return std::any_of(std::begin(kKeys), std::end(kKeys),
                       [&](const Key& key) { return key.to == &LoggedStep::seconds && object.contains(key.name); });
  }

  void take(const std::string& key, const Json& value, LoggedStep& step, bool& has_index) {
    if (key == "device" && value.is_string()) log_.device = value.get<std::string>();
    if (key == "skipped" && value.is_boolean()) step.skipped = value.get<bool>() ? 1 : 0;
    const auto given = number_of(value);
    if (!given) return;
    if (std::find(std::begin(kLosses), std::end(kLosses), key) != std::end(kLosses)) step.set_loss(*given);
    const double number = *given;
    if (!(number > -9e15 && number < 9e15)) return;
    const auto whole = static_cast<int64_t>(number);
    if (key == "step" || key == "iteration" || key == "global_step") step.index = whole, has_index = true;
    if (key == "tokens" || key == "tokens_per_step" || key == "step_tokens") step.tokens = whole;
    if (key == "gpus" || key == "world_size") log_.gpus = whole;
    if (key == "seq_length" || key == "sequence_length") log_.sequence_length = whole;
    if (key == "global_batch_size") step.sequences = log_.global_batch_size = whole;
    if (const double unit = memory_unit(key); unit > 0) {
      int64_t& peak = key.find("reserved") != std::string::npos ? log_.peak_reserved_bytes : log_.peak_allocated_bytes;
      peak = std::max(peak, static_cast<int64_t>(number * unit));
    }
    for (const Key& known : kKeys)
      if (key == known.name) step.*known.to = number * known.scale;
  }

  TrainingLog log_;
  StepCollector steps_{log_};
  int64_t next_ = 1;
};

}  // namespace

std::unique_ptr<LogReader> jsonl_reader() {
  return std::make_unique<Jsonl>();
}

}  // namespace mbb::suites
