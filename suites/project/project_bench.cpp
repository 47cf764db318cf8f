// Prints what projecting costs: building, planning and walking some mappings, and ranking all of one model's. Run by
// hand, never a test.
#include <fmt/core.h>

#include "profiler/base/clock.h"
#include "suites/project/advise.h"
#include "suites/project/projector.h"

namespace {

using namespace mbb;

trainer::Config step(const char* model, int64_t gpus, int64_t tp, int64_t pp, int64_t vpp, int64_t cp, int64_t batch) {
  trainer::Config config;
  config.model.name = model;
  config.train.seq_length = 8192;
  config.train.global_batch_size = batch;
  config.precision.recipe = trainer::Recipe::kFp8Current;
  config.parallel.gpus = gpus;
  config.parallel.tensor_model_parallel_size = tp;
  config.parallel.pipeline_model_parallel_size = pp;
  config.parallel.virtual_pipeline_model_parallel_size = vpp;
  config.parallel.context_parallel_size = cp;
  config.parallel.account_for_embedding_in_pipeline_split = config.parallel.account_for_loss_in_pipeline_split =
      std::string_view(model) == "llama3.1-405b";
  config.data_parallel.overlap_grad_reduce = config.data_parallel.overlap_param_gather = true;
  return config;
}

// Least of a few, in ms.
template <typename Work>
double least_ms(Work&& work) {
  int64_t least = INT64_MAX;
  for (int i = 0; i < 5; ++i) {
    const int64_t from = monotonic_ns();
    work();
    least = std::min(least, monotonic_ns() - from);
  }
  return static_cast<double>(least) * 1e-6;
}

void time_mapping(const trainer::Config& config) {
  const auto layout = trainer::resolve(config);
  const auto costs = suites::find_costs(suites::kDefaultHardware);
  const double build = least_ms([&] { static_cast<void>(trainer::build_programs(*layout)); });
  const auto programs = trainer::build_programs(*layout);
  const double walk = least_ms([&] { static_cast<void>(suites::project(*layout, *programs, *costs)); });
  fmt::print("{} on {} GPUs, {} micro-batches: programs and plans {:.0f} ms, projection {:.0f} ms\n", config.model.name,
             config.parallel.gpus, layout->micro_batches, build, walk);
}

}  // namespace

int main() {
  time_mapping(step("llama3-8b", 8, 1, 1, 1, 2, 128));
  time_mapping(step("llama3-70b", 64, 4, 8, 5, 1, 256));
  time_mapping(step("llama3.1-405b", 1024, 8, 8, 8, 2, 1536));
  trainer::Config all = step("llama3-70b", 64, 1, 1, 1, 1, 256);
  const int64_t from = mbb::monotonic_ns();
  const auto advised = suites::advise(all, {});
  fmt::print("advise: {} mappings of llama3-70b on 64 GPUs, {} rank, {:.1f} s on two threads\n",
             advised ? advised->tried : 0, advised ? advised->ranked.size() : 0,
             static_cast<double>(mbb::monotonic_ns() - from) * 1e-9);
  return 0;
}
