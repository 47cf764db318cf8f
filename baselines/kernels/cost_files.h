// Cost tables of cards, as the text of the TOML files beside this one; built into the program. Whoever projects reads
// them into the trainer's CostTable.
#pragma once

#include <span>
#include <string_view>

namespace mbb::baselines {

struct CostFile {
  std::string_view hardware;  // "h100-sxm"
  std::string_view path;      // from the project's root, for messages
  const std::string_view* text = nullptr;
};

std::span<const CostFile> cost_files();

}  // namespace mbb::baselines
