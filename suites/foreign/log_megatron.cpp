// Megatron-LM and Megatron-Bridge: one "iteration N/M | ... |" line a log interval, "Step Time" lines beside it, memory
// after the first, and the configuration before (an argument dump, or Bridge's YAML).
#include <algorithm>
#include <cmath>
#include <utility>

#include "profiler/base/text.h"
#include "suites/foreign/foreign_config.h"
#include "suites/foreign/log_text.h"

namespace mbb::suites {
namespace {

constexpr std::string_view kElapsed = "elapsed time per iteration (ms):";

// "lm loss", not a router's or a multi-token-prediction layer's.
bool is_main_loss(std::string_view key) {
  return key == "lm loss" || key == "reduced_train_loss" || (key.ends_with(" loss") && !key.starts_with("mtp"));
}

class Megatron : public LogReader {
 public:
  bool line(std::string_view text) override {
    ++log_.lines;
    if (config_.line(text, log_.lines)) return false;
    if (text.find(kElapsed) != std::string_view::npos) return iteration(text);
    if (text.find("Step Time") != std::string_view::npos && text.find("GPU utilization:") != std::string_view::npos)
      return step_time(text);
    if (text.find(" iterations) memory (") != std::string_view::npos) memory(text);
    if (text.find("using world size:") != std::string_view::npos)
      log_.gpus = integer_after(text, "using world size:", log_).value_or(0);
    return false;
  }

  const TrainingLog& so_far() const override { return log_; }

  TrainingLog finish() override {
    log_.settings = config_.take();
    // Iteration lines come from the last rank, step times from the first: a log of the first alone has no others.
    if (log_.steps.empty() && !step_times_.empty()) log_.steps = std::move(step_times_);
    if (log_.gpus == 0) log_.gpus = integer_setting(log_.settings, "world_size");
    for (const char* key : {"dataset.sequence_length", "dataset.seq_length", "seq_length"})
      if (log_.sequence_length == 0) log_.sequence_length = integer_setting(log_.settings, key);
    log_.format = bridge_ || config_.is_yaml() ? "megatron-bridge" : "megatron-lm";
    return std::move(log_);
  }

 private:
  bool iteration(std::string_view text) {
    const size_t at = text.find("iteration ");
    if (at == std::string_view::npos) return false;
    const auto index = integer_after(text.substr(at), "iteration ", log_);
    const auto ms = number_after(text, kElapsed, log_);
    if (index && ms && !(*ms > 0)) ++log_.timeless_lines;
    if (!index || !ms || !(*ms > 0)) return false;
    LoggedStep step;
    step.index = *index;
    step.seconds = *ms / 1e3;
    step.clock_s = time_stamp(text);
    step.tflops_per_gpu = std::exchange(pending_tflops_, kNotLogged);
    fill(step, text);
    return steps_.add(step);
  }

  // "key: value" between bars.
  void fill(LoggedStep& step, std::string_view text) {
    for (const std::string_view part : split(text, '|')) {
      const size_t colon = part.rfind(": ");
      if (colon == std::string_view::npos) continue;
      const std::string key(trim(part.substr(0, colon)));
      const auto value = [&] { return number_after(part, part.substr(0, colon + 1), log_).value_or(kNotLogged); };
      if (key == "throughput per GPU (TFLOP/s/GPU)")
        step.tflops_per_gpu = value();
      else if (key == "learning rate")
        step.learning_rate = value();
      else if (key == "grad norm")
        step.grad_norm = value();
      else if (key == "load_balancing_loss" || key == "seq_load_balancing_loss")
        step.balance_loss = value();
      else if (key == "z_loss")
        step.z_loss = value();
      else if (key == "mtp_1 loss")
        step.mtp_loss = value();
      else if (key == "tokens per GPU (tokens/s/GPU)" || key == "tokens/sec/GPU")
        step.tokens_per_second_per_gpu = value();
      else if (key == "global batch size")
        take_batch(step, integer_after(part, "global batch size:", log_).value_or(0));
      else if (key.starts_with("number of skipped") || key.starts_with("number of nan"))
        step.skipped += std::max<int64_t>(0, integer_after(part, part.substr(0, colon + 1), log_).value_or(0));
      else if (is_main_loss(key) && std::isnan(step.loss) && !step.loss_not_finite)
        step.set_loss(number_after(part, part.substr(0, colon + 1), log_));
    }
  }

  // The batch may grow from line to line.
  void take_batch(LoggedStep& step, int64_t sequences) {
    if (sequences <= 0) return;
    step.sequences = log_.global_batch_size = sequences;
  }

  // Bridge: "Step Time : 4.65s GPU utilization: 528.1MODEL_TFLOP/s/GPU", later with tok/s/gpu and "Peak Mem: 64.5GB".
  bool step_time(std::string_view text) {
    bridge_ = true;
    const size_t colon = text.find(':', text.find("Step Time"));
    LoggedStep step;
    step.index = static_cast<int64_t>(step_times_.size()) + 1;
    step.seconds = number_after(text.substr(colon), ":", log_).value_or(kNotLogged);
    step.tflops_per_gpu = number_after(text, "GPU utilization:", log_).value_or(kNotLogged);
    step.clock_s = time_stamp(text);
    if (const auto peak = number_after(text, "Peak Mem:", log_))
      log_.peak_reserved_bytes = std::max(log_.peak_reserved_bytes, static_cast<int64_t>(*peak * 1e9));
    pending_tflops_ = step.tflops_per_gpu;
    if (step.seconds > 0) step_times_.push_back(step);
    return false;
  }

  // "(after 10 iterations) memory (MB) | allocated: 9554.88 | max allocated: 12003.6 | ..." in MiB, or Bridge's
  // "memory (GB) | mem-max-allocated-gigabytes: 12.586 | ..." in 10^9 bytes.
  void memory(std::string_view text) {
    const bool decimal = text.find("memory (GB)") != std::string_view::npos;
    const double unit = decimal ? 1e9 : 0x1p20;
    const auto keep = [&](std::string_view key, int64_t& peak) {
      if (const auto value = number_after(text, key, log_); value && *value < 1e9)
        peak = std::max(peak, static_cast<int64_t>(*value * unit));
    };
    keep(decimal ? "mem-max-allocated-gigabytes:" : "max allocated:", log_.peak_allocated_bytes);
    keep(decimal ? "mem-max-reserved-gigabytes:" : "max reserved:", log_.peak_reserved_bytes);
  }

  TrainingLog log_;
  StepCollector steps_{log_};
  ConfigCollector config_;
  std::vector<LoggedStep> step_times_;
  double pending_tflops_ = kNotLogged;
  bool bridge_ = false;
};

}  // namespace

std::unique_ptr<LogReader> megatron_reader() {
  return std::make_unique<Megatron>();
}

}  // namespace mbb::suites
