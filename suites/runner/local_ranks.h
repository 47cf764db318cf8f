// Ranks of a launch as processes of this host, one a GPU: the launch's process is rank 0 and starts the others.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "profiler/base/error.h"
#include "trainer/run/config.h"

namespace mbb::suites {

class LocalRanks {
 public:
  // Starts `program` for ranks 1 .. ranks - 1, each with a folder of its own in `folder`, which it gets as the
  // launch's, and makes this process rank 0 by the variables that process_place() reads. Call it before there are
  // threads.
  static Result<std::unique_ptr<LocalRanks>> start(const std::filesystem::path& folder, int ranks,
                                                   const std::string& program);
  ~LocalRanks() { end(); }
  LocalRanks(const LocalRanks&) = delete;
  LocalRanks& operator=(const LocalRanks&) = delete;

  // Waits a little for those that are ending, then ends them.
  void end();
  std::vector<std::filesystem::path> folders() const;  // theirs, from rank 1 on

  // An error when one of them has ended, with what it said last.
  Status check();

 private:
  struct Rank {
    pid_t process = -1;  // -1: has ended
    std::filesystem::path log;
  };
  LocalRanks() = default;

  std::filesystem::path folder_;
  std::vector<Rank> ranks_;  // from 1 on
};

// Those that a configuration needs which no launcher started: none on the CPU, where ranks are threads, or of one rank.
Result<std::unique_ptr<LocalRanks>> local_ranks_of(const trainer::Config& config, const std::filesystem::path& folder);

// Whether a launch's process is one rank, of a launcher's or of those above, rather than all of them.
bool ranks_are_processes(const trainer::Config& config, int ranks);

}  // namespace mbb::suites
