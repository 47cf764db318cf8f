// What ops and messages take on a card, as a value: measured points, ceilings, and how far each is to be trusted.
//
// Tables lie in baselines/kernels and are read by the caller; nothing here knows a card. A duration is always
// (work / rate + latency) · the term's factor. Rates are TFLOP/s, bandwidths GB/s (10⁹ bytes), times µs.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "profiler/base/error.h"
#include "trainer/models/flops.h"
#include "trainer/ops/op_kind.h"
#include "trainer/program/program.h"
#include "trainer/program/row_lengths.h"

namespace mbb::trainer {

// Parts of a projection that are right or wrong together.
enum class CostTerm : uint8_t { kGemm, kGemmFp8, kGrouped, kAttention, kMemory, kNvlink, kNetwork, kHost };
inline constexpr size_t kCostTerms = 8;
const char* name(CostTerm term);  // "gemm", "gemm_fp8", "grouped_gemm", "attention", ...

struct TermFacts {
  double factor = 1;    // on the term's time
  bool fitted = false;  // the factor is fitted to published steps, not measured
  double sigma = 0.1;   // relative standard deviation of the term's time
  std::string source;
};

struct GemmPoint {
  double m = 0, n = 0, k = 0;  // rows, columns and inner dimension of the product
  double tflops = 0;
};

// Which of the measured forms a product has.
enum class GemmForm : uint8_t { kFprop, kDgrad, kWgrad, kWgradAccumulate };
inline constexpr size_t kGemmForms = 4;
using GemmPoints = std::array<std::vector<GemmPoint>, kGemmForms>;

// An attention core takes FLOPs / rate · (1 + half_keys / keys) + latency: short rows fill tiles badly. FLOPs are model
// FLOPs: the backward has twice the forward's.
struct AttentionRate {
  double head_dim = 0;
  double tflops = 0;     // of endless rows
  double half_keys = 0;  // keys of a query at which half of it is reached
  double us = 0;
};

// A share of device copy bandwidth that an op kind reaches.
struct KernelShare {
  std::string kind;
  double share = 1;
};

// Bus bandwidth inside an NVLink domain: between two GPUs, and among many; and what it takes from a product.
struct BusBandwidth {
  double pair = 0;
  double many = 0;
  double cta = 0;     // what one SM's thread block moves, where a collective is told how many it has; 0: no limit
  double beside = 1;  // how many times as long a product on all SMs takes while it runs, unless on copy engines
};

// Errors of projected steps, each of its absolute value relative to the step that somebody measured.
struct StepErrors {
  int rows = 0;  // 0: none was compared
  double median = 0, p90 = 0;
  double coverage = 0;  // share of steps inside the 80 % interval
};

// What projections with this table were worth when it was made, on published steps.
struct PublishedAccuracy {
  double tp_hidden = 0;   // share of tensor-parallel time their trainer's overlap hides, fitted; 0 when unknown
  double older_loss = 0;  // share of the step that their software before 2025 took longer, fitted
  int rows = 0;           // 0: not compared
  int models = 0;
  double median = 0;  // of the absolute relative errors
  double p90 = 0;
  double coverage = 0;  // of the 80 % interval
  // The same of rows whose model the fit did not see.
  double unseen_median = 0;
  double unseen_p90 = 0;
  double unseen_coverage = 0;
  // Published steps as this trainer's programs of their configurations are projected, nothing assumed: what stands
  // beside a row of ours is of these. By family, since nothing is fitted to models with experts.
  StepErrors dense, experts;
  // The same steps with what is assumed of the trainers that took them: tp_hidden, FP8 gathers, older_loss.
  StepErrors dense_assumed, experts_assumed;
  StepErrors ours;  // this trainer's own steps on one such card
  // Two projections share most of their error: within what the ratio of two steps of one model was off, projected (with
  // those assumptions) over published, in 80 % of pairs of the same release. 0: unknown.
  double ratio_error = 0;
};

// A whole step of this trainer that the card has run: what the rates together are judged by.
struct MeasuredStep {
  std::string model;
  int64_t layers = 0, sequence = 0, micro_batch = 1, micro_batches = 1;
  std::string recipe;
  double ms = 0;
};

struct CostTable {
  std::string hardware;  // "h100-sxm"
  std::string date;
  bool measured = false;  // else every rate is a share of a ceiling
  std::array<TermFacts, kCostTerms> terms;
  double model_sigma = 0.1;  // of the step, beyond the terms': what the published rows leave unexplained

  GemmPoints bf16, fp8;
  double blocks_rate = 1;  // of a product with a scale a block, to one with a scale a tensor
  // Experts' weight gradients from FP8, to one product of all their rows: with a scale a tensor, and a block.
  double grouped_wgrad_fp8 = 1, grouped_wgrad_blocks = 1;
  double uneven_rows = 0;   // that an expert's tiles lose where routing is not forced to balance
  double other_tflops = 0;  // FLOPs outside of products and attention
  std::vector<AttentionRate> attention_forward, attention_backward;  // by head dimension, ascending
  // Time of a causal core over packs, to the same pairs at the rates above; never more than over whole rows.
  double packed_forward = 1, packed_backward = 1;
  double copy_gb_s = 0;                    // device memory, read + written
  std::vector<KernelShare> kernel_shares;  // kinds that are not here have `other_share`
  double other_share = 0.8;
  double kernel_us = 0;  // beside its work: start and end of a kernel
  double issue_us = 0;   // host time to launch one
  int sms = 1;

  BusBandwidth all_gather, reduce_scatter, all_reduce, all_to_all, point_to_point;
  double nvlink_us = 0;   // latency of a collective inside a domain
  double nic_gb_s = 0;    // of a GPU's own network port
  double network_us = 0;  // latency of a collective that leaves a domain
  double hop_us = 0;      // and for each member
  int domain = 8;         // GPUs of an NVLink domain
  double scale_loss = 0;  // share of the step lost for each doubling of the world beyond a domain: stragglers, jitter

  PublishedAccuracy published;
  std::vector<MeasuredStep> steps;

  const TermFacts& term(CostTerm t) const { return terms[static_cast<size_t>(t)]; }
};

// Where a group's members stand, seen from one of them.
struct GroupPlace {
  int members = 1;
  int in_domain = 1;  // of them, in this rank's NVLink domain
};

struct OpCost {
  double ns = 0;
  CostTerm term = CostTerm::kMemory;
  double slows = 1;     // what communicates: BusBandwidth::beside
  bool slowed = false;  // a product that leaves no SMs to what runs beside it
};

// One execution of an op. `place` is of its group, for ops that communicate.
OpCost op_cost(const CostTable& table, const OpView& view, const GroupPlace& place);

// The rate of a product, between measured points: means of TFLOP/s weighted by nearness in log m, log n, log k.
double gemm_tflops(std::span<const GemmPoint> points, double m, double n, double k);

// Costs of every op of every rank class, by class, segment and op.
struct StepCosts {
  std::vector<std::vector<std::vector<OpCost>>> ops;
  const OpCost& at(int rank_class, int segment, int op) const {
    return ops[static_cast<size_t>(rank_class)][static_cast<size_t>(segment)][static_cast<size_t>(op)];
  }
};

// kUnavailable for number types the card has no rates for. `rows`: of programs whose rows hold sequences of many
// lengths; without them attention is charged over whole rows, with them packed attention at the packed rates.
Result<StepCosts> step_costs(const CostTable& table, const Mesh& mesh, std::span<const Program> programs,
                             const RowLengths* rows = nullptr);

}  // namespace mbb::trainer
