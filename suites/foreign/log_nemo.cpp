// NeMo (PyTorch Lightning): "Training epoch 0, iteration 7/99 | lr: ... | train_step_timing in s: 2.18 | ...".
#include <algorithm>

#include "suites/foreign/log_text.h"

namespace mbb::suites {
namespace {

class Nemo : public LogReader {
 public:
  bool line(std::string_view text) override {
    ++log_.lines;
    const size_t at = text.find("Training epoch ");
    if (at == std::string_view::npos) return false;
    const std::string_view rest = text.substr(at);
    if (rest.find("train_step_timing in s:") == std::string_view::npos) return false;
    const auto read = [&](std::string_view key) { return number_after(rest, key, log_).value_or(kNotLogged); };
    LoggedStep step;
    const auto global = integer_after(rest, "global_step:", log_);
    const auto index = global ? global : integer_after(rest, "iteration ", log_);
    if (!index) return false;
    step.index = *index;
    step.seconds = read("train_step_timing in s:");
    if (step.seconds <= 0) ++log_.timeless_lines;
    if (!(step.seconds > 0)) return false;
    step.clock_s = time_stamp(text);
    step.set_loss(number_after(rest, "reduced_train_loss:", log_));
    step.grad_norm = read("grad_norm:");
    step.learning_rate = read("| lr:");
    step.tokens_per_second_per_gpu = read("tokens_per_sec_per_gpu:");
    step.tflops_per_gpu = read("TFLOPS_per_GPU:");
    if (const auto batch = integer_after(rest, "global_batch_size:", log_); batch && *batch > 0)
      step.sequences = log_.global_batch_size = *batch;
    if (const auto peak = integer_after(rest, "peak_memory_usage:", log_))
      log_.peak_allocated_bytes = std::max(log_.peak_allocated_bytes, *peak);
    return steps_.add(step);
  }

  const TrainingLog& so_far() const override { return log_; }

  TrainingLog finish() override {
    log_.format = "nemo";
    return std::move(log_);
  }

 private:
  TrainingLog log_;
  StepCollector steps_{log_};
};

}  // namespace

std::unique_ptr<LogReader> nemo_reader() {
  return std::make_unique<Nemo>();
}

}  // namespace mbb::suites
