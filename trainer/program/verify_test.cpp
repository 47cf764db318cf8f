// The verifier accepts what builders make and catches one planted fault of each kind.
#include "trainer/program/verify.h"

#include <algorithm>

#include "trainer/program/sample_programs_test.h"
#include "trainer/program/walk.h"

#include "trainer/ops/table.h"

namespace mbb::trainer {
namespace {

TEST(Verify, AcceptsWhatBuildersMake) {
  const uint32_t seed = std::random_device{}();
  std::mt19937 random(seed);
  for (int i = 0; i < 20; ++i) {
    const Built built = build(random_mapping(random));
    for (const Program& program : built.programs.programs) {
      const Status status = verify(program);
      ASSERT_TRUE(status.has_value()) << "seed " << seed << ": " << status.error().what;
    }
    const Status world = verify_world(built.layout.mesh, built.programs.by_rank(built.layout.mesh));
    ASSERT_TRUE(world.has_value()) << "seed " << seed << ", " << mapping_of(built) << ": " << world.error().what;
  }
}

class Planted : public testing::Test {
 protected:
  void SetUp() override { program_ = build(mapped(2, 2, 1)).programs.programs[0]; }

  Op& op(const std::string& path) {
    for (Segment& segment : program_.segments)
      for (Op& found : segment.ops)
        if (found.path == path) return found;
    ADD_FAILURE() << "no op " << path;
    return program_.segments[0].ops[0];
  }

  void expect_refused(const std::string& op_path, const std::string& reason) {
    const Status status = verify(program_);
    ASSERT_FALSE(status.has_value());
    EXPECT_EQ(status.error().code, ErrorCode::kMismatch);
    EXPECT_NE(status.error().what.find(op_path), std::string::npos) << status.error().what;
    EXPECT_NE(status.error().what.find(reason), std::string::npos) << status.error().what;
  }

