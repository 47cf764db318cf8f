// Trains twins in child processes and judges them.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "suites/runner/runner.h"
#include "suites/runner/twin.h"

namespace mbb::suites {

class TwinRunner {
 public:
  // Launches lie in `folder`, a folder of each structure. `on_line`: what children print.
  TwinRunner(std::filesystem::path folder, const RunOptions& options, std::function<void(std::string_view)> on_line)
      : folder_(std::move(folder)), options_(options), on_line_(std::move(on_line)) {}

  // How the twin ends: remembered, or from running it and, unless remembered, its one-rank reference. Nothing when the
  // run was stopped meanwhile. kIo when the machine does not let us.
  Result<std::optional<TwinEnd>> run(const Twin& twin);

  // Twins that ran, not counting those that were remembered.
  int trained() const { return trained_; }

 private:
  // The trained cell; broken with its reason when the child failed; nothing when stopped.
  Result<std::optional<baselines::Cell>> train(const trainer::Config& config, const std::string& name, int ranks);
  Result<TwinEnd> judge(baselines::Cell mapped, const baselines::Cell& alone) const;

  std::filesystem::path folder_;
  const RunOptions& options_;
  std::function<void(std::string_view)> on_line_;
  TwinMemory memory_;
  int trained_ = 0;
};

}  // namespace mbb::suites
