// Op lists taken apart and joined.
#include "trainer/passes/op_lists.h"

#include <iterator>

namespace mbb::trainer {

std::vector<Op> build_aside(Builder& b, int segment, const std::function<void()>& emit) {
  const int entered = b.segment();
  b.enter(segment);
  const auto before = static_cast<std::ptrdiff_t>(b.ops().size());
  emit();
  std::vector<Op> built(std::make_move_iterator(b.ops().begin() + before), std::make_move_iterator(b.ops().end()));
  b.ops().erase(b.ops().begin() + before, b.ops().end());
  b.enter(entered);
  return built;
}

void Insertions::before(size_t position, std::vector<Op> ops) {
  std::vector<Op>& at = ops_[position];
  at.insert(at.end(), std::make_move_iterator(ops.begin()), std::make_move_iterator(ops.end()));
}

void Insertions::apply(Segment& segment) {
  std::vector<Op> joined;
  for (size_t i = 0; i <= segment.ops.size(); ++i) {
    if (const auto found = ops_.find(i); found != ops_.end())
      joined.insert(joined.end(), std::make_move_iterator(found->second.begin()),
                    std::make_move_iterator(found->second.end()));
    if (i < segment.ops.size()) joined.push_back(std::move(segment.ops[i]));
  }
  segment.ops = std::move(joined);
  ops_.clear();
}

bool gives_weight_gradients_only(const Program& program, const Op& op) {
  return op.role == Role::kWgrad && std::all_of(op.out.begin(), op.out.end(), [&](TensorId id) {
           return program.tensor(id).category == Category::kMainGrad;
         });
}

}  // namespace mbb::trainer
