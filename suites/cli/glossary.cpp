// The list of words.
#include "suites/cli/glossary.h"

#include <algorithm>
#include <iterator>

#include "profiler/base/text.h"

namespace mbb::suites {
namespace {

constexpr Term kTerms[] = {
    {"class",
     "How a cell's numbers came about: measured, ghost, projected or functional/cpu. Classes never mix: comparisons, "
     "series and baselines stay inside one."},
    {"measured", "Every rank was real, on the device and the number of devices that the class names."},
    {"ghost", "One rank was real, its peers were emulated: their messages are timed, not sent."},
    {"projected", "Simulated from the cell's real rank programs and a card's costs. Nothing was measured."},
    {"functional/cpu",
     "Trained by CPU ranks: losses, gradients and memory are right, the times say nothing about a GPU."},
    {"numerics-only",
     "The device lacks the precision recipe, which was emulated: right numbers, never in a performance series."},
    {"SYNTHETIC", "Made up for a test or a demonstration; not one number was measured."},

    {"ok", "The cell ran, or was projected, and nothing that was checked is wrong."},
    {"skipped", "Not possible here; the reason stands in the row. No fault of the cell."},
    {"broken", "A wrong result, a crash or no answer; the reason stands in the row, and its numbers are not kept."},
    {"unstable",
     "It ran, and its times cannot be relied on: too few steps, no steady state, or launches that do not agree."},
    {"unproven",
     "It ran, and its losses were compared with nothing: that takes a one-rank cell of the same model, data and batch "
     "in the same run, and in lower precision one in fp32 beside it. The suite `quickstart` shows how one is written."},
    {"scaling",
     "Of cells that differ in their GPUs: strong with the same batch, weak with the same batch a GPU. Efficiency is "
     "tokens/s/GPU over that of the fewest GPUs; `mbbench show RUN` prints it."},
    {"proxy", "A model with fewer of its layers. Its own series, and nothing that was published stands beside it."},
    {"missing", "Planned and not run yet: `mbbench suite SUITE --resume` goes on."},

    {"slower", "Verdict: worse than what it is held against, beyond what noise explains."},
    {"same",
     "Verdict: no difference beyond the limit; of losses and gradients, equal within their tolerance. Of the gate: "
     "slower by less than 1 % with 95 %, one-sided, over the nights named, and tonight does not stand out of them. Of "
     "ab: the 95 % interval lies within 1 % to both sides."},
    {"faster", "Verdict: better than what it is held against, beyond what noise explains."},
    {"new", "Verdict: there is no baseline of this series on this machine yet."},
    {"inconclusive", "Verdict: the evidence allows neither answer; more launches or more steps may."},
    {"incomparable", "Verdict: the two may not be held against each other: another class, machine or epoch."},

    {"learning",
     "Verdict on a cell: whether the mean loss of its last steps is below the data's unigram entropy, which a model "
     "reaches that knows how frequent tokens are and nothing else. Short runs are inconclusive."},
    {"loss", "Verdict on a cell: whether its losses equal those of one rank at every step."},
    {"gradients", "Verdict on a cell: whether its gradients equal those of one rank."},
    {"twin",
     "The structure of a cell that asks for GPUs, in small, trained by CPU ranks: it must equal one rank, whatever "
     "the times of the cell rest on."},
    {"machine",
     "Verdict on a launch: whether the machine itself changed, or another process used its GPU, by short fixed work."},
    {"drift", "Verdict on a launch: whether its steps became slower or faster while it ran, and with which clock."},

    {"cell", "One resolved configuration of a suite; `mbbench run` has one."},
    {"launch", "One fresh process tree that runs a cell. Evidence counts launches, not steps."},
    {"baseline", "Accepted launches of a series, against which a gate holds fresh ones: `mbbench baseline`."},
    {"series", "The same cell over time: model, class, devices, data and the knobs that are not at their defaults."},
    {"epoch", "A stretch of time without a change of environment: driver, firmware, libraries, kernel."},
    {"outside the arena",
     "Memory that libraries and the allocator hold beside the planned arena, as seen on the device."},
    {"planned", "Of memory: what the plan of the step program places in its arena before anything runs."},
};

}  // namespace

std::span<const Term> glossary() {
  return kTerms;
}

const Term* find_term(std::string_view word) {
  const std::string wanted = to_lower(word);
  const auto* const found =
      std::find_if(std::begin(kTerms), std::end(kTerms), [&](const Term& t) { return to_lower(t.word) == wanted; });
  return found != std::end(kTerms) ? found : nullptr;
}

}  // namespace mbb::suites
