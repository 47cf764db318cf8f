// Every log format by lines as its trainer prints them, with what launchers put around them, and lines that lie.
#include "suites/foreign/training_log.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "profiler/base/text.h"
#include "suites/foreign/foreign_config.h"
#include "suites/foreign/log_text.h"

namespace mbb::suites {
namespace {

TrainingLog read(const std::string& text, const std::string& format = kAutoFormat) {
  auto reader = make_log_reader(format);
  EXPECT_TRUE(reader.has_value());
  for (const std::string_view line : split(text, '\n')) (*reader)->line(plain_line(line));
  return (*reader)->finish();
}

constexpr const char* kMegatron = R"(using world size: 8, data-parallel size: 1, tensor-model-parallel size: 4
------------------------ arguments ------------------------
  adam_beta1 ...................................... 0.9
  seq_length ...................................... 4096
  recompute_granularity ........................... None
-------------------- end of arguments ---------------------
 [2025-08-01 07:19:37] iteration        1/    5000 | consumed samples:          128 | elapsed time per iteration (ms): 19138.8 | throughput per GPU (TFLOP/s/GPU): 80.2 | learning rate: 6.976744E-08 | global batch size:   128 | lm loss: 1.043863E+01 | loss scale: 1.0 | grad norm: 26.203 | number of skipped iterations:   0 | number of nan iterations:   0 |
[Rank 4] (after 1 iterations) memory (MB) | allocated: 9334.37 | max allocated: 10606.5 | reserved: 10998.0 | max reserved: 10998.0
[Rank 0] (after 1 iterations) memory (MB) | allocated: 10770.37 | max allocated: 15754.0 | reserved: 16334.0 | max reserved: 16334.0
 [2025-08-01 07:19:50] iteration        2/    5000 | consumed samples:          256 | elapsed time per iteration (ms): 12936.1 | throughput per GPU (TFLOP/s/GPU): 118.7 | learning rate: 1.4E-07 | global batch size:   128 | lm loss: 1.044022E+01 | load_balancing_loss: 1.01E+00 | z_loss: 2.0E-03 | loss scale: 1.0 | grad norm: 26.305 | number of skipped iterations:   1 | number of nan iterations:   0 |
)";

TEST(TrainingLog, MegatronPrintsStepsMemoryAndItsArguments) {
  const TrainingLog log = read(kMegatron);
  EXPECT_EQ(log.format, "megatron-lm");
  ASSERT_EQ(log.steps.size(), 2U);
  EXPECT_EQ(log.steps[0].index, 1);
  EXPECT_NEAR(log.steps[0].seconds, 19.1388, 1e-9);
  EXPECT_NEAR(log.steps[0].tflops_per_gpu, 80.2, 1e-9);
  EXPECT_NEAR(log.steps[0].loss, 10.43863, 1e-9);
  EXPECT_NEAR(log.steps[0].grad_norm, 26.203, 1e-9);
  EXPECT_NEAR(log.steps[1].balance_loss, 1.01, 1e-9);
  EXPECT_NEAR(log.steps[1].z_loss, 2e-3, 1e-9);
  EXPECT_NEAR(log.steps[1].clock_s - log.steps[0].clock_s, 13, 1e-9);
  EXPECT_EQ(log.steps[0].skipped, 0);
  EXPECT_EQ(log.steps[1].skipped, 1);
  EXPECT_EQ(log.steps[1].sequences, 128);
  EXPECT_FALSE(log.steps[1].loss_not_finite);
  EXPECT_EQ(log.gpus, 8);
  EXPECT_EQ(log.global_batch_size, 128);
  EXPECT_EQ(log.sequence_length, 4096);
  EXPECT_EQ(log.peak_reserved_bytes, int64_t{16334} << 20) << "of the rank that reserved most";
  EXPECT_EQ(log.interval(), 1);
  ASSERT_EQ(log.settings.size(), 3U);
  EXPECT_EQ(log.settings[2].value, "None");
}

constexpr const char* kBridge = R"(retraining/0 [default0]:------- Task Configuration -------
retraining/0 [default0]:_target_: megatron.bridge.training.config.ConfigContainer
retraining/0 [default0]:dataset:
retraining/0 [default0]:  sequence_length: 8192
retraining/0 [default0]:model:
retraining/0 [default0]:  params_dtype:
retraining/0 [default0]:    _call_: false
retraining/0 [default0]:    _target_: torch.bfloat16
retraining/0 [default0]:
retraining/0 [default0]:----------------------------------
retraining/0 [default0]:Step Time : 12.78s GPU utilization: 528.1MODEL_TFLOP/s/GPU
retraining/0 [default7]: [2025-10-06 03:27:07] iteration       10/      50 | consumed samples:         5120 | elapsed time per iteration (ms): 12781.5 | learning rate: 1.500000E-06 | global batch size:   128 | lm loss: 9.763827E+00 | loss scale: 1.0 | grad norm: 33.055 | number of skipped iterations:   0 | number of nan iterations:   0 |
retraining/0 [default0]:(after 10 iterations) memory (GB) | mem-allocated-gigabytes: 40.1 | mem-max-allocated-gigabytes: 60.5 | mem-max-reserved-gigabytes: 64.25
retraining/0 [default0]:Step Time : 12.61s GPU utilization: 535.2MODEL_TFLOP/s/GPU
retraining/0 [default7]: [2025-10-06 03:29:14] iteration       20/      50 | consumed samples:        10240 | elapsed time per iteration (ms): 12610.2 | learning rate: 3E-06 | global batch size:   128 | lm loss: 9.1E+00 | loss scale: 1.0 | grad norm: 3.1 | number of skipped iterations:   0 | number of nan iterations:   0 |
)";

