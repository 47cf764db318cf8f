// The parts of a cut dimension, each divided evenly over the axis.
#include "trainer/run/unsharded_places.h"

#include <vector>

namespace mbb::trainer {
namespace {

int coordinate_on(Axis axis, const MeshCoordinates& c) {
  switch (axis) {
    case Axis::kTp: return c.tp;
    case Axis::kCp: return c.cp;
    case Axis::kDp: return c.dp;
    case Axis::kPp: return c.pp;
    case Axis::kEtp: return c.etp;
    case Axis::kEp: return c.ep;
    case Axis::kEdp: return c.edp;
  }
  return 0;
}

}  // namespace

UnshardedPlaces::UnshardedPlaces(const Tensor& tensor, const MeshCoordinates& coordinates) {
  if (tensor.cuts.empty()) return;
  rank_ = tensor.shape.rank();
  for (int d = 0; d < rank_; ++d) {
    dims_[static_cast<size_t>(d)].local = tensor.shape[d];
    dims_[static_cast<size_t>(d)].full = tensor.full_shape[d];
  }
  for (const Cut& cut : tensor.cuts) {
    Dimension& dim = dims_[static_cast<size_t>(cut.dim)];
    const std::vector<int64_t> whole{dim.full};
    const std::vector<int64_t>& parts = cut.parts.empty() ? whole : cut.parts;
    MB_CHECK(parts.size() <= kMaxParts, "a cut of more parts than a kernel takes: " + tensor.path);
    const int64_t ways = dim.full / dim.local, coordinate = coordinate_on(cut.axis, coordinates);
    dim.parts = static_cast<int>(parts.size());
    int64_t full_start = 0, local_start = 0;
    for (size_t p = 0; p < parts.size(); ++p) {
      const int64_t piece = parts[p] / ways;
      dim.shift[p] = full_start + coordinate * piece - local_start;
      full_start += parts[p];
      local_start += piece;
      dim.end[p] = local_start;
    }
    MB_CHECK(local_start == dim.local, "the parts of a cut are not its dimension: " + tensor.path);
  }
}

}  // namespace mbb::trainer
