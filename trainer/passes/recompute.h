// The recompute pass: activations that the backward computes again instead of keeping.
//
// It drops a set of forward values and puts clones of the ops that made them into the backward, each before its first
// reader there and none that nobody reads. A clone reads what the op read (its dropped inputs cloned in turn), writes
// values of its own and has the path of the op with ".recompute" behind it. Ops that write state or run on some
// micro-batches only are never cloned: their values are kept. Random numbers are counters of path, step and sample, so
// a clone draws the same ones, and gradients are equal bit for bit.
//
// Runs after precision and fusion, before buckets, schedule and scopes.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "profiler/base/error.h"
#include "trainer/program/program.h"
#include "trainer/run/config.h"

namespace mbb::trainer {

// A part of a layer that selective recompute can take, as Megatron-Core names them ("act" is ours).
struct RecomputeModule {
  std::string_view name;
  std::string_view what;
  bool needs_experts = false;
  bool needs_shared_expert = false;
  bool needs_mla = false;
  std::vector<std::string_view> values;           // beginnings of tensor paths below the layer's: "attn.core."
  std::vector<std::string_view> not_values = {};  // and those it leaves
  bool dense_only = false;                        // layers whose feed-forward is dense
};
std::span<const RecomputeModule> recompute_modules();

// The modules of memory.recompute_modules. Errors (kBadArgument) name the knob and the choices.
Result<std::vector<const RecomputeModule*>> parse_recompute_modules(std::string_view text);

void recompute(Program& program, int forward, int backward, const MemoryConfig& memory);

}  // namespace mbb::trainer
