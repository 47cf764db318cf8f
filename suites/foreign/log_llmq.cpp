// llm.q: its console ("[T] step 3 [ 79.5%] | time: 1715 ms | norm ... | loss ... | tps 38213") and its log.json (an
// array with one object a line: {"log": "step", "step_tokens": ..., "duration_ms": ...}).
#include <nlohmann/json.hpp>

#include "profiler/base/text.h"
#include "suites/foreign/log_text.h"

namespace mbb::suites {
namespace {

using Json = nlohmann::json;

double number_in(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>() : kNotLogged;
}

int64_t integer_in(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
}

std::string text_in(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

class Llmq : public LogReader {
 public:
  bool line(std::string_view text) override {
    ++log_.lines;
    if (text.find("{\"log\":") != std::string_view::npos) return json_line(text);
    if (const size_t at = text.find("[T] step"); at != std::string_view::npos) return console_step(text.substr(at));
    const std::string_view bare = trim(text);
    if (bare == "[Options]" || bare == "[Allocator State]" || bare.empty()) section_ = std::string(bare);
    if (bare.starts_with("Device 0:")) log_.device = std::string(trim(bare.substr(9)));
    if (section_ == "[Options]") option(bare);
    if (section_ == "[Allocator State]") allocator(bare);
    return false;
  }

  const TrainingLog& so_far() const override { return log_; }

  TrainingLog finish() override {
    log_.format = "llm.q";
    log_.gpus = ranks_ > 0 ? ranks_ : integer_option("gpus");
    log_.sequence_length = integer_option("seq-len");
    if (const int64_t batch = integer_option("batch-size") * integer_option("grad-accumulation") * log_.gpus; batch > 0)
      log_.global_batch_size = batch;
    return std::move(log_);
  }

 private:
  bool console_step(std::string_view text) {
    LoggedStep step;
    const auto index = integer_after(text, "step", log_);
    const auto time = number_after(text, "time:", log_);
    if (!index || !time || !(*time > 0)) return false;
    step.index = *index;
    const size_t unit = text.find_first_not_of(" 0123456789.", text.find("time:") + 5);
    const bool seconds = unit != std::string_view::npos && text[unit] == 's';
    step.seconds = seconds ? *time : *time / 1e3;
    step.grad_norm = number_after(text, "| norm", log_).value_or(kNotLogged);
    step.set_loss(number_after(text, "| loss", log_));
    if (const auto tps = number_after(text, "| tps", log_)) {
      const size_t end = text.find_first_not_of(" 0123456789.", text.find("| tps") + 5);
      const bool thousands = end != std::string_view::npos && text[end] == 'k';
      step.tokens_per_second = thousands ? *tps * 1e3 : *tps;
    }
    return steps_.add(step);
  }

  bool json_line(std::string_view text) {
    const size_t begin = text.find('{'), end = text.rfind('}');
    if (end == std::string_view::npos || end < begin) return false;
    const Json object = Json::parse(text.substr(begin, end - begin + 1), nullptr, false);
    if (object.is_discarded() || !object.is_object()) {
      ++log_.unreadable["a line of JSON"];
      return false;
    }
    const std::string kind = text_in(object, "log");
    if (kind == "option" && object.contains("value"))
      log_.settings.push_back(
          {text_in(object, "name"),
           object["value"].is_string() ? object["value"].get<std::string>() : object["value"].dump(),
           static_cast<int>(log_.lines)});
    if (kind == "gpu-model") {
      ++ranks_;
      if (log_.device.empty()) log_.device = text_in(object, "name");
    }
    if (kind == "allocator" && object.contains("stats")) allocator(object["stats"]);
    if (kind != "step") return false;
    LoggedStep step;
    step.index = integer_in(object, "step");
    step.seconds = number_in(object, "duration_ms") / 1e3;
    if (!(step.seconds > 0)) return false;
    step.clock_s = time_stamp(text_in(object, "time"));
    step.loss = number_in(object, "loss");
    step.grad_norm = number_in(object, "norm");
    step.learning_rate = number_in(object, "lr");
    step.tokens = integer_in(object, "step_tokens");
    return steps_.add(step);
  }

  // "recompute-swiglu  : true"
  void option(std::string_view text) {
    const size_t colon = text.find(" : ");
    const size_t at = colon == std::string_view::npos ? text.find(": ") : colon;
    if (at == std::string_view::npos) return;
    log_.settings.push_back({std::string(trim(text.substr(0, at))),
                             std::string(trim(text.substr(text.find(':', at) + 1))), static_cast<int>(log_.lines)});
  }

  // "Activations:  4505 MiB" or "Activations:   4505 |  0 |  0": what is not free is used.
  void allocator(std::string_view text) {
    const size_t colon = text.find(':');
    if (colon == std::string_view::npos || trim(text.substr(0, colon)) == "Free") return;
    if (text.starts_with("stack.")) return;  // part of what stands above
    const auto mib = number_after(text.substr(colon), ":", log_);
    if (mib && *mib > 0 && *mib < 1e9) log_.peak_reserved_bytes += static_cast<int64_t>(*mib * 0x1p20);
  }

  void allocator(const Json& stats) {
    int64_t used = 0;
    if (!stats.is_array()) return;
    for (const Json& one : stats)
      if (one.is_object() && text_in(one, "name") != "Free") used += integer_in(one, "device");
    log_.peak_reserved_bytes = std::max(log_.peak_reserved_bytes, used);
  }

  int64_t integer_option(std::string_view name) const {
    for (const ForeignSetting& setting : log_.settings)
      if (setting.key == name) return parse_int(setting.value).value_or(0);
    return 0;
  }

  TrainingLog log_;
  StepCollector steps_{log_};
  std::string section_;
  int64_t ranks_ = 0;
};

}  // namespace

std::unique_ptr<LogReader> llmq_reader() {
  return std::make_unique<Llmq>();
}

}  // namespace mbb::suites
