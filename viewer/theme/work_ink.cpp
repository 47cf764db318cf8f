// Word rules, first match wins.
#include "viewer/theme/work_ink.h"

#include <array>
#include <string>

#include "profiler/base/text.h"

namespace mbb::viewer {

Ink category_ink(std::string_view category) {
  struct Rule {
    std::string_view word;
    Ink ink;
  };
  static constexpr std::array kRules = {Rule{"weight", Ink::kGemm},         Rule{"param", Ink::kGemm},
                                        Rule{"grad", Ink::kCopy},           Rule{"activation", Ink::kActivation},
                                        Rule{"optim", Ink::kOptimizer},     Rule{"master", Ink::kOptimizer},
                                        Rule{"moment", Ink::kOptimizer},    Rule{"comm", Ink::kCommunication},
                                        Rule{"attention", Ink::kAttention}, Rule{"offload", Ink::kMemoryBound}};
  const std::string lower = to_lower(category);
  for (const Rule& rule : kRules) {
    if (lower.find(rule.word) != std::string::npos) return rule.ink;
  }
  return Ink::kHost;
}

Ink op_ink(std::string_view kind, std::string_view path) {
  struct Rule {
    std::string_view word;
    Ink ink;
  };
  static constexpr std::array kRules = {Rule{"idle", Ink::kHost},
                                        Rule{"adam", Ink::kOptimizer},
                                        Rule{"optim", Ink::kOptimizer},
                                        Rule{"all_reduce", Ink::kCommunication},
                                        Rule{"all_gather", Ink::kCommunication},
                                        Rule{"reduce_scatter", Ink::kCommunication},
                                        Rule{"all_to_all", Ink::kCommunication},
                                        Rule{"send", Ink::kCommunication},
                                        Rule{"recv", Ink::kCommunication},
                                        Rule{"reshard", Ink::kCommunication},
                                        Rule{"broadcast", Ink::kCommunication},
                                        Rule{"nccl", Ink::kCommunication},
                                        Rule{"attention", Ink::kAttention},
                                        Rule{"attn.core", Ink::kAttention},
                                        Rule{"flash", Ink::kAttention},
                                        Rule{"gemm", Ink::kGemm},
                                        Rule{"matmul", Ink::kGemm},
                                        Rule{"linear", Ink::kGemm},
                                        Rule{"copy", Ink::kCopy},
                                        Rule{"memcpy", Ink::kCopy},
                                        Rule{"offload", Ink::kCopy}};
  for (const std::string_view text : {kind, path}) {
    const std::string lower = to_lower(text);
    for (const Rule& rule : kRules) {
      if (lower.find(rule.word) != std::string::npos) return rule.ink;
    }
  }
  return Ink::kMemoryBound;
}

}  // namespace mbb::viewer
