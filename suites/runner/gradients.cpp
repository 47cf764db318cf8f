// One file a launch: a line a weight with its path and elements, an empty line, then all values as little-endian fp32.
#include "suites/runner/gradients.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "profiler/base/file.h"
#include "profiler/base/text.h"
#include "trainer/run/initial_state.h"

namespace mbb::suites {
namespace {

double norm(const std::vector<float>& values) {
  double squares = 0;
  for (const float v : values) squares += static_cast<double>(v) * static_cast<double>(v);
  return std::sqrt(squares);
}

// Of as many elements as both have: what one has more is padding of the vocabulary (fits()).
double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double squares = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    squares += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
  return std::sqrt(squares);
}

// Tables of the vocabulary, [tokens, ...]: tensor parallelism pads them by rows at the end, which get no gradient.
bool is_padded(std::string_view path) {
  return path == "embedding.weight" || path == "lm_head.weight";
}

// Whether gradients of a weight can be compared: of one size, or one is the other and rows without a gradient.
bool fits(const std::string& path, const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() == b.size()) return true;
  const std::vector<float>& longer = a.size() > b.size() ? a : b;
  const auto padding = longer.begin() + static_cast<std::ptrdiff_t>(std::min(a.size(), b.size()));
  return is_padded(path) && std::all_of(padding, longer.end(), [](float g) { return g == 0; });
}

// What gradients of a weight are divided by.
double reach_of(const std::vector<float>& exact, double global_norm) {
  return std::max(norm(exact), 1e-3 * global_norm);
}

double global_norm(const Gradients& all) {
  double squares = 0;
  for (const auto& [path, values] : all) squares += std::pow(norm(values), 2);
  return std::sqrt(squares);
}

}  // namespace

void GradientRecorder::add(const trainer::MeshCoordinates& rank, int64_t step, const trainer::Tensor& weight,
                           int64_t first, std::span<const float> part) {
  if (step != 0) return;
  const trainer::Shape& full = weight.full_shape.rank() > 0 ? weight.full_shape : weight.shape;
  const std::lock_guard lock(mutex_);
  auto& values = whole_[weight.path];
  values.resize(static_cast<size_t>(full.elements()), std::nanf(""));
  for (size_t i = 0; i < part.size(); ++i)
    values[static_cast<size_t>(trainer::unsharded_index(weight, rank, first + static_cast<int64_t>(i)))] = part[i];
}

Status GradientRecorder::write(const std::filesystem::path& folder) const {
  std::string bytes;
  for (const auto& [path, values] : whole_) bytes += fmt::format("{} {}\n", path, values.size());
  bytes += '\n';
  for (const auto& [path, values] : whole_)
    bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  return write_file(folder / kGradientsFile, bytes);
}

Result<Gradients> read_gradients(const std::filesystem::path& launch_folder) {
  const std::filesystem::path file = launch_folder / kGradientsFile;
  MB_ASSIGN(const std::string bytes, read_file(file));
  const auto bad = [&] {
    return fail(ErrorCode::kBadFile, fmt::format("{} is no record of gradients", file.string()));
  };
  std::vector<std::pair<std::string, size_t>> weights;
  size_t at = 0;
  while (true) {
    const size_t end = bytes.find('\n', at);
    if (end == std::string::npos) return bad();
    const std::string line = bytes.substr(at, end - at);
    at = end + 1;
    if (line.empty()) break;
    const size_t space = line.rfind(' ');
    const auto count = space == std::string::npos ? std::nullopt : parse_int(line.substr(space + 1));
    if (!count || *count < 0) return bad();
    weights.emplace_back(line.substr(0, space), static_cast<size_t>(*count));
  }
  Gradients all;
  for (const auto& [path, count] : weights) {
    if (bytes.size() - at < count * sizeof(float)) return bad();
    auto& values = all[path];
    values.resize(count);
    std::memcpy(values.data(), bytes.data() + at, count * sizeof(float));
    at += count * sizeof(float);
  }
  if (at != bytes.size()) return bad();
  return all;
}

namespace {

// How far one rank's rounding goes in a weight, as a part of its reach.
double rounding_of(const RoundedGradients& seed, const std::string& path) {
  const auto exact = seed.exact.find(path), rounded = seed.rounded.find(path);
  if (exact == seed.exact.end() || rounded == seed.rounded.end() || !fits(path, exact->second, rounded->second))
    return 0;
  return distance(rounded->second, exact->second) / reach_of(exact->second, global_norm(seed.exact));
}

}  // namespace

void judge_gradients(baselines::Cell& cell, const Gradients& mine, const Gradients& exact, const Gradients* rounded,
                     const std::string& against, const std::vector<RoundedGradients>& other_seeds) {
  if (cell.status != baselines::CellStatus::kOk) return;
  baselines::VerdictRow row;
  row.subject = "gradients";
  row.against = against;
  row.change = 0;
  const double global = global_norm(exact);
  std::string worst;
  std::string broken;
  for (const auto& [path, b] : exact) {
    const auto found = mine.find(path);
    if (found == mine.end() || !fits(path, found->second, b)) {
      broken = fmt::format("{} has no gradient, or one of another size", path);
      break;
    }
    const double reach = reach_of(b, global);
    const double error = distance(found->second, b) / reach;
    double limit = kGradientTolerance;
    if (rounded != nullptr) {
      const auto near = rounded->find(path);
      if (near == rounded->end() || !fits(path, near->second, b)) continue;
      limit = std::max(2 * distance(near->second, b) / reach, kGradientTolerance);
      for (const RoundedGradients& seed : other_seeds) limit = std::max(limit, 2 * rounding_of(seed, path));
    }
    if (!(error <= limit) && broken.empty())
      broken =
          fmt::format("gradient of {} differs from {} by {:.2e} (limit {:.1e} relative)", path, against, error, limit);
    if (!(error <= row.change)) row.change = error, worst = path;
  }
  row.verdict = broken.empty() ? baselines::Verdict::kSame : baselines::Verdict::kBroken;
  row.text = broken.empty() ? fmt::format("gradients of {} weights equal {} within {:.1e} relative (most: {})",
                                          exact.size(), against, row.change, worst)
                            : broken;
  if (!broken.empty()) {
    cell.status = baselines::CellStatus::kBroken;
    cell.reason = broken;
    cell.metrics.clear();
  }
  cell.verdicts.push_back(std::move(row));
}

}  // namespace mbb::suites
