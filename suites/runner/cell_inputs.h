// What a launch reads beside its configuration: the data a cell trains on and the CPUs its ranks are bound to.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "profiler/base/error.h"
#include "suites/matrix/suite.h"
#include "trainer/run/layout.h"

namespace mbb::suites {

// Refuses what would end a launch here before anything is written: data named by data.path that cannot be read, is
// empty, or is too short for one sample; CPUs of host.cpu_binding that are none or not ours. Reads no data whole but
// JSON lines. Errors name the knob.
Status check_inputs(const trainer::Config& config);
// The same of every cell that launches the built-in trainer on this machine.
Status check_inputs(const Suite& suite);

// Hashes of the data that cells train on, each file read once.
class DataHashes {
 public:
  // TokenSource::identity(); empty for independent tokens, which no file holds, and for data that cannot be read.
  std::string of(const trainer::Layout& layout);

 private:
  std::map<std::string, std::string> known_;  // by kind, path and vocabulary
};

// Unigram entropy of the data in nats. NaN when it cannot be read (the launch has said so already), and of independent
// tokens, which teach nothing.
double entropy_of(const trainer::Config& config, int64_t vocab_size);

}  // namespace mbb::suites
