// What each pass does to a program, as numbers before and after: explain's summary of passes.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "trainer/program/program.h"

namespace mbb::trainer {

// A micro-batch that is neither first nor last, over all chunks; bytes are through device memory.
struct PassFacts {
  int64_t forward_ops = 0;
  int64_t backward_ops = 0;
  int64_t comm_ops = 0;  // of both
  double flops = 0;
  double bytes = 0;
  int64_t kept_bytes = 0;  // values that wait for the backward on the device
  int64_t host_bytes = 0;  // and in host memory

  bool operator==(const PassFacts&) const = default;
};

PassFacts pass_facts(const Program& program);

struct PassEffect {
  std::string pass;
  PassFacts before, after;
};

// Runs passes over a program and notes what each changed.
class PassLog {
 public:
  explicit PassLog(Program& program) : program_(program) {}

  // `pass` changes the program; one that was not asked for is not run at all.
  template <typename Pass>
  void run(const std::string& name, bool wanted, Pass&& pass) {
    if (!wanted) return;
    const PassFacts before = pass_facts(program_);
    pass();
    effects_.push_back({name, before, pass_facts(program_)});
  }

  // A part of every build, noted where the numbers change.
  template <typename Part>
  void note(const std::string& name, Part&& part) {
    const PassFacts before = pass_facts(program_);
    part();
    if (const PassFacts after = pass_facts(program_); !(after == before)) effects_.push_back({name, before, after});
  }

  std::vector<PassEffect> take() { return std::move(effects_); }

 private:
  Program& program_;
  std::vector<PassEffect> effects_;
};

}  // namespace mbb::trainer
