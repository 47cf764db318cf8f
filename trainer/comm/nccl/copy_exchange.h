// Messages between GPUs of one host by copy engines: no SM takes part, so that products beside them keep all of theirs.
//
// Each member has one allocation that the others map (CUDA IPC): an inbox for every other member, and two words for
// each. A sender waits until its inbox at the receiver is empty, copies and marks it full; the receiver waits for that,
// copies out and marks it empty. Waits and marks are memory operations of the stream: calls enqueue and return, and may
// be captured, since each leaves the words as it found them. Between two members messages keep their order on one
// stream; over several streams they have none.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trainer/comm/communicator.h"

namespace mbb::trainer::cuda {

class CopyExchange {
 public:
  // All members call it, each with its own device current, `host` being their group on the host, and the largest
  // message in bytes. Null on all of them where one cannot map the memory of another; `why` then says which.
  static Result<std::unique_ptr<CopyExchange>> open(std::unique_ptr<Communicator> host, size_t largest,
                                                    std::string* why);
  // Waits for the other members, unless the world is ending.
  ~CopyExchange();
  CopyExchange(const CopyExchange&) = delete;
  CopyExchange& operator=(const CopyExchange&) = delete;

  // Sends, then receives; of a span's parts no two may have the same peer and kind.
  Status exchange(std::span<const P2p> parts, cudaStream_t stream);
  // As Communicator::reduce_scatter(): parts travel through the inboxes in pieces of `largest`, and a kernel sums them
  // in the members' order, in fp64 or wrapping integers, rounded once. It takes all SMs for a short time: a product
  // beside it that loses a few waits for its last tiles as long as one that loses many.
  Status reduce_scatter(const CommCall& call, cudaStream_t stream);
  // What waits on the device goes on, with whatever lies there: for a rank that ends. Until `stream` is done, or 2 s.
  void release(cudaStream_t stream);
  // Of this member's allocation.
  int64_t bytes() const;

 private:
  explicit CopyExchange(std::unique_ptr<Communicator> host) : host_(std::move(host)) {}
  Status allocate(size_t largest);
  // Of member `whose`'s allocation: the inbox that `of` sends into, the word that says it is full, and the word that
  // says that whose's message to `of` has been taken.
  std::byte* inbox(int whose, int of) const;
  uint32_t* full(int whose, int of) const;
  uint32_t* empty(int whose, int of) const;
  Status wait_and_clear(uint32_t* word, cudaStream_t stream, const char* doing) const;
  Status mark(uint32_t* word, cudaStream_t stream, const char* doing) const;

  std::unique_ptr<Communicator> host_;
  std::vector<std::byte*> memory_;  // by member; mapped but one's own
  size_t slot_ = 0;                 // bytes of an inbox
};

}  // namespace mbb::trainer::cuda
