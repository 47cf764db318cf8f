// torchtitan: "step: 14  loss: 3.24405  grad_norm: 0.8319  memory: 9.46GiB(64.99%)  tps: 7,282  tflops: 0.52  mfu:
// ...".
//
// tps is tokens a second and GPU; the line has no step time. What follows from tps and the tokens of a step, or else
// from the time stamps of two lines, is computed by who knows the configuration.
#include <algorithm>

#include "profiler/base/text.h"
#include "suites/foreign/log_text.h"

namespace mbb::suites {
namespace {

class Torchtitan : public LogReader {
 public:
  bool line(std::string_view text) override {
    ++log_.lines;
    const size_t at = text.find("step: ");
    const bool validation = at != std::string_view::npos && text.substr(0, at).ends_with("validate ");
    if (at != std::string_view::npos && !validation && text.find("tps:") != std::string_view::npos)
      return step(text, text.substr(at));
    if (text.find(" capacity: ") != std::string_view::npos) capacity(text);
    if (text.find("device mesh with [") != std::string_view::npos) mesh(text);
    if (text.find("global batch size") != std::string_view::npos) {
      if (const auto batch = integer_after(text, "global batch size", log_)) log_.global_batch_size = *batch;
      if (const auto length = integer_after(text, "sequence length", log_)) log_.sequence_length = *length;
    }
    return false;
  }

  const TrainingLog& so_far() const override { return log_; }

  TrainingLog finish() override {
    log_.format = "torchtitan";
    return std::move(log_);
  }

 private:
  bool step(std::string_view line, std::string_view text) {
    const auto index = integer_after(text, "step:", log_);
    if (!index) return false;
    const auto read = [&](std::string_view key) { return number_after(text, key, log_).value_or(kNotLogged); };
    LoggedStep step;
    step.index = *index;
    step.clock_s = time_stamp(line);
    step.set_loss(number_after(text, "loss:", log_));
    step.grad_norm = read("grad_norm:");
    step.tokens_per_second_per_gpu = read("tps:");
    step.tflops_per_gpu = read("tflops:");
    if (const auto gib = number_after(text, "memory:", log_); gib && *gib < 1e9)
      log_.peak_reserved_bytes = std::max(log_.peak_reserved_bytes, static_cast<int64_t>(*gib * 0x1p30));
    return steps_.add(step);
  }

  // "CUDA capacity: NVIDIA H100 80GB HBM3 with 79.11GiB memory"
  void capacity(std::string_view text) {
    const size_t begin = text.find(" capacity: ") + 11, end = text.find(" with ", begin);
    if (end != std::string_view::npos) log_.device = std::string(trim(text.substr(begin, end - begin)));
  }

  // "Building 2-D device mesh with ['pp', 'dp_shard'], [2, 4]": the ranks are the product.
  void mesh(std::string_view text) {
    const size_t begin = text.rfind('['), end = text.rfind(']');
    if (end == std::string_view::npos || begin + 1 >= end) return;
    int64_t ranks = 1;
    for (const std::string_view part : split(text.substr(begin + 1, end - begin - 1), ',')) {
      const auto size = parse_int(trim(part));
      if (!size || *size < 1 || ranks > 1'000'000) return;
      ranks *= *size;
    }
    log_.gpus = std::max(log_.gpus, ranks);
  }

  TrainingLog log_;
  StepCollector steps_{log_};
};

}  // namespace

std::unique_ptr<LogReader> torchtitan_reader() {
  return std::make_unique<Torchtitan>();
}

}  // namespace mbb::suites
