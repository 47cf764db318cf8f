// Inboxes, and the stream's memory operations that guard them.
#include "trainer/comm/nccl/copy_exchange.h"

#include <cudaTypedefs.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <thread>

#include "profiler/base/check.h"
#include "trainer/ops/cuda/comm_kernels.h"
#include "trainer/ops/cuda/driver_entry.h"
#include "trainer/ops/cuda/status.h"

namespace mbb::trainer::cuda {
namespace {

constexpr size_t kLine = 256;  // words of two peers never share one

PFN_cuStreamBatchMemOp_v11070 memory_operations() {
  static const auto found = driver_entry<PFN_cuStreamBatchMemOp_v11070>("cuStreamBatchMemOp", 11070);
  return found;
}

CUstreamBatchMemOpParams operation(CUstreamBatchMemOpType what, const uint32_t* word, uint32_t value) {
  CUstreamBatchMemOpParams p{};
  const auto address = static_cast<CUdeviceptr>(reinterpret_cast<uintptr_t>(word));
  if (what == CU_STREAM_MEM_OP_WAIT_VALUE_32) {
    p.waitValue.operation = what;
    p.waitValue.address = address;
    p.waitValue.value = value;
    p.waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
  } else {
    p.writeValue.operation = what;
    p.writeValue.address = address;
    p.writeValue.value = value;
    p.writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;  // after all that the stream did before
  }
  return p;
}

Status enqueue(std::span<CUstreamBatchMemOpParams> operations, cudaStream_t stream, const char* doing) {
  const CUresult status = memory_operations()(stream, static_cast<unsigned>(operations.size()), operations.data(), 0);
  if (status == CUDA_SUCCESS) return {};
  return fail(ErrorCode::kUnavailable, fmt::format("{}: CUDA driver error {}", doing, static_cast<int>(status)));
}

// What a member tells the others: how to map its memory, or that they cannot.
struct Card {
  cudaIpcMemHandle_t handle{};
  std::array<char, 64> trouble{};  // empty: none
};

void complain(Card& card, const char* doing, cudaError_t status) {
  const std::string text = fmt::format("{}: {}", doing, cudaGetErrorName(status));
  std::strncpy(card.trouble.data(), text.c_str(), card.trouble.size() - 1);
  cudaGetLastError();
}

std::string first_trouble(const std::vector<Card>& cards, std::span<const int> members) {
  for (size_t m = 0; m < cards.size(); ++m)
    if (cards[m].trouble[0] != '\0') return fmt::format("rank {}, {}", members[m], cards[m].trouble.data());
  return {};
}

}  // namespace

std::byte* CopyExchange::inbox(int whose, int of) const {
  return memory_[static_cast<size_t>(whose)] + 2 * kLine * static_cast<size_t>(host_->size()) +
         slot_ * static_cast<size_t>(of < whose ? of : of - 1);  // none for oneself
}
int64_t CopyExchange::bytes() const {
  const auto members = static_cast<size_t>(host_->size());
  return static_cast<int64_t>(2 * kLine * members + slot_ * (members - 1));
}
uint32_t* CopyExchange::full(int whose, int of) const {
  return reinterpret_cast<uint32_t*>(memory_[static_cast<size_t>(whose)] + 2 * kLine * static_cast<size_t>(of));
}
uint32_t* CopyExchange::empty(int whose, int of) const {
  return reinterpret_cast<uint32_t*>(memory_[static_cast<size_t>(whose)] + 2 * kLine * static_cast<size_t>(of) + kLine);
}

Status CopyExchange::allocate(size_t largest) {
  const auto members = static_cast<size_t>(host_->size());
  const int me = host_->rank();
  slot_ = (largest + kLine - 1) / kLine * kLine;
  memory_.assign(members, nullptr);
  void* own = nullptr;
  MB_TRY(ok(cudaMalloc(&own, static_cast<size_t>(bytes())), "allocating inboxes of messages by copy engines"));
  memory_[static_cast<size_t>(me)] = static_cast<std::byte*>(own);
  MB_TRY(ok(cudaMemset(own, 0, 2 * kLine * members), "clearing inboxes"));
  const uint32_t taken = 1;
  for (int peer = 0; peer < host_->size(); ++peer)
    MB_TRY(ok(cudaMemcpy(empty(me, peer), &taken, sizeof taken, cudaMemcpyHostToDevice), "opening inboxes"));
  return ok(cudaDeviceSynchronize(), "opening inboxes");
}

Result<std::unique_ptr<CopyExchange>> CopyExchange::open(std::unique_ptr<Communicator> host, size_t largest,
                                                         std::string* why) {
  std::unique_ptr<CopyExchange> made(new CopyExchange(std::move(host)));
  Communicator& members = *made->host_;
  MB_TRY(made->allocate(largest));
  const auto me = static_cast<size_t>(members.rank());
  // Two rounds: all tell how their memory is mapped, then whether they could map the others'.
  std::vector<Card> cards(static_cast<size_t>(members.size()));
  const auto tell = [&](Card mine) { return members.all_gather(&mine, cards.data(), sizeof mine, DType::kU8); };
  Card mine;
  if (memory_operations() == nullptr) complain(mine, "memory operations of streams", cudaErrorNotSupported);
  if (const cudaError_t status = cudaIpcGetMemHandle(&mine.handle, made->memory_[me]); status != cudaSuccess)
    complain(mine, "letting its memory be mapped", status);
  MB_TRY(tell(mine));
  std::string trouble = first_trouble(cards, members.members());
  if (trouble.empty()) {
    for (size_t peer = 0; peer < cards.size(); ++peer) {
      if (peer == me) continue;
      void* mapped = nullptr;
      const cudaError_t status = cudaIpcOpenMemHandle(&mapped, cards[peer].handle, cudaIpcMemLazyEnablePeerAccess);
      if (status != cudaSuccess) complain(mine, "mapping another's memory", status);
      made->memory_[peer] = static_cast<std::byte*>(mapped);
    }
    MB_TRY(tell(mine));
    trouble = first_trouble(cards, members.members());
  }
  if (trouble.empty()) return made;
  if (why != nullptr) *why = trouble;
  return std::unique_ptr<CopyExchange>();
}

CopyExchange::~CopyExchange() {
  (void)cudaDeviceSynchronize();
  const bool together = host_->barrier().has_value();  // nobody unmaps what another still writes
  const auto me = static_cast<size_t>(host_->rank());
  for (size_t peer = 0; peer < memory_.size(); ++peer)
    if (peer != me && memory_[peer] != nullptr) cudaIpcCloseMemHandle(memory_[peer]);
  if (together) (void)host_->barrier();  // nor frees what another still maps
  if (!memory_.empty()) cudaFree(memory_[me]);
}

Status CopyExchange::wait_and_clear(uint32_t* word, cudaStream_t stream, const char* doing) const {
  std::array both{operation(CU_STREAM_MEM_OP_WAIT_VALUE_32, word, 1),
                  operation(CU_STREAM_MEM_OP_WRITE_VALUE_32, word, 0)};
  return enqueue(both, stream, doing);
}

Status CopyExchange::mark(uint32_t* word, cudaStream_t stream, const char* doing) const {
  std::array one{operation(CU_STREAM_MEM_OP_WRITE_VALUE_32, word, 1)};
  return enqueue(one, stream, doing);
}

Status CopyExchange::exchange(std::span<const P2p> parts, cudaStream_t stream) {
  const int me = host_->rank();
  for (const P2p& part : parts) {
    const size_t bytes = bytes_of(part.dtype, part.count);
    if (part.kind != P2p::Kind::kSend || bytes == 0) continue;
    MB_CHECK(bytes <= slot_, "a message is larger than its inbox");
    MB_TRY(wait_and_clear(empty(me, part.peer), stream, "waiting for an empty inbox"));
    MB_TRY(ok(cudaMemcpyAsync(inbox(part.peer, me), part.buffer, bytes, cudaMemcpyDeviceToDevice, stream),
              "sending by a copy engine"));
    MB_TRY(mark(full(part.peer, me), stream, "marking an inbox full"));
  }
  for (const P2p& part : parts) {
    const size_t bytes = bytes_of(part.dtype, part.count);
    if (part.kind != P2p::Kind::kRecv || bytes == 0) continue;
    MB_TRY(wait_and_clear(full(me, part.peer), stream, "waiting for a full inbox"));
    MB_TRY(ok(cudaMemcpyAsync(part.buffer, inbox(me, part.peer), bytes, cudaMemcpyDeviceToDevice, stream),
              "taking a message from its inbox"));
    MB_TRY(mark(empty(part.peer, me), stream, "marking an inbox empty"));
  }
  return {};
}

Status CopyExchange::reduce_scatter(const CommCall& call, cudaStream_t stream) {
  const int me = host_->rank(), members = host_->size();
  const size_t element = bytes_of(call.dtype, 1), piece = slot_ / element;
  const auto part_of = [&](int member, size_t first) {
    return static_cast<const std::byte*>(call.send) + element * (static_cast<size_t>(member) * call.count + first);
  };
  for (size_t first = 0; first < call.count; first += piece) {
    const size_t count = std::min(piece, call.count - first);
    for (int step = 1; step < members; ++step) {
      const int peer = (me + step) % members;
      MB_TRY(wait_and_clear(empty(me, peer), stream, "waiting for an empty inbox"));
      MB_TRY(
          ok(cudaMemcpyAsync(inbox(peer, me), part_of(peer, first), element * count, cudaMemcpyDeviceToDevice, stream),
             "sending a part by a copy engine"));
      MB_TRY(mark(full(peer, me), stream, "marking an inbox full"));
    }
    std::vector<const void*> parts;
    for (int peer = 0; peer < members; ++peer) {
      if (peer != me) MB_TRY(wait_and_clear(full(me, peer), stream, "waiting for a full inbox"));
      parts.push_back(peer == me ? part_of(me, first) : inbox(me, peer));
    }
    void* const sum = static_cast<std::byte*>(call.recv) + element * first;
    Launch launch;
    launch.stream = stream;
    MB_TRY(reduce_members(call.dtype, call.reduce, parts, {&sum, 1}, 0, static_cast<int64_t>(count), launch));
    for (int step = 1; step < members; ++step)
      MB_TRY(mark(empty((me + step) % members, me), stream, "marking an inbox empty"));
  }
  return {};
}

void CopyExchange::release(cudaStream_t stream) {
  cudaStream_t other = nullptr;
  if (cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking) != cudaSuccess) return;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  const int me = host_->rank();
  bool well = true;
  while (well && cudaStreamQuery(stream) == cudaErrorNotReady && std::chrono::steady_clock::now() < end) {
    for (int peer = 0; peer < host_->size() && well; ++peer)
      well = mark(full(me, peer), other, "releasing") && mark(empty(me, peer), other, "releasing");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  cudaStreamDestroy(other);
}

}  // namespace mbb::trainer::cuda
