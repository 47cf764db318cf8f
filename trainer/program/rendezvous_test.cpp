// Stages do not wait in a circle where sends are not buffered; planted orders that would are found.
#include "trainer/program/rendezvous.h"

#include <algorithm>

#include "trainer/ops/message_peers.h"
#include "trainer/program/sample_programs_test.h"

namespace mbb::trainer {
namespace {

Status check(const Built& b) {
  return check_rendezvous(b.layout.mesh, b.programs.by_rank(b.layout.mesh));
}

Config pipeline(int pp, int vpp, bool overlap, int micro_batches) {
  Config config = mapped(1, pp, 1, int64_t{pp} * vpp);
  config.parallel.virtual_pipeline_model_parallel_size = vpp;
  config.overlap.overlap_p2p_comm = overlap;
  config.train.global_batch_size = micro_batches;
  return config;
}

void set_messages(StepPrograms& programs, void (*change)(Op&)) {
  for (Program& program : programs.programs)
    for (Segment& segment : program.segments)
      for (Op& op : segment.ops)
        if (sends(op) || receives(op)) change(op);
}

TEST(Rendezvous, StagesNeverWaitInACircle) {
  for (int pp : {2, 3, 4, 8})
    for (int vpp : {1, 2, 3})
      for (bool overlap : {false, true})
        for (int groups : {1, 3}) {
          const Status status = check(build(pipeline(pp, vpp, overlap, pp * groups)));
          EXPECT_TRUE(status.has_value()) << pp << " stages, " << vpp << " chunks, overlap " << overlap << ": "
                                          << (status ? "" : status.error().what);
        }
}

TEST(Rendezvous, ReceivesOfTheirOwnStreamsLetSendsTakeTheirTurn) {
  for (int pp : {2, 4, 8}) {
    Config config = pipeline(pp, 1, false, 2 * pp);
    config.overlap.batch_p2p_comm = false;
    EXPECT_TRUE(check(build(config)).has_value()) << pp << " stages";
  }
}

// Gathers of parameters and reductions of gradients do not come between the messages of a batch.
TEST(Rendezvous, FullyShardedStagesKeepTheirBatches) {
  for (const bool overlap : {false, true}) {
    Config config = mapped(1, 4, 2, 8);
    config.train.global_batch_size = 16;
    config.data_parallel.data_parallel_sharding_strategy = ShardingStrategy::kOptimGradsParams;
    config.data_parallel.overlap_param_gather = config.data_parallel.overlap_grad_reduce = overlap;
    const Status status = check(build(config));
    EXPECT_TRUE(status.has_value()) << status.error().what;
  }
}

// A send that waits on the stream its peer's receive also needs.
TEST(Rendezvous, UnbatchedMessagesInTheComputeStreamAreFound) {
  Built b = build(pipeline(2, 1, false, 4));
  set_messages(b.programs, [](Op& op) { std::get<CommAttrs>(op.attrs).form = MessageForm::kInTurn; });
  const Status status = check(b);
  ASSERT_FALSE(status.has_value());
  EXPECT_NE(status.error().what.find("in a circle: rank"), std::string::npos) << status.error().what;
}

// Why batches are refused there: a ring's first stage receives long before it computes.
TEST(Rendezvous, BatchesInARingAreFound) {
  Built b = build(pipeline(4, 2, false, 8));
  set_messages(b.programs, [](Op& op) {
    std::get<CommAttrs>(op.attrs).form = MessageForm::kBatched;
    op.stream = Stream::kCompute;
  });
  EXPECT_FALSE(check(b).has_value());
}

TEST(Rendezvous, OneStreamForBothEndsOfADirectionIsFoundInARing) {
  Built b = build(pipeline(4, 2, true, 8));
  set_messages(b.programs, [](Op& op) {
    if (op.stream == Stream::kPpSendForward) op.stream = Stream::kPpRecvForward;
  });
  EXPECT_FALSE(check(b).has_value());
}

}  // namespace
}  // namespace mbb::trainer