  Program program_;
};

TEST_F(Planted, InputShapesThatDoNotFitTheOp) {
  Tensor weight = program_.tensor(op("layers.0.mlp.fc1.fwd").in[1]);
  weight.shape[1] /= 2;
  program_.tensors.push_back(weight);
  op("layers.0.mlp.fc1.fwd").in[1] = static_cast<TensorId>(program_.tensors.size() - 1);
  expect_refused("layers.0.mlp.fc1.fwd", "inner dimensions differ");
}

TEST_F(Planted, OutputShapeThatIsNotTheRecords) {
  program_.tensor(op("layers.1.attn.core.fwd").out[1]).shape[0] += 1;
  expect_refused("layers.1.attn.core.fwd", "where the record says");
}

TEST_F(Planted, AMissingOutput) {
  op("layers.1.attn.core.fwd").out.pop_back();
  expect_refused("layers.1.attn.core.fwd", "1 outputs where the record says 2");
}

TEST_F(Planted, TwoWriters) {
  Op again = op("layers.0.mlp.fc1.fwd");
  again.path += ".again";
  auto& ops = program_.segments[0].ops;
  const auto after = std::find_if(ops.begin(), ops.end(), [](const Op& o) { return o.path == "layers.0.mlp.fc1.fwd"; });
  ops.insert(after + 1, again);
  expect_refused("layers.0.mlp.fc1.fwd.again", "has a second writer");
}

TEST_F(Planted, AReadBeforeTheWrite) {
  auto& ops = program_.segments[0].ops;
  const auto norm = std::find_if(ops.begin(), ops.end(), [](const Op& o) { return o.path == "layers.0.mlp.norm.fwd"; });
  std::rotate(ops.begin(), norm, norm + 1);
  expect_refused("layers.0.mlp.norm.fwd", "before anything wrote it");
}

TEST_F(Planted, AReadBeforeTheWriteInOneKindOfMicroBatch) {
  // A value of one call, which goes the same way in all calls that run the same ops: each such kind is looked at.
  ASSERT_GE(program_.micro_batches, 2);
  auto& ops = program_.segments[0].ops;
  const auto in_call = [&](const Op& o) {
    if (o.out.empty()) return false;
    const TensorId out = o.out[0];
    const auto reads = [&](const Op& other) {
      return std::find(other.in.begin(), other.in.end(), out) != other.in.end();
    };
    const auto shares = [&](const Tensor& t) { return t.view_of == out; };
    return program_.tensor(out).scope == Scope::kCall && program_.tensor(out).view_of == kNoTensor &&
           std::any_of(ops.begin(), ops.end(), reads) &&
           std::none_of(program_.tensors.begin(), program_.tensors.end(), shares);
  };
  const auto writer = std::find_if(ops.begin(), ops.end(), in_call);
  ASSERT_NE(writer, ops.end());
  for (const When when : {When::kFirst, When::kNotFirst, When::kLast, When::kNotLast}) {
    writer->when = when;
    expect_refused("(", "before anything wrote it");
  }
  writer->when = When::kAlways;
  EXPECT_TRUE(verify(program_).has_value());
}

TEST_F(Planted, AReadOfAnotherMicroBatchsValue) {
  // The backward of each micro-batch before its forward.
  std::swap(program_.schedule[0], program_.schedule[2]);
  const Status status = verify(program_);
  ASSERT_FALSE(status.has_value());
  EXPECT_NE(status.error().what.find("before anything wrote it"), std::string::npos) << status.error().what;
}

TEST_F(Planted, ARingTooSmallForItsSchedule) {
  Tensor& kept = program_.tensor(op("layers.0.mlp.fc1.fwd").out[0]);
  ASSERT_EQ(kept.ring, 2);
  kept.ring = 1;
  expect_refused(".act.bwd", "took slot 0 of its 1");
}

TEST_F(Planted, AValueWhoseBytesWereTaken) {
  // The activation into fc2 is read again by fc2's wgrad: nobody may write over it.
  const TensorId act = op("layers.0.mlp.act.fwd").out[0];
  Op overwrite;
  overwrite.kind = &kAdd;
  overwrite.path = "layers.0.mlp.act.overwrite";
  Tensor alias = program_.tensor(act);
  alias.path = overwrite.path + ".out";
  alias.view_of = program_.storage(act);
  program_.tensors.push_back(alias);
  overwrite.in = {act, act};
  overwrite.attrs = NoAttrs{};
  overwrite.out = {static_cast<TensorId>(program_.tensors.size() - 1)};
  auto& ops = program_.segments[0].ops;
  const auto fc2 = std::find_if(ops.begin(), ops.end(), [](const Op& o) { return o.path == "layers.0.mlp.fc2.fwd"; });
  ops.insert(fc2, overwrite);
  expect_refused("layers.0.mlp.fc2.fwd", "after another value took its bytes");
}

TEST_F(Planted, APathTakenTwice) {
  op("layers.1.mlp.norm.fwd").path = "layers.0.mlp.norm.fwd";
  expect_refused("layers.0.mlp.norm.fwd", "path is taken in segment chunk0.forward");
}

TEST_F(Planted, OnePathMayServeOpsThatNeverRunTogether) {
  int first = 0;
  int later = 0;
  for (const Op& o : program_.segments[1].ops)
    if (o.path == "layers.0.mlp.fc1.wgrad") first += o.when == When::kFirst, later += o.when == When::kNotFirst;
  EXPECT_EQ(first, 1);
  EXPECT_EQ(later, 1);
  EXPECT_TRUE(verify(program_).has_value());
  for (Op& o : program_.segments[1].ops)
    if (o.path == "layers.0.mlp.fc1.wgrad" && o.when == When::kNotFirst) o.when = When::kNotLast;
  expect_refused("layers.0.mlp.fc1.wgrad", "path is taken");
}

TEST_F(Planted, AViewOutsideItsStorage) {
  const auto view = std::find_if(program_.tensors.begin(), program_.tensors.end(),
                                 [](const Tensor& t) { return t.path == "layers.1.mlp.fc2.weight"; });
  ASSERT_NE(view, program_.tensors.end());
  view->view_offset_bytes = program_.tensor(view->view_of).bytes() - view->bytes() + 1;
  expect_refused("layers.1.mlp.fc2.weight", "does not lie inside bucket0.weights");
  view->view_offset_bytes = -1;
  expect_refused("layers.1.mlp.fc2.weight", "does not lie inside bucket0.weights");
}

TEST_F(Planted, AViewOfAView) {
  const TensorId view = op("layers.1.mlp.fc2.fwd").in[1];
  Tensor& other = program_.tensor(op("layers.0.mlp.fc2.fwd").in[1]);
  other.view_of = view;
  other.view_offset_bytes = 0;
  expect_refused("layers.0.mlp.fc2.weight", "does not lie inside");
}

// One rank of a world runs a program of its own with a fault in it.
class PlantedInWorld : public testing::Test {
 protected:
  void SetUp() override {
    built_ = build(mapped(2, 2, 2));
    by_rank_ = built_.programs.by_rank(built_.layout.mesh);
    ASSERT_TRUE(verify_world(built_.layout.mesh, by_rank_).has_value());
  }

