// The tuning file's text.
#include <fmt/core.h>

#include <charconv>
#include <sstream>

#include "trainer/ops/cuda/gemm_tuning.h"

namespace mbb::trainer::cuda {
namespace {

constexpr const char* kTitle = "mbbench gemm tuning 1";

std::string machine_lines(const TuningMachine& m) {
  return fmt::format("device {}\ndriver {}\ncublaslt {}\n", m.device, m.driver, m.cublaslt);
}

std::string hex(const GemmAlgorithm& algorithm) {
  std::string out;
  for (const uint64_t word : algorithm) out += fmt::format("{:016x}", word);
  return out;
}

bool read_hex(std::string_view text, GemmAlgorithm* to) {
  if (text.size() != to->size() * 16) return false;
  for (size_t i = 0; i < to->size(); ++i) {
    const std::string_view word = text.substr(i * 16, 16);
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), (*to)[i], 16);
    if (error != std::errc() || end != word.data() + word.size()) return false;
  }
  return true;
}

}  // namespace

std::string GemmTuning::text() const {
  std::string out = fmt::format("{}\n{}", kTitle, machine_lines(machine_));
  for (const auto& [problem, choice] : choices_)
    out += fmt::format("{} | {} | {:.3f} {:.3f} {}\n", problem, hex(choice.algorithm), choice.us, choice.first_us,
                       choice.candidates);
  return out;
}

Result<GemmTuning> GemmTuning::parse(const std::string& text, const TuningMachine& machine) {
  std::istringstream in(text);
  std::string line, head;
  std::getline(in, line);
  if (line != kTitle)
    return fail(ErrorCode::kBadFile, "not a GEMM tuning file: it begins with '" + line.substr(0, 60) + "'",
                "`mbbench tune` writes one");
  for (int i = 0; i < 3 && std::getline(in, line); ++i) head += line + "\n";
  if (head != machine_lines(machine))
    return fail(ErrorCode::kBadFile,
                "GEMM tuning of another machine:\n" + head + "this one is\n" + machine_lines(machine),
                "run `mbbench tune` here");
  GemmTuning tuning(machine);
  for (int number = 5; std::getline(in, line); ++number) {
    const size_t first = line.find(" | "), second = first == std::string::npos ? first : line.find(" | ", first + 3);
    TunedGemm choice;
    std::istringstream numbers(second == std::string::npos ? "" : line.substr(second + 3));
    if (second == std::string::npos ||
        !read_hex(std::string_view(line).substr(first + 3, second - first - 3), &choice.algorithm) ||
        !(numbers >> choice.us >> choice.first_us >> choice.candidates))
      return fail(ErrorCode::kBadFile, fmt::format("GEMM tuning, line {}: not understood", number),
                  "run `mbbench tune` again");
    tuning.set(line.substr(0, first), choice);
  }
  return tuning;
}

GemmTuning GemmTuning::agreed(const std::vector<std::string>& texts, const TuningMachine& machine,
                              std::vector<std::pair<size_t, Error>>* refused) {
  GemmTuning all(machine);
  for (size_t i = 0; i < texts.size(); ++i) {
    auto one = parse(texts[i], machine);
    if (!one) refused->emplace_back(i, one.error());
    if (one) all.choices_.insert(one->choices_.begin(), one->choices_.end());
  }
  return all;
}

const TunedGemm* GemmTuning::find(const std::string& problem) const {
  const auto at = choices_.find(problem);
  return at == choices_.end() ? nullptr : &at->second;
}

}  // namespace mbb::trainer::cuda
