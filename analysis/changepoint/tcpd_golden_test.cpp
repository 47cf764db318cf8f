// Changes of series that people annotated (TCPD; van den Burg and Williams, arXiv 2003.06222): scores beside BINSEG's.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "analysis/changepoint/changes.h"
#include "analysis/gate/simulated_nights.h"
#include "profiler/base/env.h"
#include "profiler/base/file.h"

namespace mbb::analysis {
namespace {

constexpr const char* kTable = MBB_SOURCE_DIR "/analysis/changepoint/tcpd_scores.tsv";
constexpr size_t kMargin = 5;

using Places = std::set<size_t>;  // first points of new stretches

struct Scores {
  double f1 = 0, cover = 0;
};

// How many of `truth` have a place of their own in `found` within the margin; each takes the nearest that is left.
double matched(const Places& truth, Places found) {
  const auto off = [](size_t a, size_t b) { return a < b ? b - a : a - b; };
  double count = 0;
  for (const size_t t : truth) {
    const auto nearest =
        std::min_element(found.begin(), found.end(), [&](size_t a, size_t b) { return off(a, t) < off(b, t); });
    if (nearest == found.end() || off(*nearest, t) > kMargin) continue;
    found.erase(nearest);
    ++count;
  }
  return count;
}

// Precision over what anyone annotated, recall as the annotators' mean; all agree that a series starts at its start.
double f1_of(const std::vector<Places>& annotators, Places found) {
  found.insert(0);
  Places anyone;
  double recall = 0;
  for (Places truth : annotators) {
    truth.insert(0);
    recall += matched(truth, found) / static_cast<double>(truth.size() * annotators.size());
    anyone.merge(truth);
  }
  const double precision = matched(anyone, found) / static_cast<double>(found.size());
  return 2 * precision * recall / (precision + recall);
}

// Each annotated stretch's largest overlap (intersection over union) with a found one, weighted by its length.
double cover_of(const std::vector<Places>& annotators, const Places& found, size_t count) {
  const auto bounds = [&](const Places& places) {
    Places all = places;
    all.insert({0, count});
    return std::vector<size_t>(all.begin(), all.end());
  };
  const std::vector<size_t> ours = bounds(found);
  double sum = 0;
  for (const Places& truth : annotators) {
    const std::vector<size_t> theirs = bounds(truth);
    for (size_t i = 0; i + 1 < theirs.size(); ++i) {
      double best = 0;
      for (size_t k = 0; k + 1 < ours.size(); ++k) {
        const size_t from = std::max(theirs[i], ours[k]), to = std::min(theirs[i + 1], ours[k + 1]);
        const size_t whole = std::max(theirs[i + 1], ours[k + 1]) - std::min(theirs[i], ours[k]);
        if (from < to) best = std::max(best, static_cast<double>(to - from) / static_cast<double>(whole));
      }
      sum += best * static_cast<double>(theirs[i + 1] - theirs[i]);
    }
  }
  return sum / static_cast<double>(count * annotators.size());
}

// Binary segmentation as the benchmark ran it: a Gaussian's mean changes, its variance is one; at most Q = 5 changes;
// the modified BIC, 3 ln n a change and ln of each stretch's length (Zhang and Siegmund 2007).
Places binseg(const std::vector<double>& values) {
  std::vector<double> sums{0.0}, squares{0.0};
  for (const double v : values) sums.push_back(sums.back() + v), squares.push_back(squares.back() + v * v);
  const auto cost = [&](size_t from, size_t to) {
    const double sum = sums[to] - sums[from], length = static_cast<double>(to - from);
    return squares[to] - squares[from] - sum * sum / length + std::log(length);
  };
  Places bounds{0, values.size()};
  while (bounds.size() < 2 + 5) {
    double most = 3 * std::log(static_cast<double>(values.size()));
    size_t at = 0;
    for (auto from = bounds.begin(), to = std::next(from); to != bounds.end(); ++from, ++to)
      for (size_t k = *from + 1; k < *to; ++k) {
        const double gain = cost(*from, *to) - cost(*from, k) - cost(k, *to);
        if (gain > most) most = gain, at = k;
      }
    if (at == 0) break;
    bounds.insert(at);
  }
  bounds.erase(0);
  bounds.erase(values.size());
  return bounds;
}

std::vector<double> standardized(std::vector<double> values) {
  const auto count = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  double squares = 0;
  for (double& v : values) v -= mean, squares += v * v;
  for (double& v : values) v /= std::sqrt(squares / (count - 1));
  return values;
}

// Some series are negative. Standardized as the benchmark does, one standard deviation becomes 1 % of a night's time.
Places changes_of(std::vector<double> values) {
  for (double& v : values) v = std::exp(0.01 * v);
  Places places;
  for (const Change& change : find_changes(values)) places.insert(change.at);
  return places;
}

std::optional<std::string> table_of(const std::string& folder) {
  std::set<std::filesystem::path> files;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) files.insert(entry.path());
  if (files.empty()) return std::nullopt;
  std::string table = "series\tpoints\tF1\tF1 BINSEG\tcover\tcover BINSEG\tchanges\tchanges BINSEG\n";
  std::array<Scores, 2> mean;
  for (const auto& file : files) {
    const auto json = nlohmann::json::parse(std::ifstream(file));
    const auto values = standardized(json.at("series").get<std::vector<double>>());
    std::vector<Places> annotators;
    for (const auto& annotator : json.at("annotations")) annotators.push_back(annotator.get<Places>());
    const std::array<Places, 2> found = {changes_of(values), binseg(values)};
    std::array<Scores, 2> scores;
    for (size_t i = 0; i < found.size(); ++i) {
      scores[i] = {f1_of(annotators, found[i]), cover_of(annotators, found[i], values.size())};
      mean[i].f1 += scores[i].f1 / static_cast<double>(files.size());
      mean[i].cover += scores[i].cover / static_cast<double>(files.size());
    }
    const auto places = [](const Places& all) { return all.empty() ? "-" : fmt::format("{}", fmt::join(all, " ")); };
    table += fmt::format("{}\t{}\t{:.3f}\t{:.3f}\t{:.3f}\t{:.3f}\t{}\t{}\n", json.at("name").get<std::string>(),
                         values.size(), scores[0].f1, scores[1].f1, scores[0].cover, scores[1].cover, places(found[0]),
                         places(found[1]));
  }
  return table + fmt::format("mean\t-\t{:.3f}\t{:.3f}\t{:.3f}\t{:.3f}\t-\t-\n", mean[0].f1, mean[1].f1, mean[0].cover,
                             mean[1].cover);
}

TEST(TcpdGolden, ScoresOfAnnotatedSeriesAreThoseListed) {
  const auto now = table_of(env_text("MBBENCH_TEST_DATA").value_or(MBB_SOURCE_DIR "/../shared/data") + "/cpd/tcpd");
  if (!now) GTEST_SKIP() << "the reference data is not beside the project (set MBBENCH_TEST_DATA)";
  std::fputs(now->c_str(), stdout);
  const auto listed = read_file(kTable);
  if (listed && *listed == *now) return;
  const auto copy = std::filesystem::path(testing::TempDir()) / fmt::format("tcpd_scores.{}.tsv", getpid());
  std::ofstream(copy) << *now;
  FAIL() << kTable << " is no longer what the table above says; if that is meant, look at each changed line and copy "
         << copy.string() << " over it";
}

// What BINSEG's cover of wandering series costs: years without a change, AR(1) between nights, heavy tails.
TEST(TcpdGolden, AWanderingYearIsNoChangeThoughBinsegShowsOne) {
  int shown = 0, shown_by_binseg = 0;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    SimulatedNoise noise(70000 + seed);
    const std::vector<double> series = wandering_series(365, 0.8, 0.004, noise);
    shown += find_changes(series).empty() ? 0 : 1;
    shown_by_binseg += binseg(standardized(series)).empty() ? 0 : 1;
  }
  fmt::print("years of 100 with a change that is none: {}, by BINSEG {}\n", shown, shown_by_binseg);
  EXPECT_LE(shown, 10) << "of 100 years at 5 % each";
  EXPECT_GE(shown_by_binseg, 50);
}

// The scores by hand: two annotators, of forty points.
TEST(TcpdGolden, ScoresAreThePapers) {
  const std::vector<Places> annotators = {{20}, {}};
  EXPECT_DOUBLE_EQ(f1_of(annotators, {24}), 1.0);
  EXPECT_DOUBLE_EQ(f1_of(annotators, {26}), 2 * 0.5 * 0.75 / 1.25) << "beyond the margin";
  EXPECT_DOUBLE_EQ(f1_of(annotators, {18, 24}), 2 * (2.0 / 3) / (2.0 / 3 + 1)) << "one annotation matches once";
  EXPECT_DOUBLE_EQ(cover_of(annotators, {}, 40), (0.5 + 1) / 2);
  EXPECT_DOUBLE_EQ(cover_of(annotators, {20}, 40), (1 + 0.5) / 2);
  EXPECT_DOUBLE_EQ(cover_of(annotators, {30}, 40), ((20.0 / 30 * 20 + 0.5 * 20) / 40 + 0.75) / 2);
}

}  // namespace
}  // namespace mbb::analysis