  Program& faulty(int rank) {
    faulty_ = *by_rank_[static_cast<size_t>(rank)];
    by_rank_[static_cast<size_t>(rank)] = &faulty_;
    return faulty_;
  }

  void expect_refused(const std::string& reason) {
    const Status status = verify_world(built_.layout.mesh, by_rank_);
    ASSERT_FALSE(status.has_value());
    EXPECT_EQ(status.error().code, ErrorCode::kMismatch);
    EXPECT_NE(status.error().what.find(reason), std::string::npos) << status.error().what;
  }

  static std::vector<Op>::iterator find(std::vector<Op>& ops, const std::string& path) {
    const auto found = std::find_if(ops.begin(), ops.end(), [&](const Op& op) { return op.path == path; });
    if (found != ops.end()) return found;
    ADD_FAILURE() << "no op " << path;
    return ops.begin();
  }

  Built built_;
  std::vector<const Program*> by_rank_;
  Program faulty_;
};

TEST_F(PlantedInWorld, CollectivesInAnotherOrder) {
  auto& ops = faulty(0).segments[0].ops;
  // The first scatter and the first gather of TP swap places.
  std::iter_swap(find(ops, "embedding.reduce_scatter.fwd"), find(ops, "layers.0.attn.qkv.all_gather.fwd"));
  expect_refused("calls all_gather of");
}

TEST_F(PlantedInWorld, ACollectiveOfAnotherSize) {
  Program& p = faulty(0);
  p.tensor(find(p.segments[0].ops, "layers.0.attn.qkv.all_gather.fwd")->in[0]).dtype = DType::kF64;
  expect_refused("layers.0.attn.qkv.all_gather.fwd");
}

TEST_F(PlantedInWorld, OneCollectiveLess) {
  auto& ops = faulty(1).segments[1].ops;
  ops.erase(find(ops, "layers.0.attn.qkv.all_gather.regather"));
  expect_refused("group tp");
}

TEST_F(PlantedInWorld, ARankThatCallsNoneOfAGroupsCollectives) {
  Program& p = faulty(1);
  for (Segment& segment : p.segments)
    std::erase_if(segment.ops, [](const Op& op) {
      return op.kind->communicates && std::get<CommAttrs>(op.attrs).group == GroupKind::kDpCp;
    });
  expect_refused("group dp_cp: 1 of its 2 members");
}

TEST_F(PlantedInWorld, AMissingReceive) {
  auto& ops = faulty(built_.layout.mesh.world_size() - 1).segments[0].ops;
  ops.erase(find(ops, "pipeline.recv.fwd"));
  expect_refused("0 on the other side");
}

TEST_F(PlantedInWorld, AMessageOfAnotherSize) {
  Program& p = faulty(built_.layout.mesh.world_size() - 1);
  p.tensor(find(p.segments[0].ops, "pipeline.recv.fwd")->out[0]).dtype = DType::kF64;
  expect_refused("bytes at pipeline.");
}

TEST_F(PlantedInWorld, ASendBeyondTheLastStage) {
  auto& ops = faulty(built_.layout.mesh.world_size() - 1).segments[1].ops;
  std::get<CommAttrs>(find(ops, "pipeline.recv.send_grad")->attrs).direction = Direction::kForward;
  expect_refused("has no next stage to send to");
}

TEST_F(PlantedInWorld, AReceiveBeforeTheFirstStage) {
  auto& ops = faulty(0).segments[1].ops;
  std::get<CommAttrs>(find(ops, "pipeline.send.recv_grad")->attrs).direction = Direction::kForward;
  expect_refused("has no previous stage to receive from");
}

}  // namespace
}  // namespace mbb::trainer
