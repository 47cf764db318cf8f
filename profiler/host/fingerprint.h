// What a machine is: facts about host, devices and libraries, and the hash of those that make timings comparable.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace mbb::profiler {

// One fact about the host or this build: `key` is dotted and stable ("cpu.model", "gpu.driver", "build.commit").
// `in_class`: two machines that differ in it do not share a series (device, driver, libraries); others are recorded
// only.
struct HostFact {
  std::string key;
  std::string value;
  bool in_class = false;
};

struct Fingerprint {
  std::vector<HostFact> facts;  // sorted by key
  std::string class_hash;       // 16 hexadecimal digits over the facts with in_class
};

}  // namespace mbb::profiler
