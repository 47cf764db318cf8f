// What must hold for a knob to do anything. A record names its needs (Knob::needs) by the words here; where one does
// not hold, a recipe written for another mapping is told so, and a knob of a part that the model lacks is refused.
#pragma once

#include <span>

#include "profiler/base/error.h"
#include "trainer/run/layout.h"

namespace mbb::trainer {

namespace needs {
inline constexpr const char* kExperts = "a model with experts";
inline constexpr const char* kEncoder = "a model with an encoder";
inline constexpr const char* kEp = "ep > 1";
inline constexpr const char* kExchange = "ep > 1, or etp unlike tp";
inline constexpr const char* kCapacity = "moe_expert_capacity_factor above 0";
inline constexpr const char* kDropless = "moe_expert_capacity_factor = 0, or tp > 1";
inline constexpr const char* kPp = "pp > 1";
inline constexpr const char* kMessages = "pp > 1, or an encoder with GPUs of its own";
inline constexpr const char* kDataParallel = "several data-parallel GPUs";
inline constexpr const char* kCp = "cp > 1";
inline constexpr const char* kWholeVocabulary = "tp = 1";
inline constexpr const char* kOneLoss = "mtp_num_layers = 0";
inline constexpr const char* kDecay = "lr_decay_style other than constant";
inline constexpr const char* kStepsAfterWarmup = "train_iters above lr_warmup_iters";
inline constexpr const char* kAmaxHistory = "fp8_amax_history_len above 1";
inline constexpr const char* kGpu = "host.device = cuda";
inline constexpr const char* kLearnedPositions = "a model with learned positions";
inline constexpr const char* kDenseMlp = "a model with a dense MLP";
inline constexpr const char* kWholeGradients = "gradients and parameters that are not sharded";
inline constexpr const char* kReduced = "several data-parallel GPUs, or sequence_parallel";
inline constexpr const char* kBareSums = "RMS norms, or a product right before a residual sum";
}  // namespace needs

enum class Unmet {
  kDefault,  // the knob is as if it had not been given, and the layout says so
  kKept,     // the layout says so, and the value stays: the program does not depend on it
  kRefused,  // unless the value is false or 0, which asks for nothing
};

struct KnobNeed {
  const char* words;
  bool (*holds)(const Layout&);
  Unmet unmet;
};

// Several GPUs hold the same parameters of some kind.
bool has_replicas(const Layout& layout);

// Every need there is.
std::span<const KnobNeed> knob_needs();

// Refuses (kBadArgument) knobs of parts that the model lacks. Knobs that do nothing otherwise get their defaults in
// `layout`, so that they change no program, and are listed in layout.idle with what was `asked`. The mesh is there;
// what follows from such knobs is laid out afterwards.
Status settle_idle_knobs(const Config& asked, Layout& layout);

}  // namespace mbb::trainer
