// The array of metrics, and how a value of each is written.
#include "analysis/metrics/metrics.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/core.h>

#include "profiler/base/text.h"

namespace mbb::analysis {

namespace {

constexpr const char* kPerStep =
    "Mean over ranks and over the steps that were traced; the parts of a step (compute, exposed communication, exposed "
    "copies, idle) sum to 100 %.";
constexpr const char* kClasses =
    "Compared only inside one result class; functional/cpu values say nothing about a GPU.";

constexpr const char* kByCategory =
    "At the moment of the step's peak, on the rank class whose peak is largest; the categories sum to it with "
    "alignment. As executed where the history is recorded, else from the memory plan.";

constexpr MetricInfo memory_metric(const char* id, const char* title, const char* definition) {
  return {id, title, "bytes", Better::kLower, MetricForm::kBytes, definition, kByCategory};
}

constexpr MetricInfo comm_metric(const char* id, const char* title, const char* definition) {
  return {id, title, "%", Better::kLower, MetricForm::kPercent, definition, kPerStep};
}

constexpr auto kMetrics = std::to_array<MetricInfo>({
    {"step_time", "step", "ns", Better::kLower, MetricForm::kDuration,
     "Time of one optimizer step: forward, backward, gradient synchronization and update of one global batch. The "
     "slowest rank's; the median of a launch's steady steps, then the mean over launches.",
     kClasses},
    {"modelled_step_time", "modelled step", "ns", Better::kLower, MetricForm::kDuration,
     "Step time when every rank had a processor of its own: the CPU time of each op, replayed through the dependency "
     "graph. Exposed communication and bubble of CPU runs are shares of it.",
     "A collective lasts its own copy and reduce time, never its wait."},
    {"stalls", "stalls", "%", Better::kLower, MetricForm::kPercent,
     "Share of the steady steps that are outliers: further than 5 robust standard deviations, and 0.5 %, from their "
     "launch's median. Counted over all launches, and kept in the median, which they do not move.",
     "A page fault, a collection of garbage, a network retry: what makes one step slow and not the next."},
    {"cpu_step_time", "CPU time a step", "ns", Better::kLower, MetricForm::kDuration,
     "CPU time that the threads of one CPU rank used in a step; the median of the steady steps. Time spent waiting for "
     "a "
     "core does not count, so it shows a regression of a few percent on a shared machine.",
     "One rank only; class functional/cpu."},
    {"cpu_step_ratio", "CPU step / reference", "", Better::kLower, MetricForm::kPlain,
     "CPU time of a step over that of fixed work done beside it (profiling.reference_work); the median of the steady "
     "steps. A neighbour on the core or a lower clock slows both, so it moves with the product and little else.",
     "One rank only; class functional/cpu. The reference of a step is the mean of the work before and after it."},
    {"block_time", "blocks", "ns", Better::kLower, MetricForm::kDuration,
     "Time that the computation of the Transformer blocks takes of a step: exclusive time of the ops under layers.*, "
     "forward and backward, on the pipeline stage with most of it.",
     "What FP8 can make faster, so its gain is judged on it: embedding, LM head, loss and optimizer stay outside."},
    {"tokens_per_second", "tokens/s", "tokens/s", Better::kHigher, MetricForm::kRate,
     "Tokens of the global batch divided by the step time.", kClasses},
    {"tokens_per_second_per_gpu", "tokens/s/GPU", "tokens/s", Better::kHigher, MetricForm::kRate,
     "Tokens per second divided by the GPUs of the configuration: the primary throughput.", kClasses},
    {"tflops_per_gpu_causal", "TFLOP/s/GPU (causal)", "TFLOP/s", Better::kHigher, MetricForm::kTeraflops,
     "Model FLOPs of a step divided by step time and GPUs.",
     "Causal: the attention core counts half the sequence square. Never counts recompute, norms, RoPE, softmax, "
     "router, "
     "optimizer, or the wgrad of weights that do not train."},
    {"tflops_per_gpu_full", "TFLOP/s/GPU (full)", "TFLOP/s", Better::kHigher, MetricForm::kTeraflops,
     "Model FLOPs of a step divided by step time and GPUs.",
     "Full: the attention core counts the whole sequence square, as older tables do."},
    {"logged_tflops_per_gpu", "TFLOP/s/GPU (as logged)", "TFLOP/s", Better::kHigher, MetricForm::kTeraflops,
     "The rate that another trainer prints in its log: the median over the steps that are not warm-up.",
     "By that trainer's own FLOP count, whatever it counts; set against ours by the verdict TFLOP/s. Command cells and "
     "imported logs only."},
    {"mfu_bf16", "MFU (bf16)", "%", Better::kHigher, MetricForm::kPercent,
     "Model FLOPs (causal) / (step time × GPUs × dense BF16 peak of the device).",
     "Unknown, never a number, for a device whose peak is not known. FP8 runs may pass 100 %."},
    {"mfu_fp8", "MFU (fp8)", "%", Better::kHigher, MetricForm::kPercent,
     "Model FLOPs (causal) / (step time × GPUs × dense FP8 peak of the device).",
     "Printed beside MFU (bf16) for FP8 runs. The 2:4-sparse peak is never used."},
    {"mfu_bf16_full", "MFU (bf16, full)", "%", Better::kHigher, MetricForm::kPercent,
     "Model FLOPs (full) / (step time × GPUs × dense BF16 peak of the device).",
     "As tables print it that count the whole sequence square; never set against a causal one."},
    {"mfu_fp8_full", "MFU (fp8, full)", "%", Better::kHigher, MetricForm::kPercent,
     "Model FLOPs (full) / (step time × GPUs × dense FP8 peak of the device).", "Of FP8 runs only."},
    {"hfu_fp8", "HFU (fp8)", "%", Better::kHigher, MetricForm::kPercent,
     "MFU (fp8) with the FLOPs of recompute passes added.", "Flash attention's own recomputed QK^T is not added."},
    {"hfu_bf16", "HFU (bf16)", "%", Better::kHigher, MetricForm::kPercent,
     "MFU with the FLOPs of recompute passes added.", "Flash attention's own recomputed QK^T is not added."},
    {"fp8_eligible_flops", "FP8-eligible FLOPs", "%", Better::kNeither, MetricForm::kPercent,
     "Share of the model FLOPs in the linear layers of Transformer blocks, experts included: what a recipe of fewer "
     "bits "
     "could take.",
     "Attention core, embedding and LM head are not eligible. From the step program; the same for every recipe."},
    {"fp8_eligible_time", "FP8-eligible time", "%", Better::kNeither, MetricForm::kPercent,
     "Share of the step in the GEMMs of those layers: what FP8 can make faster.",
     "Exclusive time of the traced steps, over all rank classes."},
    {"compute", "compute", "%", Better::kHigher, MetricForm::kPercent,
     "Share of the step in which compute runs: U(compute).", kPerStep},
    comm_metric("comm", "communication",
                "Share of the step in which any communication is in flight, hidden or not: U(comm)."),
    comm_metric("comm_tp", "TP communication", "The tensor (and sequence) parallel communication in flight."),
    comm_metric("comm_cp", "CP communication", "The context parallel communication in flight."),
    comm_metric("comm_ep", "EP communication", "The expert parallel communication in flight."),
    comm_metric("comm_pp", "PP communication", "The pipeline parallel communication in flight."),
    comm_metric("comm_dp", "DP communication", "The data parallel communication in flight."),
    comm_metric("comm_other", "other communication",
                "Communication in flight whose kind the trace does not tell, as in traces of other tools."),
    comm_metric("exposed_comm", "exposed comm",
                "Share of the step in which communication runs and no compute does: U(comm) \\ U(compute)."),
    comm_metric("exposed_comm_tp", "exposed TP", "The tensor (and sequence) parallel part of exposed communication."),
    comm_metric("exposed_comm_cp", "exposed CP", "The context parallel part of exposed communication."),
    comm_metric("exposed_comm_ep", "exposed EP", "The expert parallel part of exposed communication."),
    comm_metric("exposed_comm_pp", "exposed PP", "The pipeline parallel part of exposed communication."),
    comm_metric("exposed_comm_dp", "exposed DP", "The data parallel part of exposed communication."),
    comm_metric("exposed_comm_other", "exposed other", "The part of exposed communication whose kind is not told."),
    comm_metric("exposed_copy", "exposed copies",
                "Share of the step in which copies run and neither compute nor communication does."),
    comm_metric("idle", "idle", "Share of the step in which nothing runs, whatever the cause."),
    comm_metric("idle_host_bound", "host-bound",
                "Idle because the next launch began after the previous work had ended."),
    comm_metric("idle_launch_gap", "launch gaps",
                "Idle while the next work was queued already, on the stream that ran last."),
    comm_metric("idle_dependency", "dependency waits",
                "Idle while the next work was queued and waited for another stream or rank."),
    comm_metric("idle_bubble", "idle bubble", "Idle because the pipeline had no micro-batch for this stage."),
    comm_metric("bubble", "bubble",
                "Share of the step in which a pipeline stage has no micro-batch: idle before a receive and the part of "
                "an exposed receive before its sender arrived."),
    comm_metric("skew", "skew", "The part of exposed collectives (other than PP) before their last member arrived."),
    {"overlap", "comm overlap", "%", Better::kHigher, MetricForm::kPercent,
     "Share of communication time that runs under compute: |U(comm) ∩ U(compute)| / |U(comm)|.",
     "0 without communication."},
    {"peak_memory", "peak", "bytes", Better::kLower, MetricForm::kBytes,
     "Largest number of bytes in use on any rank during a step.",
     "From the memory plan where the step's memory is planned."},
    {"activation_memory", "activations", "bytes", Better::kLower, MetricForm::kBytes,
     "Bytes of activations kept for the backward pass at the fullest moment of a step, on the rank class with most.",
     "From the memory plan."},
    memory_metric("memory_weights", "weights", "Weights in the compute type, gathered copies included."),
    memory_metric("memory_main_grads", "main grads", "Main gradients."),
    memory_metric("memory_master", "master weights", "fp32 master weights."),
    memory_metric("memory_moments", "moments", "Adam's moments."),
    memory_metric("memory_activations", "activations at the peak", "What forward segments write for the backward."),
    memory_metric("memory_gradients", "activation gradients", "What backward segments write."),
    memory_metric("memory_logits", "logits", "Logits and their gradient."),
    memory_metric("memory_communication", "communication buffers", "Buffers that exist for a collective only."),
    memory_metric("memory_workspace", "workspace", "Scratch of kernels."),
    memory_metric("memory_input", "input", "Tokens, labels and masks of micro-batches."),
    memory_metric("memory_step", "step record", "Step record, loss and norm scalars."),
    memory_metric("memory_graphs", "graphs",
                  "What the driver takes for captured CUDA graphs, beside the planned arena."),
    memory_metric("memory_outside_the_arena", "outside the arena",
                  "What libraries and the allocator hold beside the planned arena, all the time; where it was seen."),
    memory_metric("memory_slack", "slack", "Bytes of the planned arena that no buffer has at its peak."),
    memory_metric("memory_allocated", "allocated", "What an allocator handed out, as another trainer's log says."),
    memory_metric("memory_not_handed_out", "reserved, not handed out",
                  "What an allocator held beside what it had handed out, as another trainer's log says."),
    memory_metric("memory_reserved", "reserved",
                  "What an allocator held, where a log does not say what it handed out."),
    {"days_to_train", "days to train", "days", Better::kLower, MetricForm::kPlain,
     "Tokens of the training / tokens per second / 86400.",
     "Only where the tokens are said (--train-tokens). No time is lost to restarts, evaluation or checkpoints."},
    {"cost_to_train", "cost to train", "", Better::kLower, MetricForm::kPlain,
     "GPUs × days × 24 × price of a GPU-hour.", "Only where the price is said (--price), in its currency."},
    {"tracing_overhead", "tracing", "%", Better::kLower, MetricForm::kPercent,
     "Median time of the profiled steps over the median of the timed ones of the same launch, minus one.",
     "Profiled steps are never timed: this is what tracing would have cost them. Negative within the noise. Of CPU "
     "time where ranks share cores."},
    {"packing_efficiency", "row efficiency", "%", Better::kHigher, MetricForm::kPercent,
     "Tokens with a label over all tokens of a step's rows: what is missing is padding.",
     "Of rows that hold sequences of many lengths, one each or packed. Tokens per second count the former only."},
    {"published_error", "step against published", "%", Better::kNeither, MetricForm::kPercent,
     "Projected step over the step that others published of the same configuration, minus one: the row's own error.",
     "Of projected rows beside a published speed whose mapping is stated. This trainer's program is projected, theirs "
     "was measured: what the two programs do differently is in it."},
    {"dp_imbalance", "DP imbalance", "%", Better::kLower, MetricForm::kPercent,
     "By how much the data-parallel rank with the most attention work of a step is above their mean; averaged over "
     "steps.",
     "Work as the sum of squared sequence lengths. Of rows that hold sequences of many lengths."},
    {"first_loss", "first loss", "", Better::kNeither, MetricForm::kPlain,
     "Loss of the first step, per token: the median of launches.", ""},
    {"last_loss", "last loss", "", Better::kLower, MetricForm::kPlain,
     "Loss of the last step, per token: the median of launches.",
     "Equal work has equal losses: a difference is a fault, not a result."},
    {"final_loss", "final loss", "", Better::kLower, MetricForm::kPlain,
     "Mean loss of the last tenth of the steps, per token: the median of launches.",
     "What a number format is judged by: one step's loss wanders more than a format changes it."},
});

std::string normalized(std::string_view text) {
  std::string out = to_lower(text);
  std::replace_if(
      out.begin(), out.end(), [](char c) { return c == '-' || c == ' '; }, '_');
  return out;
}

// Four significant digits at most, never an exponent where a person reads a rate.
std::string plain(double value) {
  const double size = std::abs(value);
  if (size >= 1000.0) return fmt::format("{:.0f}", value);
  if (size >= 100.0) return fmt::format("{:.1f}", value);
  if (size >= 1.0) return fmt::format("{:.2f}", value);
  return fmt::format("{:.4g}", value);
}

}  // namespace

const char* name(Better better) {
  switch (better) {
    case Better::kLower: return "lower";
    case Better::kHigher: return "higher";
    case Better::kNeither: return "neither";
  }
  return "neither";
}

std::span<const MetricInfo> metrics() {
  return kMetrics;
}

const MetricInfo* find_metric(std::string_view id) {
  const auto found = std::find_if(kMetrics.begin(), kMetrics.end(), [&](const auto& one) { return one.id == id; });
  return found != kMetrics.end() ? &*found : nullptr;
}

std::vector<const MetricInfo*> lookup_metrics(std::string_view term) {
  const std::string wanted = normalized(trim(term));
  std::vector<const MetricInfo*> exact;
  std::vector<const MetricInfo*> containing;
  if (wanted.empty()) return exact;
  for (const MetricInfo& metric : kMetrics) {
    const std::string id = normalized(metric.id);
    const std::string title = normalized(metric.title);
    if (id == wanted || title == wanted) exact.push_back(&metric);
    if (id.find(wanted) != std::string::npos || title.find(wanted) != std::string::npos) containing.push_back(&metric);
  }
  return exact.empty() ? containing : exact;
}

std::string describe(const MetricInfo& metric) {
  std::string text = fmt::format("{} ({})\n  {}\n", metric.title, metric.id, metric.definition);
  if (*metric.convention != '\0') text += fmt::format("  {}\n", metric.convention);
  const char* unit = *metric.unit != '\0' ? metric.unit : "none";
  if (metric.better == Better::kNeither) return text + fmt::format("  unit: {}\n", unit);
  return text + fmt::format("  unit: {}; {} is better\n", unit, name(metric.better));
}

std::string format_value(const MetricInfo& metric, double value) {
  if (!std::isfinite(value)) return "-";
  switch (metric.form) {
    case MetricForm::kDuration: return format_ns(value);
    case MetricForm::kRate:
    case MetricForm::kTeraflops: return plain(value);
    case MetricForm::kPercent: return fmt::format("{:.1f} %", value);
    case MetricForm::kBytes: return format_bytes(value);
    case MetricForm::kPlain: return fmt::format("{:.4f}", value);
  }
  return "-";
}

std::string format_half_width(const MetricInfo& metric, double low, double high) {
  if (!(low <= high) || !std::isfinite(high - low)) return "";
  const double half = 0.5 * (high - low);
  if (metric.form == MetricForm::kRate || metric.form == MetricForm::kTeraflops) return "±" + plain(half);
  return "±" + format_value(metric, half);
}

}  // namespace mbb::analysis
