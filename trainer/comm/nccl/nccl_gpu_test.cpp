// NCCL's calls as the communicators make them, on a group of one rank: what one GPU can show of them.
#include <array>
#include <numeric>

#include "trainer/comm/local/run_ranks.h"
#include "trainer/comm/nccl/nccl_communicator.h"
#include "trainer/ops/cuda/gpu_fixture_test.h"

namespace mbb::trainer::cuda {
namespace {

class Nccl : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    const auto api = nccl_api();
    if (!api) GTEST_SKIP() << api.error().what;
    api_ = *api;
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
  }
  void TearDown() override {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
    GpuTest::TearDown();
  }

  // A world of one rank with its communicator.
  void alone(const std::function<void(NcclProcess&, NcclCommunicator&)>& test) {
    const Status ran = run_ranks(1, [&](World& world) -> Status {
      NcclProcess process(*api_, world, [this] { return stream_; });
      ncclUniqueId id{};
      MB_TRY(api_->good(api_->unique_id(&id), "an id"));
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 1;
      NcclComms comms;
      const ncclResult_t begun = api_->init(&comms.main, 1, id, 0, &config);
      process.keep(comms.main);
      MB_TRY(process.finish(begun, comms.main, "a world of one"));
      NcclCommunicator communicator(process, comms, GroupKind::kWorld, 0, {0});
      test(process, communicator);
      return {};
    });
    EXPECT_TRUE(ran.has_value()) << (ran ? "" : format(ran.error()));
  }

  const NcclApi* api_ = nullptr;
  cudaStream_t stream_ = nullptr;
};

TEST_F(Nccl, CollectivesOfOneRankGiveWhatWentIn) {
  alone([&](NcclProcess&, NcclCommunicator& c) {
    Tensor in = Tensor::random(Element::kF32, 1000, random_);
    for (const CommOp op : {CommOp::kAllGather, CommOp::kReduceScatter, CommOp::kAllReduce, CommOp::kBroadcast,
                            CommOp::kAllToAll, CommOp::kAllToAllV}) {
      SCOPED_TRACE(name(op));
      Tensor out(Element::kF32, 1000);
      const std::array<size_t, 1> counts{1000};
      const bool varying = op == CommOp::kAllToAllV;
      CommCall call{.op = op, .send = in.get(), .recv = out.get(), .count = varying ? 0U : 1000U, .dtype = DType::kF32};
      call.root = op == CommOp::kBroadcast ? 0 : -1;
      if (varying) call.send_counts = call.recv_counts = counts;
      expect_ok(c.run(call));
      ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
      EXPECT_EQ(out.pull(), in.host());
    }
    // Types that NCCL does not know travel as bytes, and are not summed.
    DeviceBytes bytes(16), moved(16);
    std::array<uint8_t, 16> values{}, got{};
    std::iota(values.begin(), values.end(), uint8_t{0x70});
    bytes.upload(values.data());
    expect_ok(c.run(
        {.op = CommOp::kAllGather, .send = bytes.get(), .recv = moved.get(), .count = 16, .dtype = DType::kE4M3}));
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    moved.download(got.data());
    EXPECT_EQ(got, values);
    EXPECT_FALSE(c.run(
        {.op = CommOp::kAllReduce, .send = bytes.get(), .recv = moved.get(), .count = 16, .dtype = DType::kE4M3}));
  });
}

TEST_F(Nccl, MessagesToOneselfProgressTogetherAlsoInABatch) {
  alone([&](NcclProcess& process, NcclCommunicator& c) {
    Tensor in = Tensor::random(Element::kF32, 100, random_), out(Element::kF32, 100);
    const std::array<P2p, 2> parts{P2p{P2p::Kind::kSend, 0, PipeDirection::kForward, in.get(), 100, DType::kF32},
                                   P2p{P2p::Kind::kRecv, 0, PipeDirection::kForward, out.get(), 100, DType::kF32}};
    expect_ok(c.exchange(parts));
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    EXPECT_EQ(out.pull(), in.host());
    Tensor later(Element::kF32, 100);
    process.batching = true;
    expect_ok(api_->good(api_->group_start(), "a batch"));
    expect_ok(c.send(in.get(), 100, DType::kF32, 0, PipeDirection::kForward));
    expect_ok(c.recv(later.get(), 100, DType::kF32, 0, PipeDirection::kForward));
    process.batching = false;
    static_cast<void>(api_->group_end());
    expect_ok(process.settle_all("a batch"));
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    EXPECT_EQ(later.pull(), in.host());
  });
}

TEST_F(Nccl, CallsAreCapturedAndReplayed) {
  alone([&](NcclProcess&, NcclCommunicator& c) {
    Tensor in = Tensor::random(Element::kF32, 500, random_), out(Element::kF32, 500);
    const CommCall call{
        .op = CommOp::kAllReduce, .send = in.get(), .recv = out.get(), .count = 500, .dtype = DType::kF32};
    expect_ok(c.run(call));
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    const Status captured = c.run(call);
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
    expect_ok(captured);
    cudaGraphExec_t replay = nullptr;
    ASSERT_EQ(cudaGraphInstantiate(&replay, graph, 0), cudaSuccess);
    for (float& v : in.host()) v += 1.0f;
    in.push();
    ASSERT_EQ(cudaGraphLaunch(replay, stream_), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    EXPECT_EQ(out.pull(), in.host());
    cudaGraphExecDestroy(replay);
    cudaGraphDestroy(graph);
  });
}

TEST_F(Nccl, AfterAnAbortTheCommunicatorsSaySo) {
  alone([&](NcclProcess& process, NcclCommunicator&) {
    expect_ok(process.check());
    process.abort();
    const Status status = process.check();
    ASSERT_FALSE(status.has_value());
    EXPECT_NE(status.error().what.find("aborted"), std::string::npos);
  });
}

// The world's communicator and its splits, as a run opens them.
TEST_F(Nccl, GroupsOfAWorldOfOneAreOpened) {
  const Status ran = run_ranks(1, [&](World& world) -> Status {
    MB_ASSIGN(const auto groups, NcclGroups::open(world, [this] { return stream_; }));
    for (const GroupKind kind : {GroupKind::kTp, GroupKind::kPp, GroupKind::kDpCp, GroupKind::kModel}) {
      MB_ASSIGN(const auto group, groups->group(kind, Mesh(), {.max_ctas = 4, .cga_size = 2}));
      EXPECT_EQ(group->size(), 1);
    }
    return groups->check();
  });
  EXPECT_TRUE(ran.has_value()) << (ran ? "" : format(ran.error()));
}

}  // namespace
}  // namespace mbb::trainer::cuda
