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

// Reads this machine and this build. `more`: facts that other libraries know (cuBLASLt's and NCCL's versions). A fact
// that cannot be read is there with the value "unknown", so that its absence is seen.
Fingerprint take_fingerprint(std::vector<HostFact> more = {});

// What this build is: build.commit, build.compiler, build.checks, as a fingerprint has them and `mbbench --version`
// prints them.
std::vector<HostFact> build_facts();

// Sorts the facts and hashes those with in_class; the order they come in does not matter.
Fingerprint make_fingerprint(std::vector<HostFact> facts);

// "14c3b1fe0a2d", with "-dirty" when the tree had uncommitted changes, or "unknown" outside a checkout. Taken at each
// build, not at configure time.
std::string build_commit();

// Fields of "name<separator>value" texts such as /proc/cpuinfo and /etc/os-release: the first value, without quotes and
// blanks around; empty when there is none.
std::string field_of(std::string_view text, std::string_view field, char separator);

}  // namespace mbb::profiler
