// Natural merge sort: orders a concatenation of sorted runs in O(n log runs), which traces are (one run a track).
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace mbb::analysis {

template <typename T, typename Less>
void sort_runs(std::vector<T>& items, Less less) {
  std::vector<size_t> cuts = {0};
  for (size_t i = 1; i < items.size(); ++i)
    if (less(items[i], items[i - 1])) cuts.push_back(i);
  if (cuts.size() == 1) return;
  if (cuts.size() > items.size() / 8) {  // no runs to speak of: a plain sort is cheaper
    std::stable_sort(items.begin(), items.end(), less);
    return;
  }
  cuts.push_back(items.size());
  std::vector<T> merged(items.size());
  const auto at = [](auto& list, size_t i) { return list.begin() + static_cast<std::ptrdiff_t>(i); };
  while (cuts.size() > 2) {
    std::vector<size_t> next = {0};
    for (size_t i = 0; i + 1 < cuts.size(); i += 2) {
      const size_t middle = cuts[i + 1];
      const size_t end = i + 2 < cuts.size() ? cuts[i + 2] : middle;
      std::merge(at(items, cuts[i]), at(items, middle), at(items, middle), at(items, end), at(merged, cuts[i]), less);
      next.push_back(end);
    }
    items.swap(merged);
    cuts = std::move(next);
  }
}

}  // namespace mbb::analysis