TEST(TrainingLog, BridgePrintsTheRateBesideTheStepAndItsConfiguration) {
  const TrainingLog log = read(kBridge);
  EXPECT_EQ(log.format, "megatron-bridge");
  ASSERT_EQ(log.steps.size(), 2U);
  EXPECT_NEAR(log.steps[0].seconds, 12.7815, 1e-9) << "milliseconds, not the rounded seconds";
  EXPECT_NEAR(log.steps[0].tflops_per_gpu, 528.1, 1e-9);
  EXPECT_NEAR(log.steps[1].tflops_per_gpu, 535.2, 1e-9);
  EXPECT_EQ(log.interval(), 10);
  EXPECT_EQ(log.peak_reserved_bytes, 64'250'000'000);
  EXPECT_EQ(log.sequence_length, 8192);
  EXPECT_EQ(setting(log.settings, "model.params_dtype"), "torch.bfloat16");
}

TEST(TrainingLog, BridgesFirstRankAloneHasItsStepTimes) {
  const TrainingLog log = read(
      "Step Time : 4.65s GPU utilization: 592.5TFLOP/s/GPU\n"
      "Step Time: 0.50s , 32680.36 tok/s/gpu, GPU utilization: 257.1 MODEL_TFLOP/s/GPU , Peak Mem: 64.5GB\n",
      "megatron-bridge");
  ASSERT_EQ(log.steps.size(), 2U);
  EXPECT_NEAR(log.steps[1].seconds, 0.5, 1e-9);
  EXPECT_NEAR(log.steps[1].tflops_per_gpu, 257.1, 1e-9);
  EXPECT_EQ(log.peak_reserved_bytes, 64'500'000'000);
}

TEST(TrainingLog, NemoPrintsSecondsAndPeakMemory) {
  const TrainingLog log = read(
      " 0: Training epoch 0, iteration 48/49 | lr: 7.4e-06 | global_batch_size: 128 | global_step: 48 | "
      "peak_memory_usage: 70833405952 | reduced_train_loss: 11.96 | train_step_timing in s: 12.39\n"
      " 0: Training epoch 0, iteration 49/49 | lr: 7.496e-06 | global_batch_size: 128 | global_step: 49 | "
      "reduced_train_loss: 11.95 | train_step_timing in s: 12.41 | tokens_per_sec_per_gpu: 1.073e+04 | "
      "TFLOPS_per_GPU: 548.2 | consumed_samples: 6400\n");
  EXPECT_EQ(log.format, "nemo");
  ASSERT_EQ(log.steps.size(), 2U);
  EXPECT_EQ(log.steps[1].index, 49);
  EXPECT_NEAR(log.steps[1].seconds, 12.41, 1e-9);
  EXPECT_NEAR(log.steps[1].tokens_per_second_per_gpu, 10730, 1e-9);
  EXPECT_NEAR(log.steps[1].tflops_per_gpu, 548.2, 1e-9);
  EXPECT_NEAR(log.steps[0].learning_rate, 7.4e-6, 1e-12);
  EXPECT_EQ(log.peak_allocated_bytes, 70833405952);
}

TEST(TrainingLog, TorchtitanPrintsRatesInColoursFromEveryRank) {
  std::string text =
      "[rank0]:[titan] 2026-02-24 19:46:10,001 - root - INFO - CUDA capacity: NVIDIA H100 80GB HBM3 with 79.11GiB "
      "memory\n"
      "[rank0]:[titan] 2026-02-24 19:46:11,001 - root - INFO - Building 2-D device mesh with ['pp', 'dp_shard'], [2, "
      "4]\n"
      "[rank0]:[titan] 2026-02-24 19:46:12,001 - root - INFO - Training starts at step 1, with local batch size 2, "
      "global batch size 16, sequence length 2048, total steps 10\n";
  for (const char* rank : {"0", "1"})
    text += std::string("[rank") + rank +
            "]:[titan] 2026-02-24 19:46:17,508 - root - INFO - \x1b[31mstep:  4  \x1b[32mloss:  7.62585  "
            "\x1b[38;2;180;60;0mgrad_norm: 26.6250  \x1b[36mmemory: 66.91GiB(37.51%)  \x1b[34mtps: 10,050  "
            "\x1b[36mtflops: 1,314.71  \x1b[35mmfu: 13.99%\x1b[39m\n";
  text +=
      "[rank0]:[titan] 2026-02-24 19:46:18,000 - root - INFO - validate step:  4  loss:  7.5  memory: 60.00GiB(30.00%) "
      " "
      "tps: 9,000\n"
      "[rank0]:[titan] 2026-02-24 19:46:19,145 - root - INFO - step:  5  loss:  7.07623  grad_norm: 46.5000  memory: "
      "66.91GiB(37.51%)  tps: 10,007  tflops: 313.36  mfu: 13.93%\n";
  const TrainingLog log = read(text);
  EXPECT_EQ(log.format, "torchtitan");
  ASSERT_EQ(log.steps.size(), 2U);
  EXPECT_EQ(log.repeated_steps, 1);
  EXPECT_NEAR(log.steps[0].tokens_per_second_per_gpu, 10050, 1e-9);
  EXPECT_NEAR(log.steps[0].tflops_per_gpu, 1314.71, 1e-9);
  EXPECT_NEAR(log.steps[0].loss, 7.62585, 1e-9);
  EXPECT_NEAR(log.steps[1].clock_s - log.steps[0].clock_s, 1.637, 1e-6);
  EXPECT_TRUE(std::isnan(log.steps[0].seconds)) << "the line has no step time";
  EXPECT_EQ(log.device, "NVIDIA H100 80GB HBM3");
  EXPECT_EQ(log.gpus, 8);
  EXPECT_EQ(log.global_batch_size, 16);
  EXPECT_EQ(log.sequence_length, 2048);
  EXPECT_NEAR(static_cast<double>(log.peak_reserved_bytes), 66.91 * 0x1p30, 1.0);
}

TEST(TrainingLog, LlmqPrintsMillisecondsOnItsConsole) {
  const TrainingLog log = read(R"([Options]
  batch-size        : 8
  grad-accumulation : 4
  gpus              : 2
  seq-len           : 1024

[System 0]
  Device 0: NVIDIA GeForce RTX 4090
  CUDA version: driver 13000, runtime 13000

[Allocator State]
        Adam V:   942 MiB
       Weights:   601 MiB
          Free: 14078 MiB

[T] step     0 [ 19.9%] | time:  1869 ms | norm   4.315545 | loss   3.282568 | tps 35064 | sol 42.9%
[T] step     1 [ 39.8%] | time:   170  s | norm   8.423664 | loss   3.310652 | tps  148k | sol 46.9%
[V] step     2 [  0.0%] | time:   165 ms | eval   2.945187 | train  3.295834 | tps  148k
)");
  EXPECT_EQ(log.format, "llm.q");
  ASSERT_EQ(log.steps.size(), 2U);
  EXPECT_NEAR(log.steps[0].seconds, 1.869, 1e-9);
  EXPECT_NEAR(log.steps[1].seconds, 170, 1e-9);
  EXPECT_NEAR(log.steps[1].tokens_per_second, 148e3, 1e-9);
  EXPECT_NEAR(log.steps[0].loss, 3.282568, 1e-9);
  EXPECT_EQ(log.device, "NVIDIA GeForce RTX 4090");
  EXPECT_EQ(log.gpus, 2);
  EXPECT_EQ(log.global_batch_size, 64);
  EXPECT_EQ(log.peak_reserved_bytes, int64_t{1543} << 20);
}

TEST(TrainingLog, LlmqWritesAnArrayOfObjects) {
  const TrainingLog log = read(R"([
  {"log": "gpu-model", "time": "2025-11-01 10:00:00", "rank": 0, "step": 0, "name": "NVIDIA H100 80GB HBM3"},
  {"log": "option", "time": "2025-11-01 10:00:00", "step": 0, "name": "seq-len", "value": 2048},
  {"log": "step", "time": "2025-11-01 10:00:02.5", "step": 0, "epoch": 0.1, "step_tokens": 65536, "duration_ms": 1114, "norm": 4.3, "loss": 3.28, "lr": 0.001},
  {"log": "eval", "time": "2025-11-01 10:00:03", "step": 0, "epoch": 0.1, "eval_tokens": 10, "duration_ms": 5, "loss": 3}
]
)");
  EXPECT_EQ(log.format, "llm.q");
  ASSERT_EQ(log.steps.size(), 1U);
  EXPECT_EQ(log.steps[0].tokens, 65536);
  EXPECT_NEAR(log.steps[0].seconds, 1.114, 1e-9);
  EXPECT_EQ(log.gpus, 1);
  EXPECT_EQ(log.sequence_length, 2048);
}

TEST(TrainingLog, PlainJsonLinesCarryTheirUnits) {
  const TrainingLog log = read(
      "starting\n"
      "{\"step\": 1, \"step_time_ms\": 500, \"loss\": 2.5, \"tokens\": 4096, \"tflops_per_gpu\": 400.5}\n"
      "{\"step\": 2, \"step_time_s\": 0.25, \"loss\": 2.4, \"max_memory_gib\": 10, \"gpus\": 4, \"note\": \"x\"}\n"
      "{\"step\": 3, \"loss\": 2.3}\n"
      "{broken\n");
  EXPECT_EQ(log.format, "jsonl");
  ASSERT_EQ(log.steps.size(), 2U) << "a line without a time is no step";
  EXPECT_NEAR(log.steps[0].seconds, 0.5, 1e-12);
  EXPECT_EQ(log.steps[0].tokens, 4096);
  EXPECT_NEAR(log.steps[1].seconds, 0.25, 1e-12);
  EXPECT_EQ(log.peak_allocated_bytes, int64_t{10} << 30);
  EXPECT_EQ(log.gpus, 4);
}

TEST(TrainingLog, PythonsNanIsReadAndAnUnreadableLineCounted) {
  const TrainingLog log = read(
      "{\"step\": 1, \"step_time_s\": 0.5, \"loss\": NaN, \"note\": \"NaN of \\\"Infinity\"}\n"
      "{\"step\": 2, \"step_time_s\": 0.5, \"loss\": 2.4, \"grad_norm\": Infinity, \"lr\": -Infinity}\n"
      "{\"step\": 3, \"step_time_s\": 0.5, \"loss\": -Infinity}\n"
      "{\"step\": 4, \"step_time_s\": 0.5, \"loss\": \n");
  ASSERT_EQ(log.steps.size(), 3U);
  EXPECT_TRUE(log.steps[0].loss_not_finite);
  EXPECT_FALSE(log.steps[1].loss_not_finite);
  EXPECT_NEAR(log.steps[1].loss, 2.4, 1e-12);
  EXPECT_TRUE(log.steps[2].loss_not_finite);
  EXPECT_EQ(log.unreadable.at("a line of JSON"), 1);
}

TEST(TrainingLog, WhatIsNoNumberIsCountedAndANanIsANumber) {
  const TrainingLog log = read(
      " iteration 1/ 5 | elapsed time per iteration (ms): soon | lm loss: 1.0 |\n"
      " iteration 2/ 5 | elapsed time per iteration (ms): 100.0 | lm loss: nan | number of nan iterations:   1 |\n",
      "megatron-lm");
  ASSERT_EQ(log.steps.size(), 1U);
  EXPECT_EQ(log.steps[0].index, 2);
  EXPECT_TRUE(std::isnan(log.steps[0].loss));
  EXPECT_TRUE(log.steps[0].loss_not_finite);
  EXPECT_EQ(log.steps[0].skipped, 1);
  EXPECT_EQ(log.unreadable.at("elapsed time per iteration (ms):"), 1);
}

TEST(TrainingLog, LinesOfStepsWithoutATimeAndLinesThatAreNotThereAreCounted) {
  std::string megatron, json;
  for (const char* time : {"100.0", "nan", "100.0", "-3", "100.0", "0"}) {
    const int step = static_cast<int>(std::count(megatron.begin(), megatron.end(), '\n')) + 1;
    megatron += " iteration " + std::to_string(step) + "/ 9 | elapsed time per iteration (ms): " + time + " |\n";
    json += "{\"step\": " + std::to_string(step) + ", \"step_time_ms\": \"" + time + "\"}\n";
  }
  const TrainingLog log = read(megatron);
  EXPECT_EQ(log.steps.size(), 3U);
  EXPECT_EQ(log.timeless_lines, 3);
  const TrainingLog texts = read(json);
  EXPECT_TRUE(texts.steps.empty()) << "numbers, not texts";
  EXPECT_EQ(texts.timeless_lines, 6);
  const Error error = no_step_error("a.jsonl", texts, kAutoFormat);
  EXPECT_NE(error.what.find("6 of jsonl have a step whose time is no number above 0"), std::string::npos) << error.what;

  TrainingLog printed;
  for (const int64_t index : {1, 2, 3, 6, 7, 4, 8, 9}) printed.steps.push_back({.index = index});
  EXPECT_EQ(printed.missing_lines(), 1) << "step 5; step 4 came late";
  printed.steps.clear();
  for (const int64_t index : {1, 10, 20, 40, 50}) printed.steps.push_back({.index = index});
  EXPECT_EQ(printed.missing_lines(), 1) << "of every tenth";
}

TEST(TrainingLog, AFileWithoutAStepSaysWhatWasTried) {
  const std::filesystem::path path =
      std::filesystem::path(testing::TempDir()) / ("training_log_" + std::to_string(getpid()));
  std::ofstream(path) << "nothing here\nnor here\n";
  const auto log = read_log(path);
  ASSERT_FALSE(log);
  EXPECT_NE(log.error().what.find("no step found in 2 lines"), std::string::npos) << log.error().what;
  EXPECT_NE(log.error().what.find("torchtitan"), std::string::npos) << log.error().what;
  const auto named = read_log(path, "torchtita");
  ASSERT_FALSE(named);
  EXPECT_EQ(named.error().hint, "did you mean 'torchtitan'?");
  std::filesystem::remove(path);
  EXPECT_FALSE(read_log(path));
}

}  // namespace
}  // namespace mbb::suites
