// What each pass does to a program, as numbers before and after and as edits of ops: explain's summary of passes.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "trainer/program/program.h"

namespace mbb::trainer {

// Of one GPU and a whole step, but for what is named otherwise. Where no schedule stands yet, every chunk runs once a
// micro-batch.
struct PassFacts {
  int64_t launches = 0;           // ops run in a step
  int64_t forward_launches = 0;   // of them, in forward segments
  int64_t backward_launches = 0;  // in other segments of micro-batches
  int64_t once_launches = 0;      // outside micro-batches: gradient sync, optimizer
  int64_t side_ops = 0;           // of all, on other streams than compute
  int64_t comm_calls = 0;         // and those that communicate
  double wire_bytes = 0;          // what they put on the wire; a message counts at its sender
  double flops = 0;
  double bytes = 0;         // through device memory
  int64_t kept_bytes = 0;   // of one micro-batch: values that wait for the backward on the device
  int64_t host_bytes = 0;   // of one micro-batch: and in host memory
  int64_t held_bytes = 0;   // on the device between steps: weights, gradients, optimizer states
  int64_t pieces = 0;       // calls of the schedule
  int64_t arena_bytes = 0;  // of the plan, where one was made

  bool operator==(const PassFacts&) const = default;
};

PassFacts pass_facts(const Program& program);

// Ops of two programs side by side, paired by path.
struct OpEdits {
  int64_t added = 0;
  int64_t gone = 0;
  int64_t changed = 0;    // other kind, operands, attributes or place of an operand
  int64_t moved = 0;      // to another segment, stream or micro-batch
  int64_t reordered = 0;  // the fewest that had to change places

  bool operator==(const OpEdits&) const = default;
};

// A program's ops, as far as edits are told from it.
struct OpMark {
  uint64_t path = 0;     // hashes
  uint64_t content = 0;  // kind, operands with their types, shapes and places, attributes
  uint64_t place = 0;    // segment, stream, flags
};
std::vector<OpMark> op_marks(const Program& program);
OpEdits op_edits(const std::vector<OpMark>& before, const std::vector<OpMark>& after);

struct PassEffect {
  std::string pass;
  std::string knob;  // its key: "fusion.residual_fusion"
  PassFacts before, after;
  OpEdits edits;

  bool changed() const { return !(before == after) || !(edits == OpEdits{}); }
};

// Passes run over steps that are not whole yet. Their effects on the whole one: the last ends at its facts, and each
// begins where the one before it ends; what is built in between is there from the first on.
void end_at(std::vector<PassEffect>& effects, const PassFacts& whole);

// "launches 208 → 196", "4 ops changed": what `effect` changed and nothing else, most telling first.
std::vector<std::string> changes(const PassEffect& effect);

// Runs passes over a program and notes what each changed. A log that nobody will read notes nothing.
class PassLog {
 public:
  PassLog(Program& program, std::vector<PassEffect>* effects) : program_(program), effects_(effects) {}

  // `pass` changes the program; one that was not asked for is not run at all. An effect may have changed nothing.
  template <typename Pass>
  void run(const char* name, const std::string& knob, bool wanted, Pass&& pass) {
    if (!wanted) return;
    if (effects_ == nullptr) return pass();
    PassEffect effect{name, knob, pass_facts(program_), {}, {}};
    const std::vector<OpMark> before = op_marks(program_);
    pass();
    effect.after = pass_facts(program_);
    effect.edits = op_edits(before, op_marks(program_));
    effects_->push_back(std::move(effect));
  }

 private:
  Program& program_;
  std::vector<PassEffect>* effects_;
};

}  // namespace mbb::trainer
